#pragma once

#include <c10/cuda/CUDAException.h>
#include <c10/util/Exception.h>
#include <cuda_runtime_api.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "registry/hooks/block_hooks.h"
#include "registry/libtorch/libtorch_version.h"

// Without optimization (-O0) the base class's virtual table gets into every file that includes this
// one, and with it CUDAAllocator::getMemoryInfo, which LibTorch's header defines. A program without
// CUDA must link all the same, so that function does here without symbols of LibTorch's CUDA
// library, and uses cudart's only if they are there.
namespace memledger {
inline void check_cuda(cudaError_t error) {
  TORCH_CHECK(error == cudaSuccess, "CUDA error ", static_cast<int>(error));
}
}  // namespace memledger
extern "C" decltype(cudaMemGetInfo) cudaMemGetInfo __attribute__((weak));
#pragma push_macro("C10_CUDA_CHECK")
#undef C10_CUDA_CHECK
#define C10_CUDA_CHECK(call) ::memledger::check_cuda(call)
#include <c10/cuda/CUDACachingAllocator.h>
#pragma pop_macro("C10_CUDA_CHECK")

namespace memledger {

// Stands before LibTorch's CUDA allocator (its caching one, cudaMallocAsync, or the program's own)
// as TrackingCpuAllocator does before the CPU's, and passes everything on.
//
// Newer virtual functions of CUDAAllocator are not pure: one that is not forwarded here compiles,
// and silently does nothing. tests/registry/cuda_allocator_virtuals_test.py compares this file with
// the headers of the LibTorch in use.
//
// What differs from a plain forward:
// - Blocks made here have our deleter, and LibTorch's own recordStream ignores such a block: it is
//   shown the block with its own deleter.
// - Raw blocks have no deleter; they are seen in the calls themselves.
// - A checkpoint of a pool frees and makes blocks by itself, and returns afterwards which.
// - A memory pool that gets this object as its allocator takes the one below: otherwise segments
//   would count as blocks.
class TrackingCudaAllocator final : public c10::cuda::CUDACachingAllocator::CUDAAllocator {
  using CUDAAllocator = c10::cuda::CUDACachingAllocator::CUDAAllocator;
  using AllocatorState = c10::cuda::CUDACachingAllocator::AllocatorState;
  using DeviceIndex = c10::DeviceIndex;
  using MempoolId_t = c10::MempoolId_t;

 public:
  TrackingCudaAllocator(CUDAAllocator* base, size_t index) : base_(base), index_(index) {}

  // c10::Allocator
  c10::DataPtr allocate(size_t nbytes) override;
  c10::DeleterFnPtr raw_deleter() const override;
  bool is_simple_data_ptr(const c10::DataPtr& data) const override {
    return base_->is_simple_data_ptr(data);
  }
  void copy_data(void* dest, const void* src, size_t count) const override {
    base_->copy_data(dest, src, count);
  }

  // c10::DeviceAllocator
  bool initialized() override { return base_->initialized(); }
  void emptyCache(MempoolId_t pool) override;
  void recordStream(const c10::DataPtr& data, c10::Stream stream) override;
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(DeviceIndex device) override {
    return base_->getDeviceStats(device);
  }
  void resetAccumulatedStats(DeviceIndex device) override;
  void resetPeakStats(DeviceIndex device) override;
#if MEMLEDGER_TORCH_AT_LEAST(10)
  std::pair<size_t, size_t> getMemoryInfo(DeviceIndex device) override {
    return base_->getMemoryInfo(device);
  }
#endif

  // Blocks
  void* raw_alloc(size_t nbytes) override;
  void* raw_alloc_with_stream(size_t nbytes, cudaStream_t stream) override;
  void raw_delete(void* data) override;
  void recordStream(const c10::DataPtr& data, c10::cuda::CUDAStream stream) override;
#if MEMLEDGER_TORCH_AT_LEAST(13)
  c10::DataPtr allocateWithAddress(size_t nbytes, void* address) override;
#endif

  // Settings
  void init(int device_count) override;
  double getMemoryFraction(DeviceIndex device) override { return base_->getMemoryFraction(device); }
  void setMemoryFraction(double fraction, DeviceIndex device) override {
    base_->setMemoryFraction(fraction, device);
  }
  void enable(bool value) override;
  bool isEnabled() const override { return base_->isEnabled(); }
  void enablePeerAccess(DeviceIndex device, DeviceIndex accessed) override {
    base_->enablePeerAccess(device, accessed);
  }
  std::string name() override { return base_->name(); }

  // What the allocator says of itself
  void cacheInfo(DeviceIndex device, size_t* largest) override {
    base_->cacheInfo(device, largest);
  }
  void* getBaseAllocation(void* data, size_t* nbytes) override {
    return base_->getBaseAllocation(data, nbytes);
  }
#if MEMLEDGER_TORCH_AT_LEAST(11)
  c10::cuda::CUDACachingAllocator::SnapshotInfo snapshot(MempoolId_t pool,
                                                         bool include_traces) override {
    return base_->snapshot(pool, include_traces);
  }
#else
  c10::cuda::CUDACachingAllocator::SnapshotInfo snapshot(MempoolId_t pool) override {
    return base_->snapshot(pool);
  }
#endif
#if MEMLEDGER_TORCH_AT_LEAST(10)
  std::vector<c10::cuda::CUDACachingAllocator::StreamSegmentSize> getExpandableSegmentSizes(
      DeviceIndex device) override {
    return base_->getExpandableSegmentSizes(device);
  }
#endif
#if MEMLEDGER_TORCH_AT_LEAST(12)
  std::shared_ptr<c10::GatheredContext> getContextForPointer(const void* data) override {
    return base_->getContextForPointer(data);
  }
#endif

  // Memory pools and graph capture
  void beginAllocateToPool(DeviceIndex device, MempoolId_t pool,
                           std::function<bool(cudaStream_t)> filter) override {
    base_->beginAllocateToPool(device, pool, std::move(filter));
  }
  void endAllocateToPool(DeviceIndex device, MempoolId_t pool) override {
    base_->endAllocateToPool(device, pool);
  }
  void releasePool(DeviceIndex device, MempoolId_t pool) override;
  int getPoolUseCount(DeviceIndex device, MempoolId_t pool) override {
    return base_->getPoolUseCount(device, pool);
  }
#if MEMLEDGER_TORCH_AT_LEAST(11)
  void createOrIncrefPool(DeviceIndex device, MempoolId_t pool,
                          std::shared_ptr<CUDAAllocator> allocator) override;
  void setUseOnOOM(DeviceIndex device, MempoolId_t pool, bool use_on_oom) override {
    base_->setUseOnOOM(device, pool, use_on_oom);
  }
#else
  void createOrIncrefPool(DeviceIndex device, MempoolId_t pool, CUDAAllocator* allocator) override;
  void setUseOnOOM(DeviceIndex device, MempoolId_t pool) override {
    base_->setUseOnOOM(device, pool);
  }
#endif
#if MEMLEDGER_TORCH_AT_LEAST(10)
  void setNoSplit(DeviceIndex device, MempoolId_t pool) override {
    base_->setNoSplit(device, pool);
  }
#endif
#if MEMLEDGER_TORCH_AT_LEAST(13)
  void markCaptureBegin(DeviceIndex device) override { base_->markCaptureBegin(device); }
  void markCaptureEnd(DeviceIndex device) override { base_->markCaptureEnd(device); }
#endif
  bool checkPoolLiveAllocations(DeviceIndex device, MempoolId_t pool,
                                const std::unordered_set<void*>& expected) override {
    return base_->checkPoolLiveAllocations(device, pool, expected);
  }
  std::shared_ptr<AllocatorState> getCheckpointState(DeviceIndex device,
                                                     MempoolId_t pool) override {
    return base_->getCheckpointState(device, pool);
  }
  c10::cuda::CUDACachingAllocator::CheckpointDelta setCheckpointPoolState(
      DeviceIndex device, std::shared_ptr<AllocatorState> state) override;

  // Memory shared with other processes is theirs: forwarded, not counted.
  c10::cuda::CUDACachingAllocator::ShareableHandle shareIpcHandle(void* data) override {
    return base_->shareIpcHandle(data);
  }
  std::shared_ptr<void> getIpcDevPtr(std::string handle) override {
    return base_->getIpcDevPtr(std::move(handle));
  }
  cudaError_t memcpyAsync(void* to, int to_device, const void* from, int from_device, size_t count,
                          cudaStream_t stream, bool p2p_enabled) override {
    return base_->memcpyAsync(to, to_device, from, from_device, count, stream, p2p_enabled);
  }

  // LibTorch's own recordings
  bool isHistoryEnabled() override { return base_->isHistoryEnabled(); }
#if MEMLEDGER_TORCH_AT_LEAST(11)
  void recordHistory(bool enabled, c10::cuda::CUDACachingAllocator::CreateContextFn recorder,
                     size_t max_entries, c10::cuda::CUDACachingAllocator::RecordContext when,
                     bool clear, const std::vector<std::string>& skip_actions) override {
    base_->recordHistory(enabled, recorder, max_entries, when, clear, skip_actions);
  }
#else
  void recordHistory(bool enabled, c10::cuda::CUDACachingAllocator::CreateContextFn recorder,
                     size_t max_entries, c10::cuda::CUDACachingAllocator::RecordContext when,
                     bool clear) override {
    base_->recordHistory(enabled, recorder, max_entries, when, clear);
  }
#endif
  void recordAnnotation(const std::vector<std::pair<std::string, std::string>>& metadata) override {
    base_->recordAnnotation(metadata);
  }
  void pushCompileContext(std::string& metadata) override { base_->pushCompileContext(metadata); }
  void popCompileContext() override { base_->popCompileContext(); }
#if MEMLEDGER_TORCH_AT_LEAST(10)
  void setUserMetadata(const std::string& metadata) override { base_->setUserMetadata(metadata); }
  std::string getUserMetadata() override { return base_->getUserMetadata(); }
#endif
#if MEMLEDGER_TORCH_AT_LEAST(14)
  bool supportsUserMetadata() override { return base_->supportsUserMetadata(); }
  void annotateMemory(const void* data, const std::string& metadata) override {
    base_->annotateMemory(data, metadata);
  }
#endif
  void attachOutOfMemoryObserver(
      c10::cuda::CUDACachingAllocator::OutOfMemoryObserver observer) override {
    base_->attachOutOfMemoryObserver(std::move(observer));
  }
#if MEMLEDGER_TORCH_AT_LEAST(12)
  void attachOomRejectionObserver(
      c10::cuda::CUDACachingAllocator::OomRejectionObserver observer) override {
    base_->attachOomRejectionObserver(std::move(observer));
  }
#endif
  void attachAllocatorTraceTracker(
      c10::cuda::CUDACachingAllocator::AllocatorTraceTracker tracker) override {
    base_->attachAllocatorTraceTracker(std::move(tracker));
  }

 private:
  // LibTorch never destroys an allocator through a pointer; this one lives as long as the process.
  ~TrackingCudaAllocator() override = default;

  template <typename Record>
  void record_stream(const c10::DataPtr& data, const Record& record);
  template <typename Allocate>
  void* allocate_raw_and_note(size_t nbytes, const Allocate& allocate);
  void follow_restored(DeviceIndex device, c10::cuda::CUDACachingAllocator::CheckpointDelta& delta);

  CUDAAllocator* const base_;
  const size_t index_;
};

}  // namespace memledger
