#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace memledger::runner {

// Where memledger's own libraries lie: installed, or beside this program where Bazel built it.
struct Locations {
  std::string library;             // libmemledger.so
  std::string preload_library;     // libmemledger_preload.so
  std::string virtual_gpu_folder;  // with preload.txt; need not exist
};

// NotFound names what is missing.
absl::StatusOr<Locations> find_locations();

// Full paths, in the order to be preloaded. NotFound where this memledger was built for a LibTorch
// without CUDA.
absl::StatusOr<std::vector<std::string>> virtual_gpu_libraries(const Locations& locations);

}  // namespace memledger::runner
