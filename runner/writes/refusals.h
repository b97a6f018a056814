#pragma once

// Which calls of a run were answered otherwise than without its layers.

#include <string>
#include <string_view>
#include <vector>

#include "prediction/writes.h"
#include "runner/writes/mount_table.h"

namespace memledger::runner {

// Returns those of `noted` that the layers of a PrivateRoot are the cause of, or may be: not a
// rename from one file system to another, nor a write to what was read-only before, nor a socket
// that nobody listens on. `listening` is the text of /proc/net/unix.
std::vector<prediction::Refusal> refusals_of_layers(
    const std::vector<prediction::Refusal>& noted, const prediction::Writes& writes,
    const std::vector<Mount>& mounts, std::string_view listening);

}  // namespace memledger::runner
