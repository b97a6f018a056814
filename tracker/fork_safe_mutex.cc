#include "tracker/fork_safe_mutex.h"

#include <c10/util/Exception.h>
#include <pthread.h>

#include <algorithm>
#include <vector>

namespace memledger {
namespace {

// Never destroyed: a program may fork while it ends.
struct All {
  std::mutex lock;
  std::vector<ForkSafeMutex*> mutexes;
};

All& all() {
  static auto* const one = new All;
  return *one;
}

void before_fork() {
  all().lock.lock();
  for (ForkSafeMutex* one : all().mutexes) one->lock();
}

void after_fork() {
  for (ForkSafeMutex* one : all().mutexes) one->unlock();
  all().lock.unlock();
}

}  // namespace

ForkSafeMutex::ForkSafeMutex() {
  static const int fork_handlers = pthread_atfork(&before_fork, &after_fork, &after_fork);
  TORCH_CHECK(fork_handlers == 0, "memledger: no memory for fork handlers");
  const std::lock_guard<std::mutex> hold(all().lock);
  all().mutexes.push_back(this);
}

ForkSafeMutex::~ForkSafeMutex() {
  const std::lock_guard<std::mutex> hold(all().lock);
  std::vector<ForkSafeMutex*>& mutexes = all().mutexes;
  mutexes.erase(std::remove(mutexes.begin(), mutexes.end(), this), mutexes.end());
}

}  // namespace memledger
