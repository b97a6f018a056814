#pragma once

// Storages on memory that no watched allocator made: mapped files, shared memory, from_blob. They
// are in no sum and not in the table: nothing reports their end. Known by weak references.

#include <ATen/core/Tensor.h>

#include <vector>

#include "registry/core/thread_context.h"
#include "registry/live_storages.h"

namespace memledger {

class ExternalStorages {
 public:
  // Notes a tensor's storage if it is one and new: a comparison for all others. `made`: the running
  // operator is what made it; else it only reads it.
  static void note(core::ThreadContext& thread, const at::Tensor& tensor, bool made) noexcept;
  // Does what external_storages() promises, for this copy.
  static std::vector<ExternalStorage> alive();

  static void lock_for_fork();
  static void unlock_after_fork();
};

}  // namespace memledger
