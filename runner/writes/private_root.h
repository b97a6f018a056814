#pragma once

// The first way in which a dry run writes nowhere: mounts of its own. A process that has entered a
// PrivateRoot sees all files at their paths. What it and its children write stays in overlays.
// Their upper layers are in memory and go with the last of these processes, however it ends.
//
//   auto root = PrivateRoot::plan(options);                   // in the parent
//   if (!root->enter_namespaces() || …) …                     // in a child
//
// Whether the system allows it is found out by doing it.

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "prediction/writes.h"

namespace memledger::runner {

struct PrivateRootOptions {
  // A folder of the caller's own, in which the layers are mounted while the root is made.
  std::string scratch;
  // Folders that stay as they are: what is written there is written for real.
  std::vector<std::string> writable;
  std::string working_folder;
  // Paths that the program is likely to write below: its folder, its home, its arguments. In a user
  // namespace, a folder of another user's on the way to a file cannot be copied into a layer later.
  std::vector<std::string> expected;
  uint64_t limit_bytes = uint64_t{1} << 30;  // of all layers together
  bool is_shared_memory_private = true;      // /dev/shm
};

// The functions from enter_namespaces() on are called in this order, in a process that has one
// thread, and its child. They allocate nothing. Where one returns false, errno is set, and failed()
// says at what; the process can only end then.
class PrivateRoot {
 public:
  // Reads what is mounted. Errors: Unavailable where /proc does not say.
  static absl::StatusOr<PrivateRoot> plan(const PrivateRootOptions& options);

  // The caller's next child is the first process of a namespace for processes.
  bool enter_namespaces();
  // Called by that child: makes all mounts, and the new root the process's own.
  bool make_mounts();
  // Called by a child of that child: gives up the rights with which root could leave the new root,
  // and goes to the working folder.
  bool enter_working_folder() const;

  const char* failed() const { return failed_; }

  // Called by the process that made the mounts: whether the layers have no more room.
  bool are_layers_full() const;

  // Called by the process that made the mounts, once all others have ended: what the layers hold.
  // Allocates.
  prediction::Writes writes() const;

 private:
  struct Step {
    enum class Kind : uint8_t {
      kFolder,    // make one at `target`, like `source`
      kFile,      // make an empty one at `target`
      kLink,      // make a symbolic link at `target` to `source`
      kOverlay,   // at `target`, over `source`; its layers are number `layer`
      kBind,      // `source` at `target`, read-only
      kBindAll,   // with all that is mounted below, read-only
      kWritable,  // `source` at `target`
      kOptional,  // as kWritable, where there is something at `target`
      kProc,      // at `target`
    };
    Kind kind;
    std::string source;
    std::string target;
    int layer = 0;
    uint64_t bytes = 0;         // of an overlay with a tmpfs of its own
    bool is_read_only = false;  // it became so, as it could get no overlay
  };
  struct Layer {
    std::string folder;                    // that it covers
    std::vector<std::string> made_before;  // folders in it that are there already, relative
  };

  class Planner;

  bool run(Step& step);
  bool try_to_run(Step& step);
  bool mount_overlay(Step& step);
  bool make_like(const char* source, const char* target) const;
  bool fail(const char* at);

  bool makes_user_namespace_ = false;
  bool is_initial_ = false;  // the user namespace: an overlay may cover what has mounts below it
  std::string layers_;       // where the tmpfs of all layers is mounted
  std::string root_;         // where the new root is mounted
  std::string working_folder_;
  uint64_t limit_bytes_ = 0;
  std::vector<Layer> layers_of_;
  std::vector<Step> steps_;
  std::vector<std::string> ours_;  // folders that the plan makes in the new root's own tmpfs
  int layers_folder_ = -1;
  std::string uid_map_, gid_map_;
  const char* failed_ = "";
};

}  // namespace memledger::runner
