#include "tracker/mem_tracker.h"

#include <c10/util/Exception.h>

#include <cstdio>
#include <iostream>
#include <limits>
#include <mutex>
#include <ostream>

#include "registry/core/fork_safe_mutex.h"
#include "registry/libtorch/tensor_storages.h"
#include "registry/registry.h"
#include "registry/training_paused.h"
#include "reporter/names/name_book.h"
#include "text/dtype.h"
#include "text/names.h"
#include "tracker/device_cache.h"
#include "tracker/exact_device.h"
#include "tracker/log/diff_builder.h"
#include "tracker/log/log_text.h"
#include "tracker/log/log_writer.h"
#include "tracker/until_told.h"

#if defined(__GLIBC__)
#include <malloc.h>
#endif

namespace memledger {
namespace {

constexpr double kUnknownMib = std::numeric_limits<double>::quiet_NaN();

double mib(int64_t bytes) { return static_cast<double>(bytes) / 1048576.0; }

LogWriter::Options writer_options(const TrackerOptions& options) {
  TORCH_CHECK(options.path.empty() || options.folder.empty() || options.path == options.folder,
              "memledger: TrackerOptions::path and ::folder name one folder, the log's, but say ",
              options.path, " and ", options.folder);
  LogWriter::Options result;
  result.folder = options.path.empty() ? options.folder : options.path;
  result.file_name = options.file_name;
  result.colons = options.colons;
  result.echo = options.echo ? &std::cout : nullptr;
  result.time = options.clock ? options.clock() : std::chrono::system_clock::now();
  result.detail.rows = options.detail;
  result.detail.verbose = options.verbose;
  return result;
}

struct Naming {
  StorageNames names;
  std::vector<std::string> unread;  // registered, but without a storage that can be seen
};

void describe(const at::Tensor& tensor, StorageName& name) {
  const c10::TensorImpl* const impl = tensor.unsafeGetTensorImpl();
  if (impl->is_nested() || impl->has_symbolic_sizes_strides()) return;
  try {
    c10::DimVector shape(impl->sizes());
    name.dtype = c10::typeMetaToScalarType(impl->dtype());
    name.shape = std::move(shape);
    const auto storage = storage_of(tensor);
    name.whole = storage.has_value() &&
                 storage->bytes == impl->numel() * static_cast<int64_t>(impl->itemsize());
  } catch (const c10::Error&) {
    // A subclass refuses to say; the name stays.
  }
}

Naming read_names(const std::vector<NamedTensor>& tensors, c10::Device device) {
  Naming naming;
  naming.names.reserve(tensors.size());
  Registry& registry = Registry::global();
  for (const NamedTensor& named : tensors) {
    if (!is_same_device(tensor_device(named.tensor), device)) continue;
    bool seen = false;
    for_each_part(named.tensor, [&](const char* part, const at::Tensor& tensor) {
      const uint64_t id = registry.storage_id(tensor);
      if (id == 0) {
        const auto storage = storage_of(tensor);
        seen = seen || (storage.has_value() && storage->bytes == 0);
        return;
      }
      seen = true;
      const std::string full_name = *part == '\0' ? named.name : named.name + "." + part;
      const auto [entry, is_first] = naming.names.try_emplace(id);
      StorageName& name = entry->second;
      if (is_first) {
        name.role = named.role;
        name.name = full_name;
        describe(tensor, name);
      } else if (name.role == named.role && name.name != full_name) {
        name.name += "+" + full_name;
      }
    });
    if (!seen) naming.unread.push_back(named.name);
  }
  return naming;
}

std::string python_size(const std::optional<c10::DimVector>& shape) {
  if (!shape.has_value()) return "torch.Size(?)";
  std::string text = "torch.Size([";
  for (size_t i = 0; i < shape->size(); ++i)
    text += (i == 0 ? "" : ", ") + std::to_string((*shape)[i]);
  return text + "])";
}

}  // namespace

c10::Device default_device() { return device_cache::default_device(); }

struct MemTracker::Impl {
  explicit Impl(const TrackerOptions& options)
      : device(exact_device(options.device)),
        training_paused(options.training_paused),
        writer(writer_options(options)) {
    const SnapshotDiff start = diff(Registry::global().skip_changes(cursor), {});
    writer.write_header(start.tensor_bytes, start.allocated_bytes);
  }

  SnapshotDiff diff(const Changes& changes, const StorageNames& names) const {
    SnapshotDiff result = make_snapshot_diff(changes, device, names);
    if (!is_followed()) {
      result.tensor_bytes.reset();
      result.allocated_bytes.reset();
    }
    if (const auto bytes = device_cache::allocated_bytes(device)) result.allocated_bytes = bytes;
    return result;
  }

  bool is_followed() const {
    const Registry& registry = Registry::global();
    return registry.active() && registry.follows(device);
  }

  SnapshotDiff track(std::string label, SourceLocation where) {
    // Keeps the storages alive until the registry has been read. Read and released without the
    // lock: deleters, and tensors asked for their sizes, run code of the program's.
    const ScopedTrainingPaused paused(training_paused);
    std::vector<UnreadGradient> gradients;
    const std::vector<NamedTensor> held = book.read(&gradients);
    Naming naming = read_names(held, device);
    const std::lock_guard<ForkSafeMutex> hold(lock);
    naming.names.reserve(naming.names.size() + known.size());  // for merge()
    UntilTold until_told(cursor);
    const Changes changes = Registry::global().changes_since(cursor);
    if (changes.from_snapshot) known.clear();
    naming.names.merge(known);  // keeps the newer name
    known = std::move(naming.names);
    SnapshotDiff result = diff(changes, known);
    for (const StorageInfo& storage : changes.died) known.erase(storage.id);
    result.where = where;
    result.label = std::move(label);
    result.health = Registry::global().health();
    result.unread = std::move(naming.unread);
    for (UnreadGradient& gradient : gradients) {
      if (is_same_device(gradient.device, device))
        result.unread_gradients.push_back(std::move(gradient.name));
    }
    writer.write(result);
    until_told.told();
    return result;
  }

  const c10::Device device;
  const bool training_paused;
  LogWriter writer;  // before the activation: a log that cannot be made leaves no trace
  const ScopedTracking tracking;
  mutable ForkSafeMutex lock;  // after the registry is active
  Cursor cursor;
  NameBook book;
  StorageNames known;  // last names of live storages
};

MemTracker::MemTracker(TrackerOptions options) : impl_(std::make_unique<Impl>(options)) {}

MemTracker::~MemTracker() = default;

MemTracker& MemTracker::add_module(std::string prefix, const torch::nn::Module& module) {
  const ScopedTrainingPaused paused(impl_->training_paused);
  impl_->book.add_module(std::move(prefix), module);
  return *this;
}

MemTracker& MemTracker::add_optimizer(const torch::optim::Optimizer& optimizer) {
  const ScopedTrainingPaused paused(impl_->training_paused);
  impl_->book.add_optimizer(optimizer);
  return *this;
}

MemTracker& MemTracker::add_tensor(std::string name, const at::Tensor& tensor) {
  const ScopedTrainingPaused paused(impl_->training_paused);
  impl_->book.add_tensor(std::move(name), tensor);
  return *this;
}

MemTracker& MemTracker::add_state(std::string name, const at::Tensor& tensor) {
  const ScopedTrainingPaused paused(impl_->training_paused);
  impl_->book.add_state(std::move(name), tensor);
  return *this;
}

MemTracker& MemTracker::remove(std::string_view name) {
  impl_->book.remove(name);
  return *this;
}

MemTracker& MemTracker::remove_optimizer(const torch::optim::Optimizer& optimizer) {
  impl_->book.remove_optimizer(optimizer);
  return *this;
}

SnapshotDiff MemTracker::track(SourceLocation where) { return impl_->track({}, where); }

SnapshotDiff MemTracker::track(std::string label, SourceLocation where) {
  return impl_->track(std::move(label), where);
}

std::string MemTracker::log_path() const { return impl_->writer.path(); }

void MemTracker::clear_cache() {
  device_cache::release(impl_->device);
  device_cache::release_pinned(c10::DeviceType::CUDA);
#if defined(__GLIBC__)
  malloc_trim(0);
#endif
}

void MemTracker::print_all_gpu_tensor(std::ostream& out) const {
  const ScopedTrainingPaused paused(impl_->training_paused);
  const std::vector<NamedTensor> held = impl_->book.read();  // as in track()
  const Naming naming = read_names(held, impl_->device);
  const Snapshot snapshot = Registry::global().snapshot();
  for (const StorageInfo& storage : snapshot.storages(impl_->device)) {
    if (storage.kind == StorageKind::kLibraryWorkspace || storage.kind == StorageKind::kRawBlock)
      continue;
    const auto entry = naming.names.find(storage.id);
    const StorageName* const name = entry == naming.names.end() ? nullptr : &entry->second;
    const TensorLooks looks = looks_of(storage, name);
    out << python_size(looks.shape) << ' ' << dtype_text(looks.dtype) << ' '
        << log_text::exact_mib(storage.nbytes);
    if (name != nullptr) out << ' ' << printable(name->name);
    out << '\n';
  }
}

void MemTracker::print_all_gpu_tensor() const { print_all_gpu_tensor(std::cout); }

double MemTracker::get_tensor_usage() const {
  if (!impl_->is_followed()) return kUnknownMib;
  const Snapshot snapshot = Registry::global().snapshot();
  for (const DeviceInfo& info : snapshot.devices()) {
    if (is_same_device(info.device, impl_->device)) return mib(info.tensor_bytes());
  }
  return 0;
}

double MemTracker::get_allocate_usage() const {
  if (const auto bytes = device_cache::allocated_bytes(impl_->device)) return mib(*bytes);
  if (!impl_->is_followed()) return kUnknownMib;
  return mib(Registry::global().counters(impl_->device).current_bytes);
}

}  // namespace memledger
