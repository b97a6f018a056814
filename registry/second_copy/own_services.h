#pragma once

#include "registry/second_copy/copies.h"

namespace memledger {

// Returns what this copy does for the others, and for itself while it is the one that watches.
CopyServices& own_services();

}  // namespace memledger
