#pragma once

#include <mutex>

#include "absl/base/thread_annotations.h"

namespace memledger::core {

// std::mutex with Abseil's annotations. Not absl::Mutex: distributions build Abseil without NDEBUG, and its deadlock detector
// then costs more than the rest of an allocation's bookkeeping; and the thread sanitizer cannot see into a library built without
// it.
class ABSL_LOCKABLE Lock {
 public:
  void lock() ABSL_EXCLUSIVE_LOCK_FUNCTION() { mutex_.lock(); }
  void unlock() ABSL_UNLOCK_FUNCTION() { mutex_.unlock(); }

 private:
  std::mutex mutex_;
};

class ABSL_SCOPED_LOCKABLE LockHolder {
 public:
  explicit LockHolder(Lock& lock) ABSL_EXCLUSIVE_LOCK_FUNCTION(lock) : lock_(lock) { lock_.lock(); }
  ~LockHolder() ABSL_UNLOCK_FUNCTION() { lock_.unlock(); }
  LockHolder(const LockHolder&) = delete;
  LockHolder& operator=(const LockHolder&) = delete;

 private:
  Lock& lock_;
};

}  // namespace memledger::core
