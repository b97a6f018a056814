#pragma once

// What the upper layers of overlays say of the files that were written and removed.

#include <set>
#include <string>
#include <vector>

#include "prediction/writes.h"

namespace memledger::runner {

// Not thread-safe. Folders that cannot be read count as empty.
class LayerFiles {
 public:
  // What only caches hold is left out: the folders __pycache__, and $XDG_CACHE_HOME or ~/.cache.
  LayerFiles();

  // Adds the upper layer at `path` below the open folder `at`, of an overlay that covers `folder`.
  void add_upper_layer(int at, const std::string& path, const std::string& folder);
  // Adds a folder at `path` below `at` that stands for `/`. `known` is what was in it at first,
  // each as an absolute path, "" for the root; mounts in it are left out.
  void add_folder(int at, const std::string& path, const std::vector<std::string>& known);
  // Adds a file that was removed.
  void add_removed(const std::string& path);

  // Returns what was added, sorted; `held_by`, `read_only` and `refusals` are left as they are.
  prediction::Writes writes() const;

 private:
  void walk(int at, const char* name, const std::string& path, const std::set<std::string>* known,
            uint64_t device);
  void add(const std::string& path, int64_t bytes, bool is_removed);

  std::string cache_;
  prediction::Writes writes_;
};

// The text in which one process reports to another what it has found, and back. Paths may hold any
// byte but zero.
std::string to_record(const prediction::Writes& writes);
prediction::Writes writes_of_record(const std::string& record);

}  // namespace memledger::runner
