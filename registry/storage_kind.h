#pragma once

#include <cstdint>
#include <string_view>

namespace memledger {

// What the memory of one row of the table is for. All books take it from here, so that none counts
// as a tensor what another calls a workspace. Memory that has no row at all (lent, external) is no
// part of it.
enum class StorageKind : uint8_t {
  kTensor,   // a storage, and all of which nobody can tell more
  kScratch,  // an operator made it and has ended, and no tensor was seen on it: cuDNN's workspaces,
             // a kernel's own
  kRawBlock,          // made past storages by raw_alloc: Thrust, NCCL, the program
  kLibraryWorkspace,  // kept by LibTorch for cuBLAS or cuBLASLt
};

constexpr std::string_view to_string(StorageKind kind) {
  switch (kind) {
    case StorageKind::kScratch:
      return "scratch";
    case StorageKind::kRawBlock:
      return "raw block";
    case StorageKind::kLibraryWorkspace:
      return "library workspace";
    case StorageKind::kTensor:
      break;
  }
  return "tensor";
}

// Returns the kind as JSON and CSV spell it: library_workspace, raw_block.
constexpr std::string_view machine_name(StorageKind kind) {
  switch (kind) {
    case StorageKind::kRawBlock:
      return "raw_block";
    case StorageKind::kLibraryWorkspace:
      return "library_workspace";
    case StorageKind::kScratch:
    case StorageKind::kTensor:
      break;
  }
  return to_string(kind);
}

}  // namespace memledger
