// Capture and graphs: the part of Streams that makes graphs of what streams are given.
#include <algorithm>
#include <functional>
#include <queue>
#include <utility>

#include "virtual_gpu/graph_memory.h"
#include "virtual_gpu/streams.h"

namespace memledger::virtual_gpu {
namespace {

thread_local CaptureMode thread_mode = CaptureMode::kGlobal;

bool all_differ(std::vector<GraphNode*> nodes) {
  std::sort(nodes.begin(), nodes.end(), std::less<>());
  return std::adjacent_find(nodes.begin(), nodes.end()) == nodes.end();
}

}  // namespace

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
                                   Graph* graph, const std::vector<GraphNode*>& dependencies) {
  std::lock_guard<std::mutex> lock(mutex_);
  Stream* const stream = resolve(handle, current_device);
  if (stream == nullptr) return StreamError::kInvalidHandle;
  if (stream->info.id == kLegacy) return StreamError::kCaptureUnsupported;
  if (stream->capture != nullptr) return StreamError::kIllegalState;
  for (const GraphNode* dependency : dependencies) {
    const auto found = nodes_.find(dependency);
    if (found == nodes_.end() || found->second != graph) return StreamError::kInvalidValue;
  }
  auto capture = std::make_unique<Capture>();
  capture->owns_graph = graph == nullptr;
  if (graph == nullptr) {
    graph = make_graph_locked(false);
  } else if (graphs_.count(graph) == 0) {
    return StreamError::kInvalidValue;
  }
  capture->id = next_capture_++;
  capture->mode = mode;
  capture->thread = std::this_thread::get_id();
  capture->graph = graph;
  capture->origin = stream;
  stream->capture = capture.get();
  stream->dependencies.clear();
  add_once(stream->dependencies, dependencies);
  captures_[capture->id] = std::move(capture);
  captures_open_.fetch_add(1, std::memory_order_relaxed);
  return StreamError::kNone;
}

// Takes all streams out of the capture and forgets it.
void Streams::leave_capture(Capture* capture) {
  for_each_stream([&](Stream& stream) {
    if (stream.capture != capture) return;
    stream.capture = nullptr;
    stream.dependencies.clear();
  });
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
  if (capture->origin != stream) {
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
  info->memory = stream->capture->graph->memory;
  return StreamError::kNone;
}

StreamError Streams::set_dependencies(const void* handle, int current_device,
                                      const std::vector<GraphNode*>& dependencies, bool replace) {
  std::lock_guard<std::mutex> lock(mutex_);
  Stream* const stream = resolve(handle, current_device);
  if (stream == nullptr) return StreamError::kInvalidHandle;
  if (stream->capture == nullptr) return StreamError::kIllegalState;
  if (stream->capture->invalidated) return StreamError::kCaptureInvalidated;
  for (const GraphNode* dependency : dependencies) {
    const auto found = nodes_.find(dependency);
    if (found == nodes_.end() || found->second != stream->capture->graph)
      return StreamError::kInvalidValue;
  }
  if (replace) {
    // What is replaced need not be joined.
    for (GraphNode* replaced : stream->dependencies) stream->capture->leaves.erase(replaced);
    stream->dependencies.clear();
  }
  add_once(stream->dependencies, dependencies);
  return StreamError::kNone;
}

Graph* Streams::make_graph(bool embedded) {
  std::lock_guard<std::mutex> lock(mutex_);
  return make_graph_locked(embedded);
}

Graph* Streams::make_graph_locked(bool embedded) {
  auto made = std::make_unique<Graph>();
  made->embedded = embedded;
  made->memory = std::make_shared<GraphMemory>();
  Graph* const graph = made.get();
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

bool Streams::is_captured_into(const Graph* graph) const {
  return std::any_of(captures_.begin(), captures_.end(),
                     [graph](const auto& entry) { return entry.second->graph == graph; });
}

bool Streams::remove_graph(Graph* graph, bool embedded) {
  std::unique_ptr<Graph> removed;  // destroyed after the lock is released
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = graphs_.find(graph);
  if (found == graphs_.end() || found->second->embedded != embedded || is_captured_into(graph))
    return false;
  removed = take_graph(graph);
  return true;
}

bool Streams::is_graph(const Graph* graph) {
  std::lock_guard<std::mutex> lock(mutex_);
  return graphs_.count(graph) != 0;
}

std::shared_ptr<GraphMemory> Streams::memory_of(const Graph* graph) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = graphs_.find(graph);
  return found == graphs_.end() ? nullptr : found->second->memory;
}

GraphNode* Streams::add_node_locked(Graph& graph, GraphNode node) {
  graph.nodes.push_back(std::make_unique<GraphNode>(std::move(node)));
  GraphNode* const added = graph.nodes.back().get();
  added->index = graph.next_index++;
  nodes_[added] = &graph;
  for (auto& [id, capture] : captures_) {
    if (capture->graph != &graph) continue;
    for (GraphNode* dependency : added->dependencies) capture->leaves.erase(dependency);
  }
  return added;
}

GraphNode* Streams::add_captured_node(Stream& stream, NodeKind kind, std::function<void()> run,
                                      std::shared_ptr<void> parameters) {
  GraphNode* const node = add_node_locked(
      *stream.capture->graph, {kind, stream.dependencies, std::move(run), std::move(parameters)});
  stream.capture->leaves.insert(node);
  stream.dependencies = {node};
  return node;
}

GraphNode* Streams::add_node(Graph* graph, std::vector<GraphNode*> dependencies, NodeKind kind,
                             std::function<void()> run, std::shared_ptr<void> parameters,
                             const void* event) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (graphs_.count(graph) == 0 || !all_differ(dependencies)) return nullptr;
  for (GraphNode* dependency : dependencies) {
    const auto found = nodes_.find(dependency);
    if (found == nodes_.end() || found->second != graph) return nullptr;
  }
  return add_node_locked(
      *graph, {kind, std::move(dependencies), std::move(run), std::move(parameters), event});
}

bool Streams::remove_node(GraphNode* node) {
  std::unique_ptr<GraphNode> removed;  // destroyed after the lock is released
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = nodes_.find(node);
  if (found == nodes_.end() || is_captured_into(found->second)) return false;
  Graph& graph = *found->second;
  graph.is_changed = true;
  for (auto& other : graph.nodes) {
    auto& dependencies = other->dependencies;
    dependencies.erase(std::remove(dependencies.begin(), dependencies.end(), node),
                       dependencies.end());
    if (other.get() == node) removed = std::move(other);
  }
  graph.nodes.erase(std::remove(graph.nodes.begin(), graph.nodes.end(), nullptr),
                    graph.nodes.end());
  nodes_.erase(node);
  return true;
}

bool Streams::add_edge(Graph* graph, GraphNode* from, GraphNode* to) {
  std::lock_guard<std::mutex> lock(mutex_);
  for (const GraphNode* node : {from, to}) {
    const auto found = nodes_.find(node);
    if (found == nodes_.end() || found->second != graph) return false;
  }
  std::vector<GraphNode*>& dependencies = to->dependencies;
  if (std::find(dependencies.begin(), dependencies.end(), from) != dependencies.end()) return false;
  dependencies.push_back(from);
  return true;
}

bool Streams::remove_edge(Graph* graph, GraphNode* from, GraphNode* to) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = nodes_.find(to);
  if (found == nodes_.end() || found->second != graph) return false;
  std::vector<GraphNode*>& dependencies = to->dependencies;
  const auto edge = std::find(dependencies.begin(), dependencies.end(), from);
  if (edge == dependencies.end()) return false;
  dependencies.erase(edge);
  return true;
}

std::optional<std::vector<GraphNode*>> Streams::nodes_of(const Graph* graph) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = graphs_.find(graph);
  if (found == graphs_.end()) return std::nullopt;
  std::vector<GraphNode*> nodes;
  for (const std::unique_ptr<GraphNode>& node : graph->nodes) nodes.push_back(node.get());
  return nodes;
}

// In the order in which they were added, as far as the dependencies allow it.
std::optional<std::vector<GraphStep>> Streams::steps_of(const Graph* graph) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (graphs_.count(graph) == 0) return std::nullopt;
  std::vector<size_t> awaited(graph->next_index);
  std::vector<std::vector<GraphNode*>> dependents(graph->next_index);
  const auto later = [](const GraphNode* a, const GraphNode* b) { return a->index > b->index; };
  std::priority_queue<GraphNode*, std::vector<GraphNode*>, decltype(later)> ready(later);
  for (const std::unique_ptr<GraphNode>& node : graph->nodes) {
    awaited[node->index] = node->dependencies.size();
    if (node->dependencies.empty()) ready.push(node.get());
    for (const GraphNode* dependency : node->dependencies)
      dependents[dependency->index].push_back(node.get());
  }
  std::vector<GraphStep> steps;
  while (!ready.empty()) {
    GraphNode* const node = ready.top();
    ready.pop();
    steps.push_back({node, node->kind, node->run, node->parameters, node->event, node->enabled,
                     graph->is_changed ? nullptr : node->known_work});
    for (GraphNode* dependent : dependents[node->index]) {
      if (--awaited[dependent->index] == 0) ready.push(dependent);
    }
  }
  if (steps.size() != graph->nodes.size()) return std::nullopt;
  return steps;
}

std::optional<std::vector<GraphNode*>> Streams::dependencies_of(const GraphNode* node) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (nodes_.count(node) == 0) return std::nullopt;
  return node->dependencies;
}

std::optional<std::vector<GraphNode*>> Streams::dependents_of(const GraphNode* node) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = nodes_.find(node);
  if (found == nodes_.end()) return std::nullopt;
  std::vector<GraphNode*> dependents;
  for (const std::unique_ptr<GraphNode>& other : found->second->nodes) {
    const std::vector<GraphNode*>& dependencies = other->dependencies;
    if (std::find(dependencies.begin(), dependencies.end(), node) != dependencies.end())
      dependents.push_back(other.get());
  }
  return dependents;
}

Predecessors Streams::predecessors_of(const std::vector<GraphNode*>& nodes) {
  std::lock_guard<std::mutex> lock(mutex_);
  Predecessors found;
  std::vector<GraphNode*> open;
  const auto reach = [&](GraphNode* node) {
    const auto known = nodes_.find(node);
    if (known == nodes_.end()) return;
    found.indices.resize(std::max(found.indices.size(), known->second->next_index));
    if (found.indices[node->index]) return;
    found.indices[node->index] = true;
    open.push_back(node);
  };
  for (GraphNode* node : nodes) reach(node);
  while (!open.empty()) {
    const GraphNode* const node = open.back();
    open.pop_back();
    for (GraphNode* dependency : node->dependencies) reach(dependency);
  }
  return found;
}

}  // namespace memledger::virtual_gpu
