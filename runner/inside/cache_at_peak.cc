#include "runner/inside/cache_at_peak.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "registry/device_statistics.h"
#include "registry/hooks/cuda_allocator.h"

namespace memledger::inside {
namespace {

constexpr size_t kDevices = 128;

struct SeenCache {
  std::atomic<int64_t> reserved{0};  // at the last look
  std::array<std::atomic<int64_t>, 7> figures{};
};

SeenCache& seen_cache(c10::DeviceIndex index) {
  static auto* const caches = new std::array<SeenCache, kDevices>;
  return (*caches)[static_cast<unsigned char>(index) % kDevices];
}

CacheAtPeak cache_in(const DeviceBlocks& blocks) {
  CacheAtPeak cache;
  cache.reserved_bytes = blocks.reserved_bytes();
  cache.allocated_bytes = blocks.allocated_bytes();
  for (const DeviceSegment& segment : blocks.segments) {
    const bool is_whole =
        std::all_of(segment.blocks.begin(), segment.blocks.end(),
                    [](const DeviceBlock& block) { return block.state == BlockState::kFree; });
    if (is_whole) {
      cache.whole_bytes += segment.nbytes;
      ++cache.whole_segments;
      continue;
    }
    for (const DeviceBlock& block : segment.blocks) {
      if (block.state != BlockState::kFree) continue;
      cache.piece_bytes += block.nbytes;
      ++cache.pieces;
      cache.largest_piece = std::max(cache.largest_piece, block.nbytes);
    }
  }
  return cache;
}

// A look that another thread's overlaps may mix their figures: both are of the same growth.
void store(SeenCache& seen, const CacheAtPeak& cache) noexcept {
  const std::array<int64_t, 7> figures = {
      cache.reserved_bytes, cache.allocated_bytes, cache.whole_bytes,  cache.whole_segments,
      cache.piece_bytes,    cache.pieces,          cache.largest_piece};
  for (size_t i = 0; i < figures.size(); ++i)
    seen.figures[i].store(figures[i], std::memory_order_relaxed);
}

void after_large(c10::DeviceIndex index) noexcept {
  if (index < 0) return;
  SeenCache& seen = seen_cache(index);
  try {
    const c10::Device device(c10::kCUDA, index);
    const auto statistics = device_statistics(device);
    if (!statistics || !statistics->caching) return;
    const int64_t reserved = statistics->reserved_bytes.current;
    int64_t last = seen.reserved.load(std::memory_order_relaxed);
    if (reserved <= last + last / 20) return;
    const int64_t cached = reserved - statistics->active_bytes.current;
    if (cached < reserved / 10) return;
    if (!seen.reserved.compare_exchange_strong(last, reserved)) return;
    if (const auto blocks = device_blocks(device)) store(seen, cache_in(*blocks));
  } catch (...) {  // memory has run out: what was seen before stays
  }
}

}  // namespace

void keep_cache_at_peaks() noexcept { CudaAllocator::call_after_large(&after_large); }

std::optional<CacheAtPeak> cache_at_peak(c10::Device device) {
  if (!device.is_cuda() || device.index() < 0) return std::nullopt;
  const SeenCache& seen = seen_cache(device.index());
  const auto figure = [&](size_t i) { return seen.figures[i].load(std::memory_order_relaxed); };
  if (figure(0) == 0) return std::nullopt;
  CacheAtPeak cache;
  cache.reserved_bytes = figure(0);
  cache.allocated_bytes = figure(1);
  cache.whole_bytes = figure(2);
  cache.whole_segments = figure(3);
  cache.piece_bytes = figure(4);
  cache.pieces = figure(5);
  cache.largest_piece = figure(6);
  return cache;
}

}  // namespace memledger::inside
