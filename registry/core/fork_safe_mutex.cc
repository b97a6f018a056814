#include "registry/core/fork_safe_mutex.h"

#include <pthread.h>

#include <mutex>
#include <new>

namespace memledger {

class ForkSafeMutexes {
 public:
  // Never destroyed: a program may fork while it ends.
  static ForkSafeMutexes& get() {
    static auto* const one = new ForkSafeMutexes;
    return *one;
  }

  void add(ForkSafeMutex& one) {
    const std::lock_guard<std::mutex> hold(lock_);
    one.next_ = first_;
    if (first_ != nullptr) first_->previous_ = &one;
    first_ = &one;
  }
  void remove(ForkSafeMutex& one) {
    const std::lock_guard<std::mutex> hold(lock_);
    (one.previous_ == nullptr ? first_ : one.previous_->next_) = one.next_;
    if (one.next_ != nullptr) one.next_->previous_ = one.previous_;
  }

  void lock_all() {
    lock_.lock();
    for (ForkSafeMutex* one = first_; one != nullptr; one = one->next_) one->lock();
  }
  void unlock_all() {
    for (ForkSafeMutex* one = first_; one != nullptr; one = one->next_) one->unlock();
    lock_.unlock();
  }

 private:
  std::mutex lock_;
  ForkSafeMutex* first_ = nullptr;
};

ForkSafeMutex::ForkSafeMutex() {
  // The registry's handlers are there since it was loaded. Handlers before fork run in the reverse
  // order: these come first.
  static const int handlers = pthread_atfork([] { ForkSafeMutexes::get().lock_all(); },
                                             [] { ForkSafeMutexes::get().unlock_all(); },
                                             [] { ForkSafeMutexes::get().unlock_all(); });
  if (handlers != 0) throw std::bad_alloc();
  ForkSafeMutexes::get().add(*this);
}

ForkSafeMutex::~ForkSafeMutex() { ForkSafeMutexes::get().remove(*this); }

}  // namespace memledger
