#include <cstdio>

#include "virtual_gpu/values/python_line.h"

extern "C" __attribute__((visibility("default"))) void write_python_line(char* text, size_t size) {
  std::snprintf(text, size, "%s", memledger::virtual_gpu::python_line().c_str());
}
