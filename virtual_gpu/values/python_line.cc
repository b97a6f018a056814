#include "virtual_gpu/values/python_line.h"

#include <dlfcn.h>

#include <memory>
#include <utility>

namespace memledger::virtual_gpu {
namespace {

using Object = void;  // PyObject, PyFrameObject and PyCodeObject

template <typename F>
bool find(const char* name, F*& function) {
  function = reinterpret_cast<F*>(dlsym(RTLD_DEFAULT, name));
  return function != nullptr;
}

// The interpreter's functions, of its stable interface from Python 3.9 on. memledger is not linked
// with Python.
struct Interpreter {
  int (*is_initialized)();
  int (*ensure_gil)();
  void (*release_gil)(int);
  Object* (*error)();
  void (*clear_error)();
  Object* (*frame)();
  Object* (*back)(Object*);
  Object* (*code)(Object*);
  int (*line)(Object*);
  Object* (*attribute)(Object*, const char*);
  const char* (*text)(Object*);
  void (*keep)(Object*);
  void (*drop)(Object*);
  bool is_there = false;

  Interpreter()
      : is_there(find("Py_IsInitialized", is_initialized) &&
                 find("PyGILState_Ensure", ensure_gil) && find("PyGILState_Release", release_gil) &&
                 find("PyErr_Occurred", error) && find("PyErr_Clear", clear_error) &&
                 find("PyEval_GetFrame", frame) && find("PyFrame_GetBack", back) &&
                 find("PyFrame_GetCode", code) && find("PyFrame_GetLineNumber", line) &&
                 find("PyObject_GetAttrString", attribute) && find("PyUnicode_AsUTF8", text) &&
                 find("Py_IncRef", keep) && find("Py_DecRef", drop)) {}

  static const Interpreter& get() {
    static const Interpreter interpreter;
    return interpreter;
  }
};

class GilHolder {
 public:
  GilHolder() : state_(Interpreter::get().ensure_gil()) {}
  ~GilHolder() { Interpreter::get().release_gil(state_); }
  GilHolder(const GilHolder&) = delete;
  GilHolder& operator=(const GilHolder&) = delete;

 private:
  const int state_;
};

struct Drop {
  void operator()(Object* object) const { Interpreter::get().drop(object); }
};
using Owned = std::unique_ptr<Object, Drop>;

std::string text_of(Object* object, const char* attribute) {
  const Interpreter& python = Interpreter::get();
  const Owned value(python.attribute(object, attribute));
  const char* const text = value == nullptr ? nullptr : python.text(value.get());
  if (text == nullptr) python.clear_error();
  return text == nullptr ? "" : text;
}

}  // namespace

std::string python_line() {
  const Interpreter& python = Interpreter::get();
  if (!python.is_there || python.is_initialized() == 0) return "";
  const GilHolder gil;
  Object* const innermost = python.frame();
  if (innermost == nullptr || python.error() != nullptr) return "";
  python.keep(innermost);
  std::string first;
  for (Owned frame(innermost); frame != nullptr; frame.reset(python.back(frame.get()))) {
    const Owned code(python.code(frame.get()));
    const std::string file = text_of(code.get(), "co_filename");
    const bool is_of_pytorch = file.find("/torch/") != std::string::npos;
    if (is_of_pytorch && !first.empty()) continue;
    std::string line = file + ":" + std::to_string(python.line(frame.get())) + " " +
                       text_of(code.get(), "co_name");
    if (!is_of_pytorch) return line;
    first = std::move(line);
  }
  return first;
}

}  // namespace memledger::virtual_gpu
