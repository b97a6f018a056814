#include "virtual_gpu/reads.h"

#include <atomic>
#include <optional>

#include "virtual_gpu/machine.h"

namespace {

std::atomic<memledger_virtual_gpu_read_observer> read_observer{nullptr};

}  // namespace

extern "C" int memledger_virtual_gpu_observe_reads(memledger_virtual_gpu_read_observer observer) {
  memledger_virtual_gpu_read_observer none = nullptr;
  return read_observer.compare_exchange_strong(none, observer) ? 1 : 0;
}

extern "C" uint32_t memledger_virtual_gpu_assumed_millionths() {
  return memledger::virtual_gpu::Machine::get().specification().assumed_millionths;
}

extern "C" uint32_t memledger_virtual_gpu_assumed_number() {
  return memledger::virtual_gpu::Machine::get().specification().numbers_are_one ? 1 : 0;
}

extern "C" int memledger_virtual_gpu_is_as_sent(const void* source, size_t bytes) {
  const auto address = reinterpret_cast<uintptr_t>(source);
  return memledger::virtual_gpu::Machine::get().is_as_sent(address, bytes) ? 1 : 0;
}

extern "C" int memledger_virtual_gpu_host_range(uintptr_t address, uintptr_t* begin,
                                                size_t* bytes) {
  using namespace memledger::virtual_gpu;
  const std::optional<Region> region = Machine::get().find(reinterpret_cast<const void*>(address));
  if (!region || region->kind == MemoryKind::kDevice) return 0;
  *begin = region->begin;
  *bytes = region->bytes;
  return 1;
}

namespace memledger::virtual_gpu {

bool reads_are_observed() { return read_observer.load(std::memory_order_relaxed) != nullptr; }

void tell_of_read(void* destination, const void* source, size_t bytes) {
  if (const auto observer = read_observer.load(std::memory_order_acquire))
    observer(destination, source, bytes);
}

}  // namespace memledger::virtual_gpu
