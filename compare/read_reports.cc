// Reports of a run, and MemReporter's.

#include <utility>

#include "absl/strings/match.h"
#include "compare/readers.h"
#include "compare/sizes.h"

namespace memledger::compare {
namespace {

// As `memledger run` names layers: the module, else the label, else the operator of the forward
// pass that backward belongs to.
std::string layer_of(const JsonObject& row) {
  std::string layer = row.text("module");
  if (layer.empty()) layer = row.text("forward_label");
  if (layer.empty()) layer = row.text("label");
  if (!layer.empty()) return layer;
  const std::string op = row.text("forward_op");
  return op.empty() ? "" : "backward of " + op;
}

Row row_of(const JsonObject& json) {
  Row row;
  const std::string kind = json.text("storage_kind");
  const bool is_tensor = kind.empty() || kind == "tensor";
  if (!json.is_true("anonymous") || kind == "library_workspace") row.name = json.text("name");
  row.role = is_tensor ? in_words(json.text("role")) : kWorkspaceRole;
  row.layer = layer_of(json);
  row.op = json.text("op");
  row.node = json.text("autograd_node");
  row.shape = json.shape("shape");
  row.dtype = json.text("dtype");
  row.line = json.text("where");
  row.bytes = json.maybe_integer("bytes").value_or(0);
  if (row.bytes < 0) json.fail("bytes", "is below 0");
  return row;
}

// Rows of no bytes are left out: views, memory that is not LibTorch's, empty tensors.
void add_rows(const JsonObject& device, Account& account) {
  for (const JsonObject& json : device.objects("rows")) {
    if (!json.has("bytes")) {
      ++account.rows_without_bytes;
      continue;
    }
    Row row = row_of(json);
    if (row.bytes > 0) account.rows.push_back(std::move(row));
  }
  for (const JsonObject& item : device.objects("items")) {
    Row row;
    row.name = item.text("name");
    row.role = in_words(item.needed_text("kind"));
    if (row.role == "library workspace") row.role = kWorkspaceRole;
    if (row.name.empty()) row.name = row.role;
    row.bytes = item.bytes("bytes");
    if (row.bytes > 0) account.rows.push_back(std::move(row));
  }
}

void add_fact(std::vector<Fact>& facts, const char* name, std::string value) {
  facts.push_back({name, std::move(value)});
}

void add_rows_fact(const JsonObject& report, Account& account) {
  if (report.is_true("names_only"))
    add_fact(account.facts, "rows", "names only (--detail=names)");
  else if (report.has("complete") && !report.is_true("complete"))
    add_fact(account.facts, "rows", "some are missing");
  else if (report.is_true("tracking_was_off"))
    add_fact(account.facts, "rows", "tracking was off for a time");
}

Account account_of(const JsonObject& report, const JsonObject& device, const char* moment) {
  Account account;
  account.device = device.needed_text("device");
  account.moment = moment;
  account.total = device.maybe_integer("allocator_bytes");
  if (!account.total) account.total = device.maybe_integer("used_bytes");
  add_rows(device, account);
  add_rows_fact(report, account);
  return account;
}

void add_parts(const JsonObject& device, const char* key, Account& account) {
  if (!device.has(key)) return;
  for (const JsonObject& part : device.objects(key))
    account.parts.push_back({part.needed_text("part"), part.bytes("bytes")});
}

void add_figure(const JsonObject& device, const char* key, const char* name, Account& account) {
  const std::optional<int64_t> value = device.maybe_integer(key);
  if (value) account.figures.push_back({name, *value, *value});
}

// Adds what is known of the device over the whole run.
void add_run(const JsonObject& device, Moment moment, Account& account) {
  if (const std::string gpu = device.text("gpu"); !gpu.empty()) add_fact(account.facts, "GPU", gpu);
  add_figure(device, "capacity_bytes", "memory of the device", account);
  if (moment == Moment::kStep) add_parts(device, "last_step_parts", account);
  if (moment != Moment::kPeak) return;
  account.total = device.bytes("requested_peak");
  add_figure(device, "allocated_peak", "allocated peak", account);
  add_figure(device, "reserved_peak", "reserved peak", account);
  add_parts(device, "peak_parts", account);
  const std::optional<int64_t> step = device.maybe_integer("peak_step");
  add_fact(account.facts, "step of the peak", step ? std::to_string(*step) : "none");
  const int64_t unused = device.bytes("unused_graph_bytes");
  account.figures.push_back({kUnusedGraph, unused, unused});
}

bool is_python_line(const std::string& line) { return absl::StrContains(line, ".py:"); }
bool is_cpp_line(const std::string& line) {
  for (const char* ending : {".cc:", ".cpp:", ".cxx:", ".h:", ".hpp:", ".cu:"}) {
    if (absl::StrContains(line, ending)) return true;
  }
  return false;
}

// By the lines that made the rows.
std::string language_of(const SavedFile& saved) {
  bool is_cpp = false;
  for (const Account& account : saved.accounts) {
    for (const Row& row : account.rows) {
      if (is_python_line(row.line)) return "Python";
      is_cpp = is_cpp || is_cpp_line(row.line);
    }
  }
  return is_cpp ? "C++" : "?";
}

std::string ending_of(const JsonObject& file) {
  const JsonObject ended = file.object("ended");
  if (const std::string signal = ended.text("signal"); !signal.empty()) return signal;
  const std::optional<int64_t> status = ended.maybe_integer("status");
  return ended.text("how") + (status ? " (" + std::to_string(*status) + ")" : "");
}

}  // namespace

void read_run_report(const JsonObject& file, Moment moment, SavedFile& saved) {
  const bool is_step = moment == Moment::kStep;
  const char* const key = moment == Moment::kPeak ? "peaks" : (is_step ? "last_step" : "end");
  if (is_step && !file.has(key)) {
    file.refuse("no step of an optimizer was seen in this run; leave out --at=step");
    return;
  }
  const char* const name = moment == Moment::kPeak ? "peak" : (is_step ? "last step" : "end");
  const JsonObject report = file.object(key);
  const std::vector<JsonObject> devices = report.objects("devices");
  const auto add = [&](const JsonObject& device) {
    saved.accounts.push_back(account_of(report, device, name));
    saved.accounts.back().rank = file.maybe_integer("rank");
  };
  std::vector<std::string> added;
  for (const JsonObject& of_run : file.objects("devices")) {
    const std::string called = of_run.needed_text("device");
    for (const JsonObject& device : devices) {
      if (device.text("device") != called) continue;
      add(device);
      add_run(of_run, moment, saved.accounts.back());
      added.push_back(called);
    }
  }
  for (const JsonObject& device : devices) {
    bool is_new = true;
    for (const std::string& called : added) is_new = is_new && called != device.text("device");
    if (is_new) add(device);
  }
  add_fact(saved.facts, "language", language_of(saved));
  add_fact(saved.facts, "end of the program", ending_of(file));
  add_fact(saved.facts, "memory ran out", file.text("out_of_memory").empty() ? "no" : "yes");
  add_fact(saved.facts, "steps of optimizers", std::to_string(file.object("steps").bytes("count")));
  const std::string libraries = file.text("real_libraries");
  add_fact(saved.facts, "NVIDIA's libraries",
           libraries.empty() ? "stand-ins or not known" : libraries);
}

void read_report(const JsonObject& file, SavedFile& saved) {
  const char* const moment = file.is_true("of_peak") ? "peak" : "end";
  for (const JsonObject& device : file.objects("devices"))
    saved.accounts.push_back(account_of(file, device, moment));
  add_fact(saved.facts, "language", language_of(saved));
}

}  // namespace memledger::compare
