#pragma once

namespace memledger {

// Puts our wrappers in front again where the program has set an allocator of its own since the
// activation: what came through it went unseen, what comes will not.
void stay_in_front();

// Marks the records of the workspaces that LibTorch keeps for libraries now: it makes and drops
// them without a call to anybody, so each reading of the table begins with this.
void note_library_workspaces();

}  // namespace memledger
