#include "virtual_gpu/visible_devices.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <numeric>
#include <string_view>

namespace memledger::virtual_gpu {
namespace {

constexpr int kNone = -1;
constexpr std::string_view kUuidPrefix = "GPU-";
constexpr char kBlanks[] = " \t\n\r\f\v";

std::string_view trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(kBlanks);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kBlanks) - begin + 1);
}

// The number that the text begins with, as strtol has it: "1x" is 1.
int number_in(std::string_view text, int count) {
  size_t at = !text.empty() && text.front() == '+' ? 1 : 0;
  const size_t begin = at;
  int number = 0;
  for (; at < text.size() && text[at] >= '0' && text[at] <= '9'; ++at)
    number = std::min(number * 10 + (text[at] - '0'), count);
  return at > begin && number < count ? number : kNone;
}

// The one device whose UUID begins so.
int device_of_uuid(std::string_view prefix, int count) {
  if (prefix.substr(0, kUuidPrefix.size()) != kUuidPrefix) return kNone;
  int found = kNone;
  for (int device = 0; device < count; ++device) {
    if (uuid_text(device).compare(0, prefix.size(), prefix) != 0) continue;
    if (found != kNone) return kNone;
    found = device;
  }
  return found;
}

}  // namespace

std::array<unsigned char, 16> uuid_of(int machine_number) {
  std::array<unsigned char, 16> uuid{};
  std::memcpy(uuid.data(), "memledger gpu", 13);
  uuid.back() = static_cast<unsigned char>(machine_number);
  return uuid;
}

std::string uuid_text(int machine_number) {
  std::string text = "GPU";
  int i = 0;
  for (const unsigned char byte : uuid_of(machine_number)) {
    char digits[3];
    std::snprintf(digits, sizeof digits, "%02x", byte);
    if (i == 0 || i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += digits;
    ++i;
  }
  return text;
}

std::vector<int> visible_devices(const char* setting, int count) {
  std::vector<int> visible;
  if (setting == nullptr) {
    visible.resize(static_cast<size_t>(count));
    std::iota(visible.begin(), visible.end(), 0);
    return visible;
  }
  const std::string_view text = setting;
  const bool by_uuid = trimmed(text).substr(0, kUuidPrefix.size()) == kUuidPrefix;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const std::string_view entry = trimmed(text.substr(begin, end - begin));
    const int device = by_uuid ? device_of_uuid(entry, count) : number_in(entry, count);
    if (device == kNone) break;
    if (std::find(visible.begin(), visible.end(), device) != visible.end()) return {};
    visible.push_back(device);
    begin = end + 1;
  }
  return visible;
}

}  // namespace memledger::virtual_gpu
