#include "virtual_gpu/answer_macros.h"

#include "virtual_gpu/unconsidered_functions.h"

namespace memledger::virtual_gpu {

void say_refused(std::atomic<bool>& said, const char* function, const char* why) {
  if (!said.exchange(true, std::memory_order_relaxed)) say("%s: refused: %s", function, why);
}

}  // namespace memledger::virtual_gpu
