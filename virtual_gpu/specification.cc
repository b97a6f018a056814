#include "virtual_gpu/specification.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <limits>
#include <numeric>
#include <utility>

#include "virtual_gpu/profile_json.h"
#include "virtual_gpu/reads.h"

namespace memledger::virtual_gpu {
namespace {

constexpr size_t kMostDevices = 8;
constexpr uint64_t kLeastMemory = uint64_t{64} << 20;
// The addresses of eight devices must fit below 2^47.
constexpr uint64_t kMostMemory = uint64_t{1} << 40;

constexpr size_t kLongestError = 200;
constexpr size_t kLongestName = 64;
// Below it a device is one for tests, whose memory is for tensors alone.
constexpr uint64_t kLeastMemoryWithContext = uint64_t{2} << 30;
// A device's file is some hundred bytes, a calibration some hundred for each convolution; what is
// longer is neither.
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

// A file's name has it in it.
bool is_name(std::string_view text) {
  const auto is_allowed = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '_' || c == '-';
  };
  return !text.empty() && text.size() <= kLongestName &&
         std::all_of(text.begin(), text.end(), is_allowed);
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

bool read_file(const std::string& path, std::string& text) {
  std::ifstream file(path, std::ios::binary);
  text.resize(static_cast<size_t>(kLongestFile));
  file.read(text.data(), kLongestFile);
  text.resize(static_cast<size_t>(file.gcount()));
  return !file.bad() && !text.empty();
}

std::optional<DeviceSpecification> read_device_file(const std::string& path, std::string* error) {
  const auto failed = [&](const std::string& why) {
    *error = "the device of file " + quoted(path) + ": " + why;
    return std::nullopt;
  };
  std::string text;
  if (!read_file(path, text)) return failed("it cannot be read, or is empty.");
  const ParsedProfile parsed = parse_profile_json(text);
  if (!parsed.profile) return failed(plain(parsed.error, kLongestError));
  return DeviceSpecification{*parsed.profile, std::nullopt};
}

// How many letters to add, remove or replace, of names in whatever case.
size_t distance(std::string_view a, std::string_view b) {
  const auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; };
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i);
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = diagonal + (lower(a[i - 1]) == lower(b[j - 1]) ? 0 : 1);
      diagonal = std::exchange(row[j], std::min({row[j] + 1, row[j - 1] + 1, replaced}));
    }
  }
  return row.back();
}

// Letters and digits, in lower case.
std::string essence(std::string_view name) {
  std::string letters;
  for (const char c : name) {
    if ((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9')) letters += c;
    if (c >= 'A' && c <= 'Z') letters += static_cast<char>(c + 32);
  }
  return letters;
}

// The known names that are a part of this one, as in `NVIDIA L4`, the longest of them; else those
// of which this is a part: `4090`.
std::vector<std::string> names_that_overlap(std::string_view name) {
  const std::string wanted = essence(name);
  std::vector<std::string> inner, outer;
  for (const Profile& profile : profiles()) {
    const std::string known = essence(profile.name);
    if (wanted.find(known) != std::string::npos) {
      if (!inner.empty() && known.size() <= essence(inner.front()).size()) continue;
      inner = {profile.name};
    } else if (wanted.size() > 1 && known.find(wanted) != std::string::npos) {
      outer.push_back(profile.name);
    }
  }
  return inner.empty() ? outer : inner;
}

// The known names that a user may have meant, as in `: h100 or h200?`; empty where none is near.
std::string suggestion(std::string_view name) {
  constexpr size_t kFar = 3, kMaxSuggestions = 5;
  size_t nearest = kFar;
  std::vector<std::string> near;
  if (name.size() > kLongestName) return "";
  for (const Profile& profile : profiles()) {
    const size_t letters = std::min(profile.name.size(), name.size());
    const size_t far = distance(name, profile.name);
    if (far > nearest || far >= letters || far >= kFar) continue;
    if (far < nearest) near.clear();
    nearest = far;
    near.push_back(profile.name);
  }
  if (near.empty()) near = names_that_overlap(name);
  // So many are like it that none is meant.
  if (near.empty() || near.size() > kMaxSuggestions) return "";
  std::string names;
  for (const std::string& known : near) names += (names.empty() ? ": " : " or ") + known;
  return names + "?";
}

std::optional<DeviceSpecification> parse_device(std::string_view text, std::string* error) {
  if (!text.empty() && text.front() == '@')
    return read_device_file(std::string(text.substr(1)), error);
  const size_t colon = text.find(':');
  const std::string_view name = text.substr(0, colon);
  const Profile* const profile = find_profile(name);
  if (profile == nullptr) {
    const std::string meant = suggestion(name);
    *error = quoted(name) + " is not a known device" + (meant.empty() ? "." : meant) +
             " Known are: " + profile_names() +
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

// `none`, `all`, `varied`, or up to six digits after the point, in millionths.
std::optional<uint32_t> parse_share(std::string_view text) {
  if (text == "none") return 0;
  if (text == "all") return kMillion;
  if (text == "varied") return kVariedMillionths;
  constexpr size_t kDigits = 6;
  const size_t point = text.find('.');
  const std::optional<uint64_t> whole = parse_number(text.substr(0, point));
  std::string fraction(point == std::string_view::npos ? "0" : text.substr(point + 1));
  if (!whole || *whole > 1 || fraction.empty() || fraction.size() > kDigits) return std::nullopt;
  fraction.resize(kDigits, '0');
  const std::optional<uint64_t> millionths = parse_number(fraction);
  if (!millionths || (*whole == 1 && *millionths != 0)) return std::nullopt;
  return static_cast<uint32_t>(*whole * kMillion + *millionths);
}

// The options. Each takes its value into the specification, or returns what the value is not.

std::string take_count(std::string_view value, Specification& result) {
  const std::optional<uint64_t> count = parse_number(value);
  if (!count || *count < 1 || *count > kMostDevices)
    return "is not a number of devices from 1 to 8.";
  result.count = static_cast<int>(*count);
  return "";
}

// One of two words.
std::string take_word(std::string_view value, const char* off, const char* on, bool& is_on) {
  if (value != off && value != on) return std::string("is neither ") + off + " nor " + on + ".";
  is_on = value == on;
  return "";
}

std::string take_share(std::string_view value, Specification& result) {
  if (!is_name(value)) return "is not a name of up to 64 letters, digits, '.', '_' and '-'.";
  result.share = value;
  return "";
}

std::string take_reads(std::string_view value, Specification& result) {
  const std::optional<uint32_t> millionths = parse_share(value);
  if (!millionths) return "is neither none, all, varied nor a fraction from 0 to 1 such as 0.125.";
  result.assumed_millionths = *millionths;
  return "";
}

std::string take_events(std::string_view value, Specification& result) {
  return take_word(value, "once", "late", result.late_events);
}

std::string take_addresses(std::string_view value, Specification& result) {
  return take_word(value, "down", "up", result.ascending_addresses);
}

std::string take_values(std::string_view value, Specification& result) {
  bool is_known = true;
  std::string error = take_word(value, "zero", "known", is_known);
  if (error.empty()) result.value_bytes = is_known ? kValueBytes : 0;
  return error;
}

std::string take_numbers(std::string_view value, Specification& result) {
  return take_word(value, "zero", "one", result.numbers_are_one);
}

std::string take_workspaces(std::string_view value, Specification& result) {
  result.workspaces = value == "least" ? WorkspaceEnd::kLeast : WorkspaceEnd::kExpected;
  bool is_upper = false;
  const std::string error = value == "least" ? "" : take_word(value, "expected", "upper", is_upper);
  if (is_upper) result.workspaces = WorkspaceEnd::kUpper;
  return error;
}

std::string take_unevenness(std::string_view value, Specification& result) {
  if (value.size() != 1 || value[0] < '0' || value[0] > '3') return "is not one of 0, 1, 2 and 3.";
  result.unevenness = value[0] - '0';
  return "";
}

std::string take_libraries(std::string_view value, Specification& result) {
  bool is_real = false;
  const std::string error = take_word(value, "stand-ins", "real", is_real);
  result.libraries = is_real ? LibraryChoice::kReal : LibraryChoice::kStandIns;
  return error;
}

std::string take_bytes(std::string_view value, std::optional<uint64_t>& amount) {
  std::string error;
  const std::optional<uint64_t> bytes = parse_bytes(value, &error);
  if (bytes.has_value()) amount = bytes;
  return error;
}

std::string take_calibration(std::string_view path, Specification& result) {
  std::string text;
  const std::string of_file = quoted(path) + ": ";
  if (!read_file(std::string(path), text)) return of_file + "it cannot be read, or is empty.";
  ParsedCalibration parsed = parse_calibration_json(text);
  if (!parsed.calibration) return of_file + plain(parsed.error, kLongestError);
  result.calibration = *std::move(parsed.calibration);
  return "";
}

std::string take_context(std::string_view value, Specification& result) {
  if (take_word(value, "most", "least", result.least_context).empty()) return "";
  result.least_context = false;
  return take_bytes(value, result.context_bytes);
}

struct Option {
  std::string_view name;
  std::string_view values;  // as a user reads them
  std::string (*take)(std::string_view value, Specification& result);
};

constexpr Option kOptions[] = {
    {"count", "1..8", &take_count},
    {"context", "least|most|BYTES", &take_context},
    {"events", "once|late", &take_events},
    {"reads", "none|all|FRACTION", &take_reads},
    {"values", "known|zero", &take_values},
    {"numbers", "zero|one", &take_numbers},
    {"workspaces", "least|expected|upper", &take_workspaces},
    {"addresses", "up|down", &take_addresses},
    {"libraries", "stand-ins|real", &take_libraries},
    {"uneven", "0..3", &take_unevenness},
    {"nccl", "BYTES",
     [](std::string_view value, Specification& result) {
       return take_bytes(value, result.nccl_bytes);
     }},
    {"share", "NAME", &take_share},
    {"calibration", "FILE", &take_calibration},
    {"keep", "BYTES",
     [](std::string_view value, Specification& result) {
       std::optional<uint64_t> bytes = result.keep_bytes;
       std::string error = take_bytes(value, bytes);
       result.keep_bytes = bytes.value_or(0);
       return error;
     }},
};

std::string known_options() {
  std::string text;
  for (const Option& option : kOptions) {
    if (!text.empty()) text += ", ";
    text.append(option.name).append("=").append(option.values);
  }
  return text;
}

bool parse_options(std::string_view text, Specification* result, std::string* error) {
  bool is_given[std::size(kOptions)] = {};
  return for_each_part(text, ',', [&](std::string_view part) {
    const size_t equals = part.find('=');
    const std::string_view key = part.substr(0, equals);
    const auto* const option =
        std::find_if(std::begin(kOptions), std::end(kOptions),
                     [&](const Option& candidate) { return candidate.name == key; });
    if (option == std::end(kOptions) || equals == std::string_view::npos) {
      *error = quoted(part) + " is not a known option. Known are: " + known_options() + ".";
      return false;
    }
    const std::string_view value = part.substr(equals + 1);
    const std::string wrong = option->take(value, *result);
    if (std::exchange(is_given[option - std::begin(kOptions)], true)) {
      *error = "the option " + quoted(key) + " is given twice.";
    } else if (!wrong.empty()) {
      // Errors of amounts name the value themselves.
      // So do those of files.
      *error = std::string(key) + "=" +
               (wrong.front() == '"' || key == "calibration" ? wrong : plain(value) + " " + wrong);
    }
    return error->empty();
  });
}

}  // namespace

uint64_t Specification::context_bytes_of(const DeviceSpecification& device) const {
  if (context_bytes) return *context_bytes;
  if (device.capacity_bytes() < kLeastMemoryWithContext) return 0;
  if (calibration) return calibration->context_bytes + calibration->libraries_bytes;
  return least_context ? device.profile.least_context_bytes : device.profile.context_bytes;
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

std::optional<uint64_t> parse_bytes(std::string_view text) {
  std::string ignored;
  return parse_bytes(text, &ignored);
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
  if (comma != std::string_view::npos && !parse_options(text.substr(comma + 1), &result, &error))
    return failed(error);

  if (result.devices.size() * static_cast<size_t>(result.count) > kMostDevices) {
    return failed(std::to_string(result.devices.size()) + " devices, " +
                  std::to_string(result.count) + " of each, are more than 8.");
  }
  for (const DeviceSpecification& device : result.devices) {
    if (result.calibration && result.calibration->device != device.profile.device_name) {
      return failed("the calibration is of " + quoted(result.calibration->device) +
                    ", not of the device " + quoted(device.profile.device_name) + ".");
    }
    if (result.context_bytes_of(device) >= device.capacity_bytes())
      return failed("the context alone would take all of the device's memory.");
  }
  return {result, ""};
}

std::string with_absolute_paths(std::string_view specification) {
  // A folder's name with a separator in it would be taken apart.
  const auto absolute = [](std::string_view path, const char* separators) {
    char* const resolved = realpath(std::string(path).c_str(), nullptr);
    const bool usable = resolved != nullptr &&
                        std::string_view(resolved).find_first_of(separators) == std::string::npos;
    std::string result(usable ? resolved : path);
    std::free(resolved);
    return result;
  };
  const size_t comma = specification.find(',');
  std::string result;
  for_each_part(specification.substr(0, comma), '+', [&](std::string_view part) {
    if (!result.empty()) result += '+';
    const bool is_file = !part.empty() && part.front() == '@';
    result += is_file ? "@" + absolute(part.substr(1), "+,") : std::string(part);
    return true;
  });
  if (comma == std::string_view::npos) return result;
  constexpr std::string_view kCalibration = "calibration=";
  for_each_part(specification.substr(comma + 1), ',', [&](std::string_view part) {
    const bool is_file = part.substr(0, kCalibration.size()) == kCalibration;
    result += ',';
    result += is_file ? std::string(kCalibration) + absolute(part.substr(kCalibration.size()), ",")
                      : std::string(part);
    return true;
  });
  return result;
}

}  // namespace memledger::virtual_gpu
