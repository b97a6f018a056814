#pragma once

#include "registry/core/lock.h"

namespace memledger {

// A mutex that a child of fork can take, whoever held it in the parent: fork waits until all of
// them are free, so that what they guard is whole in the child, too. For what the front classes
// keep; the registry's own locks are seen to by itself.
//
// While holding one, take no other, make and end none, and do not fork. The registry's functions
// may be called meanwhile: fork takes these before the registry's own. Calls of anything else count
// as calling out (registry/core/lock.h). Thread-safety: that of std::mutex.
class ForkSafeMutex {
 public:
  // Throws std::bad_alloc when there is no memory for fork handlers.
  ForkSafeMutex();
  ~ForkSafeMutex();
  ForkSafeMutex(const ForkSafeMutex&) = delete;
  ForkSafeMutex& operator=(const ForkSafeMutex&) = delete;

  void lock() { lock_.lock(); }
  bool try_lock() { return lock_.try_lock(); }
  void unlock() { lock_.unlock(); }

 private:
  friend class ForkSafeMutexes;

  core::Lock lock_;
  ForkSafeMutex* previous_ = nullptr;
  ForkSafeMutex* next_ = nullptr;
};

}  // namespace memledger
