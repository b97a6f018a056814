#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "registry/core/growing_map.h"
#include "registry/core/lock.h"

namespace memledger::core {

// Stands for a string in a NameTable. 0 is the empty string.
using NameId = uint32_t;

// Keeps operator names, autograd nodes and labels, each once.
//
// Strings live as long as the table, and the process's own tables are never destroyed, so the views
// that name() returns stay valid. A program that makes new labels without end (one per request)
// would grow the table without end: past kMaxNames every new string is kOverflow. Thread-safe.
// intern() costs a lock and a hash; hot paths go through a per-thread cache (ThreadContext).
class NameTable {
 public:
  static constexpr size_t kMaxNames = 1 << 16;
  static constexpr std::string_view kOverflow = "(too many names)";

  NameTable();

  // Returns the string's id, without memory for a new string kOverflow's. Never throws.
  NameId intern(std::string_view name) noexcept;
  std::string_view name(NameId id) const;

  // Called around fork, so that no other thread holds the lock in the child.
  void lock_for_fork() ABSL_NO_THREAD_SAFETY_ANALYSIS { lock_.lock(); }
  void unlock_after_fork() ABSL_NO_THREAD_SAFETY_ANALYSIS { lock_.unlock(); }

 private:
  mutable Lock lock_;
  GrowingMap<std::string_view, NameId> ids_ ABSL_GUARDED_BY(lock_);
  std::vector<std::unique_ptr<const std::string>> names_ ABSL_GUARDED_BY(lock_);
};

}  // namespace memledger::core
