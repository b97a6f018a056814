#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace memledger::virtual_gpu {

// What the compiler wrote of a kernel into its code.
struct KernelCode {
  int registers = 0;  // per thread
  size_t shared_bytes = 0;
  size_t local_bytes = 0;  // per thread
  size_t stack_bytes = 0;  // per thread, of the functions that it calls, too
  int max_threads = 0;     // by __launch_bounds__; 0: not said
  bool uses_heap = false;  // malloc() is called from it
  // Its parameters in their order, in bytes, within what a launch hands over. Empty: not said.
  struct Parameter {
    uint16_t offset = 0, bytes = 0;
  };
  std::vector<Parameter> parameters;
};

struct VariableCode {
  size_t bytes;
  bool managed;
};

// Code for devices, as nvcc puts it into programs and as cuModuleLoadData takes it: for one or more
// architectures, as machine code or as PTX.
struct DeviceCode {
  // Whether some of it runs on the device; what is of no known format is taken to run.
  bool runs = false;
  // As 86. For PTX, which the driver compiles for the device, the two differ.
  int binary_version = 0;
  int ptx_version = 0;
  // Machine code that is not compressed shows what is in it.
  bool is_readable = false;
  std::map<std::string, KernelCode> kernels;
  std::map<std::string, VariableCode> variables;
};

// `code` is a "fat binary", with or without the frame that nvcc puts around it, machine code (an
// ELF file), or anything else, such as PTX. `capability` is the device's, as 90.
DeviceCode read_device_code(const void* code, int capability);

}  // namespace memledger::virtual_gpu
