#include "virtual_gpu/known_values.h"

#include <atomic>
#include <cstdlib>

#include "virtual_gpu/specification.h"

namespace memledger::virtual_gpu {
namespace {

constexpr memledger_virtual_gpu_values kNobody = {
    [](void*, uintptr_t, size_t bytes) { return bytes; },
    [](uintptr_t, const void*, size_t) {},
    [](const memledger_virtual_gpu_work*) {},
    [] {},
    [](const memledger_virtual_gpu_work*) -> void* { return nullptr; },
    [](void*) {},
    [](void*) {},
    [] {},
    [] {},
};

std::atomic<const memledger_virtual_gpu_values*> values{&kNobody};
std::atomic<memledger_virtual_gpu_on_shared> on_shared{nullptr};

}  // namespace

const memledger_virtual_gpu_values& known_values() {
  return *values.load(std::memory_order_acquire);
}

void note_shared(uintptr_t address, size_t bytes, bool is_shared) {
  if (const auto told = on_shared.load(std::memory_order_acquire)) told(address, bytes, is_shared);
}

}  // namespace memledger::virtual_gpu

uint64_t memledger_virtual_gpu_know(const memledger_virtual_gpu_values* told) {
  using namespace memledger::virtual_gpu;
  const char* const text = std::getenv(kSpecificationVariable);
  uint64_t most_bytes = Specification().value_bytes;
  if (text != nullptr && *text != '\0') {
    const ParsedSpecification parsed = parse_specification(text);
    if (!parsed.specification) return 0;
    most_bytes = parsed.specification->value_bytes;
  }
  if (most_bytes == 0) return 0;
  const memledger_virtual_gpu_values* nobody = &kNobody;
  const bool is_first = values.compare_exchange_strong(nobody, told, std::memory_order_acq_rel);
  return is_first ? most_bytes : 0;
}

void memledger_virtual_gpu_know_shared(memledger_virtual_gpu_on_shared told) {
  memledger::virtual_gpu::on_shared.store(told, std::memory_order_release);
}
