#include "tracker/timeline.h"

#include <algorithm>
#include <deque>
#include <filesystem>
#include <mutex>
#include <system_error>
#include <vector>

#include "registry/core/fork_safe_mutex.h"
#include "registry/libtorch/tensor_storages.h"
#include "registry/registry.h"
#include "registry/training_paused.h"
#include "reporter/names/name_book.h"
#include "text/output.h"

namespace memledger {

struct Timeline::Impl {
  explicit Impl(const TimelineOptions& options)
      : max_events(std::max<size_t>(options.max_events, 1)),
        training_paused(options.training_paused),
        recorder(options.max_events),
        prune_at(max_events) {}

  void add_mark(int64_t time_ns, std::string label) {
    if (marks.size() >= max_events) {
      drop_mark();
    }
    marks.push_back({time_ns, std::move(label)});
  }

  void drop_mark() {
    ++dropped_marks;
    marks.pop_front();
  }

  using Names = std::unordered_map<uint64_t, TimelineName>;

  // Must be called without the lock: this may drop the last reference to a module or tensor, and
  // their deleters are the program's.
  Names read_names() const {
    const ScopedTrainingPaused paused(training_paused);
    const std::vector<NamedTensor> tensors = book.read();
    Registry& registry = Registry::global();
    Names now;
    for (const NamedTensor& named : tensors) {
      for_each_part(named.tensor, [&](const char* part, const at::Tensor& tensor) {
        const uint64_t id = registry.storage_id(tensor);
        if (id == 0) return;
        const std::string name = *part == '\0' ? named.name : named.name + "." + part;
        const auto [entry, is_first] = now.try_emplace(id, TimelineName{named.role, name});
        if (!is_first && entry->second.role == named.role && entry->second.name != name)
          entry->second.name += "+" + name;
      });
    }
    return now;
  }

  // Present names replace earlier ones.
  void take_names(Names now) {
    for (auto& [id, name] : now) names.insert_or_assign(id, std::move(name));
  }

  // Forgets names of storages of which no event is left, and drops marks from before the events.
  void forget_what_is_before(const Recording& recording) {
    Names known;
    for (const Lifetime& life : recording.lifetimes) {
      const auto name = names.find(life.storage.id);
      if (name != names.end()) known.insert(std::move(*name));
    }
    names = std::move(known);
    while (!marks.empty() && marks.front().time_ns < recording.begin_ns) drop_mark();
    prune_at = 2 * names.size() + max_events;
  }

  const size_t max_events;
  const bool training_paused;
  const ScopedTracking tracking;
  mutable ForkSafeMutex lock;  // after the registry is active
  Recorder recorder;
  NameBook book;
  std::deque<TimelineMark> marks;
  int64_t dropped_marks = 0;
  Names names;
  size_t prune_at;  // number of names; grows, so that forgetting costs little on average
};

Timeline::Timeline(const TimelineOptions& options) : impl_(std::make_unique<Impl>(options)) {}

Timeline::~Timeline() = default;

Timeline& Timeline::add_module(std::string prefix, const torch::nn::Module& module) {
  const ScopedTrainingPaused paused(impl_->training_paused);
  impl_->book.add_module(std::move(prefix), module);
  return *this;
}

Timeline& Timeline::add_optimizer(const torch::optim::Optimizer& optimizer) {
  const ScopedTrainingPaused paused(impl_->training_paused);
  impl_->book.add_optimizer(optimizer);
  return *this;
}

Timeline& Timeline::add_tensor(std::string name, const at::Tensor& tensor) {
  const ScopedTrainingPaused paused(impl_->training_paused);
  impl_->book.add_tensor(std::move(name), tensor);
  return *this;
}

void Timeline::mark(std::string label) {
  const int64_t time_ns = recording_clock_ns();
  Impl::Names names = impl_->read_names();
  const std::lock_guard<ForkSafeMutex> hold(impl_->lock);
  impl_->add_mark(time_ns, std::move(label));
  impl_->take_names(std::move(names));
  if (impl_->names.size() > impl_->prune_at) impl_->forget_what_is_before(impl_->recorder.read());
}

TimelineData Timeline::read() {
  Impl::Names names = impl_->read_names();
  const std::lock_guard<ForkSafeMutex> hold(impl_->lock);
  impl_->take_names(std::move(names));
  TimelineData data;
  data.recording = impl_->recorder.read();
  impl_->forget_what_is_before(data.recording);
  data.names = impl_->names;
  data.marks.assign(impl_->marks.begin(), impl_->marks.end());
  data.dropped_marks = impl_->dropped_marks;
  return data;
}

absl::Status Timeline::write(const std::string& path) {
  std::error_code error;
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  if (!folder.empty()) std::filesystem::create_directories(folder, error);
  return write_file(path, "timeline",
                    [&](std::ostream& out) { write_timeline(read(), path, out); });
}

}  // namespace memledger
