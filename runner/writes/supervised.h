#pragma once

// A program in a PrivateRoot: the process that makes the mounts, the first of its namespace, stays
// beside the program, ends what that leaves behind, and tells what the layers hold.

#include <functional>
#include <string>

#include "prediction/writes.h"
#include "runner/writes/inherited_files.h"
#include "runner/writes/private_root.h"

namespace memledger::runner {

// With this status the caller ends where the mounts could not be made; read_supervisors_record()
// then says why.
inline constexpr int kNoPrivateRoot = 125;

// Called in a child process that has no other thread, and that ends with the status that this
// returns: the program's, as a shell has it. `become` is called in a grandchild and makes it the
// program; what it returns is a status. SIGTERM ends the program and all that it has started.
//
// `folder` is one of the `writable` ones of the root, and gets the record.
int run_supervised(PrivateRoot& root, InheritedFiles& files, const std::string& folder,
                   const std::function<int()>& become);

// Notes why a run could not be made, and returns the status with which its process ends.
int note_failure(const std::string& folder, const std::string& why);

struct SupervisorsRecord {
  std::string failure;  // empty: none
  prediction::Writes writes;
};
SupervisorsRecord read_supervisors_record(const std::string& folder);

}  // namespace memledger::runner
