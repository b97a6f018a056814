#include "virtual_gpu/streams.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <system_error>
#include <utility>

namespace memledger::virtual_gpu {

// The streams that a thread has of its own, which go with it.
class ThreadStreams {
 public:
  ~ThreadStreams() {
    for (const auto& [alive, streams] : owners_) {
      if (!alive.expired()) streams->remove_thread(number);
    }
  }
  void add(const std::shared_ptr<char>& alive, Streams* streams) {
    owners_.emplace_back(alive, streams);
  }

  const uint64_t number = next_number.fetch_add(1, std::memory_order_relaxed);

 private:
  static std::atomic<uint64_t> next_number;
  std::vector<std::pair<std::weak_ptr<char>, Streams*>> owners_;
};

std::atomic<uint64_t> ThreadStreams::next_number{1};

namespace {

thread_local ThreadStreams thread_streams;
thread_local uint64_t thread_submissions = 0;
thread_local bool runs_tasks = false;

// How often the thread that runs host functions looks whether one has become due.
constexpr std::chrono::milliseconds kLook{5};

}  // namespace

int64_t Streams::steady_nanoseconds() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

Streams::Streams(bool late, Clock clock)
    : late_(late),
      clock_(clock),
      tracks_(late),
      wake_(std::make_unique<std::condition_variable>()),
      finished_(std::make_unique<std::condition_variable>()),
      alive_(std::make_shared<char>()) {}

Streams::~Streams() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stops_ = true;
    wake_->notify_all();
  }
  if (worker_ != nullptr) worker_->join();
}

void Streams::add_once(std::vector<GraphNode*>& nodes, const std::vector<GraphNode*>& more) {
  for (GraphNode* node : more) {
    if (std::find(nodes.begin(), nodes.end(), node) == nodes.end()) nodes.push_back(node);
  }
}

void Progress::raise(size_t stream, uint64_t number) {
  if (stream >= numbers_.size()) numbers_.resize(stream + 1);
  numbers_[stream] = std::max(numbers_[stream], number);
}

void Progress::raise(const Progress& other) {
  for (size_t stream = 0; stream < other.numbers_.size(); ++stream) {
    if (other.numbers_[stream] != 0) raise(stream, other.numbers_[stream]);
  }
}

void Streams::add_stream(const void* handle, const StreamInfo& info) {
  std::lock_guard<std::mutex> lock(mutex_);
  auto stream = std::make_unique<Stream>();
  stream->info = info;
  stream->index = next_index_++;
  streams_[handle] = std::move(stream);
}

// Its work goes on, and the device's, and the legacy stream's, next work comes after it. Returns
// the graph of a capture that ends with it, to be destroyed after the lock is released.
std::unique_ptr<Graph> Streams::drop_stream(Stream& stream) {
  std::unique_ptr<Graph> dropped;
  if (tracks_) {
    const Progress progress = up_to_now(stream);
    retired_[stream.info.device].raise(progress);
    if (stream.info.blocking) resolve(nullptr, stream.info.device)->covers.raise(progress);
  }
  Capture* const capture = stream.capture;
  if (capture == nullptr) return nullptr;
  capture->invalidated = true;
  if (capture->origin == &stream) {
    if (capture->owns_graph) dropped = take_graph(capture->graph);
    leave_capture(capture);
  }
  return dropped;
}

bool Streams::remove_stream(const void* handle) {
  std::unique_ptr<Graph> dropped;  // destroyed after the lock is released
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = streams_.find(handle);
  if (found == streams_.end()) return false;
  dropped = drop_stream(*found->second);
  streams_.erase(handle);
  return true;
}

void Streams::remove_thread(uint64_t thread) {
  std::vector<std::unique_ptr<Graph>> dropped;  // destroyed after the lock is released
  std::lock_guard<std::mutex> lock(mutex_);
  for (auto entry = default_streams_.begin(); entry != default_streams_.end();) {
    if (std::get<2>(entry->first) != thread) {
      ++entry;
      continue;
    }
    dropped.push_back(drop_stream(*entry->second));
    entry = default_streams_.erase(entry);
  }
}

std::optional<Streams::StreamInfo> Streams::find_stream(const void* handle, int current_device) {
  std::lock_guard<std::mutex> lock(mutex_);
  const Stream* const stream = resolve(handle, current_device);
  if (stream == nullptr) return std::nullopt;
  return stream->info;
}

Streams::Stream* Streams::resolve(const void* handle, int current_device) {
  auto value = reinterpret_cast<uintptr_t>(handle);
  if (value > kPerThread) {
    const auto found = streams_.find(handle);
    return found == streams_.end() ? nullptr : found->second.get();
  }
  if (value == 0) value = kLegacy;
  const uint64_t thread = value == kPerThread ? thread_streams.number : 0;
  std::unique_ptr<Stream>& stream = default_streams_[{current_device, value, thread}];
  if (stream == nullptr) {
    if (thread != 0) thread_streams.add(alive_, this);
    stream = std::make_unique<Stream>();
    stream->info = {current_device, 0, true, value};
    stream->index = next_index_++;
  }
  return stream.get();
}

Streams::Capture* Streams::find_capture(unsigned long long id) {
  const auto found = captures_.find(id);
  return found == captures_.end() ? nullptr : found->second.get();
}

Progress Streams::up_to_now(const Stream& stream) {
  Progress progress = stream.covers;
  progress.raise(stream.index, stream.submitted);
  return progress;
}

// Numbers the stream's next piece of work, which in the late model comes after all that the stream
// has waited for.
void Streams::advance(Stream& stream) {
  ++thread_submissions;
  if (!tracks_) return;
  if (!tasks_.empty()) last_submission_ = clock_();
  stream.polls.clear();
  const bool legacy = stream.info.id == kLegacy;
  if (stream.info.blocking) {
    for_each_stream([&](Stream& other) {
      if (&other == &stream || other.info.device != stream.info.device || !other.info.blocking)
        return;
      if (legacy || other.info.id == kLegacy) stream.covers.raise(up_to_now(other));
    });
  }
  ++stream.submitted;
}

// The host waits: for host functions, too, which hold up what is behind them in either model. A
// host function itself never waits, as it would wait for itself.
void Streams::wait_for(std::unique_lock<std::mutex>& lock, const Progress& progress) {
  if (late_) done_.raise(progress);
  if (runs_tasks || !is_behind_task(progress)) return;
  wake_->notify_all();
  finished_->wait(lock, [&] { return !is_behind_task(progress); });
}

bool Streams::is_behind_task(const Progress& progress) const {
  return std::any_of(tasks_.begin(), tasks_.end(), [&](const Task& task) {
    return !task.detached && progress.of(task.stream) >= task.number;
  });
}

// The thread takes none of the program's signals but those of its own faults. False where
// the system gives no thread.
bool Streams::has_worker() {
  if (worker_ != nullptr) return true;
  sigset_t all, before;
  sigfillset(&all);
  for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT, SIGSYS})
    sigdelset(&all, fault);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    worker_ = std::make_unique<std::thread>([this] { run_tasks(); });
  } catch (const std::system_error&) {
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return worker_ != nullptr;
}

bool Streams::queue(const Stream& stream, std::function<void()> run) {
  if (!has_worker()) return false;
  last_submission_ = clock_();
  tasks_.push_back(
      {stream.index, stream.submitted, stream.covers, last_submission_, std::move(run), false});
  queued_.fetch_add(1, std::memory_order_release);
  wake_->notify_all();
  return true;
}

// What comes before a host function has to be done. Late, nothing gets done by itself: somebody has
// waited for the function or for what is behind it, or the program seems to wait for its effect.
bool Streams::may_run(const Task& task) {
  if (!late_ || task.detached || is_done(task.stream, task.number)) return true;
  const int64_t now = clock_();
  if (now - last_submission_ < kIdle && now - task.since < kLongWait) return false;
  done_.raise(task.covers);
  if (task.number > 0) done_.raise(task.stream, task.number - 1);
  return true;
}

void Streams::run_tasks() {
  runs_tasks = true;
  std::unique_lock<std::mutex> lock(mutex_);
  while (!stops_) {
    const auto next = std::find_if(tasks_.begin(), tasks_.end(),
                                   [this](const Task& task) { return may_run(task); });
    if (next == tasks_.end()) {
      if (tasks_.empty()) {
        wake_->wait(lock);
      } else {
        wake_->wait_until(lock, std::chrono::system_clock::now() + kLook);
      }
      continue;
    }
    std::function<void()> run = std::move(next->run);
    const uint64_t forks = forks_;
    lock.unlock();
    run();
    run = nullptr;
    lock.lock();
    // The function forked, and this is the child, in which nothing else runs.
    if (forks != forks_) _exit(0);
    tasks_.erase(next);
    queued_.fetch_sub(1, std::memory_order_release);
    finished_->notify_all();
  }
}

// The thread is not there any more, and who waited for it is not either: what they left behind is
// not destroyed.
void Streams::unlock_in_child() {
  struct LeftBehind {
    std::unique_ptr<std::thread> worker;
    std::unique_ptr<std::condition_variable> wake, finished;
    std::list<Task> tasks;  // what they hold would take this lock, and others
  };
  new LeftBehind{std::move(worker_), std::move(wake_), std::move(finished_), std::move(tasks_)};
  wake_ = std::make_unique<std::condition_variable>();
  finished_ = std::make_unique<std::condition_variable>();
  tasks_.clear();
  ++forks_;
  queued_.store(0, std::memory_order_release);
  mutex_.unlock();
}

// The legacy stream's work would have to wait for streams that capture, which CUDA refuses.
bool Streams::would_wait_for_capture(const Stream& stream) {
  if (stream.info.id != kLegacy) return false;
  bool would = false;
  for_each_stream([&](const Stream& other) {
    would |=
        other.capture != nullptr && other.info.blocking && other.info.device == stream.info.device;
  });
  return would;
}

StreamError Streams::implicit_locked(const Stream& stream) {
  if (captures_.empty() || !would_wait_for_capture(stream)) return StreamError::kNone;
  for_each_stream([&](const Stream& other) {
    if (other.capture != nullptr && other.info.blocking && other.info.device == stream.info.device)
      other.capture->invalidated = true;
  });
  return StreamError::kCaptureImplicit;
}

Streams::Submission Streams::submit(const void* handle, int current_device, NodeKind kind,
                                    std::function<void()> run, Order order,
                                    std::shared_ptr<void> parameters) {
  std::lock_guard<std::mutex> lock(mutex_);
  Stream* const stream = resolve(handle, current_device);
  if (stream == nullptr) return {StreamError::kInvalidHandle};
  if (stream->capture != nullptr) {
    if (stream->capture->invalidated) return {StreamError::kCaptureInvalidated};
    const GraphNode* const node =
        add_captured_node(*stream, kind, std::move(run), std::move(parameters));
    return {StreamError::kNone, true, false, node->index, node};
  }
  if (const StreamError error = implicit_locked(*stream); error != StreamError::kNone)
    return {error};
  if (kind == NodeKind::kHost) tracks_ = true;
  advance(*stream);
  const bool waits = run && order == Order::kInStream && !tasks_.empty() && !runs_tasks &&
                     is_behind_task(up_to_now(*stream));
  if (kind != NodeKind::kHost && !waits) return {};
  return {StreamError::kNone, false, queue(*stream, std::move(run))};
}

Streams::Submission Streams::submit_kernel(const void* stream, int current_device) {
  // The default stream has nothing to be followed as long as all is done at once.
  if (stream == nullptr && !late_ && captures_open_.load(std::memory_order_relaxed) == 0 &&
      !has_queued())
    return {};
  // A std::function costs nothing where it is empty.
  return submit(stream, current_device, NodeKind::kKernel, nullptr);
}

bool Streams::queue_part(const void* handle, int current_device, NodeKind kind,
                         const std::function<void()>& run) {
  if (kind != NodeKind::kHost && !has_queued()) return false;
  std::lock_guard<std::mutex> lock(mutex_);
  Stream* const stream = resolve(handle, current_device);
  if (stream == nullptr) return false;
  if (kind == NodeKind::kHost) {
    if (!tracks_) {
      tracks_ = true;
      ++stream->submitted;
    }
  } else if (runs_tasks || !is_behind_task(up_to_now(*stream))) {
    return false;
  }
  return queue(*stream, run);
}

void Streams::run_detached(std::function<void()> run) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (has_worker()) {
      tasks_.push_back({0, 0, {}, 0, std::move(run), true});
      queued_.fetch_add(1, std::memory_order_release);
      wake_->notify_all();
      return;
    }
  }
  run();
}

StreamError Streams::synchronize_stream(const void* handle, int current_device) {
  std::unique_lock<std::mutex> lock(mutex_);
  Stream* const stream = resolve(handle, current_device);
  if (stream == nullptr) return StreamError::kInvalidHandle;
  if (runs_tasks) return StreamError::kNotPermitted;
  if (stream->capture != nullptr) {
    stream->capture->invalidated = true;
    return StreamError::kCaptureUnsupported;
  }
  if (const StreamError error = implicit_locked(*stream); error != StreamError::kNone) return error;
  wait_for(lock, up_to_now(*stream));
  return StreamError::kNone;
}

StreamError Streams::synchronize_device(int device) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (runs_tasks) return StreamError::kNotPermitted;
    if (const StreamError error = unsafe_locked(); error != StreamError::kNone) return error;
    bool captures = false;
    for_each_stream([&](const Stream& stream) {
      if (captures || stream.info.device != device || stream.capture == nullptr ||
          stream.capture->origin != &stream)
        return;
      stream.capture->invalidated = captures = true;
    });
    if (captures) return StreamError::kCaptureUnsupported;
  }
  wait_for_device(device);
  return StreamError::kNone;
}

Progress Streams::device_progress(int device) {
  Progress progress = retired_[device];
  for_each_stream([&](const Stream& stream) {
    if (stream.info.device == device) progress.raise(up_to_now(stream));
  });
  return progress;
}

void Streams::wait_for_device(int device) {
  if (!late_ && !has_queued()) return;
  std::unique_lock<std::mutex> lock(mutex_);
  wait_for(lock, device_progress(device));
}

void Streams::wait_for_stream(const void* handle, int current_device) {
  if (!late_ && !has_queued()) return;
  std::unique_lock<std::mutex> lock(mutex_);
  if (const Stream* const stream = resolve(handle, current_device))
    wait_for(lock, up_to_now(*stream));
}

// Work of the thread in between shows that it does not wait for what it polls.
bool Streams::counts_as_wait(PollsOfThreads& polls_of_threads) {
  Polls& polls = polls_of_threads[thread_streams.number];
  const int64_t now = clock_();
  if (polls.count == 0 || polls.submissions != thread_submissions)
    polls = {0, now, thread_submissions};
  ++polls.count;
  if (polls.count >= kPollsOfAWait && thread_submissions != 0) return true;
  return polls.count >= kPollsOfALongWait && now - polls.since > kLongWait;
}

StreamError Streams::query_stream(const void* handle, int current_device) {
  std::unique_lock<std::mutex> lock(mutex_);
  Stream* const stream = resolve(handle, current_device);
  if (stream == nullptr) return StreamError::kInvalidHandle;
  if (stream->capture != nullptr) {
    stream->capture->invalidated = true;
    return StreamError::kCaptureUnsupported;
  }
  if (const StreamError error = unsafe_locked(); error != StreamError::kNone) return error;
  if (late_ && !is_done(stream->index, stream->submitted)) {
    if (!counts_as_wait(stream->polls)) return StreamError::kNotReady;
    done_.raise(up_to_now(*stream));
  }
  if (tasks_.empty() || !is_behind_task(up_to_now(*stream))) return StreamError::kNone;
  wake_->notify_all();
  return StreamError::kNotReady;
}

void Streams::add_event(const void* handle, int device) {
  std::lock_guard<std::mutex> lock(mutex_);
  events_[handle].device = device;
}

bool Streams::remove_event(const void* handle) {
  std::lock_guard<std::mutex> lock(mutex_);
  return events_.erase(handle) != 0;
}

bool Streams::is_event(const void* handle) {
  std::lock_guard<std::mutex> lock(mutex_);
  return events_.count(handle) != 0;
}

StreamError Streams::record(const void* event_handle, const void* stream_handle, int current_device,
                            bool external) {
  std::lock_guard<std::mutex> lock(mutex_);
  Stream* const stream = resolve(stream_handle, current_device);
  const auto found = events_.find(event_handle);
  if (stream == nullptr || found == events_.end()) return StreamError::kInvalidHandle;
  Event& event = found->second;
  if (event.device != stream->info.device) return StreamError::kInvalidHandle;
  if (external && stream->capture == nullptr) return StreamError::kInvalidValue;
  if (stream->capture != nullptr) {
    if (stream->capture->invalidated) return StreamError::kCaptureInvalidated;
    if (external) {
      add_captured_node(*stream, NodeKind::kEventRecord, nullptr, nullptr)->event = event_handle;
      return StreamError::kNone;
    }
    event.capture = stream->capture->id;
    event.dependencies = stream->dependencies;
    event.recorded = true;
    return StreamError::kNone;
  }
  if (const StreamError error = implicit_locked(*stream); error != StreamError::kNone) return error;
  advance(*stream);
  event.capture = 0;
  event.dependencies.clear();
  event.recorded = true;
  event.stream = stream->index;
  event.number = stream->submitted;
  if (tracks_) event.covers = up_to_now(*stream);
  event.polls.clear();
  return StreamError::kNone;
}

StreamError Streams::wait(const void* stream_handle, int current_device, const void* event_handle,
                          bool external) {
  std::lock_guard<std::mutex> lock(mutex_);
  Stream* const stream = resolve(stream_handle, current_device);
  const auto found = events_.find(event_handle);
  if (stream == nullptr || found == events_.end()) return StreamError::kInvalidHandle;
  Event& event = found->second;
  Capture* const into = stream->capture;
  if (into != nullptr && into->invalidated) return StreamError::kCaptureInvalidated;
  if (external && into == nullptr) return StreamError::kInvalidValue;
  if (external) {
    add_captured_node(*stream, NodeKind::kEventWait, nullptr, nullptr)->event = event_handle;
    return StreamError::kNone;
  }
  if (event.capture != 0) {
    Capture* const from = find_capture(event.capture);
    if (from == nullptr) return StreamError::kCapturedEvent;  // its capture has ended
    if (from->invalidated) return StreamError::kCaptureInvalidated;
    if (into != nullptr && into != from) {
      into->invalidated = from->invalidated = true;
      return StreamError::kCaptureMerge;
    }
    if (into == nullptr) {
      if (stream->info.id == kLegacy) {
        from->invalidated = true;
        return StreamError::kCaptureImplicit;
      }
      stream->capture = from;
      stream->dependencies.clear();
    }
    add_once(stream->dependencies, event.dependencies);
    return StreamError::kNone;
  }
  if (into != nullptr) {
    if (!event.recorded) return StreamError::kNone;
    into->invalidated = true;
    return StreamError::kCaptureIsolation;
  }
  if (tracks_ && event.recorded) stream->covers.raise(event.covers);
  return StreamError::kNone;
}

StreamError Streams::query_event(const void* handle) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = events_.find(handle);
  if (found == events_.end()) return StreamError::kInvalidHandle;
  Event& event = found->second;
  if (event.capture != 0) {
    if (Capture* const capture = find_capture(event.capture)) capture->invalidated = true;
    return StreamError::kCapturedEvent;
  }
  if (const StreamError error = unsafe_locked(); error != StreamError::kNone) return error;
  if (!event.recorded) return StreamError::kNone;
  if (late_ && !is_done(event.stream, event.number)) {
    if (!counts_as_wait(event.polls)) return StreamError::kNotReady;
    done_.raise(event.covers);
  }
  if (tasks_.empty() || !is_behind_task(event.covers)) return StreamError::kNone;
  wake_->notify_all();
  return StreamError::kNotReady;
}

StreamError Streams::synchronize_event(const void* handle) {
  std::unique_lock<std::mutex> lock(mutex_);
  const auto found = events_.find(handle);
  if (found == events_.end()) return StreamError::kInvalidHandle;
  const Event& event = found->second;
  if (runs_tasks) return StreamError::kNotPermitted;
  if (event.capture != 0) {
    if (Capture* const capture = find_capture(event.capture)) capture->invalidated = true;
    return StreamError::kCapturedEvent;
  }
  // A copy, as the event may be recorded again meanwhile.
  if (event.recorded) wait_for(lock, Progress(event.covers));
  return StreamError::kNone;
}

StreamError Streams::check_recorded(const void* handle) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = events_.find(handle);
  if (found == events_.end()) return StreamError::kInvalidHandle;
  const Event& event = found->second;
  if (event.capture != 0) return StreamError::kCapturedEvent;
  if (!event.recorded) return StreamError::kInvalidHandle;
  const bool is_ready = (!late_ || is_done(event.stream, event.number)) &&
                        (tasks_.empty() || !is_behind_task(event.covers));
  return is_ready ? StreamError::kNone : StreamError::kNotReady;
}

}  // namespace memledger::virtual_gpu
