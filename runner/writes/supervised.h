#pragma once

// A program whose writes are held, and the processes of ours around it. They end what it leaves
// behind, also when the command is killed. In a PrivateRoot one is the first of its namespace: it
// makes the mounts, and reports what the layers hold.

#include <functional>
#include <string>

#include "prediction/writes.h"
#include "runner/writes/foreground.h"
#include "runner/writes/inherited_files.h"
#include "runner/writes/private_root.h"

namespace memledger::runner {

// With this status the caller ends where the mounts could not be made; read_supervisors_record()
// then says why.
inline constexpr int kNoPrivateRoot = 125;

// Called in a child process that has no other thread, and that ends with the status that this
// returns: the program's, as a shell has it. `become` is called in a grandchild and makes it the
// program; what it returns is a status. SIGTERM ends the program and all that it has started,
// unless it is in the `foreground`: then signals are its own.
//
// `folder` is one of the `writable` ones of the root, and gets the record.
int run_supervised(PrivateRoot& root, InheritedFiles& files, const std::string& folder,
                   const std::function<int()>& become, const Foreground* foreground = nullptr);

// The same without a root: `become` holds the program itself, in a child. What outlives it and has
// not left the kernel's tree of its processes is ended. SIGKILL to the caller itself leaves them.
int run_beside(const std::function<int()>& become, const Foreground* foreground = nullptr);

// Notes why a run could not be made, and returns the status with which its process ends.
int note_failure(const std::string& folder, const std::string& why);

struct SupervisorsRecord {
  std::string failure;  // empty: none
  prediction::Writes writes;
};
SupervisorsRecord read_supervisors_record(const std::string& folder);

}  // namespace memledger::runner
