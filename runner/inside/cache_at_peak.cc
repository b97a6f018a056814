#include "runner/inside/cache_at_peak.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>

#include "registry/device_statistics.h"
#include "registry/hooks/cuda_allocator.h"

namespace memledger::inside {
namespace {

constexpr size_t kDevices = 128;
constexpr size_t kMaxStreams = 4;
constexpr size_t kOfCache = 10;
constexpr size_t kOfStream = 4;
constexpr size_t kFigures = kOfCache + kMaxStreams * kOfStream;

struct SeenCache {
  std::atomic<int64_t> reserved{0};  // at the last look
  std::array<std::atomic<int64_t>, kFigures> figures{};
};

SeenCache& seen_cache(c10::DeviceIndex index) {
  static auto* const caches = new std::array<SeenCache, kDevices>;
  return (*caches)[static_cast<unsigned char>(index) % kDevices];
}

CacheAtPeak cache_in(const DeviceBlocks& blocks) {
  CacheAtPeak cache;
  cache.reserved_bytes = blocks.reserved_bytes();
  cache.allocated_bytes = blocks.allocated_bytes();
  std::map<std::pair<uint64_t, std::pair<uint64_t, uint64_t>>, int64_t> by_stream;
  for (const DeviceSegment& segment : blocks.segments) {
    int64_t free = 0;
    for (const DeviceBlock& block : segment.blocks)
      free += block.state == BlockState::kFree ? block.nbytes : 0;
    if (free == 0) continue;
    by_stream[{segment.stream, segment.pool}] += free;
    if (segment.pool != std::pair<uint64_t, uint64_t>{0, 0}) {
      cache.private_bytes += free;
      continue;
    }
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
  for (const auto& [place, bytes] : by_stream)
    cache.streams.push_back({place.first, place.second, bytes});
  std::stable_sort(cache.streams.begin(), cache.streams.end(),
                   [](const auto& a, const auto& b) { return a.bytes > b.bytes; });
  for (; cache.streams.size() > kMaxStreams; cache.streams.pop_back()) {
    ++cache.more_streams;
    cache.more_stream_bytes += cache.streams.back().bytes;
  }
  return cache;
}

// A look that another thread's overlaps may mix their figures: both are of the same growth.
void store(SeenCache& seen, const CacheAtPeak& cache) noexcept {
  std::array<int64_t, kFigures> figures = {
      cache.reserved_bytes, cache.allocated_bytes,  cache.whole_bytes,   cache.whole_segments,
      cache.piece_bytes,    cache.pieces,           cache.largest_piece, cache.private_bytes,
      cache.more_streams,   cache.more_stream_bytes};
  for (size_t i = 0; i < cache.streams.size(); ++i) {
    const CacheOfStream& one = cache.streams[i];
    const std::array<int64_t, kOfStream> its = {static_cast<int64_t>(one.stream),
                                                static_cast<int64_t>(one.pool.first),
                                                static_cast<int64_t>(one.pool.second), one.bytes};
    std::copy(its.begin(), its.end(), figures.begin() + kOfCache + i * kOfStream);
  }
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
  cache.private_bytes = figure(7);
  cache.more_streams = figure(8);
  cache.more_stream_bytes = figure(9);
  for (size_t i = 0; i < kMaxStreams; ++i) {
    const size_t first = kOfCache + i * kOfStream;
    if (figure(first + 3) == 0) break;
    cache.streams.push_back(
        {static_cast<uint64_t>(figure(first)),
         {static_cast<uint64_t>(figure(first + 1)), static_cast<uint64_t>(figure(first + 2))},
         figure(first + 3)});
  }
  return cache;
}

}  // namespace memledger::inside
