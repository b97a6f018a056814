#include "registry/core/fork_safe_mutex.h"

#include <pthread.h>

#include <mutex>
#include <new>

#include "registry/core/other_threads.h"

namespace memledger {

class ForkSafeMutexes {
 public:
  // Never destroyed: programs fork while they end.
  static ForkSafeMutexes& get() {
    static auto* const mutexes = new ForkSafeMutexes;
    return *mutexes;
  }

  void add(ForkSafeMutex& mutex) {
    const std::lock_guard<std::mutex> hold(lock_);
    mutex.next_ = first_;
    if (first_ != nullptr) first_->previous_ = &mutex;
    first_ = &mutex;
  }
  void remove(ForkSafeMutex& mutex) {
    const std::lock_guard<std::mutex> hold(lock_);
    (mutex.previous_ == nullptr ? first_ : mutex.previous_->next_) = mutex.next_;
    if (mutex.next_ != nullptr) mutex.next_->previous_ = mutex.previous_;
  }

  void lock_all() {
    core::OtherThreads::note_fork();
    lock_.lock();
    for (ForkSafeMutex* mutex = first_; mutex != nullptr; mutex = mutex->next_) mutex->lock();
  }
  void unlock_all() {
    for (ForkSafeMutex* mutex = first_; mutex != nullptr; mutex = mutex->next_) mutex->unlock();
    lock_.unlock();
  }

 private:
  std::mutex lock_;
  ForkSafeMutex* first_ = nullptr;
};

ForkSafeMutex::ForkSafeMutex() {
  // Handlers before fork run in reverse order, and the registry's are registered at load: these
  // come first.
  static const int handlers = pthread_atfork([] { ForkSafeMutexes::get().lock_all(); },
                                             [] { ForkSafeMutexes::get().unlock_all(); },
                                             [] { ForkSafeMutexes::get().unlock_all(); });
  if (handlers != 0) throw std::bad_alloc();
  ForkSafeMutexes::get().add(*this);
}

ForkSafeMutex::~ForkSafeMutex() { ForkSafeMutexes::get().remove(*this); }

}  // namespace memledger
