#pragma once

// A mutex that a child of fork can take, whoever held it in the parent: fork waits until all of them are free, so that what they
// guard is whole in the child, too.
//
// Make one after the registry has been active once, as what it guards calls the registry: fork takes locks in the reverse order of
// their first use, and these must come before the registry's. While holding one, take no other, make and end none, and do not fork.
// Thread-safety: that of std::mutex.

#include <mutex>

namespace memledger {

class ForkSafeMutex {
 public:
  // Throws c10::Error when there is no memory for fork handlers.
  ForkSafeMutex();
  ~ForkSafeMutex();
  ForkSafeMutex(const ForkSafeMutex&) = delete;
  ForkSafeMutex& operator=(const ForkSafeMutex&) = delete;

  void lock() { mutex_.lock(); }
  void unlock() { mutex_.unlock(); }

 private:
  std::mutex mutex_;
};

}  // namespace memledger
