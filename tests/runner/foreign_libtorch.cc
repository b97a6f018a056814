// Stands for a LibTorch inside a plugin: a function of its name that is not LibTorch's.

#ifndef MEMLEDGER_TEST_ALLOCATOR  // as each of two libraries has its own
#define MEMLEDGER_TEST_ALLOCATOR 0
#endif

namespace c10 {

struct Allocator;

__attribute__((noinline)) Allocator* GetDefaultCPUAllocator() {
  return reinterpret_cast<Allocator*>(MEMLEDGER_TEST_ALLOCATOR);
}

}  // namespace c10

extern "C" int which_allocator() {
  return static_cast<int>(reinterpret_cast<long>(c10::GetDefaultCPUAllocator()));
}
