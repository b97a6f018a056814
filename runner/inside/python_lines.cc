#include "runner/inside/python_lines.h"

#include <algorithm>
#include <string_view>

#include "registry/hooks/python_stack.h"
#include "text/json.h"
#include "tracker/lines/python_frames.h"
#include "tracker/lines/python_functions.h"

namespace memledger::inside {
namespace {

// Set before Python runs.
std::vector<std::string>& wanted() {
  static auto* const names = new std::vector<std::string>;
  return *names;
}

std::string last_part(const std::string& name) {
  const size_t end = name.find_last_of(".:");
  return end == std::string::npos ? name : name.substr(end + 1);
}

}  // namespace

void profile_python_functions(const std::vector<std::string>& names) { wanted() = names; }

std::string profiled_python_names() {
  return Json(wanted()).dump(-1, ' ', /*ensure_ascii=*/true, Json::error_handler_t::replace);
}

void begin_python_lines(void* describe) noexcept {
  try {
    std::vector<std::string> frame_names;
    frame_names.reserve(wanted().size());
    for (const std::string& name : wanted()) frame_names.push_back(last_part(name));
    PythonFrames::describe_with(describe, frame_names);
  } catch (...) {
    // Without memory, there are no lines.
  }
}

int add_python_function(const char* name, const char* module, const char* file, int first,
                        int last) noexcept {
  try {
    const bool is_typed = *file == '<' && std::string_view(module) == "__main__";  // python -c
    if (!is_typed && PythonStack::is_foreign({name, file, first})) return -1;
    ToldFunction function;
    function.name = name;
    function.module = module;
    function.file = file;
    function.first = first;
    function.last = last;
    const auto is_wanted = [&](const std::string& one) { return function.is_named(one); };
    if (std::none_of(wanted().begin(), wanted().end(), is_wanted)) return -1;
    const uint32_t number = PythonFunctions::add(function);
    return number == PythonFunctions::kNone ? -1 : static_cast<int>(number);
  } catch (...) {
    return -1;
  }
}

void end_python_lines() noexcept { PythonFrames::stop(); }

}  // namespace memledger::inside
