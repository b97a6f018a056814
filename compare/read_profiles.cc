// Timelines, line profiles and what autograd saved.

#include <algorithm>
#include <map>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "compare/readers.h"
#include "compare/sizes.h"

namespace memledger::compare {
namespace {

// A storage's birth or death.
struct StorageEvent {
  double time = 0;
  bool is_birth = true;
  std::string id;
};

struct DeviceEvents {
  std::string device;
  std::vector<StorageEvent> events;
  std::unordered_map<std::string, Row> rows;  // by id
  std::unordered_set<std::string> survivors;  // ids of those that live on at the end
  int64_t highest = 0, last = 0;              // of the counter
};

Row timeline_row(const JsonObject& args) {
  Row row;
  row.name = args.text("name");
  const std::string kind = args.text("storage_kind");
  row.role = kind.empty() || kind == "tensor" ? in_words(args.text("role")) : kWorkspaceRole;
  row.layer = args.text("label");
  row.op = args.text("op");
  row.node = args.text("autograd_node");
  row.shape = args.shape("shape");
  row.dtype = args.text("dtype");
  row.bytes = args.bytes("bytes");
  return row;
}

// A storage's death follows its birth in the file; other storages' events lie elsewhere.
void add_event(const JsonObject& event, const std::string& what, DeviceEvents& device) {
  const bool is_birth = what == "b";
  const std::string id = event.needed_text("id");
  if (is_birth) {
    const JsonObject args = event.object("args");
    if (!device.rows.emplace(id, timeline_row(args)).second)
      return event.fail("id", "is that of two storages");
    if (args.is_true("alive_at_the_end")) device.survivors.insert(id);
  } else if (device.rows.count(id) == 0) {
    return event.fail("id", "ends before it begins");
  }
  device.events.push_back({event.number("ts"), is_birth, id});
}

// Storages that live on at the recording's end have an event there all the same.
std::vector<std::string> alive_at_end(const DeviceEvents& device) {
  std::vector<std::string> alive;
  for (const StorageEvent& event : device.events) {
    if (event.is_birth && device.survivors.count(event.id) > 0) alive.push_back(event.id);
  }
  return alive;
}

std::vector<std::string> alive_at_peak(DeviceEvents& device) {
  std::vector<StorageEvent>& events = device.events;
  std::stable_sort(events.begin(), events.end(),
                   [](const StorageEvent& a, const StorageEvent& b) { return a.time < b.time; });
  int64_t now = 0, highest = 0;
  size_t events_at_highest = 0;
  for (size_t i = 0; i < events.size(); ++i) {
    const int64_t bytes = device.rows.at(events[i].id).bytes;
    now += events[i].is_birth ? bytes : -bytes;
    if (now <= highest) continue;
    highest = now;
    events_at_highest = i + 1;
  }
  std::unordered_set<std::string> alive;
  for (size_t i = 0; i < events_at_highest; ++i) {
    if (events[i].is_birth)
      alive.insert(events[i].id);
    else
      alive.erase(events[i].id);
  }
  std::vector<std::string> result;
  for (size_t i = 0; i < events_at_highest; ++i) {
    if (events[i].is_birth && alive.count(events[i].id) > 0) result.push_back(events[i].id);
  }
  return result;
}

bool has_small_sum(const DeviceEvents& device) {
  int64_t sum = 0;
  for (const auto& [id, row] : device.rows) {
    if (row.bytes > kMaxBytes - sum) return false;
    sum += row.bytes;
  }
  return true;
}

Account account_of(DeviceEvents& device, bool is_peak) {
  Account account;
  account.device = device.device;
  account.moment = is_peak ? "peak" : "end";
  account.total = is_peak ? device.highest : device.last;
  for (const std::string& id : is_peak ? alive_at_peak(device) : alive_at_end(device)) {
    if (const Row& row = device.rows.at(id); row.bytes > 0) account.rows.push_back(row);
  }
  return account;
}

void add_line(const JsonObject& line, const std::string& file, const char* figure,
              Account& account) {
  if (!line.has(figure)) return;
  Row row;
  const std::optional<int64_t> number = line.maybe_integer("line");
  row.line = absl::StrCat(file, ":", number ? std::to_string(*number) : "?");
  const std::string code = line.text("code");
  row.name = std::string(absl::StripAsciiWhitespace(code));
  if (row.name.empty()) row.name = row.line;
  row.bytes = line.bytes(figure);
  if (row.bytes > 0) account.rows.push_back(std::move(row));
}

}  // namespace

void read_timeline(const JsonObject& file, Moment moment, SavedFile& saved) {
  if (moment == Moment::kStep)
    return file.refuse("a timeline does not know steps; use --at=end or --at=peak");
  std::map<int64_t, DeviceEvents> devices;  // by the number that stands for one
  for (const JsonObject& event : file.objects("traceEvents")) {
    const std::string what = event.needed_text("ph");
    const std::string name = event.text("name");
    const bool is_counter = what == "C" && name == "all";
    if (what != "b" && what != "e" && !is_counter && name != "process_name") continue;
    DeviceEvents& device = devices[event.integer("pid")];
    if (name == "process_name" && what == "M") {
      device.device = event.object("args").needed_text("name");
    } else if (is_counter) {
      device.last = event.object("args").bytes("bytes");
      device.highest = std::max(device.highest, device.last);
    } else {
      add_event(event, what, device);
    }
  }
  for (auto& [process, device] : devices) {
    if (device.events.empty()) continue;
    if (!has_small_sum(device)) return file.fail("traceEvents", "has too large a sum");
    saved.accounts.push_back(account_of(device, moment == Moment::kPeak));
  }
  if (const int64_t dropped = file.object("otherData").bytes("dropped_events"); dropped > 0)
    saved.facts.push_back({"events that the recording dropped", std::to_string(dropped)});
}

void read_line_profile(const JsonObject& file, SavedFile& saved) {
  saved.facts.push_back({"device", file.needed_text("device")});
  for (const JsonObject& function : file.objects("functions")) {
    const std::string name = function.needed_text("function");
    if (!function.has("total")) continue;  // it did not run
    const std::string path = function.text("file");
    const std::string source = path.substr(path.rfind('/') + 1);
    for (const auto& [figure, moment] :
         {std::pair("allocated_bytes", "allocated"), std::pair("left_bytes", "left alive")}) {
      Account account;
      account.device = name;
      account.moment = moment;
      account.total = function.object("total").maybe_integer(figure);
      for (const JsonObject& line : function.objects("lines"))
        add_line(line, source, figure, account);
      saved.accounts.push_back(std::move(account));
    }
  }
}

void read_saved_tensors(const JsonObject& file, SavedFile& saved) {
  const bool is_rounded = file.needed_text("rounding") == "cuda_blocks";
  saved.facts.push_back({"rounding", is_rounded ? "to blocks of CUDA" : "none"});
  Account account;
  account.device = "autograd";
  account.moment = "saved for backward";
  account.total = file.bytes("total_bytes");
  for (const JsonObject& json : file.objects("rows")) {
    if (!json.is_true("counted") || json.text("role") != "activation") continue;
    if (!json.has("storage_bytes")) {
      ++account.rows_without_bytes;
      continue;
    }
    Row row;
    row.name = json.needed_text("node") + "." + json.needed_text("slot");
    row.role = in_words(json.text("role"));
    row.shape = json.shape("shape");
    row.dtype = json.text("dtype");
    row.bytes = json.bytes("storage_bytes");
    if (is_rounded) row.bytes = (row.bytes + 511) / 512 * 512;
    if (row.bytes > 0) account.rows.push_back(std::move(row));
  }
  saved.accounts.push_back(std::move(account));
}

void read_saved_groups(const JsonObject& file, SavedFile& saved) {
  saved.facts.push_back({"grouped by", in_words(file.needed_text("by"))});
  Account account;
  account.device = "autograd";
  account.moment = "saved for backward";
  account.total = file.bytes("total_bytes");
  for (const JsonObject& group : file.objects("groups")) {
    Row row;
    row.name = group.text("name");
    if (row.name.empty()) row.name = "?";
    row.bytes = group.bytes("bytes");
    if (row.bytes > 0) account.rows.push_back(std::move(row));
  }
  saved.accounts.push_back(std::move(account));
}

}  // namespace memledger::compare
