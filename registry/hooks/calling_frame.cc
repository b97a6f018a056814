#include "registry/hooks/calling_frame.h"

#include <link.h>

#include <algorithm>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "registry/core/loaded_libraries.h"
#include "registry/hooks/inlined_calls.h"
#include "registry/hooks/python_stack.h"

namespace memledger {
namespace {

// Where the program's file is loaded.
struct ProgramImage {
  std::vector<std::pair<uintptr_t, uintptr_t>> segments;

  static int add(dl_phdr_info* program, size_t /*size*/, void* image) {
    for (int i = 0; i < program->dlpi_phnum; ++i) {
      const auto& segment = program->dlpi_phdr[i];
      const uintptr_t begin = program->dlpi_addr + segment.p_vaddr;
      if (segment.p_type == PT_LOAD)
        static_cast<ProgramImage*>(image)->segments.emplace_back(begin, begin + segment.p_memsz);
    }
    return 1;  // the program comes first
  }
  bool has(const void* return_address) const {
    const auto call = reinterpret_cast<uintptr_t>(return_address) - 1;
    return std::any_of(segments.begin(), segments.end(), [call](const auto& segment) {
      return segment.first <= call && call < segment.second;
    });
  }
};

bool has_part(const std::string& path, std::initializer_list<const char*> parts) {
  return std::any_of(parts.begin(), parts.end(),
                     [&path](const char* part) { return path.find(part) != std::string::npos; });
}

// Headers, and where build systems and package managers put the sources of other projects.
bool is_source_of_library(const std::string& file) {
  return file.rfind("external/", 0) == 0 ||
         has_part(file, {"/include/", "/ATen/", "/c10/", "/torch/csrc/", "/lib/gcc/", "/_deps/",
                         "/external/", "/third_party/", "/vcpkg_installed/", "/.conan"});
}

StackFrame calling_frame_of_python(const std::vector<void*>& addresses) {
  bool has_library = false;
  for (const void* const address : addresses) {
    StackFrame frame = PythonStack::frame_at(address);
    if (frame.line == 0 || PythonStack::is_foreign(frame)) continue;
    if (has_part(frame.file, {"-packages/"})) {
      has_library = true;
      continue;
    }
    return has_library ? frame : StackFrame();
  }
  return {};
}

}  // namespace

StackFrame calling_frame(uint32_t stack) {
  const std::vector<void*> addresses = stack_addresses(stack);
  if (addresses.empty()) return {};
  if (is_of_python(addresses.front())) return calling_frame_of_python(addresses);
  const StackFrame shown = program_frame(stack);
  if (shown.line == 0) return {};
  ProgramImage program;
  core::for_each_loaded_library(&ProgramImage::add, &program);
  const std::vector<std::vector<StackFrame>> frames = InlinedCalls::frames_at(addresses);
  bool has_library = false;
  for (size_t i = 0; i < frames.size(); ++i) {
    for (const StackFrame& frame : frames[i]) {
      const bool is_own =
          frame.line > 0 && program.has(addresses[i]) && !is_source_of_library(frame.file);
      if (has_library) {
        if (is_own) return frame;
      } else if (frame.line == shown.line && frame.file == shown.file) {
        if (is_own) return {};
        has_library = true;
      }
    }
  }
  return {};
}

}  // namespace memledger
