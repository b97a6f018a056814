#pragma once

// The functions of NVIDIA's libraries that a program reached although virtual_gpu has no considered
// answer for them: each counts itself (generate_stubs.py writes them), and they are named at exit.
extern "C" {

struct memledger_virtual_gpu_function {
  const char* library;
  const char* function;
  unsigned long count;
  memledger_virtual_gpu_function* next;
};

// Called by a generated function when it is reached for the first time.
__attribute__((visibility("default"))) void memledger_virtual_gpu_reached(
    memledger_virtual_gpu_function* function);
// Called by a generated function whenever it is reached: it may write to a device.
__attribute__((visibility("default"))) void memledger_virtual_gpu_called();

}  // extern "C"

namespace memledger::virtual_gpu {

// `warn` (at exit, to stderr), `abort` (at once), or the path of a file to append to instead of
// stderr.
inline constexpr char kUnconsideredVariable[] = "MEMLEDGER_VIRTUAL_GPU_UNCONSIDERED";

// One line to stderr, whatever state the program's own streams are in.
void say(const char* format, ...) __attribute__((format(printf, 1, 2)));

}  // namespace memledger::virtual_gpu
