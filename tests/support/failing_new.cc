#include "tests/support/failing_new.h"

#include <atomic>
#include <cstddef>
#include <cstdlib>

extern const char __executable_start;
extern const char etext;

namespace memledger::testing {
namespace {

struct Plan {
  int64_t left = -1;  // until the one that fails; below 0: none does
  bool every_one = false;
  Refused whose = Refused::kProgram;
};
thread_local Plan plan;
std::atomic<int64_t> refused{0};

bool is_this_programs(const void* caller) {
  return caller >= &__executable_start && caller < &etext;
}

void* take(std::size_t size, const void* caller) {
  if (plan.whose == Refused::kAll || is_this_programs(caller)) {
    const bool refuse = plan.every_one || (plan.left >= 0 && plan.left-- == 0);
    if (refuse) {
      refused.fetch_add(1);
      return nullptr;
    }
  }
  return std::malloc(size == 0 ? 1 : size);
}

}  // namespace

OneFailingAllocation::OneFailingAllocation(int64_t which, Refused whose) {
  plan = {which, false, whose};
}
OneFailingAllocation::~OneFailingAllocation() { plan = {}; }
NoMemory::NoMemory() { plan = {-1, true, Refused::kProgram}; }
NoMemory::~NoMemory() { plan = {}; }

int64_t refused_allocations() { return refused.load(); }

}  // namespace memledger::testing

using memledger::testing::take;

__attribute__((noinline)) void* operator new(std::size_t size) {
  void* const memory = take(size, __builtin_return_address(0));
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
// The library's own would call the one above from the library.
__attribute__((noinline)) void* operator new[](std::size_t size) {
  void* const memory = take(size, __builtin_return_address(0));
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
__attribute__((noinline)) void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  return take(size, __builtin_return_address(0));
}
__attribute__((noinline)) void* operator new[](std::size_t size, const std::nothrow_t&) noexcept {
  return take(size, __builtin_return_address(0));
}
__attribute__((noinline)) void operator delete(void* memory) noexcept { std::free(memory); }
__attribute__((noinline)) void operator delete[](void* memory) noexcept { std::free(memory); }
__attribute__((noinline)) void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}
__attribute__((noinline)) void operator delete[](void* memory, std::size_t) noexcept {
  std::free(memory);
}
__attribute__((noinline)) void operator delete(void* memory, const std::nothrow_t&) noexcept {
  std::free(memory);
}
__attribute__((noinline)) void operator delete[](void* memory, const std::nothrow_t&) noexcept {
  std::free(memory);
}
