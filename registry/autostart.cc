// Linked in through //:memledger_autostart: the registry is active from load on.
#include "registry/registry.h"

namespace memledger {
namespace {

// After the allocator wrapper's place-taking at load (101) and before the program's own static
// objects.
__attribute__((constructor(102))) void activate_at_load() {
  static const auto* const tracking = new ScopedTracking;  // never ended: as long as the process
  (void)tracking;
}

}  // namespace
}  // namespace memledger
