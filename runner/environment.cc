#include "runner/environment.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace memledger::environment {
namespace {

std::string text_of(const Lookup& lookup, const char* name) {
  const char* const value = lookup(name);
  return value == nullptr ? "" : value;
}

bool is_on(const std::string& value) { return !value.empty() && value != "0"; }

std::optional<int> number_of(const Lookup& lookup, const char* name) {
  int number = 0;
  if (!absl::SimpleAtoi(text_of(lookup, name), &number)) return std::nullopt;
  return number;
}

std::vector<std::string> lines_of(const std::string& text) {
  return absl::StrSplit(text, '\n', absl::SkipEmpty());
}

Variable flag(const char* name, bool is_on) {
  return {name, is_on ? std::optional<std::string>("1") : std::nullopt};
}

}  // namespace

std::vector<Variable> format(const Settings& settings) {
  std::vector<Variable> result = {flag(kReport, settings.report), flag(kQuiet, settings.quiet)};
  if (settings.report && settings.full_report) result.front().value = kFullReport;
  const LineSettings& lines = settings.lines;
  if (lines.functions.empty()) {
    result.push_back({kLines, std::nullopt});
  } else {
    result.push_back({kLines, absl::StrJoin(lines.functions, "\n")});
    result.push_back({kLinesColumns, absl::StrJoin(lines.columns, "\n")});
    result.push_back({kLinesGpu, lines.gpu ? std::to_string(*lines.gpu) : ""});
    result.push_back({kLinesText, lines.text_file});
    result.push_back({kLinesJson, lines.json_file});
    result.push_back({kLinesHtml, lines.html_file});
  }
  if (!settings.log_folder.empty()) result.push_back({kLog, settings.log_folder});
  if (!settings.saved_report.empty()) result.push_back({kSaveReport, settings.saved_report});
  if (!settings.timeline.empty()) result.push_back({kTimeline, settings.timeline});
  if (!settings.stacks.empty()) result.push_back({kStacks, settings.stacks});
  if (!settings.detail.empty()) result.push_back({kDetail, settings.detail});
  if (!settings.report_on.empty()) result.push_back({kReportOn, settings.report_on});
  if (settings.report_near != kDefaultReportNear)
    result.push_back({kReportNear, std::to_string(settings.report_near)});
  if (settings.process != 0) result.push_back({kProcess, std::to_string(settings.process)});
  if (!settings.folder.empty()) result.push_back({kFolder, settings.folder});
  return result;
}

Settings parse(const Lookup& lookup) {
  Settings result;
  result.report = is_on(text_of(lookup, kReport));
  result.full_report = text_of(lookup, kReport) == kFullReport;
  result.quiet = is_on(text_of(lookup, kQuiet));
  result.log_folder = text_of(lookup, kLog);
  result.saved_report = text_of(lookup, kSaveReport);
  result.timeline = text_of(lookup, kTimeline);
  result.stacks = text_of(lookup, kStacks);
  result.detail = text_of(lookup, kDetail);
  result.report_on = text_of(lookup, kReportOn);
  result.report_near = number_of(lookup, kReportNear).value_or(kDefaultReportNear);
  result.process = number_of(lookup, kProcess).value_or(0);
  result.folder = text_of(lookup, kFolder);
  LineSettings& lines = result.lines;
  lines.functions = lines_of(text_of(lookup, kLines));
  if (lines.functions.empty()) return result;
  lines.columns = lines_of(text_of(lookup, kLinesColumns));
  lines.gpu = number_of(lookup, kLinesGpu);
  lines.text_file = text_of(lookup, kLinesText);
  lines.json_file = text_of(lookup, kLinesJson);
  lines.html_file = text_of(lookup, kLinesHtml);
  return result;
}

int rank(const Lookup& lookup) {
  for (const char* const name : {"RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"}) {
    if (const std::optional<int> number = number_of(lookup, name)) return *number;
  }
  return 0;
}

std::string expand(std::string_view path, int rank, int process) {
  std::string result;
  for (size_t i = 0; i < path.size(); ++i) {
    const char next = path[i] == '%' && i + 1 < path.size() ? path[i + 1] : '\0';
    switch (next) {
      case 'r':
        result += std::to_string(rank);
        break;
      case 'p':
        result += std::to_string(process);
        break;
      case '%':
        result += '%';
        break;
      default:
        result += path[i];
        continue;
    }
    ++i;
  }
  return result;
}

}  // namespace memledger::environment
