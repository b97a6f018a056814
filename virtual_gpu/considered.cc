#include "virtual_gpu/considered.h"

#include "virtual_gpu/reached.h"

namespace memledger::virtual_gpu {

void say_refused(std::atomic<bool>& said, const char* function, const char* why) {
  if (!said.exchange(true, std::memory_order_relaxed)) say("%s: refused: %s", function, why);
}

}  // namespace memledger::virtual_gpu
