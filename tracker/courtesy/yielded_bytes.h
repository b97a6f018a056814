#pragma once

#include <c10/core/Allocator.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace memledger {

// Keeps bytes while they are away: in slabs of host memory, or in a file without a name.
class YieldedBytes {
 public:
  struct Place {
    size_t slab = 0;
    int64_t offset = 0;
  };

  // Keeps them in pinned memory of that allocator; null: in pageable memory.
  static YieldedBytes in_memory(c10::Allocator* pinned);
  // Returns Unavailable with the folder if no file can be made there.
  static absl::StatusOr<YieldedBytes> in_file(const std::string& folder);

  YieldedBytes(YieldedBytes&& other) noexcept;
  YieldedBytes& operator=(YieldedBytes&& other) noexcept;
  ~YieldedBytes();

  bool is_file() const { return file_ >= 0; }
  // Returns ResourceExhausted if there is no memory for it.
  absl::StatusOr<Place> reserve(int64_t nbytes);
  // For memory.
  char* memory_at(Place place);
  // For a file.
  absl::Status write(Place place, const void* data, int64_t nbytes);
  absl::Status read(Place place, void* data, int64_t nbytes);

 private:
  YieldedBytes() = default;

  struct Slab {
    std::unique_ptr<char[]> pageable;
    c10::DataPtr pinned;
    int64_t nbytes = 0;
    int64_t used = 0;
    char* begin() { return pageable ? pageable.get() : static_cast<char*>(pinned.get()); }
  };
  c10::Allocator* pinned_ = nullptr;
  std::vector<Slab> slabs_;
  int file_ = -1;
  std::string folder_;
  int64_t file_end_ = 0;
};

}  // namespace memledger
