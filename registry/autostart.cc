// Activates the registry at load, in programs that depend on //:memledger_autostart.
#include "registry/registry.h"

namespace memledger {
namespace {

// After the allocator wrappers are in front (101) and before the program's own static objects.
__attribute__((constructor(102))) void activate_at_load() {
  static const auto* const tracking = new ScopedTracking;  // for the life of the process
  (void)tracking;
}

}  // namespace
}  // namespace memledger
