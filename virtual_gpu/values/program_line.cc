#include "virtual_gpu/values/program_line.h"

#include <dlfcn.h>
#include <torch/csrc/profiler/combined_traceback.h>

#include <memory>
#include <vector>

#include "registry/stacks.h"

namespace memledger::virtual_gpu {
namespace {

bool is_of_libtorch(const std::string& file) { return file.find("/torch/") != std::string::npos; }

std::string python_line() {
  const std::shared_ptr<torch::CapturedTraceback> traceback =
      torch::CapturedTraceback::gather(/*python=*/true, /*script=*/false, /*cpp=*/false);
  const torch::SymbolizedTracebacks symbolized = torch::symbolize({traceback.get()});
  if (symbolized.tracebacks.empty() || symbolized.tracebacks[0].empty()) return "";
  const std::vector<uint64_t>& frames = symbolized.tracebacks[0];
  const torch::unwind::Frame* chosen = &symbolized.all_frames.at(frames[0]);
  for (const uint64_t index : frames) {
    const torch::unwind::Frame& frame = symbolized.all_frames.at(index);
    if (is_of_libtorch(frame.filename)) continue;
    chosen = &frame;
    break;
  }
  return chosen->filename + ":" + std::to_string(chosen->lineno) + " " + chosen->funcname;
}

}  // namespace

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
