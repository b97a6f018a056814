// Linked with no Python: its functions are looked up in the process.
#include "runner/inside/python_lines.h"

#include <dlfcn.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <string_view>
#include <unordered_map>

#include "registry/hooks/python_stack.h"
#include "text/json.h"
#include "tracker/lines/python_functions.h"

namespace memledger::inside {
namespace {

using Object = void;  // PyObject and the types derived from it
using Thread = void;  // PyThreadState

// Function objects of a name that is looked for; a program that makes more of them is not followed.
constexpr size_t kMostCodes = 4096;

template <typename F>
bool find(const char* name, F*& function) {
  function = reinterpret_cast<F*>(dlsym(RTLD_DEFAULT, name));
  return function != nullptr;
}

struct Interpreter {
  Thread* (*this_thread)();
  int (*ensure_gil)();
  void (*release_gil)(int);
  int (*disable_gc)();
  int (*enable_gc)();
  void (*fetch_error)(Object**, Object**, Object**);
  void (*restore_error)(Object*, Object*, Object*);
  void* (*interpreter)();
  Thread* (*first_thread)(void*);
  Thread* (*next_thread)(Thread*);
  Object* (*frame)(Thread*);
  Object* (*back)(Object*);
  Object* (*code)(Object*);
  int (*line)(Object*);
  Object* (*attribute)(Object*, Object*);
  Object* (*intern)(const char*);
  Object* (*call)(Object*, ...);
  long (*number)(Object*);
  void (*keep)(Object*);
  void (*drop)(Object*);
  bool is_there = false;

  Interpreter()
      : is_there(find("PyGILState_GetThisThreadState", this_thread) &&
                 find("PyGILState_Ensure", ensure_gil) && find("PyGILState_Release", release_gil) &&
                 find("PyGC_Disable", disable_gc) && find("PyGC_Enable", enable_gc) &&
                 find("PyErr_Fetch", fetch_error) && find("PyErr_Restore", restore_error) &&
                 find("PyInterpreterState_Get", interpreter) &&
                 find("PyInterpreterState_ThreadHead", first_thread) &&
                 find("PyThreadState_Next", next_thread) && find("PyThreadState_GetFrame", frame) &&
                 find("PyFrame_GetBack", back) && find("PyFrame_GetCode", code) &&
                 find("PyFrame_GetLineNumber", line) && find("PyObject_GetAttr", attribute) &&
                 find("PyUnicode_InternFromString", intern) &&
                 find("PyObject_CallFunctionObjArgs", call) && find("PyLong_AsLong", number) &&
                 find("Py_IncRef", keep) && find("Py_DecRef", drop)) {}

  static const Interpreter& get() {
    static const Interpreter interpreter;
    return interpreter;
  }
};

struct Drop {
  void operator()(Object* object) const { Interpreter::get().drop(object); }
};
using Owned = std::unique_ptr<Object, Drop>;

// Holds Python's lock, sets its error aside, and keeps its garbage collector from ending tensors.
class Visit {
 public:
  Visit() : state_(Interpreter::get().ensure_gil()) {
    const Interpreter& python = Interpreter::get();
    python.fetch_error(&type_, &value_, &traceback_);
    collects_ = python.disable_gc() != 0;
  }
  ~Visit() {
    const Interpreter& python = Interpreter::get();
    if (collects_) python.enable_gc();
    python.restore_error(type_, value_, traceback_);
    python.release_gil(state_);
  }
  Visit(const Visit&) = delete;
  Visit& operator=(const Visit&) = delete;

 private:
  const int state_;
  bool collects_ = false;
  Object* type_ = nullptr;
  Object* value_ = nullptr;
  Object* traceback_ = nullptr;
};

// The last parts of the names looked for. Set before Python runs.
std::vector<std::string>& wanted() {
  static auto* const names = new std::vector<std::string>;
  return *names;
}

std::atomic<bool> is_reading{false};

// Guarded by Python's lock. Objects are kept for ever: names, and codes so that no other comes to
// lie at their address.
struct Known {
  std::vector<Object*> names;  // interned: the same text is the same object
  Object* engine_name = nullptr;
  Object* name_attribute = nullptr;
  Object* globals_attribute = nullptr;
  Object* describe = nullptr;
  std::unordered_map<Object*, uint32_t> codes;  // the function's number, or kNone
};

Known& known() {
  static auto* const known = new Known;
  return *known;
}

// The number of the function whose code this is.
uint32_t function_of(Object* frame, Object* code) {
  const Interpreter& python = Interpreter::get();
  Known& known = inside::known();
  const auto found = known.codes.find(code);
  if (found != known.codes.end()) return found->second;
  if (known.codes.size() >= kMostCodes) return PythonFunctions::kNone;
  const Owned globals(python.attribute(frame, known.globals_attribute));
  if (globals == nullptr) return PythonFunctions::kNone;
  const Owned number(
      python.call(known.describe, code, globals.get(), static_cast<Object*>(nullptr)));
  const long value = number == nullptr ? -1 : python.number(number.get());
  const uint32_t function = value < 0 ? PythonFunctions::kNone : static_cast<uint32_t>(value);
  known.codes.emplace(code, function);
  python.keep(code);
  return function;
}

// Appends a thread's calls, innermost first. Returns whether it is one that runs backward, or
// waits for the threads that do.
bool append_calls(Thread* thread, std::vector<PythonCall>& calls) {
  const Interpreter& python = Interpreter::get();
  const Known& known = inside::known();
  bool runs_backward = false;
  for (Owned frame(python.frame(thread)); frame != nullptr; frame.reset(python.back(frame.get()))) {
    const Owned code(python.code(frame.get()));
    const Owned name(python.attribute(code.get(), known.name_attribute));
    runs_backward = runs_backward || name.get() == known.engine_name;
    if (std::find(known.names.begin(), known.names.end(), name.get()) == known.names.end())
      continue;
    const uint32_t function = function_of(frame.get(), code.get());
    if (function != PythonFunctions::kNone) calls.push_back({function, python.line(frame.get())});
  }
  return runs_backward;
}

// Returns the thread that waits for backward: the first of several.
Thread* waits_for_backward() {
  const Interpreter& python = Interpreter::get();
  for (Thread* thread = python.first_thread(python.interpreter()); thread != nullptr;
       thread = python.next_thread(thread)) {
    const Owned frame(python.frame(thread));
    if (frame == nullptr) continue;
    const Owned code(python.code(frame.get()));
    const Owned name(python.attribute(code.get(), known().name_attribute));
    if (name.get() == known().engine_name) return thread;
  }
  return nullptr;
}

void read_calls(PythonCalls& result) {
  const Interpreter& python = Interpreter::get();
  // A thread that Python does not know must not wait for its lock: see python_stack.cc.
  if (!is_reading.load(std::memory_order_relaxed) || python.this_thread() == nullptr) return;
  const Visit visit;
  Thread* thread = python.this_thread();
  if (!append_calls(thread, result.calls) && torch::autograd::get_current_graph_task_id() != -1) {
    if (Thread* const other = waits_for_backward(); other != nullptr) {
      append_calls(other, result.calls);
      thread = other;
    }
  }
  std::reverse(result.calls.begin(), result.calls.end());
  result.thread = reinterpret_cast<uintptr_t>(thread);
}

std::string_view last_part(std::string_view name) {
  const size_t end = name.find_last_of(".:");
  return end == std::string_view::npos ? name : name.substr(end + 1);
}

}  // namespace

void profile_python_functions(const std::vector<std::string>& names) { wanted() = names; }

std::string profiled_python_names() {
  return Json(wanted()).dump(-1, ' ', /*ensure_ascii=*/true, Json::error_handler_t::replace);
}

void begin_python_lines(void* describe) noexcept {
  const Interpreter& python = Interpreter::get();
  if (!python.is_there) return;
  try {
    Known& known = inside::known();
    for (const std::string& name : wanted())
      known.names.push_back(python.intern(std::string(last_part(name)).c_str()));
    known.engine_name = python.intern("_engine_run_backward");
    known.name_attribute = python.intern("co_name");
    known.globals_attribute = python.intern("f_globals");
    known.describe = describe;
    python.keep(describe);
    is_reading.store(true);
    PythonFunctions::set_reader(&read_calls);
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

void end_python_lines() noexcept { is_reading.store(false); }

}  // namespace memledger::inside
