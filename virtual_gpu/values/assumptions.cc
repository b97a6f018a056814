// Compiled with NDEBUG whatever the build mode: see SEES_LIBTORCH_INLINES_COPTS.
#include "virtual_gpu/values/assumptions.h"

#include <ATen/Functions.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <utility>

#include "prediction/measure_variables.h"

namespace memledger::virtual_gpu {
namespace {

// Larger than what programs round up to, and smaller than a vocabulary.
constexpr double kLargeNumber = 4096;
// More bytes than any machine has, so that nobody gets them.
constexpr double kHugeNumber = 1099511627776;  // 2^40
constexpr double kHugeFraction = 1e30;
constexpr double kMillionNumber = 1e6;
constexpr double kLargestHalf = 65504;
// More than the step of each type there, and so slow that a thousandth read is as large.
constexpr double kRise = 32;             // bfloat16's step at 4096
constexpr double kRiseOfMillion = 8192;  // above it
constexpr double kFall = 0.99, kFallOfHalf = 0.999;

double huge_number(c10::ScalarType type, uint64_t read) {
  const auto reads = static_cast<double>(read);
  if (c10::isIntegralType(type, /*includeBool=*/true)) return kHugeNumber - reads;
  if (type == at::kHalf) return kLargestHalf * std::pow(kFallOfHalf, reads);
  return kHugeFraction * std::pow(kFall, reads);
}

constexpr std::pair<std::string_view, Assumed> kWords[] = {
    {prediction::kAssumeOther, Assumed::kOther}, {prediction::kAssumeSmall, Assumed::kSmall},
    {prediction::kAssumeOne, Assumed::kOne},     {prediction::kAssumeLarge, Assumed::kLarge},
    {prediction::kAssumeHuge, Assumed::kHuge},   {prediction::kAssumeMillion, Assumed::kMillion},
};

std::optional<Assumed> assumed_of(std::string_view word) {
  for (const auto& [name, assumed] : kWords) {
    if (name == word) return assumed;
  }
  return {};
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (true) {
    const size_t end = text.find(separator);
    parts.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

// Whether `place` names the line: src/train.py:12 is /home/me/src/train.py:12 main.
bool is_line(std::string_view place, std::string_view line) {
  for (size_t at = place.find(line); at != std::string_view::npos; at = place.find(line, at + 1)) {
    const size_t end = at + line.size();
    const bool begins = at == 0 || place[at - 1] == '/';
    const bool ends = end == place.size() || place[end] == ' ';
    if (begins && ends) return true;
  }
  return false;
}

std::pair<double, double> limits_of(c10::ScalarType type) {
  switch (type) {
    case at::kBool:
      return {0, 1};
    case at::kByte:
      return {0, 255};
    case at::kChar:
      return {-128, 127};
    case at::kShort:
      return {-32768, 32767};
    case at::kInt:
      return {-2147483648.0, 2147483647.0};
    case at::kHalf:
      return {-kLargestHalf, kLargestHalf};
    default:
      return {std::numeric_limits<double>::lowest(), std::numeric_limits<double>::max()};
  }
}

}  // namespace

const Assumptions& Assumptions::get() {
  static const auto* const assumptions = [] {
    const char* const text = secure_getenv(prediction::kAssumptionsVariable);
    return new Assumptions(text == nullptr ? "" : text);
  }();
  return *assumptions;
}

Assumptions::Assumptions(std::string_view text) {
  for (const std::string_view line : split(text, '\n')) {
    const std::vector<std::string_view> words = split(line, '\t');
    if (words.size() == 3 && words[0] == prediction::kAssumeAtLine) {
      lines_.push_back(
          {std::string(words[1]), std::strtod(std::string(words[2]).c_str(), nullptr)});
    } else if (words.size() == 3 && words[0] == prediction::kAssumeCapped) {
      capped_.push_back({std::string(words[1]), std::string(words[2])});
    } else if (words.size() == 2 && words[0] == prediction::kAssumeNoDriver) {
      no_drivers_.emplace_back(words[1]);
    } else if (words.size() == 2) {
      if (const std::optional<Assumed> assumed = assumed_of(words[1]))
        sites_.push_back({std::string(words[0]), *assumed});
    }
  }
}

Assumed Assumptions::of(std::string_view site, bool is_truth) const {
  const std::string_view all = is_truth ? prediction::kAllTruths : prediction::kAllNumbers;
  for (const Site& one : sites_) {
    if (one.site == site || one.site == all) return one.assumed;
  }
  return Assumed::kLikely;
}

std::optional<double> Assumptions::at(std::string_view place) const {
  for (const Line& line : lines_) {
    if (is_line(place, line.place)) return line.value;
  }
  return {};
}

const std::string* Assumptions::loop_of(std::string_view site) const {
  const auto capped = std::find_if(capped_.begin(), capped_.end(),
                                   [&](const Capped& one) { return one.site == site; });
  return capped == capped_.end() ? nullptr : &capped->loop;
}

bool Assumptions::drives_nothing(std::string_view site) const {
  return std::any_of(no_drivers_.begin(), no_drivers_.end(), [&](const std::string& one) {
    return one == site || one == prediction::kAllSizes;
  });
}

std::string site_of(std::string_view what, std::string_view op, std::string_view place) {
  uint64_t hash = 0xcbf29ce484222325;  // FNV-1a
  for (const std::string_view part : {what, op, place}) {
    for (const char c : part) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
    hash = (hash ^ 0xff) * 0x100000001b3;
  }
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text(16, '0');
  for (size_t i = text.size(); i-- > 0; hash >>= 4) text[i] = kDigits[hash & 15];
  return text;
}

bool is_other_truth(uint64_t read) {
  uint64_t length = 1;
  while (read >= 2 * length) read -= 2 * length++;
  return read < length;
}

double assumed_number(Assumed assumed, c10::ScalarType type, bool is_alone, double likely,
                      uint64_t read) {
  switch (assumed) {
    case Assumed::kLikely:
    case Assumed::kOther:
      break;
    case Assumed::kSmall:
      return c10::isIntegralType(type, /*includeBool=*/true) || is_alone
                 ? 0
                 : -1;  // a limit may lie on either side
    case Assumed::kOne:
      return 1;
    case Assumed::kLarge:
      return kLargeNumber + kRise * static_cast<double>(read);
    case Assumed::kMillion:
      return kMillionNumber + kRiseOfMillion * static_cast<double>(read);
    case Assumed::kHuge:
      return huge_number(type, read);
  }
  return likely;
}

std::vector<unsigned char> element_bytes(c10::ScalarType type, double value) {
  std::vector<unsigned char> bytes(c10::elementSize(type));
  const auto [least, most] = limits_of(type);
  // A double next to the largest integer is above it.
  constexpr double kMaxInteger = 9.2e18;
  value = std::min(std::max(value, least), most);
  if (c10::isIntegralType(type, /*includeBool=*/true))
    value = std::min(std::max(value, -kMaxInteger), kMaxInteger);
  const at::Scalar scalar = c10::isIntegralType(type, /*includeBool=*/true)
                                ? at::Scalar(static_cast<int64_t>(value))
                                : at::Scalar(value);
  try {
    const at::Tensor element = at::full({1}, scalar, at::TensorOptions(at::kCPU).dtype(type));
    std::memcpy(bytes.data(), element.const_data_ptr(), bytes.size());
  } catch (const c10::Error&) {  // a type that cannot be filled, or has no such value
  }
  return bytes;
}

}  // namespace memledger::virtual_gpu
