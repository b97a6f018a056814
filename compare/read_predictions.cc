// Predictions and fits.

#include <utility>

#include "compare/readers.h"

namespace memledger::compare {
namespace {

void add_interval(const JsonObject& object, const char* key, const std::string& name,
                  std::vector<Figure>& figures) {
  if (!object.has(key)) return;
  const JsonObject interval = object.object(key);
  figures.push_back({name, interval.bytes("low"), interval.bytes("high")});
}

void add_device(const JsonObject& device, const std::string& name, std::vector<Figure>& figures) {
  const int64_t capacity = device.bytes("capacity_bytes");
  figures.push_back({name + "memory of the device", capacity, capacity});
  add_interval(device, "allocated_peak", name + "allocated peak", figures);
  add_interval(device, "reserved_peak", name + "reserved peak", figures);
  add_interval(device, "process_peak", name + "peak of the process", figures);
}

// The layers are the largest ones only.
void add_peak(const JsonObject& peak, Account& account) {
  account.moment = "peak";
  account.total = peak.bytes("total_bytes");
  int64_t listed = peak.bytes("without_layer_bytes");
  const auto add = [&account](const std::string& layer, int64_t bytes) {
    Row row;
    row.name = row.layer = layer;
    row.bytes = bytes;
    if (bytes > 0) account.rows.push_back(std::move(row));
  };
  for (const auto& [layer, bytes] : peak.object("by_layer").all_bytes()) {
    if (bytes > kMaxBytes - listed) return peak.fail("by_layer", "has too large a sum");
    add(layer, bytes);
    listed += bytes;
  }
  add("no layer", peak.bytes("without_layer_bytes"));
  account.has_all_rows = listed >= *account.total;
  for (const JsonObject& part : peak.objects("parts"))
    account.parts.push_back({part.needed_text("part"), part.bytes("bytes")});
}

}  // namespace

void read_prediction(const JsonObject& file, SavedFile& saved) {
  saved.facts.push_back({"verdict", file.needed_text("verdict")});
  const JsonObject program = file.object("program");
  saved.facts.push_back(
      {"steps of optimizers", std::to_string(program.maybe_integer("steps").value_or(0))});
  const std::string libraries = file.text("real_libraries");
  saved.facts.push_back(
      {"NVIDIA's libraries", libraries.empty() ? "stand-ins or not known" : libraries});
  const std::string deciding = file.needed_text("specification");
  bool has_peak = !file.has("peak");
  for (const JsonObject& device : file.objects("devices")) {
    const std::string name = device.needed_text("device");
    if (has_peak || device.text("specification") != deciding) {
      add_device(device, name + " " + device.needed_text("gpu") + ", ", saved.figures);
      continue;
    }
    has_peak = true;
    Account account;
    account.device = name;
    account.facts.push_back({"GPU", device.needed_text("gpu")});
    add_peak(file.object("peak"), account);
    add_device(device, "", account.figures);
    saved.accounts.push_back(std::move(account));
  }
}

void read_fit(const JsonObject& file, SavedFile& saved) {
  saved.facts.push_back({"GPU", file.needed_text("gpu")});
  saved.facts.push_back({"end of the search", file.needed_text("end")});
  const std::optional<int64_t> largest = file.maybe_integer("largest");
  saved.facts.push_back({"largest value that fits", largest ? std::to_string(*largest) : "none"});
  for (const JsonObject& tried : file.objects("tried")) {
    const std::string name = "value " + std::to_string(tried.integer("value"));
    saved.facts.push_back({name, tried.needed_text("verdict")});
    add_interval(tried, "allocated_peak", name + ", allocated peak", saved.figures);
    add_interval(tried, "reserved_peak", name + ", reserved peak", saved.figures);
    add_interval(tried, "process_peak", name + ", peak of the process", saved.figures);
  }
}

}  // namespace memledger::compare
