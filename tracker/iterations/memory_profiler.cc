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
#include "reporter/names/name_book.h"
#include "text/output.h"
#include "tracker/layers/layer_switches.h"
#include "tracker/log/diff_builder.h"
#include "tracker/log/log_writer.h"

namespace memledger {
namespace {

// The file of one run. Rows of one iteration go out in one write().
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

  // All or nothing. A child of fork writes nothing: the rows are its parent's.
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

// No tensor's from its first to its last byte. What an operator took for itself and still holds may
// be a tensor that cannot be looked into (mkldnn): in a sum of what is alive it is none of these.
bool is_workspace(StorageKind kind) {
  return kind == StorageKind::kLibraryWorkspace || kind == StorageKind::kRawBlock;
}

}  // namespace

struct MemoryProfiler::Impl {
  Impl(const torch::nn::Module& module, ProfilerOptions given)
      : options(std::move(given)),
        device(options.device.value_or(device_of(module))),
        switches(module) {
    if (device.is_cuda() && !device.has_index()) device.set_index(0);
    if (options.csv) {
      csv.emplace(options.csv_folder,
                  options.clock ? options.clock() : std::chrono::system_clock::now());
    }
    book.add_module("", module);
    recorder.emplace(options.max_events);
    const Snapshot before = Registry::global().snapshot();
    for (const StorageInfo& storage : before.storages(device)) {
      if (is_workspace(storage.kind)) alive[storage.id] = {Class::kWorkspace, storage.nbytes, 0};
    }
  }

  static void check(const torch::nn::Module& module, const ProfilerOptions& options) {
    TORCH_CHECK(options.print_period >= 1, "memledger: ProfilerOptions::print_period is ",
                options.print_period, "; it is a number of iterations, 1 or more");
    for (const at::Tensor& parameter : module.parameters()) {
      if (parameter.defined()) return;
    }
    TORCH_CHECK(false, "memledger: the module ", module.name(),
                " has no parameters, so there are no layers to profile. Has it been built?");
  }

  enum class Class { kFeatureMap, kGradient, kWorkspace };
  static constexpr size_t kClasses = 3;
  struct Tracked {
    Class kind;
    int64_t bytes;
    size_t layer;
  };

  // Moves on by the births and deaths since the last time; what was there most of.
  void measure(IterationStats& stats) {
    std::unordered_set<uint64_t> named;
    Registry& registry = Registry::global();
    for (const NamedTensor& one : book.read()) {
      for_each_part(one.tensor, [&](const char*, const at::Tensor& part) {
        named.insert(registry.storage_id(part));
      });
    }
    switches.leave_all();
    const Recording recording = recorder->take();
    stats.dropped_events = recording.dropped_events;
    if (recording.dropped_events > 0) forget_the_dead();

    struct Event {
      int64_t time_ns;
      const Lifetime* life;
      bool birth;
    };
    std::vector<Event> events;
    for (const Lifetime& life : recording.lifetimes) {
      if (!is_same_device(life.storage.device, device)) continue;
      if (life.born_ns) events.push_back({*life.born_ns, &life, true});
      if (life.died_ns) events.push_back({*life.died_ns, &life, false});
    }
    std::stable_sort(events.begin(), events.end(),
                     [](const Event& a, const Event& b) { return a.time_ns < b.time_ns; });

    // Who is who does not change from the first pass to the second, which finds who was there at
    // the highest moment.
    std::unordered_map<uint64_t, Tracked> born;
    const auto find = [&](uint64_t id) -> const Tracked* {
      auto found = alive.find(id);
      if (found != alive.end()) return &found->second;
      found = born.find(id);
      return found == born.end() ? nullptr : &found->second;
    };
    std::array<int64_t, kClasses> now{};
    for (const auto& [id, one] : alive) now[static_cast<size_t>(one.kind)] += one.bytes;
    std::array<int64_t, kClasses> most = now;
    size_t at_most_features = 0;  // events before it
    for (size_t i = 0; i < events.size(); ++i) {
      const StorageInfo& storage = events[i].life->storage;
      if (events[i].birth && alive.count(storage.id) > 0)
        continue;  // seen when the profiler was made
      if (events[i].birth && !storage.adopted && named.count(storage.id) == 0) {
        if (storage.kind != StorageKind::kTensor) {
          born[storage.id] = {Class::kWorkspace, storage.nbytes, 0};
        } else if (storage.phase == Phase::kBackward) {
          born[storage.id] = {Class::kGradient, storage.nbytes, 0};
        } else if (storage.phase == Phase::kForward) {
          const std::optional<size_t> layer = switches.at(storage.thread, events[i].time_ns);
          if (layer) born[storage.id] = {Class::kFeatureMap, storage.nbytes, *layer};
        }
      }
      const Tracked* const tracked = find(storage.id);
      if (tracked == nullptr) continue;
      const auto place = static_cast<size_t>(tracked->kind);
      now[place] += events[i].birth ? tracked->bytes : -tracked->bytes;
      if (now[place] <= most[place]) continue;
      most[place] = now[place];
      if (tracked->kind == Class::kFeatureMap) at_most_features = i + 1;
    }
    stats.feature_map_bytes = most[static_cast<size_t>(Class::kFeatureMap)];
    stats.intermediate_gradient_bytes = most[static_cast<size_t>(Class::kGradient)];
    stats.most_workspace_bytes = most[static_cast<size_t>(Class::kWorkspace)];

    std::vector<int64_t> by_layer(switches.tree().layers().size(), 0);
    for (const auto& [id, one] : alive) {
      if (one.kind == Class::kFeatureMap) by_layer[one.layer] += one.bytes;
    }
    for (size_t i = 0; i < at_most_features; ++i) {
      const Tracked* const tracked = find(events[i].life->storage.id);
      if (tracked == nullptr || tracked->kind != Class::kFeatureMap) continue;
      by_layer[tracked->layer] += events[i].birth ? tracked->bytes : -tracked->bytes;
    }
    for (size_t i = 0; i < by_layer.size(); ++i) {
      const layers::ModuleLayer& layer = switches.tree().layers()[i];
      if (layer.parameters > 0 || by_layer[i] != 0)
        stats.feature_maps.push_back({layer.name, by_layer[i]});
    }

    for (const Event& event : events) {
      const uint64_t id = event.life->storage.id;
      if (!event.birth) {
        alive.erase(id);
      } else if (const auto found = born.find(id); found != born.end()) {
        alive.insert(*found);
      }
    }
    switches.forget_before(recording.end_ns);
  }

  // What happened since the last iteration is nobody's, and the module may have other layers now.
  void begin_epoch() {
    IterationStats nobody;
    measure(nobody);
    const std::vector<layers::ModuleLayer> before = switches.tree().layers();
    switches.read_module();
    std::unordered_map<std::string, size_t> now;
    for (size_t i = 0; i < switches.tree().layers().size(); ++i)
      now.emplace(switches.tree().layers()[i].name, i);
    for (auto& [id, one] : alive) {
      const auto found = now.find(before[one.layer].name);
      one.layer =
          found == now.end() ? 0 : found->second;  // of a layer that has gone: the module itself
    }
  }

  // After deaths went unseen.
  void forget_the_dead() {
    const Snapshot snapshot = Registry::global().snapshot();
    for (auto one = alive.begin(); one != alive.end();) {
      one = snapshot.find(one->first) == nullptr ? alive.erase(one) : std::next(one);
    }
  }

  // What is alive now, by name.
  void read_names(IterationStats& stats) const {
    Registry& registry = Registry::global();
    std::unordered_map<uint64_t, bool> counted;  // false: alive, and nobody's yet
    std::vector<NamedTensor> tensors = book.read();
    std::vector<std::pair<uint64_t, size_t>> ids;  // and whose
    for (size_t i = 0; i < tensors.size(); ++i) {
      for_each_part(tensors[i].tensor, [&](const char*, const at::Tensor& part) {
        ids.emplace_back(registry.storage_id(part), i);
      });
    }
    const Snapshot snapshot = registry.snapshot();
    std::vector<int64_t> bytes(tensors.size(), 0);
    std::unordered_set<uint64_t> told;
    int64_t named = 0;
    for (const auto& [id, index] : ids) {
      const StorageInfo* const storage = id == 0 ? nullptr : snapshot.find(id);
      if (storage == nullptr || !is_same_device(storage->device, device) || !told.insert(id).second)
        continue;
      bytes[index] += storage->nbytes;
      named += storage->nbytes;
    }
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
          gradient_bytes_[row.name] = row.bytes;
          break;
        case Role::kOptimizerState:
          stats.optimizer_state.push_back(row);
          break;
        default:
          stats.other_bytes += row.bytes;  // a prototype layer in a Transformer's options
      }
    }
    // One for each weight, in their order, there or not.
    for (const NamedBytes& weight : stats.weights) {
      const auto found = gradient_bytes_.find(weight.name + ".grad");
      stats.weight_gradients.push_back(
          {weight.name + " grad", found == gradient_bytes_.end() ? 0 : found->second});
      if (found != gradient_bytes_.end()) gradient_bytes_.erase(found);
    }
    for (const auto& [name, bytes_of_prototype] : gradient_bytes_)
      stats.other_bytes += bytes_of_prototype;
    gradient_bytes_.clear();
    stats.current_bytes = snapshot.total_bytes(device);
    for (const StorageInfo& storage : snapshot.storages(device)) {
      if (told.count(storage.id) > 0) continue;
      (is_workspace(storage.kind) ? stats.workspace_bytes : stats.other_bytes) += storage.nbytes;
    }
    const Counters counters = snapshot.counters(device);
    stats.peak_cached_bytes = counters.peak_bytes;
    stats.current_cached_bytes = counters.current_bytes;
    if (const auto statistics = device_statistics(device)) {
      stats.peak_cached_bytes = statistics->reserved_bytes.peak;
      stats.current_cached_bytes = statistics->reserved_bytes.current;
    }
  }

  const ProfilerOptions options;
  c10::Device device;
  const ScopedTracking tracking;
  layers::LayerSwitches switches;
  NameBook book;
  std::optional<CsvFile> csv;
  std::optional<Recorder> recorder;
  std::unordered_map<uint64_t, Tracked> alive;  // of what outlived its iteration
  mutable std::unordered_map<std::string, int64_t> gradient_bytes_;
  int64_t epoch = 1;
  int64_t iteration = 0;
  IterationStats last;
};

MemoryProfiler::MemoryProfiler(const torch::nn::Module& module, ProfilerOptions options) {
  Impl::check(module, options);
  impl_ = std::make_unique<Impl>(module, std::move(options));
}

MemoryProfiler::~MemoryProfiler() = default;

MemoryProfiler& MemoryProfiler::add_optimizer(const torch::optim::Optimizer& optimizer) {
  impl_->book.add_optimizer(optimizer);
  return *this;
}

void MemoryProfiler::record_stats() {
  Impl& impl = *impl_;
  IterationStats stats;
  stats.epoch = impl.epoch;
  stats.iteration = ++impl.iteration;
  stats.device = impl.device;
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
