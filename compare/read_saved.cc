#include "compare/read_saved.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "compare/json_object.h"
#include "compare/readers.h"

namespace memledger::compare {
namespace {

struct Schema {
  const char* name;  // without its number
  int number;
  FileKind kind;
};
constexpr std::array<Schema, 8> kSchemas{{
    {"memledger.run_report/", 1, FileKind::kRunReport},
    {"memledger.report/", 2, FileKind::kReport},
    {"memledger.timeline/", 2, FileKind::kTimeline},
    {"memledger.prediction/", 1, FileKind::kPrediction},
    {"memledger.fit/", 1, FileKind::kFit},
    {"memledger.line_profile/", 2, FileKind::kLineProfile},
    {"memledger.saved_tensors/", 2, FileKind::kSavedTensors},
    {"memledger.saved_groups/", 2, FileKind::kSavedGroups},
}};

constexpr char kComparable[] =
    "a report (memledger run --save-report=FILE.json), a timeline (--timeline=FILE.json), a line "
    "profile (-r FILE.json), a prediction (memledger dry-run --json=FILE.json), a fit, JSON of "
    "saved tensors, or a log";

absl::Status wrong(const std::string& name, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat(name, ": ", what));
}

absl::string_view absl_view(std::string_view text) { return {text.data(), text.size()}; }

// What a text is that is no JSON.
absl::Status not_json(const std::string& name, std::string_view text) {
  const absl::string_view words = absl::StripLeadingAsciiWhitespace(absl_view(text));
  if (words.empty())
    return wrong(name,
                 "it is empty; its program may have been killed before it wrote, so run it "
                 "again");
  if (absl::StartsWithIgnoreCase(words, "<!doctype") || absl::StartsWithIgnoreCase(words, "<html"))
    return wrong(name, "it is a page; save the report as .json");
  if (absl::StartsWith(words, "schema_version,") || absl::StartsWith(words, "moment,") ||
      absl::StartsWith(words, "node,") || absl::StartsWith(words, "by,"))
    return wrong(name, "it is CSV; save it as .json");
  if (words[0] == '\x80') return wrong(name, "it is a pickle; save the timeline as .json");
  if (words[0] == '{')
    return wrong(name, "its JSON is not whole; the file may be cut off, so save it again");
  return wrong(name, absl::StrCat("it is no file that can be compared; give ", kComparable));
}

std::string schema_of(const Json& json) {
  if (!json.is_object()) return "";
  auto schema = json.find("schema");
  const auto other = json.find("otherData");
  if (schema == json.end() && other != json.end() && other->is_object()) {
    schema = other->find("schema");
    if (schema == other->end()) return "";
  } else if (schema == json.end()) {
    return "";
  }
  return schema->is_string() ? schema->get<std::string>() : "";
}

absl::StatusOr<FileKind> kind_of(const std::string& name, const std::string& schema) {
  if (!absl::StartsWith(schema, "memledger."))
    return wrong(name, absl::StrCat("its JSON is not memledger's; give ", kComparable));
  for (const Schema& known : kSchemas) {
    if (!absl::StartsWith(schema, known.name)) continue;
    if (schema == absl::StrCat(known.name, known.number)) return known.kind;
    return wrong(name,
                 absl::StrCat("it is ", schema, ", and this memledger reads ", known.name,
                              known.number, "; use the memledger that wrote it, or save it again"));
  }
  return wrong(name,
               absl::StrCat("it is ", schema, ", which cannot be compared; give ", kComparable));
}

void read(const JsonObject& file, Moment moment, SavedFile& saved) {
  switch (saved.kind) {
    case FileKind::kRunReport:
      return read_run_report(file, moment, saved);
    case FileKind::kReport:
      return read_report(file, saved);
    case FileKind::kTimeline:
      return read_timeline(file, moment, saved);
    case FileKind::kPrediction:
      return read_prediction(file, saved);
    case FileKind::kFit:
      return read_fit(file, saved);
    case FileKind::kLineProfile:
      return read_line_profile(file, saved);
    case FileKind::kSavedTensors:
      return read_saved_tensors(file, saved);
    case FileKind::kSavedGroups:
      return read_saved_groups(file, saved);
  }
}

void put_gpus_first(SavedFile& saved) {
  const auto is_gpu = [](const Account& account) {
    return absl::StartsWith(account.device, "cuda");
  };
  std::stable_partition(saved.accounts.begin(), saved.accounts.end(), is_gpu);
}

// So that no sum of them overflows.
bool has_small_sums(const SavedFile& saved) {
  for (const Account& account : saved.accounts) {
    int64_t rows = 0, parts = 0;
    for (const Row& row : account.rows) {
      if (row.bytes > kMaxBytes - rows) return false;
      rows += row.bytes;
    }
    for (const Part& part : account.parts) {
      if (part.bytes > kMaxBytes - parts) return false;
      parts += part.bytes;
    }
  }
  return true;
}

}  // namespace

std::string in_words(std::string name) {
  std::replace(name.begin(), name.end(), '_', ' ');
  return name;
}

bool is_log(std::string_view text) {
  const absl::string_view words = absl::StripLeadingAsciiWhitespace(absl_view(text));
  return !words.empty() && words[0] != '{' &&
         (absl::StartsWith(words, "GPU Memory Track |") ||
          absl::StrContains(words, "Total Tensor Used Memory:"));
}

absl::StatusOr<SavedFile> read_saved(const std::string& name, std::string_view text,
                                     Moment moment) {
  const Json json = Json::parse(text.begin(), text.end(), nullptr, false);
  if (json.is_discarded()) return not_json(name, text);
  const absl::StatusOr<FileKind> kind = kind_of(name, schema_of(json));
  if (!kind.ok()) return kind.status();
  SavedFile saved;
  saved.kind = *kind;
  saved.name = name;
  Fault fault;
  read(JsonObject(json, fault), moment, saved);
  put_gpus_first(saved);
  if (fault.what.empty() && !has_small_sums(saved)) fault = {"the sum of its rows is too large"};
  if (fault.what.empty()) return saved;
  return wrong(name,
               absl::StrCat(fault.what,
                            fault.is_damage ? "; the file may be changed, so save it again" : ""));
}

absl::StatusOr<SavedFile> joined(const std::string& name, std::vector<SavedFile> processes) {
  SavedFile all;
  all.name = name;
  std::sort(processes.begin(), processes.end(), [](const SavedFile& a, const SavedFile& b) {
    const auto rank = [](const SavedFile& file) {
      return file.accounts.empty() ? std::nullopt : file.accounts.front().rank;
    };
    return std::pair(rank(a), a.name) < std::pair(rank(b), b.name);
  });
  for (SavedFile& process : processes) {
    if (process.kind != FileKind::kRunReport)
      return wrong(process.name, absl::StrCat("it is no report of a run, and the folder ", name,
                                              " is read as one run's; name the file itself"));
    if (all.facts.empty()) all.facts = process.facts;
    for (Account& account : process.accounts) all.accounts.push_back(std::move(account));
  }
  if (processes.empty())
    return wrong(name,
                 "this folder has no .json file; save reports of a run into it with "
                 "memledger run --save-report=FOLDER/%r.json");
  return all;
}

}  // namespace memledger::compare
