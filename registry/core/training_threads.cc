#include "registry/core/training_threads.h"

#include <pthread.h>

#include <array>
#include <cstddef>

namespace memledger::core {
namespace {

constexpr size_t kPlaces = 1024;
std::array<std::atomic<uint32_t>, kPlaces> places{};  // numbers of threads, 0 where none is
std::atomic<size_t> places_used{0};                   // from the first one on
std::atomic<bool> too_many{false};

// Takes its thread out when that ends.
struct Leaver {
  const std::atomic<uint32_t>* generation = nullptr;
  uint32_t in_generation = 0;
  size_t place = 0;

  ~Leaver() {
    // The place may be another thread's in a child of fork.
    if (generation != nullptr && *generation == in_generation) places[place].store(0);
  }
};

}  // namespace

std::atomic<uint32_t> TrainingThreads::generation_{1};

void TrainingThreads::begin_anew() noexcept {
  for (std::atomic<uint32_t>& place : places) place.store(0);
  too_many.store(false);
  generation_.fetch_add(1);
}

void TrainingThreads::add(ThreadContext& thread) noexcept {
  static thread_local Leaver leaver;
  static const int fork_handler = pthread_atfork(nullptr, nullptr, &begin_anew);
  if (fork_handler != 0) too_many.store(true);
  thread.training_since = generation_.load();
  for (size_t i = 0; i < kPlaces; ++i) {
    uint32_t nobody = 0;
    if (!places[i].compare_exchange_strong(nobody, thread.thread)) continue;
    for (size_t used = places_used; used <= i && !places_used.compare_exchange_weak(used, i + 1);) {
    }
    leaver.place = i;
    leaver.in_generation = thread.training_since;
    leaver.generation = &generation_;
    return;
  }
  too_many.store(true);
}

bool TrainingThreads::is_training(uint32_t thread) noexcept {
  const size_t used = places_used;
  for (size_t i = 0; i < used; ++i) {
    if (places[i].load() == thread) return true;
  }
  return false;
}

bool TrainingThreads::any_but(uint32_t thread) noexcept {
  if (too_many.load()) return true;
  const size_t used = places_used;
  for (size_t i = 0; i < used; ++i) {
    const uint32_t one = places[i].load();
    if (one != 0 && one != thread) return true;
  }
  return false;
}

}  // namespace memledger::core
