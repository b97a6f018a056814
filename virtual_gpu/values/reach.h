#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>

#include "registry/core/fork_safe_mutex.h"

namespace memledger::virtual_gpu {

// Host memory that a kernel of others may have written to: what is there is not known. Thread-safe.
class WrittenHostMemory {
 public:
  static WrittenHostMemory& get();

  bool is_empty() const { return count_.load(std::memory_order_relaxed) == 0; }
  void add(uintptr_t begin, size_t bytes);
  // The host has written there since.
  void remove(uintptr_t begin, size_t bytes);
  bool overlaps(uintptr_t begin, size_t bytes);

 private:
  std::map<uintptr_t, uintptr_t>::iterator first_overlap(uintptr_t begin);

  ForkSafeMutex mutex_;
  std::map<uintptr_t, uintptr_t> ranges_;  // their ends by where they begin; none overlaps another
  std::atomic<size_t> count_{0};
};

}  // namespace memledger::virtual_gpu
