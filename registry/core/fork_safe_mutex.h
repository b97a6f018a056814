#pragma once

#include "registry/core/lock.h"

namespace memledger {

// A mutex that a child of fork can take, whoever held it in the parent: fork waits until all of
// them are free, so what they guard is whole in the child. For the front classes; the registry
// takes care of its own locks.
//
// While holding one, do not take, make or destroy another, and do not fork. The registry's
// functions may be called: fork takes these mutexes before the registry's locks. Other calls count
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
