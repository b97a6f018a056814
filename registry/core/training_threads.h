#pragma once

#include <atomic>
#include <cstdint>

#include "registry/core/thread_context.h"

namespace memledger::core {

// Knows the threads alive that were seen to train: to run operators on what requires grad, to write
// to a parameter under no_grad, or to detach a tensor, as zero_grad() does. They set gradients and
// optimizers' states without a lock, so another thread may read those only while there are none of
// them.
//
// Lock-free. A child of fork begins with none. With more than 1024 threads at once, any_but() is
// always true.
class TrainingThreads {
 public:
  static bool is_noted(const ThreadContext& thread) noexcept {
    return thread.training_since == generation_.load(std::memory_order_relaxed);
  }
  static void note(ThreadContext& thread) noexcept {
    if (!is_noted(thread)) add(thread);
  }
  static bool is_training(uint32_t thread) noexcept;
  static bool any_but(uint32_t thread) noexcept;

  // Returns !any_but(thread), for the calling thread. If true, a thread that is noted for the first
  // time waits until end_read(), for at most a fifth of a second: in between, what training threads
  // set may be read. Do not wait for other threads there.
  static bool begin_read(uint32_t thread) noexcept;
  static void end_read() noexcept;

 private:
  static void add(ThreadContext& thread) noexcept;
  static void wait_for_readers() noexcept;
  static void begin_anew() noexcept;

  static std::atomic<uint32_t> generation_;  // of the process: a child of fork is the next
};

}  // namespace memledger::core
