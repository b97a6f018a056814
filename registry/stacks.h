#pragma once

// The C++ call stacks of allocations, taken on request by LibTorch's own unwinder.
//
//   memledger::RegistryOptions options;
//   options.stacks = memledger::StackOptions::sampled(512 << 10);
//   memledger::ScopedTracking tracking(options);
//   output = model->forward(input);
//   const memledger::Snapshot snapshot = memledger::Registry::global().snapshot();
//   for (const memledger::StorageInfo& storage : snapshot.storages(at::kCPU))
//     std::cout << memledger::to_string(memledger::program_frame(storage.stack)) << '\n';

#include <cstdint>
#include <string>
#include <vector>

namespace memledger {

// Selects the storages whose stacks are taken. A stack takes about a microsecond (26 frames); its
// addresses are kept once for all storages with the same. Where LibTorch cannot unwind, and past
// 262 144 different stacks, a storage has none.
struct StackOptions {
  enum class Policy : uint8_t { kNone, kAll, kFrom, kSampled };
  Policy policy = Policy::kNone;
  int64_t bytes = 0;

  // Takes none.
  static StackOptions none() { return {}; }
  // Takes one for every storage.
  static StackOptions all() { return {Policy::kAll, 0}; }
  // Takes one for every storage of at least `bytes`.
  static StackOptions from(int64_t bytes) { return {Policy::kFrom, bytes}; }
  // Samples one storage per `bytes` allocated on average, as TCMalloc's heap profiler does: the
  // distance to the next sample is exponentially distributed (Poisson), so a storage of s bytes is
  // taken with probability p = 1 - exp(-s / bytes). Its StorageInfo::stack_weight is 1 / p. The sum
  // of nbytes * stack_weight over the samples of one stack estimates its bytes B without bias, with
  // a standard error of at most sqrt(B * bytes): 10 % where B is 100 times `bytes`.
  static StackOptions sampled(int64_t bytes) { return {Policy::kSampled, bytes}; }
};

struct StackFrame {
  std::string function;  // demangled; empty if unknown
  std::string file;      // the source; without debug information the library
  int64_t line = 0;      // 0: unknown (no -g)
};

// Returns train.cc:42 Net::forward(at::Tensor).
std::string to_string(const StackFrame& frame);

// The functions below never throw but for std::bad_alloc, and may be called from any thread at any
// time. Files and lines are looked up when first asked for, some 100 ms for each library, and
// remembered.

// Returns the frames of a stack, innermost first, without memledger's own; none for 0. Calls that
// were inlined are among them where elfutils' libdw is installed.
std::vector<StackFrame> stack_frames(uint32_t stack);

// Takes the calling thread's stack now, memledger's frames included, whatever the policy. Returns 0
// where it could not.
uint32_t take_stack() noexcept;
// Does the same, but takes Python's stack where there is one. Its frames are addresses that no code
// can have: is_of_python().
uint32_t take_program_stack() noexcept;
bool is_of_python(const void* address) noexcept;
// Returns the return addresses of a stack, innermost first.
std::vector<void*> stack_addresses(uint32_t stack);
// Returns function, file and line of each return address: those of the function that has the frame,
// not of what was inlined there.
std::vector<StackFrame> frames_at(const std::vector<void*>& addresses);

// Returns the program's line: the innermost frame in no source of LibTorch's, the C++ library's or
// the system's, with empty function and file if there is none. A tail call has no frame. Where
// libdw is missing, a call that was inlined has none either, and a frame into which a function of
// LibTorch's headers was inlined has no line.
StackFrame program_frame(uint32_t stack);

}  // namespace memledger
