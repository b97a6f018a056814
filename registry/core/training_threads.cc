#include "registry/core/training_threads.h"

#include <pthread.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <ctime>

namespace memledger::core {
namespace {

constexpr size_t kSlots = 1024;
std::array<std::atomic<uint32_t>, kSlots> slots{};  // numbers of threads, 0: free
std::atomic<size_t> slots_used{0};                  // from the first one on
std::atomic<bool> too_many{false};
std::atomic<int> readers{0};
thread_local int reads_of_this_thread = 0;

// Takes its thread out when the thread ends.
struct Leaver {
  const std::atomic<uint32_t>* generation = nullptr;
  uint32_t in_generation = 0;
  size_t slot = 0;

  ~Leaver() {
    // In a child of fork the slot may be another thread's.
    if (generation != nullptr && *generation == in_generation) slots[slot].store(0);
  }
};

}  // namespace

std::atomic<uint32_t> TrainingThreads::generation_{1};

void TrainingThreads::begin_anew() noexcept {
  for (std::atomic<uint32_t>& slot : slots) slot.store(0);
  too_many.store(false);
  readers.store(reads_of_this_thread);
  generation_.fetch_add(1);
}

void TrainingThreads::add(ThreadContext& thread) noexcept {
  static thread_local Leaver leaver;
  static const int fork_handler = pthread_atfork(nullptr, nullptr, &begin_anew);
  if (fork_handler != 0) too_many.store(true);
  thread.training_since = generation_.load();
  for (size_t i = 0; i < kSlots; ++i) {
    uint32_t nobody = 0;
    if (!slots[i].compare_exchange_strong(nobody, thread.thread)) continue;
    for (size_t used = slots_used; used <= i && !slots_used.compare_exchange_weak(used, i + 1);) {
    }
    leaver.slot = i;
    leaver.in_generation = thread.training_since;
    leaver.generation = &generation_;
    return wait_for_readers();
  }
  too_many.store(true);
  wait_for_readers();
}

// Whoever reads has seen none that trains, or sees this thread's slot: one of both has written
// before the other reads. A reader may wait for Python, which this thread may hold, so not for
// ever.
void TrainingThreads::wait_for_readers() noexcept {
  constexpr int kTurns = 2000;
  constexpr timespec kPause{0, 100'000};
  const int error = errno;
  for (int turn = 0; turn < kTurns && readers.load() > reads_of_this_thread; ++turn)
    nanosleep(&kPause, nullptr);
  errno = error;
}

bool TrainingThreads::begin_read(uint32_t thread) noexcept {
  readers.fetch_add(1);
  ++reads_of_this_thread;
  if (!any_but(thread)) return true;
  end_read();
  return false;
}

void TrainingThreads::end_read() noexcept {
  --reads_of_this_thread;
  readers.fetch_sub(1);
}

bool TrainingThreads::is_training(uint32_t thread) noexcept {
  const size_t used = slots_used;
  for (size_t i = 0; i < used; ++i) {
    if (slots[i].load() == thread) return true;
  }
  return false;
}

bool TrainingThreads::any_but(uint32_t thread) noexcept {
  if (too_many.load()) return true;
  const size_t used = slots_used;
  for (size_t i = 0; i < used; ++i) {
    const uint32_t other = slots[i].load();
    if (other != 0 && other != thread) return true;
  }
  return false;
}

}  // namespace memledger::core
