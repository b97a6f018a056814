#include "virtual_gpu/values/program_line.h"

#include <dlfcn.h>

#include <map>
#include <mutex>
#include <string_view>

#include "registry/core/fork_safe_mutex.h"
#include "registry/stacks.h"
#include "virtual_gpu/values/python_line.h"

namespace memledger::virtual_gpu {
namespace {

bool is_of_library(std::string_view name) {
  for (const std::string_view library : {"libtorch", "libc10", "libmemledger", "libstdc++",
                                         "libc++", "libc.", "libcuda", "libpthread"}) {
    if (name.substr(0, library.size()) == library) return true;
  }
  return false;
}

// The innermost address that is the program's, as an offset.
std::string program_offset(uint32_t stack) {
  for (void* const address : stack_addresses(stack)) {
    Dl_info info = {};
    if (dladdr(address, &info) == 0 || info.dli_fname == nullptr) continue;
    const std::string_view path = info.dli_fname;
    const std::string_view name = path.substr(path.rfind('/') + 1);
    if (is_of_library(name)) continue;
    const auto offset =
        static_cast<const char*>(address) - static_cast<const char*>(info.dli_fbase);
    return std::string(name) + "+" + std::to_string(offset);
  }
  return "";
}

}  // namespace

std::string key_of(const ProgramLine& line) {
  if (!line.python.empty()) return line.python;
  if (line.stack == 0) return "";
  static auto* const mutex = new ForkSafeMutex;
  static auto* const keys = new std::map<uint32_t, std::string>;
  {
    const std::lock_guard<ForkSafeMutex> lock(*mutex);
    if (const auto key = keys->find(line.stack); key != keys->end()) return key->second;
  }
  std::string key = program_offset(line.stack);
  const std::lock_guard<ForkSafeMutex> lock(*mutex);
  return keys->emplace(line.stack, std::move(key)).first->second;
}

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
