#include "virtual_gpu/device_use.h"

#include <algorithm>

#include "virtual_gpu/machine.h"

extern "C" size_t memledger_virtual_gpu_uses(memledger_virtual_gpu_use* rows, size_t capacity) {
  using memledger::virtual_gpu::Machine;
  Machine& machine = Machine::get();
  const size_t count = static_cast<size_t>(machine.device_count());
  for (size_t i = 0; i < std::min(count, capacity); ++i) rows[i] = machine.use(static_cast<int>(i));
  return count;
}
