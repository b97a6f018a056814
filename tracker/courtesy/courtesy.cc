#include "tracker/courtesy.h"

#include <ATen/core/grad_mode.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/ops/from_blob.h>
#include <ATen/record_function.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/TensorImpl.h>
#include <c10/core/impl/COW.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <dlfcn.h>
#include <fmt/format.h>
#include <torch/optim/optimizer.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <unordered_map>
#include <unordered_set>

#include "registry/device_statistics.h"
#include "registry/libtorch/lent_memory.h"
#include "registry/libtorch/storage_impl.h"
#include "registry/libtorch/tensor_storages.h"
#include "registry/live_storages.h"
#include "registry/registry.h"
#include "reporter/names/optimizer_state.h"
#include "text/output.h"
#include "tracker/courtesy/storage_access.h"
#include "tracker/courtesy/yielded_bytes.h"
#include "tracker/device_cache.h"

extern "C" __attribute__((weak)) int memledger_note_own_copies(int are_own);

namespace memledger {
namespace {

using Clock = std::chrono::steady_clock;
using StoragePtr = c10::intrusive_ptr<c10::StorageImpl>;
using WeakStorage = c10::weak_intrusive_ptr<c10::StorageImpl>;
using WeakTensor = c10::weak_intrusive_ptr<c10::TensorImpl, at::UndefinedTensorImpl>;

constexpr char kCopyOnWrite[] = "its data is shared with other storages (copy-on-write)";
constexpr int64_t kStagingBytes = int64_t{16} << 20;
constexpr int64_t kSlowBytes = int64_t{1} << 30;

struct Yielded {
  WeakStorage storage{StoragePtr()};
  c10::Device device = c10::Device(c10::DeviceType::CPU);
  int64_t nbytes = 0;
  uint64_t stream = 0;  // whose block it was
  YieldedBytes::Place place;
};

struct Moving {
  StoragePtr storage;
  Yielded yielded;
};

at::Tensor bytes_at(const void* data, int64_t nbytes, c10::Device device) {
  return at::for_blob(const_cast<void*>(data), {nbytes})
      .options(at::TensorOptions().dtype(at::kByte).device(device))
      .target_device(device)
      .make_tensor();
}

void synchronize(c10::Device device) {
  if (device.is_cuda())
    c10::impl::VirtualGuardImpl(device.type()).synchronizeDevice(device.index());
}

std::vector<c10::Device> devices_of(const CourtesyOptions& options) {
  if (options.device && !(options.device->is_cuda() && !options.device->has_index()))
    return {*options.device};
  std::vector<c10::Device> devices;
  const c10::DeviceIndex count = device_cache::cuda_devices();
  for (c10::DeviceIndex i = 0; i < count; ++i) devices.emplace_back(c10::DeviceType::CUDA, i);
  return devices;
}

std::string folder_of(const CourtesyOptions& options) {
  if (!options.folder.empty()) return options.folder;
  const char* const folder = std::getenv("TMPDIR");
  return folder != nullptr && *folder != '\0' ? folder : "/tmp";
}

// Which stream and pool the blocks of a CUDA device belong to.
class Segments {
 public:
  explicit Segments(c10::Device device) {
    if (!device.is_cuda()) return;
    std::optional<DeviceBlocks> blocks = device_blocks(device);
    known_ = blocks.has_value();
    if (!blocks) return;
    segments_ = std::move(blocks->segments);
    std::sort(segments_.begin(), segments_.end(),
              [](const auto& a, const auto& b) { return a.address < b.address; });
  }
  const DeviceSegment* of(uintptr_t address) const {
    const auto next = std::upper_bound(
        segments_.begin(), segments_.end(), address,
        [](uintptr_t a, const DeviceSegment& segment) { return a < segment.address; });
    if (next == segments_.begin()) return nullptr;
    const DeviceSegment& segment = *std::prev(next);
    return address < segment.address + static_cast<uintptr_t>(segment.nbytes) ? &segment : nullptr;
  }

  // False without a snapshot: a block whose stream is not known could be freed while that stream
  // still uses it.
  bool known() const { return known_; }

 private:
  bool known_ = true;
  std::vector<DeviceSegment> segments_;
};

class ProgressReporter {
 public:
  ProgressReporter(const CourtesyOptions& options, bool restoring, int64_t total)
      : options_(options), begun_(Clock::now()), told_(begun_) {
    progress_.restoring = restoring;
    progress_.total_bytes = total;
    to_terminal_ = !options.progress && total >= kSlowBytes && isatty(STDERR_FILENO) != 0;
  }
  ~ProgressReporter() {
    if (printed_) write_standard_error("\n");
  }
  void add(int64_t nbytes) {
    progress_.done_bytes += nbytes;
    if (!to_terminal_ && !options_.progress) return;
    const Clock::time_point now = Clock::now();
    const bool last = progress_.done_bytes == progress_.total_bytes;
    if (now - told_ < std::chrono::milliseconds(200) && !last) return;
    told_ = now;
    const double seconds = std::chrono::duration<double>(now - begun_).count();
    progress_.bytes_per_second =
        seconds > 0 ? static_cast<double>(progress_.done_bytes) / seconds : 0;
    if (options_.progress) {
      options_.progress(progress_);
      return;
    }
    if (seconds < 1) return;
    printed_ = true;
    write_standard_error(fmt::format("\rmemledger: {} {:.1f} of {:.1f} GiB, {:.2f} GiB/s ",
                                     progress_.restoring ? "restoring" : "yielding",
                                     static_cast<double>(progress_.done_bytes) / (1 << 30),
                                     static_cast<double>(progress_.total_bytes) / (1 << 30),
                                     progress_.bytes_per_second / (1 << 30)));
  }

 private:
  const CourtesyOptions& options_;
  Clock::time_point begun_, told_;
  CourtesyProgress progress_;
  bool to_terminal_ = false;
  bool printed_ = false;
};

// Keeps a virtual GPU from reporting these copies as reads of the program's
// (virtual_gpu/values/size_reads.h).
class OwnCopies {
 public:
  OwnCopies() : before_(note(1)) {}
  ~OwnCopies() { note(before_); }
  OwnCopies(const OwnCopies&) = delete;
  OwnCopies& operator=(const OwnCopies&) = delete;

 private:
  static int note(int are_own) {
    // In the same library, or in the one that `memledger run` has brought in.
    static const auto function =
        memledger_note_own_copies != nullptr
            ? &memledger_note_own_copies
            : reinterpret_cast<int (*)(int)>(dlsym(RTLD_DEFAULT, "memledger_note_own_copies"));
    return function == nullptr ? 0 : function(are_own);
  }

  const int before_;
};

// Copies between a device's memory and where the bytes are kept.
class Copier {
 public:
  Copier(YieldedBytes& kept, bool pinned) : kept_(kept), pinned_(pinned) {}

  absl::Status away(const void* data, const Yielded& storage) {
    if (storage.device.is_cpu()) return kept_.write(storage.place, data, storage.nbytes);
    if (!kept_.is_file()) {
      bytes_at(kept_.memory_at(storage.place), storage.nbytes, c10::Device(c10::kCPU))
          .copy_(bytes_at(data, storage.nbytes, storage.device), /*non_blocking=*/pinned_);
      return absl::OkStatus();
    }
    return in_stages(storage.nbytes, [&](char* staging, int64_t at, int64_t nbytes) {
      bytes_at(staging, nbytes, c10::Device(c10::kCPU))
          .copy_(bytes_at(static_cast<const char*>(data) + at, nbytes, storage.device));
      return kept_.write({0, storage.place.offset + at}, staging, nbytes);
    });
  }

  absl::Status back(void* data, const Yielded& storage) {
    if (storage.device.is_cpu()) return kept_.read(storage.place, data, storage.nbytes);
    if (!kept_.is_file()) {
      bytes_at(data, storage.nbytes, storage.device)
          .copy_(bytes_at(kept_.memory_at(storage.place), storage.nbytes, c10::Device(c10::kCPU)),
                 /*non_blocking=*/pinned_);
      return absl::OkStatus();
    }
    return in_stages(storage.nbytes, [&](char* staging, int64_t at, int64_t nbytes) {
      absl::Status status = kept_.read({0, storage.place.offset + at}, staging, nbytes);
      if (status.ok()) {
        bytes_at(static_cast<char*>(data) + at, nbytes, storage.device)
            .copy_(bytes_at(staging, nbytes, c10::Device(c10::kCPU)));
      }
      return status;
    });
  }

 private:
  template <typename Step>
  absl::Status in_stages(int64_t nbytes, const Step& step) {
    if (staging_.empty()) staging_.resize(static_cast<size_t>(kStagingBytes));
    for (int64_t at = 0; at < nbytes; at += kStagingBytes) {
      absl::Status status = step(staging_.data(), at, std::min(kStagingBytes, nbytes - at));
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  }

  YieldedBytes& kept_;
  const bool pinned_;
  std::vector<char> staging_;
};

void take_data(c10::StorageImpl& storage) noexcept {
  const c10::Device device = storage._mutable_data_ptr_no_checks().device();
  c10::DataPtr data = std::move(storage._mutable_data_ptr_no_checks());
  storage_access::throws_on_access(storage) = true;
  storage.set_data_ptr_noswap(c10::DataPtr(nullptr, device));
}  // the block goes back to its allocator here

void give_data(c10::StorageImpl& storage, c10::DataPtr data) noexcept {
  storage_access::throws_on_access(storage) = false;
  storage.get_extra_meta().custom_data_ptr_error_msg_.reset();
  storage.set_data_ptr_noswap(std::move(data));
}

// Returns why a storage cannot be moved; empty: it can.
std::string reason_to_stay(const LiveStorage& live, const Segments& segments,
                           const DeviceSegment* segment) {
  if (live.raw_block) return "raw block, not a storage";
  if (segment != nullptr && segment->pool != std::pair<uint64_t, uint64_t>{0, 0})
    return "in a private pool (CUDA graphs, MemPool)";
  if (!live.storage) return "no operator has shown its storage";
  if (!owns_watched_block(*live.storage) ||
      reinterpret_cast<uintptr_t>(live.storage->_mutable_data_ptr_no_checks().get()) !=
          live.address)
    return kCopyOnWrite;
  if (live.storage->sym_nbytes().is_heap_allocated() ||
      static_cast<int64_t>(live.storage->nbytes()) > live.nbytes)
    return "its size is not known";
  if (!segments.known()) return "its stream is not known (the allocator has no snapshot)";
  return "";
}

Moving moving_of(LiveStorage& live, c10::Device device, const DeviceSegment* segment) {
  Moving moving;
  moving.yielded.storage = WeakStorage(live.storage);
  moving.yielded.device = device;
  // As large as the block: a storage may have been shrunk, and grow again.
  moving.yielded.nbytes = live.nbytes;
  moving.yielded.stream = segment != nullptr ? segment->stream : 0;
  moving.storage = std::move(live.storage);
  return moving;
}

}  // namespace

struct Courtesy::State {
  // What one yield_memory() has moved, in that order.
  struct Trip {
    YieldedBytes bytes;
    std::vector<Yielded> storages;
  };

  CourtesyOptions options;
  ScopedTracking tracking;
  bool only_added = false;
  std::vector<WeakTensor> added;
  std::vector<const torch::optim::Optimizer*> optimizers;
  std::vector<Trip> trips;
  std::vector<Unmoved> unmoved;

  explicit State(CourtesyOptions given) : options(std::move(given)) {}

  absl::Status check() const;
  std::vector<StoragePtr> wanted() const;
  void release_workspaces() const;
  std::vector<Moving> find();
  void note_foreign(c10::StorageImpl& storage, c10::Device device);
  absl::StatusOr<YieldedBytes> make_place() const;
  absl::Status copy_away(std::vector<Moving>& moving, YieldedBytes& bytes);
  using ClaimedBytes = std::unordered_map<const c10::StorageImpl*, int64_t>;
  ClaimedBytes claimed_bytes() const;
  static absl::StatusOr<int64_t> restore(const Yielded& yielded, const ClaimedBytes& claimed,
                                         Copier& copier);
  absl::Status restore(Trip& trip, const ClaimedBytes& claimed, ProgressReporter& reporter);
};

absl::Status Courtesy::State::check() const {
  const bool cpu = options.device && options.device->is_cpu();
  if (options.device && !cpu && !options.device->is_cuda()) {
    return absl::InvalidArgumentError(
        fmt::format("memledger: memory of {} cannot be yielded: only CUDA devices' and the CPU's",
                    options.device->str()));
  }
  if (cpu && options.place != CourtesyOptions::Place::kFile) {
    return absl::InvalidArgumentError(
        "memledger: the CPU's memory can be yielded to a file only "
        "(CourtesyOptions::Place::kFile)");
  }
  if (options.device && options.device->is_cuda() && options.device->has_index()) {
    const c10::DeviceIndex count = device_cache::cuda_devices();
    if (options.device->index() >= count) {
      return absl::InvalidArgumentError(
          fmt::format("memledger: there is no {}: LibTorch sees {} CUDA devices",
                      options.device->str(), static_cast<int>(count)));
    }
  }
  return absl::OkStatus();
}

// The storages of what was added, each once.
std::vector<StoragePtr> Courtesy::State::wanted() const {
  std::vector<StoragePtr> result;
  std::unordered_set<const c10::StorageImpl*> seen;
  const auto want_dense = [&](const at::Tensor& tensor) {
    c10::StorageImpl* const storage = storage_impl_of(tensor);
    if (storage == nullptr || !seen.insert(storage).second) return;
    know_storage(*storage);
    result.push_back(StoragePtr::reclaim_copy(storage));
  };
  const auto want = [&](const at::Tensor& tensor) {
    if (!tensor.defined()) return;
    switch (tensor.layout()) {
      case c10::Layout::Sparse:
        want_dense(tensor._indices());
        want_dense(tensor._values());
        break;
      case c10::Layout::SparseCsr:
      case c10::Layout::SparseBsr:
        want_dense(tensor.crow_indices());
        want_dense(tensor.col_indices());
        want_dense(tensor.values());
        break;
      case c10::Layout::SparseCsc:
      case c10::Layout::SparseBsc:
        want_dense(tensor.ccol_indices());
        want_dense(tensor.row_indices());
        want_dense(tensor.values());
        break;
      default:
        want_dense(tensor);
    }
  };
  for (const WeakTensor& weak : added) {
    const auto impl = weak.lock();
    if (!impl.defined()) continue;
    const at::Tensor tensor(impl);
    want(tensor);
    if (tensor.is_leaf()) want(tensor.grad());
  }
  for (const torch::optim::Optimizer* optimizer : optimizers) {
    for (const torch::optim::OptimizerParamGroup& group : optimizer->param_groups()) {
      for (const at::Tensor& parameter : group.params()) {
        want(parameter);
        if (parameter.defined()) want(parameter.grad());
        for_each_state(*optimizer, parameter.unsafeGetTensorImpl(),
                       [&](const std::string&, const at::Tensor& kept) { want(kept); });
      }
    }
  }
  return result;
}

void Courtesy::State::release_workspaces() const {
  if (!options.workspaces.value_or(!only_added)) return;
  if (options.device && !options.device->is_cuda()) return;
  const std::vector<c10::Device> devices = devices_of(options);
  if (devices.empty()) return;
  const std::vector<LibraryWorkspace> workspaces = library_workspaces();
  const bool elsewhere =
      std::any_of(workspaces.begin(), workspaces.end(), [&](const LibraryWorkspace& workspace) {
        return std::find(devices.begin(), devices.end(), workspace.device) == devices.end();
      });
  // Without a list from LibTorch those of other devices cannot be told apart.
  const bool some_devices =
      static_cast<c10::DeviceIndex>(devices.size()) < device_cache::cuda_devices();
  if (elsewhere || (some_devices && workspaces.empty())) return;
  for (const c10::Device device : devices) synchronize(device);
  device_cache::release_workspaces();
}

// Returns what is to be moved, and sets `unmoved`.
std::vector<Moving> Courtesy::State::find() {
  unmoved.clear();
  std::vector<Moving> result;
  const std::vector<StoragePtr> wanted = this->wanted();
  std::unordered_set<const c10::StorageImpl*> not_seen;
  for (const StoragePtr& storage : wanted) not_seen.insert(storage.get());
  std::unordered_map<uintptr_t, std::string> workspaces;
  if (!only_added) {
    for (const LibraryWorkspace& workspace : library_workspaces())
      workspaces[workspace.address] = workspace.name();
  }
  for (const c10::Device device : devices_of(options)) {
    synchronize(device);
    const Segments segments(device);
    int64_t known_bytes = 0;
    for (LiveStorage& live : live_storages(device)) {
      known_bytes += live.nbytes;
      if (only_added && not_seen.erase(live.storage.get()) == 0) continue;
      const DeviceSegment* const segment = segments.of(live.address);
      const auto workspace = workspaces.find(live.address);
      std::string reason = workspace != workspaces.end() ? workspace->second
                                                         : reason_to_stay(live, segments, segment);
      if (reason.empty()) {
        result.push_back(moving_of(live, device, segment));
      } else {
        unmoved.push_back({device, live.nbytes, live.id, std::move(reason)});
      }
    }
    const auto statistics = device_statistics(device);
    if (!only_added && statistics && statistics->requested_bytes.current > known_bytes) {
      unmoved.push_back({device, statistics->requested_bytes.current - known_bytes, 0,
                         "made before tracking, or awaited by streams"});
    }
    for (const StoragePtr& storage : wanted) {
      if (not_seen.count(storage.get()) > 0) note_foreign(*storage, device);
    }
  }
  return result;
}

// Lists a storage that was added, but is not of a watched allocator.
void Courtesy::State::note_foreign(c10::StorageImpl& storage, c10::Device device) {
  const c10::DataPtr& data = storage._mutable_data_ptr_no_checks();
  const bool is_here = data.device() == device || (data.device().is_cpu() && device.is_cpu());
  if (!is_here || data.get() == nullptr) return;
  const int64_t nbytes =
      storage.sym_nbytes().is_heap_allocated() ? 0 : static_cast<int64_t>(storage.nbytes());
  unmoved.push_back({device, nbytes, 0,
                     c10::impl::cow::is_cow_data_ptr(data)
                         ? kCopyOnWrite
                         : "not from a watched allocator (foreign, or from before tracking)"});
}

absl::StatusOr<YieldedBytes> Courtesy::State::make_place() const {
  switch (options.place) {
    case CourtesyOptions::Place::kFile:
      return YieldedBytes::in_file(folder_of(options));
    case CourtesyOptions::Place::kPinned:
      if (!at::detail::getCUDAHooks().hasCUDA())
        return absl::InvalidArgumentError("memledger: without CUDA there is no pinned memory");
      return YieldedBytes::in_memory(at::detail::getCUDAHooks().getPinnedMemoryAllocator());
    case CourtesyOptions::Place::kPageable:
      break;
  }
  return YieldedBytes::in_memory(nullptr);
}

absl::Status Courtesy::State::copy_away(std::vector<Moving>& moving, YieldedBytes& bytes) {
  int64_t total = 0;
  for (const Moving& each : moving) total += each.yielded.nbytes;
  ProgressReporter reporter(options, /*restoring=*/false, total);
  Copier copier(bytes, options.place == CourtesyOptions::Place::kPinned);
  const std::string away = kLentMemory;
  for (Moving& each : moving) {
    absl::StatusOr<YieldedBytes::Place> place = bytes.reserve(each.yielded.nbytes);
    if (!place.ok()) return place.status();
    each.yielded.place = *place;
    const c10::OptionalDeviceGuard guard(each.yielded.device.is_cuda()
                                             ? std::optional<c10::Device>(each.yielded.device)
                                             : std::nullopt);
    const absl::Status status =
        copier.away(each.storage->_mutable_data_ptr_no_checks().get(), each.yielded);
    if (!status.ok()) return status;
    each.storage->get_extra_meta().custom_data_ptr_error_msg_ = away;
    reporter.add(each.yielded.nbytes);
  }
  return absl::OkStatus();
}

// How far the tensors that were added reach into their storages. LibTorch's resize_() sets the
// sizes first, and then throws if the data is away: a storage that is too small would be read
// beyond.
Courtesy::State::ClaimedBytes Courtesy::State::claimed_bytes() const {
  ClaimedBytes claimed;
  const auto note = [&](const at::Tensor& tensor) {
    const c10::StorageImpl* const storage = tensor.defined() ? storage_impl_of(tensor) : nullptr;
    const std::optional<int64_t> extent =
        storage == nullptr ? std::nullopt : extent_bytes_of(tensor);
    if (!extent.has_value() || *extent == 0) return;
    int64_t& bytes = claimed[storage];
    bytes = std::max(bytes,
                     tensor.storage_offset() * static_cast<int64_t>(tensor.itemsize()) + *extent);
  };
  for (const WeakTensor& weak : added) {
    const auto impl = weak.lock();
    if (!impl.defined()) continue;
    const at::Tensor tensor(impl);
    note(tensor);
    if (tensor.is_leaf()) note(tensor.grad());
  }
  return claimed;
}

// Returns how many bytes were moved: none where the program has let go of the storage, or has put
// other data there.
absl::StatusOr<int64_t> Courtesy::State::restore(const Yielded& yielded,
                                                 const ClaimedBytes& claimed, Copier& copier) {
  const StoragePtr storage = yielded.storage.lock();
  if (!storage) return 0;
  const bool emptied = !storage->sym_nbytes().is_heap_allocated() && storage->nbytes() == 0;
  if (emptied || !storage_access::throws_on_access(*storage) ||
      storage->_mutable_data_ptr_no_checks().get() != nullptr) {
    give_data(*storage, std::move(storage->_mutable_data_ptr_no_checks()));
    return 0;
  }
  try {
    c10::OptionalDeviceGuard guard;
    c10::OptionalStreamGuard stream;
    if (yielded.device.is_cuda()) {
      guard.reset_device(yielded.device);
      stream.reset_stream(c10::Stream(c10::Stream::UNSAFE, yielded.device,
                                      static_cast<c10::StreamId>(yielded.stream)));
    }
    const auto reaching = claimed.find(storage.get());
    const int64_t reached = reaching == claimed.end() ? 0 : reaching->second;
    c10::Allocator* const own = storage->allocator();
    c10::DataPtr data = (own != nullptr ? own : c10::GetAllocator(yielded.device.type()))
                            ->allocate(static_cast<size_t>(std::max(yielded.nbytes, reached)));
    absl::Status status = copier.back(data.get(), yielded);
    if (!status.ok()) return status;
    give_data(*storage, std::move(data));
    if (!storage->sym_nbytes().is_heap_allocated() &&
        static_cast<int64_t>(storage->nbytes()) < reached)
      storage->set_nbytes(static_cast<size_t>(reached));
    know_storage(*storage);
  } catch (const std::exception& error) {
    std::string reason = error.what();
    reason.resize(std::min(reason.find('\n'), reason.size()));
    return absl::ResourceExhaustedError(
        fmt::format("memledger: no memory on {} to restore a storage of {} bytes: {}",
                    yielded.device.str(), yielded.nbytes, reason));
  }
  return yielded.nbytes;
}

// Takes out of the trip what is back, also where the program's CourtesyOptions::progress throws.
absl::Status Courtesy::State::restore(Trip& trip, const ClaimedBytes& claimed,
                                      ProgressReporter& reporter) {
  Copier copier(trip.bytes, options.place == CourtesyOptions::Place::kPinned);
  size_t done = 0;
  const auto take_out = [&] {
    for (const c10::Device device : devices_of(options)) synchronize(device);
    trip.storages.erase(trip.storages.begin(),
                        trip.storages.begin() + static_cast<std::ptrdiff_t>(done));
  };
  absl::Status status;
  try {
    while (done < trip.storages.size()) {
      const absl::StatusOr<int64_t> moved = restore(trip.storages[done], claimed, copier);
      status = moved.status();
      if (!status.ok()) break;
      ++done;
      if (*moved > 0) reporter.add(*moved);
    }
  } catch (...) {
    take_out();
    throw;
  }
  take_out();
  return status;
}

Courtesy::Courtesy(CourtesyOptions options) : state_(std::make_unique<State>(std::move(options))) {}

Courtesy::~Courtesy() {
  try {
    const absl::Status status = restore();
    if (!status.ok())
      tell({std::string(status.message()), "; what is missing throws when it is used"});
  } catch (const std::exception& error) {
    tell({"memledger: yielded memory could not be restored: ", first_line(error.what())});
  }
}

void Courtesy::only_added() { state_->only_added = true; }

Courtesy& Courtesy::add_tensor(const at::Tensor& tensor) {
  only_added();
  if (tensor.defined()) state_->added.emplace_back(tensor.getIntrusivePtr());
  return *this;
}

Courtesy& Courtesy::add_optimizer(const torch::optim::Optimizer& optimizer) {
  only_added();
  state_->optimizers.push_back(&optimizer);
  return *this;
}

absl::Status Courtesy::yield_memory() {
  if (const absl::Status status = state_->check(); !status.ok()) return status;
  const at::NoGradGuard no_grad;
  const at::DisableRecordFunctionGuard unobserved;
  const OwnCopies own;
  absl::StatusOr<YieldedBytes> place = state_->make_place();
  if (!place.ok()) return place.status();
  state_->release_workspaces();
  std::vector<Moving> moving = state_->find();
  absl::Status status;
  try {
    status = state_->copy_away(moving, *place);
    for (const c10::Device device : devices_of(state_->options)) synchronize(device);
    state_->trips.reserve(state_->trips.size() + 1);
    if (status.ok() && !moving.empty()) {
      std::vector<Yielded> storages;
      storages.reserve(moving.size());
      for (Moving& each : moving) storages.push_back(std::move(each.yielded));
      state_->trips.push_back({*std::move(place), std::move(storages)});
    }
  } catch (const std::exception& error) {
    status = absl::ResourceExhaustedError(
        fmt::format("memledger: memory could not be yielded: {}", error.what()));
  }
  if (!status.ok()) {
    for (const Moving& each : moving)
      each.storage->get_extra_meta().custom_data_ptr_error_msg_.reset();
    return status;
  }
  // From here on nothing fails.
  for (Moving& each : moving) take_data(*each.storage);
  moving.clear();
  for (const c10::Device device : devices_of(state_->options)) device_cache::release(device);
  return absl::OkStatus();
}

absl::Status Courtesy::restore() {
  if (state_->trips.empty()) return absl::OkStatus();
  const at::NoGradGuard no_grad;
  const at::DisableRecordFunctionGuard unobserved;
  const OwnCopies own;
  ProgressReporter reporter(state_->options, /*restoring=*/true, yielded_bytes());
  const State::ClaimedBytes claimed = state_->claimed_bytes();
  absl::Status status;
  for (State::Trip& trip : state_->trips) {
    status = state_->restore(trip, claimed, reporter);
    if (!status.ok()) break;
  }
  auto& trips = state_->trips;
  trips.erase(std::remove_if(trips.begin(), trips.end(),
                             [](const State::Trip& trip) { return trip.storages.empty(); }),
              trips.end());
  if (status.ok()) return status;
  return absl::Status(status.code(),
                      fmt::format("{}; {} bytes are still yielded, restore() can be called again",
                                  std::string(status.message()), yielded_bytes()));
}

int64_t Courtesy::yielded_bytes() const {
  int64_t bytes = 0;
  for (const State::Trip& trip : state_->trips) {
    for (const Yielded& yielded : trip.storages) {
      if (!yielded.storage.expired()) bytes += yielded.nbytes;
    }
  }
  return bytes;
}

std::vector<Unmoved> Courtesy::unmoved() const { return state_->unmoved; }

ScopedCourtesy::ScopedCourtesy(CourtesyOptions options) : courtesy_(std::move(options)) { yield(); }

void ScopedCourtesy::yield() {
  const absl::Status status = courtesy_.yield_memory();
  TORCH_CHECK(status.ok(), std::string(status.message()));
}

}  // namespace memledger
