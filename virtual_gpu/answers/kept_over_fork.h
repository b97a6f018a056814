#pragma once

#include <pthread.h>

namespace memledger::virtual_gpu {

// The one T of this process, which has a member `mutex`. Made at the first call, never destroyed,
// and locked over a fork, so that the child finds it whole.
template <typename T>
T& kept_over_fork() {
  static T* made = nullptr;
  static const bool is_made = [] {
    made = new T;
    pthread_atfork([] { made->mutex.lock(); }, [] { made->mutex.unlock(); },
                   [] { made->mutex.unlock(); });
    return true;
  }();
  (void)is_made;
  return *made;
}

}  // namespace memledger::virtual_gpu
