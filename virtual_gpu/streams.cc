#include "virtual_gpu/streams.h"

#include <algorithm>
#include <utility>

namespace memledger::virtual_gpu {
namespace {

thread_local CaptureMode thread_mode = CaptureMode::kGlobal;

void add_once(std::vector<GraphNode*>& nodes, const std::vector<GraphNode*>& more) {
  for (GraphNode* node : more) {
    if (std::find(nodes.begin(), nodes.end(), node) == nodes.end()) nodes.push_back(node);
  }
}

}  // namespace

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

// CUDA lets a stream's work go on after it is destroyed; here, its work counts as waited for, which
// nobody can see any more.
bool Streams::remove_stream(const void* handle) {
  std::unique_ptr<Graph> dropped;  // destroyed after the lock is released
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = streams_.find(handle);
  if (found == streams_.end()) return false;
  wait_for(up_to_now(*found->second));
  Capture* const capture = found->second->capture;
  if (capture != nullptr) {
    capture->invalidated = true;
    if (capture->origin == handle) {
      if (capture->owns_graph) dropped = take_graph(capture->graph);
      leave_capture(capture);
    }
  }
  streams_.erase(handle);
  return true;
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
  std::unique_ptr<Stream>& stream = default_streams_[{current_device, value}];
  if (stream == nullptr) {
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

GraphNode* Streams::add_node_locked(Graph& graph, GraphNode node) {
  graph.nodes.push_back(std::make_unique<GraphNode>(std::move(node)));
  GraphNode* const added = graph.nodes.back().get();
  nodes_.insert(added);
  for (auto& [id, capture] : captures_) {
    if (capture->graph != &graph) continue;
    for (GraphNode* dependency : added->dependencies) capture->leaves.erase(dependency);
  }
  return added;
}

GraphNode* Streams::add_captured_node(Stream& stream, NodeKind kind, std::function<void()> run) {
  GraphNode* const node =
      add_node_locked(*stream.capture->graph, {kind, stream.dependencies, std::move(run)});
  stream.capture->leaves.insert(node);
  stream.dependencies = {node};
  return node;
}

Progress Streams::up_to_now(const Stream& stream) {
  Progress progress = stream.covers;
  progress.raise(stream.index, stream.submitted);
  return progress;
}

// Numbers the stream's next piece of work, which in the late model comes after all that the stream
// has waited for.
void Streams::advance(Stream& stream) {
  ++submissions_;
  if (!late_) return;
  const bool legacy = stream.info.id == kLegacy;
  const auto meet = [&](Stream& other) {
    if (&other == &stream || other.info.device != stream.info.device || !other.info.blocking)
      return;
    if (legacy || other.info.id == kLegacy) stream.covers.raise(up_to_now(other));
  };
  if (stream.info.blocking) {
    for (auto& [handle, other] : streams_) meet(*other);
    for (auto& [key, other] : default_streams_) meet(*other);
  }
  ++stream.submitted;
}

void Streams::wait_for(const Progress& progress) {
  if (late_) done_.raise(progress);
}

// The legacy stream's work would have to wait for streams that capture, which CUDA refuses.
bool Streams::would_wait_for_capture(const Stream& stream) {
  if (stream.info.id != kLegacy) return false;
  for (auto& [handle, other] : streams_) {
    if (other->capture != nullptr && other->info.blocking &&
        other->info.device == stream.info.device)
      return true;
  }
  return false;
}

StreamError Streams::implicit_locked(const Stream& stream) {
  if (captures_.empty() || !would_wait_for_capture(stream)) return StreamError::kNone;
  for (auto& [handle, other] : streams_) {
    if (other->capture != nullptr && other->info.blocking &&
        other->info.device == stream.info.device)
      other->capture->invalidated = true;
  }
  return StreamError::kCaptureImplicit;
}

Streams::Submission Streams::submit(const void* handle, int current_device, NodeKind kind,
                                    std::function<void()> run) {
  std::lock_guard<std::mutex> lock(mutex_);
  Stream* const stream = resolve(handle, current_device);
  if (stream == nullptr) return {StreamError::kInvalidHandle, false};
  if (stream->capture != nullptr) {
    if (stream->capture->invalidated) return {StreamError::kCaptureInvalidated, false};
    add_captured_node(*stream, kind, std::move(run));
    return {StreamError::kNone, true};
  }
  if (const StreamError error = implicit_locked(*stream); error != StreamError::kNone)
    return {error, false};
  advance(*stream);
  return {};
}

Streams::Submission Streams::submit_kernel(const void* stream, int current_device) {
  // A std::function costs nothing where it is empty.
  return submit(stream, current_device, NodeKind::kKernel, nullptr);
}

StreamError Streams::synchronize_stream(const void* handle, int current_device) {
  std::lock_guard<std::mutex> lock(mutex_);
  Stream* const stream = resolve(handle, current_device);
  if (stream == nullptr) return StreamError::kInvalidHandle;
  if (stream->capture != nullptr) {
    stream->capture->invalidated = true;
    return StreamError::kCaptureUnsupported;
  }
  if (const StreamError error = implicit_locked(*stream); error != StreamError::kNone) return error;
  wait_for(up_to_now(*stream));
  return StreamError::kNone;
}

StreamError Streams::synchronize_device(int device) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (const StreamError error = unsafe_locked(); error != StreamError::kNone) return error;
    for (auto& [id, capture] : captures_) {
      const Stream* const origin = resolve(capture->origin, device);
      if (origin == nullptr || origin->info.device != device) continue;
      capture->invalidated = true;
      return StreamError::kCaptureUnsupported;
    }
  }
  wait_for_device(device);
  return StreamError::kNone;
}

void Streams::wait_for_device(int device) {
  if (!late_) return;
  std::lock_guard<std::mutex> lock(mutex_);
  const auto wait = [&](const Stream& stream) {
    if (stream.info.device == device) wait_for(up_to_now(stream));
  };
  for (auto& [handle, stream] : streams_) wait(*stream);
  for (auto& [key, stream] : default_streams_) wait(*stream);
}

void Streams::wait_for_stream(const void* handle, int current_device) {
  if (!late_) return;
  std::lock_guard<std::mutex> lock(mutex_);
  if (const Stream* const stream = resolve(handle, current_device)) wait_for(up_to_now(*stream));
}

// Work in between shows that the program does not wait for what it polls.
bool Streams::counts_as_wait(Polls& polls) {
  if (polls.submissions != submissions_) polls = {0, submissions_};
  return ++polls.count >= kPollsOfAWait;
}

StreamError Streams::query_stream(const void* handle, int current_device) {
  std::lock_guard<std::mutex> lock(mutex_);
  Stream* const stream = resolve(handle, current_device);
  if (stream == nullptr) return StreamError::kInvalidHandle;
  if (stream->capture != nullptr) {
    stream->capture->invalidated = true;
    return StreamError::kCaptureUnsupported;
  }
  if (const StreamError error = unsafe_locked(); error != StreamError::kNone) return error;
  if (!late_ || is_done(stream->index, stream->submitted)) return StreamError::kNone;
  if (!counts_as_wait(stream->polls)) return StreamError::kNotReady;
  wait_for(up_to_now(*stream));
  return StreamError::kNone;
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
      add_captured_node(*stream, NodeKind::kEventRecord, nullptr);
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
  if (late_) event.covers = up_to_now(*stream);
  event.polls = {};
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
    add_captured_node(*stream, NodeKind::kEventWait, nullptr);
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
  if (late_ && event.recorded) stream->covers.raise(event.covers);
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
  if (!late_ || !event.recorded || is_done(event.stream, event.number)) return StreamError::kNone;
  if (!counts_as_wait(event.polls)) return StreamError::kNotReady;
  wait_for(event.covers);
  return StreamError::kNone;
}

StreamError Streams::synchronize_event(const void* handle) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = events_.find(handle);
  if (found == events_.end()) return StreamError::kInvalidHandle;
  const Event& event = found->second;
  if (event.capture != 0) {
    if (Capture* const capture = find_capture(event.capture)) capture->invalidated = true;
    return StreamError::kCapturedEvent;
  }
  if (event.recorded) wait_for(event.covers);
  return StreamError::kNone;
}

StreamError Streams::check_unsafe() {
  if (captures_open_.load(std::memory_order_relaxed) == 0) return StreamError::kNone;
  std::lock_guard<std::mutex> lock(mutex_);
  return unsafe_locked();
}

// cudaThreadExchangeStreamCaptureMode's description: a thread may not make unsafe calls while a
// capture of its own is open that is not relaxed, nor, in global mode, while another thread's
// global one is.
StreamError Streams::unsafe_locked() {
  if (thread_mode == CaptureMode::kRelaxed) return StreamError::kNone;
  StreamError error = StreamError::kNone;
  for (auto& [id, capture] : captures_) {
    const bool own = capture->thread == std::this_thread::get_id();
    const bool forbids =
        own ? capture->mode != CaptureMode::kRelaxed
            : thread_mode == CaptureMode::kGlobal && capture->mode == CaptureMode::kGlobal;
    if (!forbids) continue;
    capture->invalidated = true;
    error = StreamError::kCaptureUnsupported;
  }
  return error;
}

CaptureMode Streams::exchange_mode(CaptureMode mode) { return std::exchange(thread_mode, mode); }

StreamError Streams::begin_capture(const void* handle, int current_device, CaptureMode mode,
                                   Graph* graph, std::vector<GraphNode*> dependencies) {
  std::lock_guard<std::mutex> lock(mutex_);
  Stream* const stream = resolve(handle, current_device);
  if (stream == nullptr) return StreamError::kInvalidHandle;
  if (stream->info.id == kLegacy) return StreamError::kCaptureUnsupported;
  if (stream->capture != nullptr) return StreamError::kIllegalState;
  auto capture = std::make_unique<Capture>();
  capture->owns_graph = graph == nullptr;
  if (graph == nullptr) {
    auto made = std::make_unique<Graph>();
    graph = made.get();
    graphs_[graph] = std::move(made);
  } else if (graphs_.count(graph) == 0) {
    return StreamError::kInvalidValue;
  }
  capture->id = next_capture_++;
  capture->mode = mode;
  capture->thread = std::this_thread::get_id();
  capture->graph = graph;
  capture->origin = handle;
  stream->capture = capture.get();
  stream->dependencies = std::move(dependencies);
  captures_[capture->id] = std::move(capture);
  captures_open_.fetch_add(1, std::memory_order_relaxed);
  return StreamError::kNone;
}

// Takes all streams out of the capture and forgets it.
void Streams::leave_capture(Capture* capture) {
  const auto leave = [&](Stream& stream) {
    if (stream.capture != capture) return;
    stream.capture = nullptr;
    stream.dependencies.clear();
  };
  for (auto& [handle, stream] : streams_) leave(*stream);
  for (auto& [key, stream] : default_streams_) leave(*stream);
  captures_.erase(capture->id);
  captures_open_.fetch_sub(1, std::memory_order_relaxed);
}

StreamError Streams::end_capture(const void* handle, int current_device, Graph** graph) {
  *graph = nullptr;
  std::unique_ptr<Graph> refused;  // destroyed after the lock is released
  std::lock_guard<std::mutex> lock(mutex_);
  Stream* const stream = resolve(handle, current_device);
  if (stream == nullptr) return StreamError::kInvalidHandle;
  Capture* const capture = stream->capture;
  if (capture == nullptr) return StreamError::kIllegalState;
  if (capture->origin != handle) {
    capture->invalidated = true;
    return StreamError::kCaptureUnmatched;
  }
  if (capture->mode != CaptureMode::kRelaxed && capture->thread != std::this_thread::get_id()) {
    capture->invalidated = true;
    return StreamError::kCaptureWrongThread;
  }
  StreamError error = StreamError::kNone;
  if (capture->invalidated) {
    error = StreamError::kCaptureInvalidated;
  } else {
    for (GraphNode* leaf : capture->leaves) {
      const std::vector<GraphNode*>& joined = stream->dependencies;
      if (std::find(joined.begin(), joined.end(), leaf) == joined.end())
        error = StreamError::kCaptureUnjoined;
    }
  }
  if (error == StreamError::kNone) {
    *graph = capture->graph;
  } else if (capture->owns_graph) {
    refused = take_graph(capture->graph);
  }
  leave_capture(capture);
  return error;
}

StreamError Streams::capture_info(const void* handle, int current_device, CaptureInfo* info) {
  *info = {};
  if (captures_open_.load(std::memory_order_relaxed) == 0) return StreamError::kNone;
  std::lock_guard<std::mutex> lock(mutex_);
  Stream* const stream = resolve(handle, current_device);
  if (stream == nullptr) return StreamError::kInvalidHandle;
  if (would_wait_for_capture(*stream)) return StreamError::kCaptureImplicit;
  if (stream->capture == nullptr) return StreamError::kNone;
  info->id = stream->capture->id;
  if (stream->capture->invalidated) {
    info->status = CaptureStatus::kInvalidated;
    return StreamError::kNone;
  }
  info->status = CaptureStatus::kActive;
  info->graph = stream->capture->graph;
  info->dependencies = stream->dependencies.data();
  info->dependency_count = stream->dependencies.size();
  return StreamError::kNone;
}

StreamError Streams::set_dependencies(const void* handle, int current_device,
                                      std::vector<GraphNode*> dependencies, bool replace) {
  std::lock_guard<std::mutex> lock(mutex_);
  Stream* const stream = resolve(handle, current_device);
  if (stream == nullptr) return StreamError::kInvalidHandle;
  if (stream->capture == nullptr) return StreamError::kIllegalState;
  if (stream->capture->invalidated) return StreamError::kCaptureInvalidated;
  for (const GraphNode* dependency : dependencies) {
    if (nodes_.count(dependency) == 0) return StreamError::kInvalidValue;
  }
  if (replace) {
    // What is replaced need not be joined.
    for (GraphNode* replaced : stream->dependencies) stream->capture->leaves.erase(replaced);
    stream->dependencies.clear();
  }
  add_once(stream->dependencies, dependencies);
  return StreamError::kNone;
}

Graph* Streams::make_graph() {
  auto made = std::make_unique<Graph>();
  Graph* const graph = made.get();
  std::lock_guard<std::mutex> lock(mutex_);
  graphs_[graph] = std::move(made);
  return graph;
}

std::unique_ptr<Graph> Streams::take_graph(const Graph* graph) {
  const auto found = graphs_.find(graph);
  if (found == graphs_.end()) return nullptr;
  std::unique_ptr<Graph> taken = std::move(found->second);
  graphs_.erase(found);
  for (const std::unique_ptr<GraphNode>& node : taken->nodes) nodes_.erase(node.get());
  return taken;
}

bool Streams::remove_graph(Graph* graph) {
  std::unique_ptr<Graph> removed;  // destroyed after the lock is released
  std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& [id, capture] : captures_) {
    if (capture->graph == graph) return false;  // a stream still captures into it
  }
  removed = take_graph(graph);
  return removed != nullptr;
}

bool Streams::is_graph(const Graph* graph) {
  std::lock_guard<std::mutex> lock(mutex_);
  return graphs_.count(graph) != 0;
}

GraphNode* Streams::add_node(Graph* graph, std::vector<GraphNode*> dependencies, NodeKind kind,
                             std::function<void()> run) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (graphs_.count(graph) == 0) return nullptr;
  for (GraphNode* dependency : dependencies) {
    if (nodes_.count(dependency) == 0) return nullptr;
  }
  return add_node_locked(*graph, {kind, std::move(dependencies), std::move(run)});
}

std::optional<std::vector<GraphNode*>> Streams::nodes_of(const Graph* graph) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = graphs_.find(graph);
  if (found == graphs_.end()) return std::nullopt;
  std::vector<GraphNode*> nodes;
  for (const std::unique_ptr<GraphNode>& node : graph->nodes) nodes.push_back(node.get());
  return nodes;
}

std::optional<std::vector<std::function<void()>>> Streams::work_of(const Graph* graph) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (graphs_.count(graph) == 0) return std::nullopt;
  std::vector<std::function<void()>> work;
  for (const std::unique_ptr<GraphNode>& node : graph->nodes) {
    if (node->run) work.push_back(node->run);
  }
  return work;
}

std::optional<std::vector<GraphNode*>> Streams::dependencies_of(const GraphNode* node) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (nodes_.count(node) == 0) return std::nullopt;
  return node->dependencies;
}

}  // namespace memledger::virtual_gpu
