#pragma once

// Which release a LibTorch on disk is of. For the command and for what goes into programs: the C
// library alone.

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

namespace memledger {

// The version is in files next to LibTorch's folder of libraries: `2.11.0+cu130` in build-version,
// `__version__ = '2.11.0+cu130'` in version.py, `set(PACKAGE_VERSION "2.11.0")` where only the
// parts for C++ are installed. False where none of them has it.
inline bool read_libtorch_version(const char* libraries, char* version, size_t size) {
  struct Source {
    const char* file;
    const char* line;  // how the line begins
  };
  constexpr Source kSources[] = {
      {"build-version", ""},
      {"version.py", "__version__"},
      {"share/cmake/Torch/TorchConfigVersion.cmake", "set(PACKAGE_VERSION"}};
  for (const Source& source : kSources) {
    char path[4200];
    snprintf(path, sizeof path, "%s/../%s", libraries, source.file);
    FILE* const file = fopen(path, "re");
    if (file == nullptr) continue;
    char line[256];
    bool is_known = false;
    while (!is_known && fgets(line, sizeof line, file) != nullptr) {
      if (strncmp(line, source.line, strlen(source.line)) != 0) continue;
      const char* const digits = strpbrk(line, "0123456789");
      if (digits == nullptr) continue;
      snprintf(version, size, "%.*s", static_cast<int>(strcspn(digits, "'\")\n")), digits);
      is_known = true;
    }
    fclose(file);
    if (is_known) return true;
  }
  return false;
}

// Whether 2.11.0+cu130 is of release 2.11.
inline bool is_of_release(const char* version, const char* release) {
  const size_t length = strlen(release);
  return strncmp(version, release, length) == 0 && (version[length] < '0' || version[length] > '9');
}

// 13 for 2.11.0+cu130; 0 where the version does not say.
inline int cuda_of_version(const char* version) {
  const char* const cuda = strstr(version, "+cu");
  return cuda == nullptr ? 0 : static_cast<int>(strtol(cuda + strlen("+cu"), nullptr, 10)) / 10;
}

// 13 where libcudart.so.13 is among the libraries, or libcudart-8774224f.so.13, as some wheels
// have it; 0 where there is none.
inline int cuda_of_libraries(const char* names) {
  const char* const runtime = strstr(names, "libcudart");
  const char* const number = runtime == nullptr ? nullptr : strstr(runtime, ".so.");
  return number == nullptr ? 0 : static_cast<int>(strtol(number + strlen(".so."), nullptr, 10));
}

// False only where one of both numbers is known to be another.
inline bool is_same_cuda(int one, int other) { return one == 0 || other == 0 || one == other; }

}  // namespace memledger
