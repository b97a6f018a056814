#pragma once

// What one row of the registry's table is for. Reports, logs and profilers all take it from here.
//
//   const memledger::Snapshot snapshot = memledger::Registry::global().snapshot();
//   for (const memledger::StorageInfo& storage : snapshot.storages(at::kCPU))
//     if (storage.kind == memledger::StorageKind::kScratch) std::cout << storage << '\n';
//
// Memory without a row (lent, external) has no kind.

#include <cstdint>
#include <string_view>

namespace memledger {

enum class StorageKind : uint8_t {
  kTensor,            // a tensor's storage, or nothing more is known
  kScratch,           // the operator that made it has ended, and no tensor was seen on it: cuDNN's
                      // workspaces, a kernel's own memory
  kRawBlock,          // made by raw_alloc, without a storage: Thrust, NCCL, the program
  kLibraryWorkspace,  // kept by LibTorch for cuBLAS or cuBLASLt
};

// Returns tensor, scratch, raw block or library workspace.
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

// Returns the kind as JSON and CSV spell it: tensor, scratch, raw_block or library_workspace.
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
