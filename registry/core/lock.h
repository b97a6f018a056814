#pragma once

#include "absl/base/thread_annotations.h"

#if defined(__SANITIZE_THREAD__)
#include <mutex>
#else
#include "absl/synchronization/mutex.h"
#endif

namespace memledger::core {

#if defined(__SANITIZE_THREAD__)
// The thread sanitizer must see the lock; the distribution's Abseil is not built with it.
class ABSL_LOCKABLE Lock {
 public:
  void lock() ABSL_EXCLUSIVE_LOCK_FUNCTION() { mutex_.lock(); }
  void unlock() ABSL_UNLOCK_FUNCTION() { mutex_.unlock(); }

 private:
  std::mutex mutex_;
};
#else
class ABSL_LOCKABLE Lock {
 public:
  void lock() ABSL_EXCLUSIVE_LOCK_FUNCTION() { mutex_.Lock(); }
  void unlock() ABSL_UNLOCK_FUNCTION() { mutex_.Unlock(); }

 private:
  absl::Mutex mutex_;
};
#endif

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
