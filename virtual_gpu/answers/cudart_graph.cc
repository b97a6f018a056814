// The runtime: graphs, executable graphs, what lives as long as they do. Kernels are not run, so a
// launch does the copies, fills, host functions, events and frees of its nodes.
#include "virtual_gpu/answers/cudart_graph.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <unordered_map>
#include <utility>

#include "virtual_gpu/context_memory.h"

namespace memledger::virtual_gpu {

namespace {

// A node of an executable. What is in it is not the graph's any more.
struct Step {
  GraphNode* node;  // to be found by, as the graph may be gone
  NodeContent content;
  bool enabled;
  std::vector<size_t> dependencies;       // places among the steps
  std::vector<std::vector<Step>> bodies;  // of child graphs and conditional nodes
  std::shared_ptr<void> known_work;
};

using Steps = std::vector<Step>;

struct UserObject {
  void* pointer;
  cudaHostFn_t destroy;
  unsigned references;
};

struct Condition {
  unsigned value;
  bool is_set;  // at each launch; else a kernel has to
};

// What the program owns besides graphs; a fork waits for its lock. Never destroyed.
struct Owned {
  std::mutex mutex;
  std::unordered_map<const void*, std::shared_ptr<Executable>> executables;
  std::unordered_map<const void*, UserObject> user_objects;
  std::unordered_map<unsigned long long, Condition> conditions;
  unsigned long long next_condition = 1;
};

Owned* made_owned = nullptr;

Owned& owned() {
  static Owned* const made = [] {
    made_owned = new Owned;
    pthread_atfork([] { made_owned->mutex.lock(); }, [] { made_owned->mutex.unlock(); },
                   [] { made_owned->mutex.unlock(); });
    return made_owned;
  }();
  return *made;
}

// Destructors of user objects run in the thread of the host functions, as those of a device do not
// run in the caller's either.
void drop_locked(Owned& o, const void* object, unsigned count, std::vector<UserObject>& last) {
  const auto found = o.user_objects.find(object);
  if (found == o.user_objects.end()) return;
  found->second.references -= std::min(count, found->second.references);
  if (found->second.references) return;
  last.push_back(found->second);
  o.user_objects.erase(found);
}

void destroy(const std::vector<UserObject>& last) {
  for (const UserObject& object : last) {
    streams().run_detached(
        [function = object.destroy, pointer = object.pointer] { function(pointer); });
  }
}

// References to user objects that a graph or an executable has. A copy has its own.
struct Retained {
  Retained() = default;
  explicit Retained(const Retained* other) {
    if (!other) return;
    Owned& o = owned();
    std::lock_guard<std::mutex> lock(o.mutex);
    for (const auto& [object, count] : other->counts) {
      const auto found = o.user_objects.find(object);
      if (found == o.user_objects.end()) continue;
      found->second.references += count;
      counts[object] = count;
    }
  }
  ~Retained() {
    if (counts.empty()) return;
    std::vector<UserObject> last;
    {
      Owned& o = owned();
      std::lock_guard<std::mutex> lock(o.mutex);
      for (const auto& [object, count] : counts) drop_locked(o, object, count, last);
    }
    destroy(last);
  }
  Retained(const Retained&) = delete;
  Retained& operator=(const Retained&) = delete;

  std::map<const void*, unsigned> counts;  // under the lock of what is owned
};

std::shared_ptr<Retained> retained_by(Graph* graph, bool make) {
  std::shared_ptr<Retained> retained;
  streams().with_graph(graph, [&](Graph& found) {
    if (!found.retained && make) found.retained = std::make_shared<Retained>();
    retained = std::static_pointer_cast<Retained>(found.retained);
  });
  return retained;
}

}  // namespace

// An executable graph. What a launch reads is replaced, not changed, while one goes on.
struct Executable {
  ~Executable() {
    if (memory) memory->drop_instance();
    give_graph_nodes(device, kernels);
  }

  std::shared_ptr<Steps> steps;
  std::vector<std::shared_ptr<GraphBlock>> allocations;
  std::shared_ptr<GraphMemory> memory;
  std::shared_ptr<Retained> retained;
  unsigned long long flags = 0;
  int device = 0;
  size_t kernels = 0;  // that take_graph_nodes() was asked for
};

ChildParameters::~ChildParameters() {
  for (const cudaGraph_t graph : graphs) streams().remove_graph(graph_of(graph), true);
}

namespace {

std::shared_ptr<Executable> find_executable(cudaGraphExec_t handle) {
  Owned& o = owned();
  std::lock_guard<std::mutex> lock(o.mutex);
  const auto found = o.executables.find(handle);
  return found == o.executables.end() ? nullptr : found->second;
}

// Nothing for what is no graph, or has a cycle.
std::optional<Steps> steps_of(Graph* graph) {
  const auto found = streams().steps_of(graph);
  if (!found) return std::nullopt;
  Steps steps;
  std::unordered_map<const GraphNode*, size_t> places;
  for (const GraphStep& from : *found) {
    places[from.node] = steps.size();
    Step step{from.node,    {cudaSuccess, from.kind, from.run, from.parameters, from.event},
              from.enabled, {},
              {},           from.known_work};
    const auto dependencies = streams().dependencies_of(from.node);
    if (!dependencies) return std::nullopt;
    for (const GraphNode* dependency : *dependencies)
      step.dependencies.push_back(places[dependency]);
    if (from.kind == NodeKind::kGraph || from.kind == NodeKind::kConditional) {
      const auto& child = *static_cast<const ChildParameters*>(from.parameters.get());
      if (child.launched) step.bodies.push_back(*child.launched->steps);
      for (const cudaGraph_t body : child.graphs) {
        auto inner = steps_of(graph_of(body));
        if (!inner) return std::nullopt;
        step.bodies.push_back(std::move(*inner));
      }
    }
    steps.push_back(std::move(step));
  }
  return steps;
}

size_t count_kernels(const Steps& steps) {
  size_t count = 0;
  for (const Step& step : steps) {
    if (step.content.kind == NodeKind::kKernel) ++count;
    for (const Steps& body : step.bodies) count += count_kernels(body);
  }
  return count;
}

cudaError_t instantiate(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long flags) {
  if (!executable || !graph) return cudaErrorInvalidValue;
  constexpr unsigned long long kFlags =
      cudaGraphInstantiateFlagAutoFreeOnLaunch | cudaGraphInstantiateFlagUpload |
      cudaGraphInstantiateFlagDeviceLaunch | cudaGraphInstantiateFlagUseNodePriority;
  if (flags & ~kFlags) return cudaErrorInvalidValue;
  if (const cudaError_t error = ready()) return error;
  auto steps = steps_of(graph_of(graph));
  const std::shared_ptr<GraphMemory> memory = streams().memory_of(graph_of(graph));
  if (!steps || !memory) return cudaErrorInvalidValue;
  if (!memory->add_instance()) return cudaErrorNotSupported;
  auto made = std::make_shared<Executable>();
  made->memory = memory;
  made->flags = flags;
  for (const Step& step : *steps) {
    if (step.content.kind == NodeKind::kAllocate)
      made->allocations.push_back(std::static_pointer_cast<GraphBlock>(step.content.parameters));
  }
  const size_t kernels = count_kernels(*steps);
  if (!take_graph_nodes(current_device(), kernels)) return cudaErrorMemoryAllocation;
  made->device = current_device();
  made->kernels = kernels;
  made->steps = std::make_shared<Steps>(std::move(*steps));
  made->retained = std::make_shared<Retained>(retained_by(graph_of(graph), false).get());
  *executable = reinterpret_cast<cudaGraphExec_t>(new char);  // a handle of its own
  Owned& o = owned();
  std::lock_guard<std::mutex> lock(o.mutex);
  o.executables[*executable] = std::move(made);
  return cudaSuccess;
}

// What a kernel sets it to is not known: the value that each launch begins with counts.
unsigned condition(unsigned long long handle) {
  Owned& o = owned();
  std::lock_guard<std::mutex> lock(o.mutex);
  const auto found = o.conditions.find(handle);
  return found == o.conditions.end() || !found->second.is_set ? 0 : found->second.value;
}

// The body of a conditional node that runs: of a loop once, as a kernel has to end it.
std::optional<size_t> chosen_body(const ChildParameters& node) {
  const unsigned value = condition(node.handle);
  if (node.condition == cudaGraphCondTypeSwitch)
    return value < node.graphs.size() ? std::optional<size_t>(value) : std::nullopt;
  if (value) return 0;
  return node.graphs.size() > 1 ? std::optional<size_t>(1) : std::nullopt;
}

thread_local bool launching = false;

// What a step did, for those who follow values. What is behind work that has not run is not done.
void tell_of_step(const Step& step) {
  switch (step.content.kind) {
    case NodeKind::kHost:
    case NodeKind::kEmpty:
    case NodeKind::kEventRecord:
    case NodeKind::kEventWait:
    case NodeKind::kGraph:  // its own steps have reported it
      break;
    default:
      known_values().launched(streams().has_queued() ? nullptr : step.known_work.get());
  }
}

// `kept` lives until all of it is done.
void run_steps(const Steps& steps, cudaStream_t stream, const std::shared_ptr<Executable>& kept) {
  for (const Step& step : steps) {
    const NodeContent& content = step.content;
    if (!step.enabled) continue;
    switch (content.kind) {
      case NodeKind::kEventRecord:
        record_event(reinterpret_cast<cudaEvent_t>(const_cast<void*>(content.event)), stream,
                     false);
        break;
      case NodeKind::kEventWait:
        streams().wait(stream, current_device(), content.event, false);
        break;
      case NodeKind::kFree:
        if (const auto block =
                static_cast<const FreeParameters*>(content.parameters.get())->block.lock())
          reach_free(*block);
        break;
      case NodeKind::kGraph:
        for (const Steps& body : step.bodies) run_steps(body, stream, kept);
        break;
      case NodeKind::kConditional:
        if (const auto body =
                chosen_body(*static_cast<const ChildParameters*>(content.parameters.get())))
          run_steps(step.bodies[*body], stream, kept);
        break;
      default:
        if (!content.run) break;
        if (streams().queue_part(stream, current_device(), content.kind,
                                 [run = content.run, kept] { run(); }))
          break;
        launching = true;
        content.run();
        launching = false;
        break;
    }
    tell_of_step(step);
  }
}

cudaError_t launch(cudaGraphExec_t handle, cudaStream_t stream) {
  if (const cudaError_t error = ready()) return error;
  std::shared_ptr<Executable> executable = find_executable(handle);
  if (!executable) return cudaErrorInvalidValue;
  Streams::CaptureInfo capture;
  if (const StreamError error = streams().capture_info(stream, current_device(), &capture);
      error != StreamError::kNone)
    return stream_result(error);
  std::shared_ptr<ChildParameters> child;
  if (capture.status != CaptureStatus::kNone) {
    // Children have no memory nodes.
    if (!executable->allocations.empty()) return cudaErrorStreamCaptureUnsupported;
    child = std::make_shared<ChildParameters>();
    child->launched = executable;
  } else if (!is_stream(stream)) {
    return cudaErrorInvalidResourceHandle;
  } else if (!reach_allocations(
                 executable->allocations,
                 (executable->flags & cudaGraphInstantiateFlagAutoFreeOnLaunch) != 0)) {
    return cudaErrorInvalidValue;
  }
  const Streams::Submission submission =
      streams().submit(stream, current_device(), NodeKind::kGraph, nullptr,
                       Streams::Order::kInStream, std::move(child));
  if (submission.error != StreamError::kNone) return stream_result(submission.error);
  if (submission.captured) return cudaSuccess;
  Machine::get().note_kernel();
  std::shared_ptr<const Steps> steps;
  {
    std::lock_guard<std::mutex> lock(owned().mutex);
    steps = executable->steps;
  }
  run_steps(*steps, stream, executable);
  known_values().ended_launch();
  return cudaSuccess;
}

Step* find_step(Steps& steps, const GraphNode* node) {
  for (Step& step : steps) {
    if (step.node == node) return &step;
    for (Steps& body : step.bodies) {
      if (Step* const found = find_step(body, node)) return found;
    }
  }
  return nullptr;
}

// What several nodes did together is not true any more where one is changed.
void forget_known_work(Steps& steps) {
  for (Step& step : steps) {
    step.known_work = nullptr;
    for (Steps& body : step.bodies) forget_known_work(body);
  }
}

// Calls with a step of an executable that no launch is reading.
template <typename F>
cudaError_t with_step(cudaGraphExec_t handle, cudaGraphNode_t node, F use) {
  Owned& o = owned();
  std::lock_guard<std::mutex> lock(o.mutex);
  const auto found = o.executables.find(handle);
  if (found == o.executables.end()) return cudaErrorInvalidValue;
  std::shared_ptr<Steps>& steps = found->second->steps;
  if (steps.use_count() > 1) steps = std::make_shared<Steps>(*steps);
  Step* const step = find_step(*steps, node_of(node));
  forget_known_work(*steps);
  return step ? use(*step) : cudaErrorInvalidValue;
}

// Where two graphs differ in what an update must not change.
cudaGraphExecUpdateResult difference(const Steps& old_steps, const Steps& new_steps,
                                     GraphNode** node) {
  *node = nullptr;
  if (old_steps.size() != new_steps.size()) return cudaGraphExecUpdateErrorTopologyChanged;
  for (size_t i = 0; i < old_steps.size(); ++i) {
    const Step &was = old_steps[i], &is = new_steps[i];
    *node = is.node;
    if (was.content.kind != is.content.kind) return cudaGraphExecUpdateErrorNodeTypeChanged;
    if (was.content.kind == NodeKind::kAllocate || was.content.kind == NodeKind::kFree)
      return cudaGraphExecUpdateErrorNotSupported;
    if (was.dependencies != is.dependencies || was.bodies.size() != is.bodies.size())
      return cudaGraphExecUpdateErrorTopologyChanged;
    for (size_t body = 0; body < was.bodies.size(); ++body) {
      if (const auto found = difference(was.bodies[body], is.bodies[body], node)) return found;
    }
  }
  *node = nullptr;
  return cudaGraphExecUpdateSuccess;
}

}  // namespace

bool launches_graph() { return launching; }

Graph* copy_graph(Graph* original, bool embedded) {
  const auto steps = streams().steps_of(original);
  const std::shared_ptr<GraphMemory> memory = streams().memory_of(original);
  if (!steps || !memory || memory->has_nodes()) return nullptr;
  Graph* const copy = streams().make_graph(embedded);
  std::unordered_map<const GraphNode*, GraphNode*> copies;
  for (const GraphStep& step : *steps) {
    std::vector<GraphNode*> dependencies;
    for (GraphNode* dependency :
         streams().dependencies_of(step.node).value_or(std::vector<GraphNode*>()))
      dependencies.push_back(copies[dependency]);
    std::shared_ptr<void> parameters = step.parameters;
    if (step.kind == NodeKind::kGraph || step.kind == NodeKind::kConditional) {
      const auto& child = *static_cast<const ChildParameters*>(step.parameters.get());
      auto made = std::make_shared<ChildParameters>();
      made->launched = child.launched;
      made->handle = child.handle;
      made->condition = child.condition;
      for (const cudaGraph_t graph : child.graphs) {
        if (Graph* const inner = copy_graph(graph_of(graph), true))
          made->graphs.push_back(handle_of(inner));
      }
      parameters = std::move(made);
    }
    GraphNode* const made = streams().add_node(copy, std::move(dependencies), step.kind, step.run,
                                               std::move(parameters), step.event);
    streams().with_node(made, [&](GraphNode& node, Graph&) { node.known_work = step.known_work; });
    copies[step.node] = made;
  }
  auto retained = std::make_shared<Retained>(retained_by(original, false).get());
  streams().with_graph(copy, [&](Graph& graph) {
    graph.copies = std::move(copies);
    graph.retained = std::move(retained);
  });
  return copy;
}

NodeContent child_content(cudaGraph_t child) {
  if (!child || !streams().is_graph(graph_of(child))) return {cudaErrorInvalidValue};
  Graph* const copy = copy_graph(graph_of(child), true);
  if (!copy) return {cudaErrorNotSupported};
  auto parameters = std::make_shared<ChildParameters>();
  parameters->graphs.push_back(handle_of(copy));
  return {cudaSuccess, NodeKind::kGraph, nullptr, std::move(parameters)};
}

cudaError_t set_in_executable(cudaGraphExec_t executable, cudaGraphNode_t node,
                              const NodeContent& content) {
  if (content.error) return content.error;
  Steps body;
  if (content.kind == NodeKind::kGraph) {
    const auto& child = *static_cast<const ChildParameters*>(content.parameters.get());
    auto steps = steps_of(graph_of(child.graphs.front()));
    if (!steps) return cudaErrorInvalidValue;
    body = std::move(*steps);
  }
  std::shared_ptr<void> replaced;  // destroyed after the lock is released
  return with_step(executable, node, [&](Step& step) {
    if (step.content.kind != content.kind) return cudaErrorInvalidValue;
    if (content.kind == NodeKind::kGraph) {
      GraphNode* different = nullptr;
      if (step.bodies.size() != 1 || difference(step.bodies[0], body, &different))
        return cudaErrorInvalidValue;
      std::swap(step.bodies[0], body);  // likewise
    }
    replaced = std::exchange(step.content.parameters, content.parameters);
    step.content.run = content.run;
    step.content.event = content.event;
    return cudaSuccess;
  });
}

cudaError_t with_step_enabled(cudaGraphExec_t executable, cudaGraphNode_t node,
                              const std::function<void(bool&)>& use) {
  return with_step(executable, node, [&](Step& step) {
    if (step.content.kind != NodeKind::kKernel && step.content.kind != NodeKind::kCopy &&
        step.content.kind != NodeKind::kFill)
      return cudaErrorInvalidValue;
    use(step.enabled);
    return cudaSuccess;
  });
}

cudaError_t capture_allocation(void** pointer, size_t bytes, int device, cudaStream_t stream,
                               const Streams::CaptureInfo& capture) {
  if (capture.status == CaptureStatus::kInvalidated) return cudaErrorStreamCaptureInvalidated;
  const std::vector<GraphNode*> dependencies(capture.dependencies,
                                             capture.dependencies + capture.dependency_count);
  const std::shared_ptr<GraphBlock> block = capture.memory->allocate(
      device, bytes, [&] { return streams().predecessors_of(dependencies); });
  if (!block) return cudaErrorMemoryAllocation;
  const Streams::Submission submission = streams().submit(
      stream, current_device(), NodeKind::kAllocate, nullptr, Streams::Order::kInStream, block);
  // Another thread may have ended the capture meanwhile.
  if (!submission.captured) {
    capture.memory->take_back(*block);
    return submission.error != StreamError::kNone ? stream_result(submission.error)
                                                  : cudaErrorInvalidValue;
  }
  *pointer = block->pointer;
  return cudaSuccess;
}

cudaError_t capture_free(void* pointer, cudaStream_t stream, const Streams::CaptureInfo& capture) {
  if (capture.status == CaptureStatus::kInvalidated) return cudaErrorStreamCaptureInvalidated;
  const std::shared_ptr<GraphBlock> block = find_graph_block(pointer);
  if (!block) return cudaErrorInvalidValue;
  const Streams::Submission submission = streams().submit(
      stream, current_device(), NodeKind::kFree, nullptr, Streams::Order::kInStream,
      std::make_shared<FreeParameters>(FreeParameters{pointer, block}));
  if (submission.error != StreamError::kNone) return stream_result(submission.error);
  if (!submission.captured) return cudaErrorInvalidValue;
  capture.memory->free_by_node(*block, submission.node_index);
  return cudaSuccess;
}

}  // namespace memledger::virtual_gpu

using namespace memledger::virtual_gpu;

MEMLEDGER_ANSWER cudaError_t cudaGraphCreate(cudaGraph_t* graph, unsigned flags) {
  if (!graph || flags) return result(cudaErrorInvalidValue);
  *graph = handle_of(streams().make_graph());
  return cudaSuccess;
}

MEMLEDGER_ANSWER cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  return result(streams().remove_graph(graph_of(graph)) ? cudaSuccess : cudaErrorInvalidValue);
}

MEMLEDGER_ANSWER cudaError_t cudaGraphClone(cudaGraph_t* clone, cudaGraph_t original) {
  if (!clone || !streams().is_graph(graph_of(original))) return result(cudaErrorInvalidValue);
  *clone = handle_of(copy_graph(graph_of(original), false));
  return result(*clone ? cudaSuccess : cudaErrorNotSupported);
}

MEMLEDGER_ANSWER cudaError_t cudaGraphNodeFindInClone(cudaGraphNode_t* node,
                                                      cudaGraphNode_t original, cudaGraph_t clone) {
  if (!node) return result(cudaErrorInvalidValue);
  *node = nullptr;
  streams().with_graph(graph_of(clone), [&](const Graph& graph) {
    const auto found = graph.copies.find(node_of(original));
    if (found != graph.copies.end()) *node = handle_of(found->second);
  });
  return result(*node ? cudaSuccess : cudaErrorInvalidValue);
}

MEMLEDGER_ANSWER cudaError_t cudaGraphConditionalHandleCreate(cudaGraphConditionalHandle* handle,
                                                              cudaGraph_t graph, unsigned value,
                                                              unsigned flags) {
  if (!handle || !streams().is_graph(graph_of(graph)) || flags & ~cudaGraphCondAssignDefault)
    return result(cudaErrorInvalidValue);
  Owned& o = owned();
  std::lock_guard<std::mutex> lock(o.mutex);
  *handle = o.next_condition++;
  o.conditions[*handle] = {value, (flags & cudaGraphCondAssignDefault) != 0};
  return cudaSuccess;
}

// Executable graphs.

MEMLEDGER_ANSWER cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph,
                                                  unsigned long long flags) {
  return result(instantiate(executable, graph, flags));
}

MEMLEDGER_ANSWER cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* executable,
                                                           cudaGraph_t graph,
                                                           unsigned long long flags) {
  return result(instantiate(executable, graph, flags));
}

MEMLEDGER_ANSWER cudaError_t cudaGraphInstantiateWithParams(
    cudaGraphExec_t* executable, cudaGraph_t graph, cudaGraphInstantiateParams* parameters) {
  if (!parameters) return result(cudaErrorInvalidValue);
  const cudaError_t error = instantiate(executable, graph, parameters->flags);
  parameters->errNode_out = nullptr;
  parameters->result_out = error ? cudaGraphInstantiateError : cudaGraphInstantiateSuccess;
  return result(error);
}

MEMLEDGER_ANSWER cudaError_t cudaGraphExecGetFlags(cudaGraphExec_t handle,
                                                   unsigned long long* flags) {
  const std::shared_ptr<Executable> executable = find_executable(handle);
  if (!executable || !flags) return result(cudaErrorInvalidValue);
  *flags = executable->flags;
  return cudaSuccess;
}

MEMLEDGER_ANSWER cudaError_t cudaGraphExecUpdate(cudaGraphExec_t handle, cudaGraph_t graph,
                                                 cudaGraphExecUpdateResultInfo* info) {
  if (!info) return result(cudaErrorInvalidValue);
  std::memset(info, 0, sizeof *info);
  info->result = cudaGraphExecUpdateError;
  const std::shared_ptr<Executable> executable = find_executable(handle);
  auto steps = steps_of(graph_of(graph));
  if (!steps || !executable) return result(cudaErrorInvalidValue);
  auto made = std::make_shared<Steps>(std::move(*steps));
  auto retained = std::make_shared<Retained>(retained_by(graph_of(graph), false).get());
  GraphNode* different = nullptr;
  {
    std::lock_guard<std::mutex> lock(owned().mutex);
    info->result = difference(*executable->steps, *made, &different);
    info->errorNode = handle_of(different);
    if (info->result == cudaGraphExecUpdateSuccess) {
      // The nodes of the graph that the executable was made of stay those to name.
      const std::function<void(Steps&, const Steps&)> keep_nodes = [&](Steps& to,
                                                                       const Steps& from) {
        for (size_t i = 0; i < to.size(); ++i) {
          to[i].node = from[i].node;
          for (size_t body = 0; body < to[i].bodies.size(); ++body)
            keep_nodes(to[i].bodies[body], from[i].bodies[body]);
        }
      };
      keep_nodes(*made, *executable->steps);
      std::swap(executable->steps, made);
      std::swap(executable->retained, retained);
    }
  }
  return result(info->result == cudaGraphExecUpdateSuccess ? cudaSuccess
                                                           : cudaErrorGraphExecUpdateFailure);
}

MEMLEDGER_ANSWER cudaError_t cudaGraphUpload(cudaGraphExec_t executable, cudaStream_t stream) {
  if (!find_executable(executable)) return result(cudaErrorInvalidValue);
  return result(is_stream(stream) ? cudaSuccess : cudaErrorInvalidResourceHandle);
}

MEMLEDGER_ANSWER cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
  return result(launch(executable, stream));
}

MEMLEDGER_ANSWER cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  std::shared_ptr<Executable> last;  // destroyed after the lock is released
  {
    Owned& o = owned();
    std::lock_guard<std::mutex> lock(o.mutex);
    const auto found = o.executables.find(executable);
    if (found != o.executables.end()) {
      last = std::move(found->second);
      o.executables.erase(found);
    }
  }
  if (!last) return result(cudaErrorInvalidValue);
  delete reinterpret_cast<char*>(executable);
  return cudaSuccess;
}

MEMLEDGER_ANSWER cudaError_t cudaGraphDebugDotPrint(cudaGraph_t graph, const char* path, unsigned) {
  const auto steps = streams().steps_of(graph_of(graph));
  if (!path || !steps) return result(cudaErrorInvalidValue);
  std::FILE* const file = std::fopen(path, "we");
  if (!file) return result(cudaErrorOperatingSystem);
  std::fputs("digraph dot {\n", file);
  for (const GraphStep& step : *steps) {
    std::fprintf(file, "\"%p\" [label=\"%d\"]\n", static_cast<const void*>(step.node),
                 static_cast<int>(step.kind));
    for (const GraphNode* dependency :
         streams().dependencies_of(step.node).value_or(std::vector<GraphNode*>()))
      std::fprintf(file, "\"%p\" -> \"%p\"\n", static_cast<const void*>(dependency),
                   static_cast<const void*>(step.node));
  }
  std::fputs("}\n", file);
  std::fclose(file);
  return cudaSuccess;
}

// Objects of the program's that live as long as a graph.

MEMLEDGER_ANSWER cudaError_t cudaUserObjectCreate(cudaUserObject_t* object, void* pointer,
                                                  cudaHostFn_t destroy_function,
                                                  unsigned references, unsigned flags) {
  if (!object || !destroy_function || !references || flags != cudaUserObjectNoDestructorSync)
    return result(cudaErrorInvalidValue);
  // Nothing lies at a handle, and none is given twice.
  static std::atomic<uintptr_t> last_handle{0};
  constexpr uintptr_t kStep = 16;
  *object = reinterpret_cast<cudaUserObject_t>(last_handle.fetch_add(kStep) + kStep);
  Owned& o = owned();
  std::lock_guard<std::mutex> lock(o.mutex);
  o.user_objects[*object] = {pointer, destroy_function, references};
  return cudaSuccess;
}

MEMLEDGER_ANSWER cudaError_t cudaUserObjectRetain(cudaUserObject_t object, unsigned count) {
  Owned& o = owned();
  std::lock_guard<std::mutex> lock(o.mutex);
  const auto found = o.user_objects.find(object);
  if (found == o.user_objects.end() || !count) return result(cudaErrorInvalidValue);
  found->second.references += count;
  return cudaSuccess;
}

MEMLEDGER_ANSWER cudaError_t cudaUserObjectRelease(cudaUserObject_t object, unsigned count) {
  std::vector<UserObject> last;
  {
    Owned& o = owned();
    std::lock_guard<std::mutex> lock(o.mutex);
    if (!o.user_objects.count(object) || !count) return result(cudaErrorInvalidValue);
    drop_locked(o, object, count, last);
  }
  destroy(last);
  return cudaSuccess;
}

MEMLEDGER_ANSWER cudaError_t cudaGraphRetainUserObject(cudaGraph_t graph, cudaUserObject_t object,
                                                       unsigned count, unsigned flags) {
  const std::shared_ptr<Retained> retained = retained_by(graph_of(graph), true);
  if (!retained || !count) return result(cudaErrorInvalidValue);
  Owned& o = owned();
  std::lock_guard<std::mutex> lock(o.mutex);
  const auto found = o.user_objects.find(object);
  if (found == o.user_objects.end()) return result(cudaErrorInvalidValue);
  if (flags != cudaGraphUserObjectMove) found->second.references += count;
  retained->counts[object] += count;
  return cudaSuccess;
}

MEMLEDGER_ANSWER cudaError_t cudaGraphReleaseUserObject(cudaGraph_t graph, cudaUserObject_t object,
                                                        unsigned count) {
  const std::shared_ptr<Retained> retained = retained_by(graph_of(graph), false);
  if (!retained || !count) return result(cudaErrorInvalidValue);
  std::vector<UserObject> last;
  {
    Owned& o = owned();
    std::lock_guard<std::mutex> lock(o.mutex);
    const auto held = retained->counts.find(object);
    if (held == retained->counts.end() || held->second < count)
      return result(cudaErrorInvalidValue);
    held->second -= count;
    if (!held->second) retained->counts.erase(held);
    drop_locked(o, object, count, last);
  }
  destroy(last);
  return cudaSuccess;
}

// Memory of graphs.

MEMLEDGER_ANSWER cudaError_t cudaDeviceGraphMemTrim(int device) {
  if (!Machine::get().is_device(device)) return result(cudaErrorInvalidDevice);
  Machine::get().trim(Machine::get().graph_pool(device), 0);
  return cudaSuccess;
}

MEMLEDGER_ANSWER cudaError_t cudaDeviceGetGraphMemAttribute(int device,
                                                            cudaGraphMemAttributeType attribute,
                                                            void* value) {
  if (!value) return result(cudaErrorInvalidValue);
  if (!Machine::get().is_device(device)) return result(cudaErrorInvalidDevice);
  cudaError_t error = cudaSuccess;
  Machine::get().with_pool(Machine::get().graph_pool(device), [&](const MemoryPool& pool) {
    auto& number = *static_cast<uint64_t*>(value);
    switch (attribute) {
      case cudaGraphMemAttrUsedMemCurrent:
        number = pool.used;
        break;
      case cudaGraphMemAttrUsedMemHigh:
        number = pool.used_high;
        break;
      case cudaGraphMemAttrReservedMemCurrent:
        number = pool.reserved;
        break;
      case cudaGraphMemAttrReservedMemHigh:
        number = pool.reserved_high;
        break;
      default:
        error = cudaErrorInvalidValue;
        break;
    }
  });
  return result(error);
}

MEMLEDGER_ANSWER cudaError_t cudaDeviceSetGraphMemAttribute(int device,
                                                            cudaGraphMemAttributeType attribute,
                                                            void* value) {
  if (!value || *static_cast<uint64_t*>(value) != 0) return result(cudaErrorInvalidValue);
  if (!Machine::get().is_device(device)) return result(cudaErrorInvalidDevice);
  Machine::get().with_pool(Machine::get().graph_pool(device), [&](MemoryPool& pool) {
    if (attribute == cudaGraphMemAttrUsedMemHigh) pool.used_high = pool.used;
    if (attribute == cudaGraphMemAttrReservedMemHigh) pool.reserved_high = pool.reserved;
  });
  return cudaSuccess;
}
