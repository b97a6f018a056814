#include "registry/before_reading.h"

#include <exception>

#include "registry/activation.h"
#include "registry/device_statistics.h"
#include "registry/hooks/cpu_allocator.h"
#include "registry/hooks/cuda_allocator.h"
#include "registry/record_values.h"
#include "registry/state.h"

namespace memledger {

void stay_in_front() {
  if (!RegistryState::get().active.load(std::memory_order_relaxed)) return;
  if (!CudaAllocator::is_in_front()) CudaAllocator::put_in_front();
  if (TrackingCpuAllocator::is_in_front()) return;
  const Turn turn;
  try {
    TrackingCpuAllocator::put_in_front();
  } catch (const std::exception&) {
    RegistryState::get().swallowed_exceptions.fetch_add(1, std::memory_order_relaxed);
  }
}

void note_library_workspaces() {
  core::Ledger& ledger = RegistryState::get().ledger;
  for (const LibraryWorkspace& workspace : library_workspaces())
    ledger.mark_library_workspace(workspace.address, key_of(workspace.device));
}

}  // namespace memledger
