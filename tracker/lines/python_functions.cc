#include "tracker/lines/python_functions.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <utility>

#include "registry/core/fork_safe_mutex.h"
#include "text/names.h"

namespace memledger {
namespace {

std::atomic<PythonFunctions::ReadCalls> read_calls_now{nullptr};
std::atomic<uint32_t> count_now{0};

struct Known {
  ForkSafeMutex lock;
  std::vector<ToldFunction> functions;  // guarded by it
  std::vector<std::string> near;        // and this
};

Known& known() {
  static auto* const known = new Known;
  return *known;
}

bool ends_with_parts(std::string_view qualified, std::string_view wanted) {
  if (qualified.size() < wanted.size()) return false;
  const size_t scope = qualified.size() - wanted.size();
  return qualified.substr(scope) == wanted && (scope == 0 || qualified[scope - 1] == '.');
}

// The lock is held.
uint32_t index_of(const std::vector<ToldFunction>& functions, std::string_view frame_name,
                  std::string_view file, int64_t first) {
  const auto same = std::find_if(functions.begin(), functions.end(), [&](const ToldFunction& one) {
    return one.first == first && one.frame_name == frame_name && one.file == file;
  });
  return same == functions.end() ? PythonFunctions::kNone
                                 : static_cast<uint32_t>(same - functions.begin());
}

std::string with_dots(std::string_view name) {
  std::string text(name);
  for (size_t at = text.find("::"); at != std::string::npos; at = text.find("::", at))
    text.replace(at, 2, ".");
  return text;
}

}  // namespace

bool ToldFunction::is_named(std::string_view wanted) const {
  const std::string parts = with_dots(wanted);
  const std::string_view base = base_name(file);
  const std::string stem(base.substr(0, base.rfind('.')));
  return !parts.empty() &&
         (ends_with_parts(module + "." + name, parts) || ends_with_parts(stem + "." + name, parts));
}

void PythonFunctions::set_reader(ReadCalls reader) noexcept { read_calls_now.store(reader); }

bool PythonFunctions::are_read() noexcept {
  return read_calls_now.load(std::memory_order_relaxed) != nullptr;
}

PythonCalls PythonFunctions::read_calls() {
  PythonCalls calls;
  if (const ReadCalls reader = read_calls_now.load(std::memory_order_relaxed)) reader(calls);
  return calls;
}

uint32_t PythonFunctions::add(const ToldFunction& function) noexcept {
  try {
    ToldFunction added = function;
    if (added.frame_name.empty()) added.frame_name = added.name.substr(added.name.rfind('.') + 1);
    std::vector<ToldFunction>& functions = known().functions;
    const std::lock_guard<ForkSafeMutex> hold(known().lock);
    const uint32_t same = index_of(functions, added.frame_name, added.file, added.first);
    if (same != kNone) {
      ToldFunction& before = functions[same];
      before.last = std::max(before.last, added.last);
      if (before.module.empty()) before.module = std::move(added.module);
      return same;
    }
    functions.push_back(std::move(added));
    count_now.store(static_cast<uint32_t>(functions.size()), std::memory_order_release);
    return static_cast<uint32_t>(functions.size() - 1);
  } catch (...) {
    return kNone;
  }
}

uint32_t PythonFunctions::find(std::string_view frame_name, std::string_view file,
                               int64_t first) noexcept {
  const std::lock_guard<ForkSafeMutex> hold(known().lock);
  return index_of(known().functions, frame_name, file, first);
}

uint32_t PythonFunctions::count() noexcept { return count_now.load(std::memory_order_acquire); }

bool PythonFunctions::has(std::string_view wanted) noexcept {
  try {
    const std::vector<ToldFunction> functions = all();
    return std::any_of(functions.begin(), functions.end(),
                       [&](const ToldFunction& one) { return one.is_named(wanted); });
  } catch (...) {
    return false;
  }
}

std::vector<ToldFunction> PythonFunctions::all() {
  const std::lock_guard<ForkSafeMutex> hold(known().lock);
  return known().functions;
}

void PythonFunctions::add_near(std::string_view name) noexcept {
  try {
    const std::lock_guard<ForkSafeMutex> hold(known().lock);
    known().near.emplace_back(name);
  } catch (...) {
    // One name less to suggest.
  }
}

std::vector<std::string> PythonFunctions::near() {
  const std::lock_guard<ForkSafeMutex> hold(known().lock);
  return known().near;
}

}  // namespace memledger
