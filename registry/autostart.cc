// Activates the registry at load, in programs that depend on //:memledger_autostart.
#include "registry/registry.h"

namespace memledger {
namespace {

// For the life of the process. Volatile, as the compiler drops what nobody reads, and then
// LeakSanitizer reports it.
const ScopedTracking* volatile tracking = nullptr;

// After the allocator wrappers are in front (101) and before the program's own static objects.
__attribute__((constructor(102))) void activate_at_load() { tracking = new ScopedTracking; }

}  // namespace
}  // namespace memledger
