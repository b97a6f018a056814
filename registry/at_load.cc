// What memledger does when it is loaded, and around fork.
#include "registry/at_load.h"

#include <c10/core/Allocator.h>
#include <dlfcn.h>
#include <pthread.h>

#include "registry/activation.h"
#include "registry/core/other_threads.h"
#include "registry/hooks/block_hooks.h"
#include "registry/hooks/cpu_allocator.h"
#include "registry/hooks/cuda_allocator.h"
#include "registry/hooks/stack_sampler.h"
#include "registry/hooks/training_notes.h"
#include "registry/registry.h"
#include "registry/second_copy/copies.h"
#include "registry/state.h"

namespace memledger {
namespace {

bool fork_in_own_turn = false;

void before_fork() {
  fork_in_own_turn = !activation().begin_turn();
  CudaAllocator::lock_for_fork();
  StackSampler::lock_for_fork();
  lock_adoption_for_fork();
  RegistryState& state = RegistryState::get();
  state.ledger.lock_for_fork();
  state.names.lock_for_fork();
  state.labels.lock_for_fork();
  state.peak_labels.lock_for_fork();
  state.label_history.lock_for_fork();
  training_notes_lock().lock();
}

void after_fork() {
  training_notes_lock().unlock();
  RegistryState& state = RegistryState::get();
  state.label_history.unlock_after_fork();
  state.peak_labels.unlock_after_fork();
  state.labels.unlock_after_fork();
  state.names.unlock_after_fork();
  state.ledger.unlock_after_fork();
  unlock_adoption_after_fork();
  StackSampler::unlock_after_fork();
  CudaAllocator::unlock_after_fork();
  if (!fork_in_own_turn) activation().end_turn();
}

void after_fork_in_child() {
  RegistryState::get().ledger.forget_other_threads();
  after_fork();
}

// Storages keep pointers into this code, and LibTorch keeps the callbacks: a plugin that brings
// memledger must not be unloaded.
void stay_loaded() {
  Dl_info info;
  if (dladdr(reinterpret_cast<void*>(&stay_loaded), &info) != 0 && info.dli_fname != nullptr) {
    dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD | RTLD_NODELETE);
  }
}

// Keeps this copy's notes whole in a child of fork. The copy that watches takes care of all other
// locks.
void watch_forks_for_notes() {
  static const int registered =
      pthread_atfork([] { training_notes_lock().lock(); }, [] { training_notes_lock().unlock(); },
                     [] { training_notes_lock().unlock(); });
  (void)registered;
}

// Before the program's own static objects, so that an allocation before the first activation is not
// overlooked.
__attribute__((constructor(101))) void at_load() {
  stay_loaded();
  core::OtherThreads::prepare();
  Registry::global();
  if (first_copy() != nullptr) {
    watch_forks_for_notes();
    return;
  }
  RegistryState::get();  // made now, while there is memory
  watch_forks();
  if (this_copy_is_refused()) {
    note_unseen(WatchedType::kCpu);
    note_unseen(WatchedType::kCuda);
    return;
  }
  if (c10::GetAllocator(c10::DeviceType::CPU) != nullptr) {
    TrackingCpuAllocator::put_in_front();
  } else {
    // A statically linked LibTorch that has not come up yet.
    note_unseen(WatchedType::kCpu);
  }
  CudaAllocator::put_in_front();
}

}  // namespace

bool watch_forks() noexcept {
  static const bool watched = pthread_atfork(&before_fork, &after_fork, &after_fork_in_child) == 0;
  return watched;
}

}  // namespace memledger
