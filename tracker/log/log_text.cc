#include "tracker/log/log_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <ctime>

namespace memledger::log_text {
namespace {

double to_mib(int64_t bytes) { return static_cast<double>(bytes) / kBytesPerMib; }

// By fmt: printf() has the locale's decimal point, and GCC 10's library lacks std::to_chars()
// for double.
std::string shortest(double value) {
  std::string text = fmt::format("{}", value);  // no exponent from 0.0001 to below 1e16
  if (text.find('.') == std::string::npos) text += ".0";
  return text;
}

bool needs_exponent(double mib) { return mib != 0 && mib < 0.0001; }

}  // namespace

std::string memory(int64_t bytes) {
  const double mib = to_mib(bytes);
  if (needs_exponent(mib)) return fmt::format("{:.3e}", mib);
  const std::string text = shortest(mib);
  return text.substr(0, std::max<size_t>(6, text.find('.')));
}

std::string total(std::optional<int64_t> bytes) {
  if (!bytes.has_value()) return padded("?", kTotalWidth);
  return padded(fmt::format("{:.1f}", to_mib(*bytes)), kTotalWidth);
}

std::string totals(std::optional<int64_t> tensor_bytes, std::optional<int64_t> allocated_bytes) {
  return kTensorTotal + total(tensor_bytes) + kTotalUnit + ' ' + kAllocatedTotal +
         total(allocated_bytes) + kTotalUnit;
}

std::string exact_mib(int64_t bytes) {
  const double mib = to_mib(bytes);
  return needs_exponent(mib) ? fmt::format("{}", mib) : shortest(mib);
}

std::string date(std::chrono::system_clock::time_point time) {
  constexpr std::array<const char*, 12> kMonths = {"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                                   "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
  const std::time_t seconds = std::chrono::system_clock::to_time_t(time);
  std::tm local = {};
  if (localtime_r(&seconds, &local) == nullptr) return "?";
  std::array<char, 64> text;
  std::snprintf(text.data(), text.size(), "%02d-%s-%02d-%02d:%02d:%02d", local.tm_mday,
                kMonths[static_cast<size_t>(local.tm_mon)], (local.tm_year + 1900) % 100,
                local.tm_hour, local.tm_min, local.tm_sec);
  return text.data();
}

std::string padded(std::string text, size_t width) {
  const auto is_start = [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; };
  const auto characters = static_cast<size_t>(std::count_if(text.begin(), text.end(), is_start));
  if (characters < width) text.append(width - characters, ' ');
  return text;
}

}  // namespace memledger::log_text
