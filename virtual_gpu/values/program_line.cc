#include "virtual_gpu/values/program_line.h"

#include <dlfcn.h>

#include "registry/stacks.h"
#include "virtual_gpu/values/python_line.h"

namespace memledger::virtual_gpu {

ProgramLine take_program_line() noexcept {
  ProgramLine line;
  try {
    line.python = python_line();
  } catch (...) {  // a line less in a list
  }
  // The C++ stack of a Python program has the interpreter's functions.
  if (line.python.empty() && dlsym(RTLD_DEFAULT, "Py_IsInitialized") == nullptr)
    line.stack = take_stack();
  return line;
}

std::string to_string(const ProgramLine& line) {
  if (!line.python.empty()) return line.python;
  if (line.stack == 0) return "";
  const StackFrame frame = program_frame(line.stack);
  return frame.function.empty() ? "" : memledger::to_string(frame);
}

}  // namespace memledger::virtual_gpu
