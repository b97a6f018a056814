#include "tracker/lines/python_functions.h"

#include <algorithm>
#include <atomic>
#include <mutex>

#include "registry/core/fork_safe_mutex.h"
#include "text/names.h"

namespace memledger {
namespace {

std::atomic<PythonFunctions::ReadCalls> read_calls_now{nullptr};

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
    Known& all = known();
    const std::lock_guard<ForkSafeMutex> hold(all.lock);
    const auto same =
        std::find_if(all.functions.begin(), all.functions.end(), [&](const ToldFunction& one) {
          return one.first == function.first && one.name == function.name &&
                 one.file == function.file;
        });
    if (same == all.functions.end()) {
      all.functions.push_back(function);
      return static_cast<uint32_t>(all.functions.size() - 1);
    }
    same->last = std::max(same->last, function.last);
    return static_cast<uint32_t>(same - all.functions.begin());
  } catch (...) {
    return kNone;
  }
}

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
