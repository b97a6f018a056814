// Linked with no Python: its functions are looked up in the process.
#include "tracker/lines/python_frames.h"

#include <dlfcn.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
#include <unordered_map>

#include "tracker/lines/python_functions.h"

namespace memledger {
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
  const char* (*text)(Object*);
  int (*is_finalizing)() = nullptr;  // before 3.13 its name begins with an underscore
  void (*keep)(Object*);
  void (*drop)(Object*);
  bool is_there = false;

  Interpreter()
      : is_there(
            find("PyGILState_GetThisThreadState", this_thread) &&
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
            find("PyUnicode_AsUTF8", text) && find("Py_IncRef", keep) && find("Py_DecRef", drop) &&
            (find("Py_IsFinalizing", is_finalizing) || find("_Py_IsFinalizing", is_finalizing))) {}

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

std::atomic<bool> is_stopped{false};

struct KnownCode {
  uint32_t function = PythonFunctions::kNone;
  uint32_t looked_among = 0;  // functions, to which more may be added
};

// Guarded by Python's lock. Objects are kept for ever: names, and codes so that no other comes to
// lie at their address.
struct Known {
  // Interned: the same text is the same object.
  Object* const engine_name = Interpreter::get().intern("_engine_run_backward");
  Object* const name_attribute = Interpreter::get().intern("co_name");
  Object* const file_attribute = Interpreter::get().intern("co_filename");
  Object* const first_attribute = Interpreter::get().intern("co_firstlineno");
  Object* const globals_attribute = Interpreter::get().intern("f_globals");
  std::vector<Object*> names;
  uint32_t named = 0;  // functions whose names are there
  Object* describe = nullptr;
  std::unordered_map<Object*, KnownCode> codes;

  void look_for(const std::string& frame_name) {
    Object* const name = Interpreter::get().intern(frame_name.c_str());
    if (name != nullptr && std::find(names.begin(), names.end(), name) == names.end())
      names.push_back(name);
  }
};

Known& known() {
  static auto* const known = new Known;
  return *known;
}

void look_for_new_functions() {
  Known& known = memledger::known();
  if (known.named == PythonFunctions::count()) return;
  const std::vector<ToldFunction> functions = PythonFunctions::all();
  for (; known.named < functions.size(); ++known.named)
    known.look_for(functions[known.named].frame_name);
}

uint32_t told_function(Object* code, Object* name) {
  const Interpreter& python = Interpreter::get();
  const Known& known = memledger::known();
  const Owned file(python.attribute(code, known.file_attribute));
  const Owned first(python.attribute(code, known.first_attribute));
  const char* const file_text = file == nullptr ? nullptr : python.text(file.get());
  const char* const name_text = python.text(name);
  if (file_text == nullptr || name_text == nullptr || first == nullptr)
    return PythonFunctions::kNone;
  return PythonFunctions::find(name_text, absolute_python_file(file_text),
                               python.number(first.get()));
}

uint32_t described_function(Object* frame, Object* code) {
  const Interpreter& python = Interpreter::get();
  const Known& known = memledger::known();
  if (known.describe == nullptr) return PythonFunctions::kNone;
  const Owned globals(python.attribute(frame, known.globals_attribute));
  if (globals == nullptr) return PythonFunctions::kNone;
  const Owned number(
      python.call(known.describe, code, globals.get(), static_cast<Object*>(nullptr)));
  const long value = number == nullptr ? -1 : python.number(number.get());
  return value < 0 ? PythonFunctions::kNone : static_cast<uint32_t>(value);
}

// The number of the function whose code this is.
uint32_t function_of(Object* frame, Object* code, Object* name) {
  Known& known = memledger::known();
  const auto found = known.codes.find(code);
  const bool is_new = found == known.codes.end();
  if (!is_new && (found->second.function != PythonFunctions::kNone ||
                  found->second.looked_among == known.named))
    return found->second.function;
  if (is_new && known.codes.size() >= kMostCodes) return PythonFunctions::kNone;
  KnownCode now{described_function(frame, code), known.named};
  if (now.function == PythonFunctions::kNone) now.function = told_function(code, name);
  known.codes[code] = now;
  if (is_new) Interpreter::get().keep(code);
  return now.function;
}

// Appends a thread's calls, innermost first. Returns whether it is one that runs backward, or
// waits for the threads that do.
bool append_calls(Thread* thread, std::vector<PythonCall>& calls) {
  const Interpreter& python = Interpreter::get();
  const Known& known = memledger::known();
  bool runs_backward = false;
  for (Owned frame(python.frame(thread)); frame != nullptr; frame.reset(python.back(frame.get()))) {
    const Owned code(python.code(frame.get()));
    const Owned name(python.attribute(code.get(), known.name_attribute));
    runs_backward = runs_backward || name.get() == known.engine_name;
    if (std::find(known.names.begin(), known.names.end(), name.get()) == known.names.end())
      continue;
    const uint32_t function = function_of(frame.get(), code.get(), name.get());
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
  if (is_stopped.load(std::memory_order_relaxed) || python.is_finalizing() != 0 ||
      python.this_thread() == nullptr)
    return;
  const Visit visit;
  look_for_new_functions();
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

}  // namespace

void PythonFrames::begin() noexcept {
  if (Interpreter::get().is_there) PythonFunctions::set_reader(&read_calls);
}

void PythonFrames::describe_with(void* describe,
                                 const std::vector<std::string>& frame_names) noexcept {
  if (!Interpreter::get().is_there) return;
  try {
    Known& known = memledger::known();
    for (const std::string& name : frame_names) known.look_for(name);
    known.describe = describe;
    Interpreter::get().keep(describe);
    begin();
  } catch (...) {
    // Without memory, there are no lines.
  }
}

void PythonFrames::stop() noexcept { is_stopped.store(true); }

std::string absolute_python_file(const std::string& file) {
  if (file.empty() || file.front() == '<' || file.front() == '/') return file;
  std::error_code error;
  const std::filesystem::path path = std::filesystem::absolute(file, error);
  return error ? file : path.lexically_normal().string();
}

}  // namespace memledger
