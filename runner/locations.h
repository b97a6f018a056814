#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace memledger::runner {

// Where memledger's own libraries lie: installed, or beside this program where Bazel built it.
struct Locations {
  std::string library;             // libmemledger.so
  std::string preload_library;     // libmemledger_preload.so
  std::string measure_library;     // libmemledger_measure.so
  std::string virtual_gpu_folder;  // with preload.txt; need not exist
};

// Returns where they lie. NotFound names what is missing.
absl::StatusOr<Locations> find_locations();

// Returns full paths, in the order in which they must be preloaded. NotFound if memledger was built
// for a LibTorch without CUDA.
absl::StatusOr<std::vector<std::string>> virtual_gpu_libraries(const Locations& locations);

}  // namespace memledger::runner
