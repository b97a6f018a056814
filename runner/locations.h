#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace memledger::runner {

// Where memledger's own libraries lie: installed, or next to this program where Bazel built it.
struct Locations {
  std::string library;             // libmemledger.so
  std::string preload_library;     // libmemledger_preload.so
  std::string measure_library;     // libmemledger_measure.so
  std::string virtual_gpu_folder;  // with preload.txt; need not exist
  // Its part for programs with NVIDIA's own libraries, with a preload.txt of its own.
  std::string virtual_driver_folder() const { return virtual_gpu_folder + "/driver"; }
};

// Returns where they lie. NotFound names what is missing.
absl::StatusOr<Locations> find_locations();

// Returns full paths of what a folder of these lists, in the order in which they must be preloaded.
// NotFound if memledger was built for a LibTorch without CUDA.
absl::StatusOr<std::vector<std::string>> virtual_gpu_libraries(const std::string& folder);

}  // namespace memledger::runner
