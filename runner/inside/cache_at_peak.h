#pragma once

// What LibTorch's CUDA allocator had in its cache when it had taken most from the driver: at the
// end, when tensors have gone, the cache no longer shows why it grew.

#include <c10/core/Device.h>

#include <optional>

#include "reporter/formats/run_summary.h"

namespace memledger::inside {

// Looks from now on, for the life of the process, after allocations of a megabyte and more. Costs
// each of them some microseconds, and a snapshot of the allocator whenever it has taken five
// hundredths more than at the last one while a tenth or more was free.
void keep_cache_at_peaks() noexcept;

// Empty where the cache was never looked at, or was small.
std::optional<CacheAtPeak> cache_at_peak(c10::Device device);

}  // namespace memledger::inside
