#pragma once

// Where in the program a storage was made: its C++ call stack, taken on request through LibTorch's
// own unwinder.
//
//   memledger::RegistryOptions options;
//   options.stacks = memledger::StackOptions::sampled(512 << 10);
//   memledger::ScopedTracking tracking(options);
//   ...
//   for (const memledger::StackFrame& frame : memledger::stack_frames(storage.stack)) std::cout <<
//   to_string(frame) << '\n';
//
// Cost: about a microsecond for each stack that is taken (26 frames), and its addresses once for
// all storages made there; files and lines are looked up when asked for, some 100 ms for a
// library's first, and remembered. Errors: none are thrown; where LibTorch cannot unwind, or 262
// 144 different stacks are known, a storage has none. Thread-safety: any thread, any time.

#include <cstdint>
#include <string>
#include <vector>

namespace memledger {

struct StackOptions {
  enum class Policy : uint8_t { kNone, kAll, kFrom, kSampled };
  Policy policy = Policy::kNone;
  int64_t bytes = 0;

  static StackOptions none() { return {}; }
  static StackOptions all() { return {Policy::kAll, 0}; }
  // Of storages of that many bytes or more.
  static StackOptions from(int64_t bytes) { return {Policy::kFrom, bytes}; }
  // Of one storage every so many bytes on the average, as heap profilers do (tcmalloc's design: the
  // distance to the next sample is exponentially distributed, so a storage of s bytes is taken with
  // probability p = 1 - exp(-s / bytes), whatever came before). StorageInfo::stack_weight is 1 / p:
  // the sum of nbytes * stack_weight over the samples of a place estimates its bytes B without
  // bias, with a standard error of at most sqrt(B * bytes): 10 % for a place that holds 100 times
  // `bytes`. Storages much larger than `bytes` are practically all taken, and exact.
  static StackOptions sampled(int64_t bytes) { return {Policy::kSampled, bytes}; }
};

struct StackFrame {
  std::string function;  // demangled; empty if unknown
  std::string file;      // of the source; of the library where there is no debug information
  int64_t line = 0;      // 0: not known (no -g)
};

// train.cc:42 Net::forward(at::Tensor)
std::string to_string(const StackFrame& frame);

// Innermost first, memledger's own left out. Empty for 0.
std::vector<StackFrame> stack_frames(uint32_t stack);

// The calling thread's stack now, whatever the policy of the activation; 0: it could not be taken.
// With memledger's own frames.
uint32_t take_stack() noexcept;
// Its return addresses, innermost first.
std::vector<void*> stack_addresses(uint32_t stack);
// Function, file and line of return addresses, one each.
std::vector<StackFrame> frames_at(const std::vector<void*>& addresses);

// The innermost frame that is neither LibTorch's nor the C++ library's: the program's line. Empty
// function and file if there is none. In optimised code a function that was inlined, or called
// last, has no frame of its own; where a function of LibTorch's headers was inlined, the frame has
// no line.
StackFrame program_frame(uint32_t stack);

}  // namespace memledger
