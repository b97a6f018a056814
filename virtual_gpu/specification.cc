#include "virtual_gpu/specification.h"

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <limits>

#include "virtual_gpu/profile_json.h"

namespace memledger::virtual_gpu {
namespace {

constexpr size_t kMostDevices = 8;
constexpr uint64_t kLeastMemory = uint64_t{64} << 20;
// The addresses of eight devices must fit below 2^47.
constexpr uint64_t kMostMemory = uint64_t{1} << 40;

constexpr size_t kLongestError = 200;
// Below it a device is one for tests, whose memory is for tensors alone.
constexpr uint64_t kLeastMemoryWithContext = uint64_t{2} << 30;
// A device's file is some hundred bytes; what is longer is not one.
constexpr std::streamsize kLongestFile = 1 << 20;

struct Unit {
  std::string_view name;
  uint64_t bytes;
};

constexpr Unit kUnits[] = {
    {"B", 1},     {"KiB", 1 << 10},    {"MiB", 1 << 20},   {"GiB", 1 << 30},
    {"KB", 1000}, {"MB", 1000 * 1000}, {"GB", 1000000000},
};

// A terminal obeys none of it.
std::string plain(std::string_view text, size_t most = 64) {
  std::string result;
  for (const char c : text.substr(0, most)) result += c >= ' ' && c <= '~' ? c : '?';
  return result + (text.size() > most ? "..." : "");
}

std::string quoted(std::string_view text) { return "\"" + plain(text) + "\""; }

// Whole digits, so that 1e3, +1 or 0x10 are errors instead of surprises.
std::optional<uint64_t> parse_number(std::string_view digits) {
  if (digits.empty()) return std::nullopt;
  uint64_t value = 0;
  for (char c : digits) {
    if (c < '0' || c > '9') return std::nullopt;
    const uint64_t digit = static_cast<uint64_t>(c - '0');
    if (value > (std::numeric_limits<uint64_t>::max() - digit) / 10) return std::nullopt;
    value = value * 10 + digit;
  }
  return value;
}

std::optional<uint64_t> parse_bytes(std::string_view text, std::string* error) {
  const std::string_view number = text.substr(0, text.find_first_not_of("0123456789."));
  const std::string_view unit_name = text.substr(number.size());
  const Unit* unit = nullptr;
  for (const Unit& candidate : kUnits) {
    if (candidate.name == unit_name) unit = &candidate;
  }
  const std::string wanted =
      quoted(text) +
      " is not an amount of memory: write a number and one of B, KiB, MiB, GiB, KB, MB, GB.";
  // Up to three digits after the point, as in 23.5GiB, exact in thousandths of the unit.
  const size_t point = number.find('.');
  const std::optional<uint64_t> whole = parse_number(number.substr(0, point));
  std::string fraction(point == std::string_view::npos ? "0" : number.substr(point + 1));
  const bool short_enough = !fraction.empty() && fraction.size() <= 3;
  fraction.resize(3, '0');
  const std::optional<uint64_t> thousandths = parse_number(fraction);
  if (!unit || !whole || !short_enough || !thousandths) {
    *error = wanted;
    return std::nullopt;
  }
  const bool too_much = *whole > kMostMemory / unit->bytes;
  const uint64_t bytes = too_much ? 0 : *whole * unit->bytes + *thousandths * unit->bytes / 1000;
  if (too_much || bytes > kMostMemory) {
    *error = quoted(text) + " is more memory than a virtual GPU can have, which is 1024GiB.";
    return std::nullopt;
  }
  return bytes;
}

std::optional<DeviceSpecification> read_device_file(const std::string& path, std::string* error) {
  const auto failed = [&](const std::string& why) {
    *error = "the device of file " + quoted(path) + ": " + why;
    return std::nullopt;
  };
  std::ifstream file(path, std::ios::binary);
  std::string text(static_cast<size_t>(kLongestFile), '\0');
  file.read(text.data(), kLongestFile);
  text.resize(static_cast<size_t>(file.gcount()));
  if (file.bad() || text.empty()) return failed("it cannot be read, or is empty.");
  const ParsedProfile parsed = parse_profile_json(text);
  if (!parsed.profile) return failed(plain(parsed.error, kLongestError));
  return DeviceSpecification{*parsed.profile, std::nullopt};
}

std::optional<DeviceSpecification> parse_device(std::string_view text, std::string* error) {
  if (!text.empty() && text.front() == '@')
    return read_device_file(std::string(text.substr(1)), error);
  const size_t colon = text.find(':');
  const std::string_view name = text.substr(0, colon);
  const Profile* const profile = find_profile(name);
  if (profile == nullptr) {
    *error = quoted(name) + " is not a known device. Known are: " + profile_names() +
             ". A file that describes another is given as @FILE.json.";
    return std::nullopt;
  }
  DeviceSpecification device{*profile, std::nullopt};
  if (colon == std::string_view::npos) return device;
  device.memory_bytes = parse_bytes(text.substr(colon + 1), error);
  if (!device.memory_bytes) return std::nullopt;
  if (*device.memory_bytes >= kLeastMemory) return device;
  *error = "a device needs at least 64MiB of memory.";
  return std::nullopt;
}

// Calls with each part between separators, until it returns false.
template <typename F>
bool for_each_part(std::string_view text, char separator, F function) {
  for (size_t begin = 0;;) {
    const size_t end = text.find(separator, begin);
    if (!function(text.substr(begin, end == std::string_view::npos ? end : end - begin)))
      return false;
    if (end == std::string_view::npos) return true;
    begin = end + 1;
  }
}

std::optional<std::vector<DeviceSpecification>> parse_devices(std::string_view text,
                                                              std::string* error) {
  std::vector<DeviceSpecification> devices;
  const bool all = for_each_part(text, '+', [&](std::string_view part) {
    std::optional<DeviceSpecification> device = parse_device(part, error);
    if (!device) return false;
    if (devices.size() == kMostDevices) {
      *error = "there are more than 8 devices.";
      return false;
    }
    devices.push_back(*std::move(device));
    return true;
  });
  if (!all) return std::nullopt;
  return devices;
}

}  // namespace

uint64_t Specification::context_bytes_of(const DeviceSpecification& device) const {
  if (context_bytes) return *context_bytes;
  return device.capacity_bytes() < kLeastMemoryWithContext ? 0 : device.profile.context_bytes;
}

bool Specification::has_nccl_model(const DeviceSpecification& device) const {
  return !nccl_bytes && device.capacity_bytes() >= kLeastMemoryWithContext;
}

std::vector<DeviceSpecification> Specification::all_devices() const {
  std::vector<DeviceSpecification> all;
  for (const DeviceSpecification& device : devices) {
    for (int i = 0; i < count; ++i) all.push_back(device);
  }
  return all;
}

ParsedSpecification parse_specification(std::string_view text) {
  Specification result;
  const auto failed = [](const std::string& why) { return ParsedSpecification{std::nullopt, why}; };

  const size_t comma = text.find(',');
  std::string error;
  std::optional<std::vector<DeviceSpecification>> devices =
      parse_devices(text.substr(0, comma), &error);
  if (!devices) return failed(error);
  result.devices = *std::move(devices);

  bool seen_count = false, seen_keep = false, seen_context = false, seen_events = false,
       seen_addresses = false, seen_nccl = false;
  size_t position = comma;
  while (position != std::string_view::npos) {
    const size_t next = text.find(',', position + 1);
    const size_t length = next == std::string_view::npos ? next : next - position - 1;
    const std::string_view option = text.substr(position + 1, length);
    position = next;

    const size_t equals = option.find('=');
    const std::string_view key = option.substr(0, equals);
    const std::string_view value =
        equals == std::string_view::npos ? std::string_view() : option.substr(equals + 1);
    bool* seen = key == "count"       ? &seen_count
                 : key == "keep"      ? &seen_keep
                 : key == "context"   ? &seen_context
                 : key == "events"    ? &seen_events
                 : key == "addresses" ? &seen_addresses
                 : key == "nccl"      ? &seen_nccl
                                      : nullptr;
    if (!seen || equals == std::string_view::npos) {
      return failed(quoted(option) +
                    " is not a known option. Known are: count=1..8, keep=BYTES, context=BYTES, "
                    "events=once|late, addresses=device|ascending, nccl=BYTES.");
    }
    if (*seen) return failed("the option " + quoted(key) + " is given twice.");
    *seen = true;

    if (key == "count") {
      const std::optional<uint64_t> count = parse_number(value);
      if (!count || *count < 1 || *count > kMostDevices) {
        return failed("count=" + plain(value) + " is not a number of devices from 1 to 8.");
      }
      result.count = static_cast<int>(*count);
      continue;
    }
    if (key == "events") {
      if (value != "once" && value != "late")
        return failed("events=" + plain(value) + " is neither once nor late.");
      result.late_events = value == "late";
      continue;
    }
    if (key == "addresses") {
      if (value != "device" && value != "ascending")
        return failed("addresses=" + plain(value) + " is neither device nor ascending.");
      result.ascending_addresses = value == "ascending";
      continue;
    }
    const std::optional<uint64_t> bytes = parse_bytes(value, &error);
    if (!bytes) return failed(std::string(key) + "=" + error);
    if (key == "keep") {
      result.keep_bytes = *bytes;
    } else if (key == "nccl") {
      result.nccl_bytes = *bytes;
    } else {
      result.context_bytes = *bytes;
    }
  }

  if (result.devices.size() * static_cast<size_t>(result.count) > kMostDevices) {
    return failed(std::to_string(result.devices.size()) + " devices, " +
                  std::to_string(result.count) + " of each, are more than 8.");
  }
  for (const DeviceSpecification& device : result.devices) {
    if (result.context_bytes_of(device) >= device.capacity_bytes())
      return failed("the context alone would take all of the device's memory.");
  }
  return {result, ""};
}

std::string with_absolute_paths(std::string_view specification) {
  const size_t comma = specification.find(',');
  std::string result;
  for_each_part(specification.substr(0, comma), '+', [&](std::string_view part) {
    if (!result.empty()) result += '+';
    char* path = nullptr;
    if (!part.empty() && part.front() == '@')
      path = realpath(std::string(part.substr(1)).c_str(), nullptr);
    // A folder's name with a separator in it would be taken apart.
    const bool usable =
        path != nullptr && std::string_view(path).find_first_of("+,") == std::string_view::npos;
    result += usable ? "@" + std::string(path) : std::string(part);
    std::free(path);
    return true;
  });
  return comma == std::string_view::npos ? result
                                         : result + std::string(specification.substr(comma));
}

}  // namespace memledger::virtual_gpu
