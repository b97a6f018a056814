#include "virtual_gpu/specification.h"

#include <limits>

#include "virtual_gpu/profiles.h"

namespace memledger::virtual_gpu {
namespace {

constexpr int kMostDevices = 8;
constexpr uint64_t kLeastMemory = uint64_t{64} << 20;
// The addresses of eight devices must fit below 2^47.
constexpr uint64_t kMostMemory = uint64_t{1} << 40;

struct Unit {
  std::string_view name;
  uint64_t bytes;
};

constexpr Unit kUnits[] = {
    {"B", 1},     {"KiB", 1 << 10},    {"MiB", 1 << 20},   {"GiB", 1 << 30},
    {"KB", 1000}, {"MB", 1000 * 1000}, {"GB", 1000000000},
};

// A terminal obeys none of it.
std::string plain(std::string_view text) {
  constexpr size_t kMost = 64;
  std::string result;
  for (const char c : text.substr(0, kMost)) result += c >= ' ' && c <= '~' ? c : '?';
  return result + (text.size() > kMost ? "..." : "");
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

}  // namespace

ParsedSpecification parse_specification(std::string_view text) {
  Specification result;
  const auto failed = [](const std::string& why) { return ParsedSpecification{std::nullopt, why}; };

  const size_t comma = text.find(',');
  const std::string_view device = text.substr(0, comma);
  const size_t colon = device.find(':');
  result.profile = std::string(device.substr(0, colon));
  if (!find_profile(result.profile)) {
    return failed(quoted(result.profile) + " is not a known device. Known are: " + profile_names() +
                  ".");
  }

  std::string error;
  if (colon != std::string_view::npos) {
    result.memory_bytes = parse_bytes(device.substr(colon + 1), &error);
    if (!result.memory_bytes) return failed(error);
    if (*result.memory_bytes < kLeastMemory)
      return failed("a device needs at least 64MiB of memory.");
  }

  bool seen_count = false, seen_keep = false, seen_context = false, seen_events = false;
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
    bool* seen = key == "count"     ? &seen_count
                 : key == "keep"    ? &seen_keep
                 : key == "context" ? &seen_context
                 : key == "events"  ? &seen_events
                                    : nullptr;
    if (!seen || equals == std::string_view::npos) {
      return failed(quoted(option) +
                    " is not a known option. Known are: count=1..8, keep=BYTES, context=BYTES, "
                    "events=once|late.");
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
    const std::optional<uint64_t> bytes = parse_bytes(value, &error);
    if (!bytes) return failed(std::string(key) + "=" + error);
    (key == "keep" ? result.keep_bytes : result.context_bytes) = *bytes;
  }

  const uint64_t memory =
      result.memory_bytes.value_or(find_profile(result.profile)->total_memory_bytes);
  if (result.context_bytes >= memory)
    return failed("the context alone would take all of the device's memory.");
  return {result, ""};
}

}  // namespace memledger::virtual_gpu
