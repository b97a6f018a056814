#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "registry/core/growing_map.h"
#include "registry/core/lock.h"

namespace memledger::core {

// Stands for a stack in a StackTable. 0 is no stack.
using StackId = uint32_t;

// Keeps call stacks as return addresses, each once, for the life of the process. Thread-safe.
class StackTable {
 public:
  static constexpr size_t kMaxStacks = size_t{1} << 18;

  // Returns 0 when there are kMaxStacks, or no memory for one more. Never throws.
  StackId intern(std::vector<void*>&& frames) noexcept;
  std::vector<void*> frames(StackId id) const;  // innermost first; empty for 0
  size_t size() const noexcept;

  // Called around fork, so that no other thread holds the lock in the child.
  void lock_for_fork() ABSL_NO_THREAD_SAFETY_ANALYSIS { lock_.lock(); }
  void unlock_after_fork() ABSL_NO_THREAD_SAFETY_ANALYSIS { lock_.unlock(); }

 private:
  mutable Lock lock_;
  std::vector<std::unique_ptr<const std::vector<void*>>> stacks_ ABSL_GUARDED_BY(lock_);
  GrowingMap<uint64_t, StackId> by_hash_ ABSL_GUARDED_BY(lock_);
};

}  // namespace memledger::core
