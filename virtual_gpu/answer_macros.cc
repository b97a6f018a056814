#include "virtual_gpu/answer_macros.h"

#include "virtual_gpu/unconsidered_functions.h"

namespace memledger::virtual_gpu {

void say_refused(std::atomic<bool>& said, const char* function, const char* why) {
  if (!said.exchange(true, std::memory_order_relaxed)) say("%s: refused: %s", function, why);
}

}  // namespace memledger::virtual_gpu

// Called by what generate_stubs.py makes for a library that is not there.
MEMLEDGER_ANSWER void memledger_virtual_gpu_absent(const char* function, const char* library);
void memledger_virtual_gpu_absent(const char* function, const char* library) {
  memledger::virtual_gpu::say("%s: refused: %s was not found", function, library);
}
