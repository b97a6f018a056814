#include "runner/environment.h"

#include <algorithm>
#include <initializer_list>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "text/names.h"

namespace memledger::environment {
namespace {

std::string text_of(const Lookup& lookup, const char* name) {
  const char* const value = lookup(name);
  return value == nullptr ? "" : value;
}

bool is_on(const std::string& value) { return !value.empty() && value != "0"; }

std::string right_text_of(const Lookup& lookup, const char* name) {
  std::string value = text_of(lookup, name);
  return why_wrong(name, value).empty() ? value : "";
}

std::optional<int> to_number(std::string_view text) {
  int number = 0;
  if (!absl::SimpleAtoi(absl::string_view(text.data(), text.size()), &number)) return std::nullopt;
  return number;
}

std::optional<int> number_of(const Lookup& lookup, const char* name) {
  return to_number(text_of(lookup, name));
}

bool is_one_of(std::string_view value, std::initializer_list<std::string_view> values) {
  return std::find(values.begin(), values.end(), value) != values.end();
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
  if (settings.report_near) result.push_back({kReportNear, std::to_string(*settings.report_near)});
  if (settings.training_paused) result.push_back({kTrainingPaused, "1"});
  if (settings.process != 0) result.push_back({kProcess, std::to_string(settings.process)});
  if (!settings.folder.empty()) result.push_back({kFolder, settings.folder});
  result.push_back({kOutputs, settings.outputs.empty()
                                  ? std::nullopt
                                  : std::optional<std::string>(settings.outputs)});
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
  result.stacks = right_text_of(lookup, kStacks);
  result.detail = right_text_of(lookup, kDetail);
  result.report_on = right_text_of(lookup, kReportOn);
  result.report_near = to_number(right_text_of(lookup, kReportNear));
  result.training_paused = is_on(text_of(lookup, kTrainingPaused));
  result.process = number_of(lookup, kProcess).value_or(0);
  result.folder = text_of(lookup, kFolder);
  result.outputs = text_of(lookup, kOutputs);
  LineSettings& lines = result.lines;
  lines.functions = lines_of(text_of(lookup, kLines));
  if (lines.functions.empty()) return result;
  lines.columns = lines_of(text_of(lookup, kLinesColumns));
  lines.gpu = to_number(right_text_of(lookup, kLinesGpu));
  lines.text_file = text_of(lookup, kLinesText);
  lines.json_file = text_of(lookup, kLinesJson);
  lines.html_file = text_of(lookup, kLinesHtml);
  return result;
}

std::vector<std::string> report_endings() { return {".json", ".html", ".htm", ".csv", ".txt"}; }

std::vector<std::string> timeline_endings() { return {".json", ".pickle", ".pkl"}; }

std::string why_no_format(std::string_view path, const std::vector<std::string>& endings) {
  const std::string ending = file_ending(path);
  if (ending.empty() || std::find(endings.begin(), endings.end(), ending) != endings.end())
    return "";
  const std::string others = absl::StrJoin(endings.begin(), endings.end() - 1, ", ");
  return absl::StrCat("the name ends in ", ending, ", which is none of its formats: ", others,
                      others.empty() ? "" : " or ", endings.back());
}

std::string why_wrong(const char* variable, std::string_view value) {
  const std::string_view name = variable;
  if (value.empty()) return "";
  if (name == kSaveReport) return why_no_format(value, report_endings());
  if (name == kTimeline) return why_no_format(value, timeline_endings());
  if (name == kStacks)
    return is_one_of(value, {"off", "sampled", "all"}) ? "" : "it is off, sampled or all";
  if (name == kDetail) return is_one_of(value, {"all", "names"}) ? "" : "it is all or names";
  if (name == kReportOn)
    return is_one_of(value, {"SIGUSR1", "SIGUSR2"}) ? "" : "it is SIGUSR1 or SIGUSR2";
  const std::optional<int> number = to_number(value);
  if (name == kReportNear && (!number || *number < 0 || *number > 100))
    return "it is a number of percent, from 0 to 100";
  if (name == kLinesGpu && (!number || *number < 0 || *number >= kMaxGpus))
    return absl::StrCat("a GPU is a number from 0 to ", kMaxGpus - 1);
  return "";
}

std::vector<std::string> wrong_variables(const Lookup& lookup) {
  std::vector<std::string> lines;
  for (const char* const name :
       {kSaveReport, kTimeline, kStacks, kDetail, kReportOn, kReportNear, kLinesGpu}) {
    const std::string value = text_of(lookup, name);
    const std::string why = why_wrong(name, value);
    if (!why.empty()) lines.push_back(absl::StrCat(name, "=", value, ": ", why));
  }
  return lines;
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
