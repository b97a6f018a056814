#include "tracker/memory_profiler.h"

#include <c10/util/Exception.h>
#include <torch/nn/module.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <iostream>
#include <system_error>
#include <unordered_map>
#include <unordered_set>

#include "registry/device_statistics.h"
#include "registry/libtorch/tensor_storages.h"
#include "registry/recording.h"
#include "registry/registry.h"
#include "registry/training_paused.h"
#include "reporter/names/name_book.h"
#include "text/output.h"
#include "tracker/exact_device.h"
#include "tracker/layers/layer_switches.h"
#include "tracker/log/diff_builder.h"
#include "tracker/log/log_writer.h"

namespace memledger {
namespace {

class CsvFile {
 public:
  CsvFile(const std::string& folder, std::chrono::system_clock::time_point time) {
    const std::filesystem::path path = resolved_folder(folder);
    std::error_code error;
    std::filesystem::create_directories(path, error);
    TORCH_CHECK(!error, "memledger: cannot make the folder ", path.string(),
                " for the profiler's CSV file: ", error.message());
    const std::time_t seconds = std::chrono::system_clock::to_time_t(time);
    std::tm local = {};
    localtime_r(&seconds, &local);
    char date[32];
    std::snprintf(date, sizeof date, "%04d%02d%02d-%02d%02d%02d", local.tm_year + 1900,
                  local.tm_mon + 1, local.tm_mday, local.tm_hour, local.tm_min, local.tm_sec);
    const std::string stem =
        (path / (std::string(date) + "-" + std::to_string(::getpid()))).string();
    NewFile file;
    const int failure = make_new_file(stem, ".csv", file);
    path_ = file.path;
    file_ = file.descriptor;
    TORCH_CHECK(failure == 0, "memledger: cannot make the profiler's CSV file ", path_, ": ",
                std::generic_category().message(failure));
    write(kProfilerCsvHeader);
  }
  ~CsvFile() { ::close(file_); }
  CsvFile(const CsvFile&) = delete;
  CsvFile& operator=(const CsvFile&) = delete;

  // Writes all of the text or nothing. Does nothing in a child of fork: the rows are its parent's.
  void write(const std::string& text) {
    if (::getpid() != process_) {
      if (!reported_fork_) {
        tell({"memledger: process ", std::to_string(::getpid()),
              " was forked; its iterations are not in ", path_, ", which is its parent's."});
      }
      reported_fork_ = true;
      return;
    }
    const int error = append_whole(file_, text);
    if (error == 0) return;
    if (!reported_) {
      tell({"memledger: cannot write ", path_, ": ", std::generic_category().message(error),
            ". The program goes on; rows are missing."});
    }
    reported_ = true;
  }
  const std::string& path() const { return path_; }

 private:
  const pid_t process_ = ::getpid();
  std::string path_;
  int file_ = -1;
  bool reported_ = false;
  bool reported_fork_ = false;
};

c10::Device device_of(const torch::nn::Module& module) {
  for (const at::Tensor& parameter : module.parameters()) {
    if (parameter.defined()) return parameter.device();
  }
  return c10::Device(c10::DeviceType::CPU);
}

// Whether nothing of it is ever a tensor. Scratch is not among them: what an operator took for
// itself and still holds may be a tensor that cannot be looked into (mkldnn).
bool is_workspace(StorageKind kind) {
  return kind == StorageKind::kLibraryWorkspace || kind == StorageKind::kRawBlock;
}

// What is measured from births and deaths.
enum class Measured { kFeatureMap, kGradient, kWorkspace };
constexpr size_t kMeasuredKinds = 3;

struct Tracked {
  Measured kind;
  int64_t bytes;
  size_t layer;  // of a feature map
};
using TrackedTable = std::unordered_map<uint64_t, Tracked>;  // by storage id

struct Event {
  int64_t time_ns;
  const Lifetime* life;
  bool birth;
};

std::vector<Event> events_of(const Recording& recording, c10::Device device) {
  std::vector<Event> events;
  for (const Lifetime& life : recording.lifetimes) {
    if (!is_same_device(life.storage.device, device)) continue;
    if (life.born_ns) events.push_back({*life.born_ns, &life, true});
    if (life.died_ns) events.push_back({*life.died_ns, &life, false});
  }
  std::stable_sort(events.begin(), events.end(),
                   [](const Event& a, const Event& b) { return a.time_ns < b.time_ns; });
  return events;
}

// Bytes of each kind, one event after the other.
class Totals {
 public:
  explicit Totals(const TrackedTable& alive) {
    for (const auto& [id, tracked] : alive)
      now_[static_cast<size_t>(tracked.kind)] += tracked.bytes;
    most_ = now_;
  }
  // Returns whether there is more of that kind than ever.
  bool add(const Tracked& tracked, bool birth) {
    const auto kind = static_cast<size_t>(tracked.kind);
    now_[kind] += birth ? tracked.bytes : -tracked.bytes;
    if (now_[kind] <= most_[kind]) return false;
    most_[kind] = now_[kind];
    return true;
  }
  int64_t most(Measured kind) const { return most_[static_cast<size_t>(kind)]; }

 private:
  std::array<int64_t, kMeasuredKinds> now_{};
  std::array<int64_t, kMeasuredKinds> most_{};
};

}  // namespace

struct MemoryProfiler::Impl {
  Impl(const torch::nn::Module& module, MemoryProfilerOptions given)
      : options(std::move(given)),
        device(exact_device(options.device.value_or(device_of(module)))),
        switches(module, tracking.status().ok()) {
    if (options.csv) {
      csv.emplace(options.csv_folder,
                  options.clock ? options.clock() : std::chrono::system_clock::now());
    }
    {
      const ScopedTrainingPaused paused(options.training_paused);
      book.add_module("", module);
    }
    recorder.emplace(options.max_events);
    const Snapshot before = Registry::global().snapshot();
    for (const StorageInfo& storage : before.storages(device)) {
      if (is_workspace(storage.kind)) alive[storage.id] = {Measured::kWorkspace, storage.nbytes, 0};
    }
  }

  static void check(const torch::nn::Module& module, const MemoryProfilerOptions& options) {
    TORCH_CHECK(options.print_period >= 1, "memledger: MemoryProfilerOptions::print_period is ",
                options.print_period, "; it is a number of iterations, 1 or more");
    for (const at::Tensor& parameter : module.parameters()) {
      if (parameter.defined()) return;
    }
    TORCH_CHECK(false, "memledger: the module ", module.name(),
                " has no parameters, so there are no layers to profile. Has it been built?");
  }

  // Reads the births and deaths since the last call into `stats`.
  void measure(IterationStats& stats) {
    const std::unordered_set<uint64_t> named = named_storages();
    switches.leave_all();
    const Recording recording = recorder->take();
    stats.dropped_events = recording.dropped_events;
    if (recording.dropped_events > 0) forget_the_dead();
    const std::vector<Event> events = events_of(recording, device);

    TrackedTable born;
    Totals totals(alive);
    size_t events_to_most_features = 0;
    for (size_t i = 0; i < events.size(); ++i) {
      if (events[i].birth) note_birth(events[i], named, born);
      const Tracked* const tracked = find(events[i], born);
      if (tracked == nullptr || is_known_birth(events[i])) continue;
      if (totals.add(*tracked, events[i].birth) && tracked->kind == Measured::kFeatureMap)
        events_to_most_features = i + 1;
    }
    stats.feature_map_bytes = totals.most(Measured::kFeatureMap);
    stats.intermediate_gradient_bytes = totals.most(Measured::kGradient);
    stats.most_workspace_bytes = totals.most(Measured::kWorkspace);
    split_by_layer(events, events_to_most_features, born, stats);
    keep_survivors(events, born);
    switches.forget_before(recording.end_ns);
  }

  std::unordered_set<uint64_t> named_storages() const {
    std::unordered_set<uint64_t> ids;
    const ScopedTrainingPaused paused(options.training_paused);
    for (const NamedTensor& named : book.read()) {
      for_each_part(named.tensor, [&](const char*, const at::Tensor& part) {
        ids.insert(Registry::global().storage_id(part));
      });
    }
    return ids;
  }

  // Whether the constructor has seen the storage already.
  bool is_known_birth(const Event& event) const {
    return event.birth && alive.count(event.life->storage.id) > 0;
  }

  void note_birth(const Event& event, const std::unordered_set<uint64_t>& named,
                  TrackedTable& born) const {
    const StorageInfo& storage = event.life->storage;
    if (storage.adopted || alive.count(storage.id) > 0 || named.count(storage.id) > 0) return;
    if (storage.kind != StorageKind::kTensor) {
      born[storage.id] = {Measured::kWorkspace, storage.nbytes, 0};
    } else if (storage.phase == Phase::kBackward) {
      born[storage.id] = {Measured::kGradient, storage.nbytes, 0};
    } else if (storage.phase == Phase::kForward) {
      const std::optional<size_t> layer = switches.at(storage.thread, event.time_ns);
      if (layer) born[storage.id] = {Measured::kFeatureMap, storage.nbytes, *layer};
    }
  }

  const Tracked* find(const Event& event, const TrackedTable& born) const {
    const uint64_t id = event.life->storage.id;
    if (const auto tracked = alive.find(id); tracked != alive.end()) return &tracked->second;
    const auto tracked = born.find(id);
    return tracked == born.end() ? nullptr : &tracked->second;
  }

  // Splits the feature maps by layer at the moment when there were most: after `count` events.
  void split_by_layer(const std::vector<Event>& events, size_t count, const TrackedTable& born,
                      IterationStats& stats) const {
    const std::vector<layers::ModuleLayer>& layers = switches.tree().layers();
    std::vector<int64_t> bytes(layers.size(), 0);
    for (const auto& [id, tracked] : alive) {
      if (tracked.kind == Measured::kFeatureMap) bytes[tracked.layer] += tracked.bytes;
    }
    for (size_t i = 0; i < count; ++i) {
      const Tracked* const tracked = find(events[i], born);
      if (tracked == nullptr || tracked->kind != Measured::kFeatureMap) continue;
      bytes[tracked->layer] += events[i].birth ? tracked->bytes : -tracked->bytes;
    }
    for (size_t i = 0; i < layers.size(); ++i) {
      if (layers[i].parameters > 0 || bytes[i] != 0)
        stats.feature_maps.push_back({layers[i].name, bytes[i]});
    }
  }

  void keep_survivors(const std::vector<Event>& events, const TrackedTable& born) {
    for (const Event& event : events) {
      const uint64_t id = event.life->storage.id;
      if (!event.birth) {
        alive.erase(id);
      } else if (const auto tracked = born.find(id); tracked != born.end()) {
        alive.insert(*tracked);
      }
    }
  }

  // Drops what happened since the last iteration, and reads the module's layers again.
  void begin_epoch() {
    IterationStats dropped;
    measure(dropped);
    const std::vector<layers::ModuleLayer> before = switches.tree().layers();
    switches.read_module();
    std::unordered_map<std::string, size_t> now;
    for (size_t i = 0; i < switches.tree().layers().size(); ++i)
      now.emplace(switches.tree().layers()[i].name, i);
    for (auto& [id, tracked] : alive) {
      const auto layer = now.find(before[tracked.layer].name);
      // What a layer that is gone has left is the module's.
      tracked.layer = layer == now.end() ? 0 : layer->second;
    }
  }

  // For when deaths went unseen.
  void forget_the_dead() {
    const Snapshot snapshot = Registry::global().snapshot();
    for (auto tracked = alive.begin(); tracked != alive.end();) {
      tracked =
          snapshot.find(tracked->first) == nullptr ? alive.erase(tracked) : std::next(tracked);
    }
  }

  // Reads what is alive now into `stats`, by name.
  void read_names(IterationStats& stats) const {
    const ScopedTrainingPaused paused(options.training_paused);
    std::vector<UnreadGradient> unread;
    const std::vector<NamedTensor> tensors = book.read_added(&unread);
    stats.unread_gradients = static_cast<int64_t>(unread.size());
    std::vector<std::pair<uint64_t, size_t>> ids;  // of storages, and the tensors' indices
    for (size_t i = 0; i < tensors.size(); ++i) {
      for_each_part(tensors[i].tensor, [&](const char*, const at::Tensor& part) {
        ids.emplace_back(Registry::global().storage_id(part), i);
      });
    }
    const Snapshot snapshot = Registry::global().snapshot();
    std::vector<int64_t> bytes(tensors.size(), 0);
    std::unordered_set<uint64_t> counted;
    for (const auto& [id, index] : ids) {
      const StorageInfo* const storage = id == 0 ? nullptr : snapshot.find(id);
      if (storage == nullptr || !is_same_device(storage->device, device)) continue;
      if (counted.insert(id).second) bytes[index] += storage->nbytes;
    }
    add_rows(tensors, bytes, stats);
    for (const StorageInfo& storage : snapshot.storages(device)) {
      if (counted.count(storage.id) > 0) continue;
      (is_workspace(storage.kind) ? stats.workspace_bytes : stats.other_bytes) += storage.nbytes;
    }
    stats.current_bytes = snapshot.total_bytes(device);
    read_cache(snapshot.counters(device), stats);
  }

  static void add_rows(const std::vector<NamedTensor>& tensors, const std::vector<int64_t>& bytes,
                       IterationStats& stats) {
    std::unordered_map<std::string, int64_t> gradients;
    for (size_t i = 0; i < tensors.size(); ++i) {
      const NamedBytes row{tensors[i].name, bytes[i]};
      switch (tensors[i].role) {
        case Role::kParameter:
          stats.weights.push_back(row);
          break;
        case Role::kBuffer:
          stats.buffers.push_back(row);
          break;
        case Role::kGradient:
          gradients[row.name] = row.bytes;
          break;
        case Role::kOptimizerState:
          stats.optimizer_state.push_back(row);
          break;
        default:
          stats.other_bytes += row.bytes;  // a prototype layer in a Transformer's options
      }
    }
    for (const NamedBytes& weight : stats.weights) {
      const auto gradient = gradients.find(weight.name + ".grad");
      stats.weight_gradients.push_back(
          {weight.name + " grad", gradient == gradients.end() ? 0 : gradient->second});
      if (gradient != gradients.end()) gradients.erase(gradient);
    }
    for (const auto& [name, prototype_bytes] : gradients) stats.other_bytes += prototype_bytes;
  }

  void read_cache(const Counters& counters, IterationStats& stats) const {
    stats.peak_cached_bytes = counters.peak_bytes;
    stats.current_cached_bytes = counters.current_bytes;
    if (const auto statistics = device_statistics(device)) {
      stats.peak_cached_bytes = statistics->reserved_bytes.peak;
      stats.current_cached_bytes = statistics->reserved_bytes.current;
    }
  }

  const MemoryProfilerOptions options;
  const c10::Device device;
  const ScopedTracking tracking;
  layers::LayerSwitches switches;
  NameBook book;
  std::optional<CsvFile> csv;
  std::optional<Recorder> recorder;
  TrackedTable alive;  // born in earlier iterations
  int64_t epoch = 1;
  int64_t iteration = 0;
  IterationStats last;
};

MemoryProfiler::MemoryProfiler(const torch::nn::Module& module, MemoryProfilerOptions options) {
  Impl::check(module, options);
  impl_ = std::make_unique<Impl>(module, std::move(options));
}

MemoryProfiler::~MemoryProfiler() = default;

MemoryProfiler& MemoryProfiler::add_optimizer(const torch::optim::Optimizer& optimizer) {
  const ScopedTrainingPaused paused(impl_->options.training_paused);
  impl_->book.add_optimizer(optimizer);
  return *this;
}

void MemoryProfiler::record_stats() {
  Impl& impl = *impl_;
  IterationStats stats;
  stats.epoch = impl.epoch;
  stats.iteration = ++impl.iteration;
  stats.device = impl.device;
  stats.tracking_is_off = !impl.tracking.status().ok();
  impl.measure(stats);
  if (stats.iteration % impl.options.print_period != 0) return;
  impl.read_names(stats);
  write_to(impl.options.out == nullptr ? std::cout : *impl.options.out, to_string(stats) + "\n",
           "iteration's figures");
  if (impl.csv) impl.csv->write(to_csv(stats));
  impl.last = std::move(stats);
}

void MemoryProfiler::epoch_end() {
  ++impl_->epoch;
  impl_->iteration = 0;
  impl_->begin_epoch();
}

const IterationStats& MemoryProfiler::last() const { return impl_->last; }

std::string MemoryProfiler::csv_path() const { return impl_->csv ? impl_->csv->path() : ""; }

}  // namespace memledger
