#pragma once

// What a run's processes did to files, and what kept those from being changed.
//
//   memledger::prediction::Writes writes;
//   writes.files.push_back({"/data/model.pt", 96, /*is_removed=*/false});

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace memledger::prediction {

// What kept the run's processes from changing a file.
enum class WritesHeldBy : uint8_t {
  kNothing,
  kNamespace,  // mounts of the run's own: overlays whose upper layers go with it
  kLandlock,   // the kernel's Landlock and seccomp; what the preloaded library sees is redirected
};

// Returns "nothing", "namespace" or "landlock".
std::string_view to_string(WritesHeldBy held_by);
// Returns the value of such a text; kNothing for any other.
WritesHeldBy held_by_of(std::string_view text);

// A file that the run wrote or removed in its own layers.
struct LayerFile {
  std::string path;
  int64_t bytes = 0;  // of its content at the end, by its length
  bool is_removed = false;
};

// A call on files that was not answered as it would have been without what holds the writes.
struct Refusal {
  std::string what;  // the call and the error: `rename: EXDEV`
  std::string path;
};

inline constexpr size_t kMaxLayerFiles = 1000;

struct Writes {
  WritesHeldBy held_by = WritesHeldBy::kNothing;
  // What was written or removed, sorted by path, the first kMaxLayerFiles; what only caches hold is
  // not among them.
  std::vector<LayerFile> files;
  int64_t written_count = 0, removed_count = 0;
  int64_t bytes = 0;                    // of all files that were written
  std::vector<std::string> read_only;   // folders that could get no layer, and were made read-only
  std::vector<std::string> host_files;  // sockets and FIFOs that were the host's own
  std::vector<Refusal> refusals;
};

}  // namespace memledger::prediction
