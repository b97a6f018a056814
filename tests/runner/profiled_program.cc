// A program with MEMLEDGER_PROFILE() in it. Its argument says how it ends.
//
//   profiled_program exit | wait | interrupt | clear | between

#include <ATen/ops/empty.h>
#include <unistd.h>

#include <csignal>
#include <cstdint>
#include <cstdio>
#include <string>

#include "tracker/line_profiler.h"

__attribute__((noinline)) int64_t work() {
  MEMLEDGER_PROFILE();
  const at::Tensor tensor = at::empty({4242}, at::kByte);
  return tensor.numel();
}

__attribute__((noinline)) int64_t other() {
  MEMLEDGER_PROFILE();
  const at::Tensor tensor = at::empty({2121}, at::kByte);
  return tensor.numel();
}

__attribute__((noinline)) int64_t between() {
  MEMLEDGER_PROFILE_EVERY(1);
  const at::Tensor tensor = at::empty({1111}, at::kByte);
  return tensor.numel();
}

int main(int argc, char** argv) {
  if (argc != 2) return 64;
  const std::string mode = argv[1];
  if (work() != 4242 || other() != 2121) return 65;
  if (mode == "clear") {
    memledger::clear_global_line_profiler();
    other();
  }
  // LibTorch's symbolizer is used for the first time after the handler at exit was registered.
  if (mode == "between") {
    between();
    work();
  }
  if (mode == "wait") {
    std::puts("ready");
    std::fflush(stdout);
    while (true) pause();
  }
  // The program ends while the thread of Ctrl-C prints.
  if (mode == "interrupt") std::raise(SIGINT);
  return 7;
}
