// Part of //:memledger_autostart: torch_calls.cc is linked into the program itself, whose functions
// the dynamic linker finds before LibTorch's.
#include "runner/inside/torch_calls.h"

namespace memledger::inside {
namespace {

// After the registry is active (102), and before the program's own static objects.
__attribute__((constructor(103))) void hand_over() { hand_torch_calls_to(&memledger_call_torch); }

}  // namespace
}  // namespace memledger::inside
