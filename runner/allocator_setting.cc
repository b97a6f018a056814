#include "runner/allocator_setting.h"

#include <cstdlib>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_join.h"

namespace memledger::runner {
namespace {

// Every version of LibTorch reads one of them, and the newest both.
constexpr const char* kVariables[] = {"PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"};

// The options `name:value`, split at commas outside of brackets.
std::vector<std::string> options_of(std::string_view setting) {
  std::vector<std::string> options;
  int depth = 0;
  std::string option;
  for (const char c : setting) {
    depth += c == '[' ? 1 : c == ']' ? -1 : 0;
    if (c != ',' || depth > 0) {
      option += c;
    } else {
      options.push_back(std::exchange(option, ""));
    }
  }
  options.push_back(option);
  return options;
}

std::string name_of(const std::string& option) {
  std::string name = option.substr(0, option.find(':'));
  absl::StripAsciiWhitespace(&name);
  return name;
}

}  // namespace

std::string with_allocator_setting(std::string_view setting, std::string_view added) {
  std::vector<std::string> kept;
  const std::vector<std::string> new_options = options_of(added);
  for (const std::string& option : options_of(setting)) {
    bool is_replaced = name_of(option).empty();
    for (const std::string& new_option : new_options)
      is_replaced = is_replaced || name_of(option) == name_of(new_option);
    if (!is_replaced) kept.push_back(option);
  }
  for (const std::string& option : new_options) {
    if (!name_of(option).empty()) kept.push_back(option);
  }
  return absl::StrJoin(kept, ",");
}

std::string callers_allocator_setting() {
  std::string setting;
  for (const char* const name : kVariables) {
    const char* const value = std::getenv(name);
    if (value != nullptr) setting.append(value).append(",");
  }
  return setting;
}

void add_to_allocator_variable(std::string_view added) {
  if (added.empty()) return;
  std::string setting;
  for (const char* const name : kVariables) {
    const char* const value = std::getenv(name);
    if (value != nullptr) setting = with_allocator_setting(setting, value);
  }
  setting = with_allocator_setting(setting, added);
  for (const char* const name : kVariables) setenv(name, setting.c_str(), /*overwrite=*/1);
}

}  // namespace memledger::runner
