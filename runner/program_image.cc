#include "runner/program_image.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace memledger::runner {
namespace {

constexpr int kCannotStart = 126;

absl::string_view view(std::string_view text) { return {text.data(), text.size()}; }

std::vector<char*> pointers_to(std::vector<std::string>& words) {
  std::vector<char*> pointers;
  pointers.reserve(words.size() + 1);
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  return pointers;
}

}  // namespace

ProgramImage::ProgramImage(std::string file, std::vector<std::string> arguments, std::string folder)
    : file_(std::move(file)), folder_(std::move(folder)), arguments_(std::move(arguments)) {
  for (char** variable = environ; variable != nullptr && *variable != nullptr; ++variable)
    variables_.emplace_back(*variable);
}

std::vector<std::string>::iterator ProgramImage::find(std::string_view name) {
  const std::string begin = absl::StrCat(view(name), "=");
  return std::find_if(variables_.begin(), variables_.end(), [&](const std::string& variable) {
    return absl::StartsWith(variable, begin);
  });
}

void ProgramImage::set(std::string_view name, std::string_view value) {
  unset(name);
  variables_.push_back(absl::StrCat(view(name), "=", view(value)));
}

void ProgramImage::set_default(std::string_view name, std::string_view value) {
  if (find(name) == variables_.end()) set(name, value);
}

void ProgramImage::unset(std::string_view name) {
  for (auto found = find(name); found != variables_.end(); found = find(name))
    variables_.erase(found);
}

void ProgramImage::finish() {
  argv_ = pointers_to(arguments_);
  envp_ = pointers_to(variables_);
}

int ProgramImage::become() const {
  if (!folder_.empty() && chdir(folder_.c_str()) != 0) return kCannotStart;
  execve(file_.c_str(), argv_.data(), envp_.data());
  return kCannotStart;
}

}  // namespace memledger::runner
