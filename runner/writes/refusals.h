#pragma once

// Which calls of a run were answered otherwise than without its layers.

#include <string>
#include <string_view>
#include <vector>

#include "prediction/writes.h"
#include "runner/writes/mount_table.h"

namespace memledger::runner {

// Whether a process may listen on the Unix socket at this absolute path. `sockets` is the text of
// /proc/net/unix, where one that was bound by a relative path has no other.
bool may_listen(std::string_view sockets, const std::string& path);

// Returns those of `noted` that the layers of a PrivateRoot cause, or may cause. Leaves out a
// rename from one file system to another, a write to what was read-only before, and a socket that
// nobody listens on. `sockets` as above.
std::vector<prediction::Refusal> refusals_of_layers(const std::vector<prediction::Refusal>& noted,
                                                    const prediction::Writes& writes,
                                                    const std::vector<Mount>& mounts,
                                                    std::string_view sockets);

}  // namespace memledger::runner
