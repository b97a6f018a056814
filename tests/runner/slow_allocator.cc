// An allocator that is preloaded: malloc() jumps to where it works with a lock, as jemalloc's
// free() does. One size takes a third of a second.
#include <time.h>

#include <atomic>
#include <cstddef>

extern "C" void* __libc_malloc(size_t bytes);

namespace {

std::atomic_flag is_locked = ATOMIC_FLAG_INIT;

long now_ms() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1'000 + now.tv_nsec / 1'000'000;
}

__attribute__((noinline)) void* allocate(size_t bytes) {
  constexpr size_t kSlowBytes = 1'234'567;
  while (is_locked.test_and_set()) {
  }
  const long end = bytes == kSlowBytes ? now_ms() + 333 : 0;
  while (end != 0 && now_ms() < end) {
  }
  void* const result = __libc_malloc(bytes);
  is_locked.clear();
  return result;
}

}  // namespace

extern "C" __attribute__((optimize("O2"))) void* malloc(size_t bytes) { return allocate(bytes); }
