#pragma once

#include <atomic>
#include <cstdint>

#include "registry/core/stack_table.h"
#include "registry/core/thread_context.h"
#include "registry/stacks.h"

namespace memledger {

// Takes stacks as the activation's StackOptions ask.
class StackSampler {
 public:
  struct Taken {
    core::StackId stack = 0;
    float weight = 0;
  };

  static void set(StackOptions options) noexcept;
  // For storages that set() takes none of, kFrom excepted: Python's stack in a process with Python,
  // and only that; else the program's own.
  static void set_default(StackOptions options) noexcept;
  // False: take() would take none of any storage. One load.
  static bool takes_some() noexcept { return takes_some_.load(std::memory_order_relaxed); }
  // Returns whether the lines of some storages are missing only because they were not sampled.
  static bool samples() noexcept;
  // Takes those of operators that make autograd nodes, too: a node runs on a thread without lines
  // of the program, and what it allocates has its operator's frames behind its own. For the life of
  // the process.
  static void follow_nodes() noexcept;
  static Taken take(core::ThreadContext& thread, int64_t nbytes) noexcept;
  // Returns 0 unless follow_nodes() was called.
  static core::StackId take_of_operator() noexcept;
  // Takes the program's stack whatever the policy, in a node with its operator's frames behind it.
  static core::StackId take_with_operator(const core::ThreadContext& thread) noexcept;

  // Takes one whatever the policy; 0 where that fails.
  static core::StackId take_now() noexcept;
  // Takes Python's in its place where there is one.
  static core::StackId take_program_now() noexcept;

  static core::StackTable& table() noexcept;

  // Called around fork, so that no other thread is inside LibTorch's unwinder, which has a lock of
  // its own.
  static void lock_for_fork();
  static void unlock_after_fork();

 private:
  static std::atomic<bool> takes_some_;
  static void note_whether_some_are_taken() noexcept;
  static core::StackId take_python() noexcept;
  static core::StackId take_default() noexcept;
  static core::StackId joined(core::StackId own, core::StackId of_operator) noexcept;
};

}  // namespace memledger
