#include "tracker/timeline.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <system_error>

#include "registry/registry.h"
#include "registry/tensor_storages.h"
#include "reporter/name_book.h"

namespace memledger {

struct Timeline::Impl {
  explicit Impl(const TimelineOptions& options) : recorder(options.max_events) {}

  void read_names() {
    Registry& registry = Registry::global();
    std::unordered_map<uint64_t, TimelineName> now;
    for (const NamedTensor& named : book.read()) {
      for_each_part(named.tensor, [&](const char* part, const at::Tensor& tensor) {
        const uint64_t id = registry.storage_id(tensor);
        if (id == 0) return;
        const std::string name = *part == '\0' ? named.name : named.name + "." + part;
        const auto [place, is_first] = now.try_emplace(id, TimelineName{named.role, name});
        if (!is_first && place->second.role == named.role && place->second.name != name) place->second.name += "+" + name;
      });
    }
    now.merge(names);  // names of now go before earlier ones
    names = std::move(now);
  }

  std::mutex lock;
  const ScopedTracking tracking;
  Recorder recorder;
  NameBook book;
  std::vector<TimelineMark> marks;
  std::unordered_map<uint64_t, TimelineName> names;
};

Timeline::Timeline(const TimelineOptions& options) : impl_(std::make_unique<Impl>(options)) {}

Timeline::~Timeline() = default;

Timeline& Timeline::add_module(std::string prefix, const torch::nn::Module& module) {
  const std::lock_guard<std::mutex> hold(impl_->lock);
  impl_->book.add_module(std::move(prefix), module);
  return *this;
}

Timeline& Timeline::add_optimizer(const torch::optim::Optimizer& optimizer) {
  const std::lock_guard<std::mutex> hold(impl_->lock);
  impl_->book.add_optimizer(optimizer);
  return *this;
}

Timeline& Timeline::add_tensor(std::string name, const at::Tensor& tensor) {
  const std::lock_guard<std::mutex> hold(impl_->lock);
  impl_->book.add_tensor(std::move(name), tensor);
  return *this;
}

void Timeline::mark(std::string label) {
  const std::lock_guard<std::mutex> hold(impl_->lock);
  impl_->marks.push_back({recording_clock_ns(), std::move(label)});
  impl_->read_names();
}

TimelineData Timeline::read() {
  const std::lock_guard<std::mutex> hold(impl_->lock);
  impl_->read_names();
  TimelineData data;
  data.recording = impl_->recorder.read();
  data.names = impl_->names;
  for (const TimelineMark& mark : impl_->marks) {
    if (mark.time_ns >= data.recording.begin_ns) data.marks.push_back(mark);
  }
  // Names of storages that the rings know no more are of no use to the next reading either.
  std::unordered_map<uint64_t, TimelineName> known;
  for (const Lifetime& life : data.recording.lifetimes) {
    const auto found = impl_->names.find(life.storage.id);
    if (found != impl_->names.end()) known.insert(*found);
  }
  impl_->names = std::move(known);
  return data;
}

absl::Status Timeline::write(const std::string& path) {
  const std::filesystem::path final_path(path);
  const std::string extension = final_path.extension().string();
  std::error_code error;
  if (final_path.has_parent_path()) std::filesystem::create_directories(final_path.parent_path(), error);
  // A device or a pipe is written to, not replaced.
  const std::filesystem::file_status there = std::filesystem::status(final_path, error);
  const bool in_place = std::filesystem::exists(there) && !std::filesystem::is_regular_file(there);
  const std::string beside = in_place ? path : path + "." + std::to_string(::getpid()) + ".part";
  const auto failed = [&](const char* what) {
    const int number = errno;
    if (!in_place) std::filesystem::remove(beside, error);
    return absl::ErrnoToStatus(number == 0 ? EIO : number, std::string("memledger: cannot ") + what + " the timeline " + path);
  };
  errno = 0;
  std::ofstream file(beside, std::ios::binary | std::ios::trunc);
  if (!file) return failed("make");
  const TimelineData data = read();
  if (extension == ".pickle" || extension == ".pkl") {
    write_memory_viz(data, file);
  } else {
    write_chrome_trace(data, file);
  }
  file.close();
  if (!file) return failed("write");
  if (in_place) return absl::OkStatus();
  std::filesystem::rename(beside, final_path, error);
  if (error) {
    errno = error.value();
    return failed("write");
  }
  return absl::OkStatus();
}

}  // namespace memledger
