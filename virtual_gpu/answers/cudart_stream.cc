// The runtime: streams, events, callbacks, capture. The rules are those of virtual_gpu/streams.h.
#include "virtual_gpu/answers/cudart_graph.h"

#include <pthread.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <map>
#include <unordered_map>
#include <utility>

namespace memledger::virtual_gpu {
namespace {

struct Event {
  const int device = current_device();
  unsigned flags;
  std::atomic<int64_t> recorded_at{0};  // nanoseconds
};

// The events that are valid; a fork waits for its lock as for the machine's. Never destroyed.
struct Handles {
  std::mutex mutex;
  std::unordered_map<const void*, std::unique_ptr<Event>> events;
  unsigned long long next_stream_id = 8;
  // What the program set; a stream that is destroyed takes its own along.
  std::map<std::pair<const void*, int>, cudaLaunchAttributeValue> attributes;
};

Handles* made_handles = nullptr;
Streams* made_streams = nullptr;

Handles& handles() {
  static Handles* const made = [] {
    made_handles = new Handles;
    pthread_atfork([] { made_handles->mutex.lock(); }, [] { made_handles->mutex.unlock(); },
                   [] { made_handles->mutex.unlock(); });
    return made_handles;
  }();
  return *made;
}

// Valid until the program destroys the event, which it must not do while it uses it.
Event* find_event(cudaEvent_t event) {
  Handles& h = handles();
  std::lock_guard<std::mutex> lock(h.mutex);
  const auto found = h.events.find(event);
  return found == h.events.end() ? nullptr : found->second.get();
}

// The time that add_device_time() added to the host's.
std::atomic<int64_t> added_time{0};

int64_t now() { return added_time.load(std::memory_order_relaxed) + Streams::steady_nanoseconds(); }

}  // namespace

void add_device_time(int64_t nanoseconds) {
  added_time.fetch_add(nanoseconds, std::memory_order_relaxed);
}

Streams& streams() {
  static Streams* const made = [] {
    made_streams = new Streams(Machine::get().specification().late_events);
    pthread_atfork([] { made_streams->lock(); }, [] { made_streams->unlock(); },
                   [] { made_streams->unlock_in_child(); });
    return made_streams;
  }();
  return *made;
}

std::optional<unsigned> event_flags(cudaEvent_t event) {
  const Event* const found = find_event(event);
  return found ? std::optional<unsigned>(found->flags) : std::nullopt;
}

cudaError_t stream_result(StreamError error) { return static_cast<cudaError_t>(error); }

cudaError_t check_capture() { return stream_result(streams().check_unsafe()); }

bool is_stream(cudaStream_t stream) {
  return streams().find_stream(stream, current_device()).has_value();
}

int stream_device(cudaStream_t stream) {
  const auto found = streams().find_stream(stream, current_device());
  return found ? found->device : current_device();
}

}  // namespace memledger::virtual_gpu

using namespace memledger::virtual_gpu;

MEMLEDGER_ANSWER cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags,
                                                          int priority) {
  if (!stream || flags > cudaStreamNonBlocking) return result(cudaErrorInvalidValue);
  if (const cudaError_t error = ready()) return result(error);
  // The handle is the address of a byte of its own.
  auto* const handle = reinterpret_cast<cudaStream_t>(new char);
  unsigned long long id = 0;
  {
    Handles& h = handles();
    std::lock_guard<std::mutex> lock(h.mutex);
    id = h.next_stream_id++;
  }
  streams().add_stream(handle, {current_device(), std::min(0, std::max(-5, priority)),
                                flags != cudaStreamNonBlocking, id});
  *stream = handle;
  return cudaSuccess;
}

MEMLEDGER_ANSWER cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  return cudaStreamCreateWithPriority(stream, flags, 0);
}

MEMLEDGER_ANSWER cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  return cudaStreamCreateWithPriority(stream, cudaStreamDefault, 0);
}

MEMLEDGER_ANSWER cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  if (!streams().remove_stream(stream)) return result(cudaErrorInvalidResourceHandle);
  {
    Handles& h = handles();
    std::lock_guard<std::mutex> lock(h.mutex);
    auto& all = h.attributes;
    for (auto set = all.lower_bound({stream, std::numeric_limits<int>::min()});
         set != all.end() && set->first.first == stream;)
      set = all.erase(set);
  }
  delete reinterpret_cast<char*>(stream);
  return cudaSuccess;
}

MEMLEDGER_ANSWER cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  if (const cudaError_t error = ready()) return result(error);
  return result(stream_result(streams().synchronize_stream(stream, current_device())));
}

MEMLEDGER_ANSWER cudaError_t cudaStreamQuery(cudaStream_t stream) {
  if (const cudaError_t error = ready()) return result(error);
  return result(stream_result(streams().query_stream(stream, current_device())));
}

MEMLEDGER_ANSWER cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event,
                                                 unsigned flags) {
  if (const cudaError_t error = ready()) return result(error);
  return result(stream_result(
      streams().wait(stream, current_device(), event, (flags & cudaEventWaitExternal) != 0)));
}

namespace {

// What a stream is, for the functions that ask; nothing, and the error, for what is none.
template <typename T, typename F>
cudaError_t tell_of_stream(cudaStream_t stream, T* value, F read) {
  const auto found = streams().find_stream(stream, current_device());
  if (!found) return result(cudaErrorInvalidResourceHandle);
  if (!value) return result(cudaErrorInvalidValue);
  *value = read(*found);
  return cudaSuccess;
}

}  // namespace

MEMLEDGER_ANSWER cudaError_t cudaStreamGetPriority(cudaStream_t stream, int* priority) {
  return tell_of_stream(stream, priority, [](const auto& info) { return info.priority; });
}

MEMLEDGER_ANSWER cudaError_t cudaStreamGetFlags(cudaStream_t stream, unsigned* flags) {
  return tell_of_stream(stream, flags, [](const auto& info) {
    return static_cast<unsigned>(info.blocking ? cudaStreamDefault : cudaStreamNonBlocking);
  });
}

MEMLEDGER_ANSWER cudaError_t cudaStreamGetId(cudaStream_t stream, unsigned long long* id) {
  return tell_of_stream(stream, id, [](const auto& info) { return info.id; });
}

#if CUDART_VERSION >= 12080
MEMLEDGER_ANSWER cudaError_t cudaStreamGetDevice(cudaStream_t stream, int* device) {
  return tell_of_stream(stream, device, [](const auto& info) { return info.device; });
}
#endif

// Attributes change nothing here, but are remembered.

MEMLEDGER_ANSWER cudaError_t cudaStreamSetAttribute(cudaStream_t stream, cudaStreamAttrID attribute,
                                                    const cudaStreamAttrValue* value) {
  if (!is_stream(stream)) return result(cudaErrorInvalidResourceHandle);
  if (!value) return result(cudaErrorInvalidValue);
  Handles& h = handles();
  std::lock_guard<std::mutex> lock(h.mutex);
  h.attributes[{stream, attribute}] = *value;
  return cudaSuccess;
}

MEMLEDGER_ANSWER cudaError_t cudaStreamGetAttribute(cudaStream_t stream, cudaStreamAttrID attribute,
                                                    cudaStreamAttrValue* value) {
  if (!value) return result(cudaErrorInvalidValue);
  const auto found = streams().find_stream(stream, current_device());
  if (!found) return result(cudaErrorInvalidResourceHandle);
  std::memset(value, 0, sizeof *value);
  if (attribute == cudaLaunchAttributePriority) value->priority = found->priority;
  Handles& h = handles();
  std::lock_guard<std::mutex> lock(h.mutex);
  const auto set = h.attributes.find({stream, attribute});
  if (set != h.attributes.end()) *value = set->second;
  return cudaSuccess;
}

MEMLEDGER_ANSWER cudaError_t cudaStreamCopyAttributes(cudaStream_t to, cudaStream_t from) {
  if (!is_stream(to) || !is_stream(from)) return result(cudaErrorInvalidResourceHandle);
  Handles& h = handles();
  std::lock_guard<std::mutex> lock(h.mutex);
  std::map<int, cudaLaunchAttributeValue> copied;
  for (const auto& [key, value] : h.attributes) {
    if (key.first == from) copied[key.second] = value;
  }
  for (const auto& [attribute, value] : copied) h.attributes[{to, attribute}] = value;
  return cudaSuccess;
}

// Capture.

MEMLEDGER_ANSWER cudaError_t cudaStreamIsCapturing(cudaStream_t stream,
                                                   cudaStreamCaptureStatus* status) {
  if (!status) return result(cudaErrorInvalidValue);
  Streams::CaptureInfo info;
  const StreamError error = streams().capture_info(stream, current_device(), &info);
  *status = static_cast<cudaStreamCaptureStatus>(info.status);
  return result(stream_result(error));
}

namespace {

cudaError_t capture_info(cudaStream_t stream, cudaStreamCaptureStatus* status,
                         unsigned long long* id, cudaGraph_t* graph,
                         const cudaGraphNode_t** dependencies, size_t* dependency_count) {
  if (!status) return cudaErrorInvalidValue;
  Streams::CaptureInfo info;
  const StreamError error = streams().capture_info(stream, current_device(), &info);
  *status = static_cast<cudaStreamCaptureStatus>(info.status);
  if (id) *id = info.id;
  if (graph) *graph = reinterpret_cast<cudaGraph_t>(info.graph);
  if (dependencies) *dependencies = reinterpret_cast<const cudaGraphNode_t*>(info.dependencies);
  if (dependency_count) *dependency_count = info.dependency_count;
  return stream_result(error);
}

cudaError_t update_dependencies(cudaStream_t stream, cudaGraphNode_t* nodes, size_t count,
                                unsigned flags) {
  if (count && !nodes) return cudaErrorInvalidValue;
  auto* const first = reinterpret_cast<GraphNode**>(nodes);
  return stream_result(streams().set_dependencies(stream, current_device(), {first, first + count},
                                                  flags == cudaStreamSetCaptureDependencies));
}

}  // namespace

#if CUDART_VERSION >= 13000
MEMLEDGER_ANSWER cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream,
                                                      cudaStreamCaptureStatus* status,
                                                      unsigned long long* id, cudaGraph_t* graph,
                                                      const cudaGraphNode_t** dependencies,
                                                      const cudaGraphEdgeData** edges,
                                                      size_t* dependency_count) {
  if (edges) *edges = nullptr;
  return result(capture_info(stream, status, id, graph, dependencies, dependency_count));
}

MEMLEDGER_ANSWER cudaError_t cudaStreamUpdateCaptureDependencies(cudaStream_t stream,
                                                                 cudaGraphNode_t* dependencies,
                                                                 const cudaGraphEdgeData*,
                                                                 size_t count, unsigned flags) {
  return result(update_dependencies(stream, dependencies, count, flags));
}
#else
// The header maps the name to that of its version.
MEMLEDGER_ANSWER cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream,
                                                      cudaStreamCaptureStatus* status,
                                                      unsigned long long* id, cudaGraph_t* graph,
                                                      const cudaGraphNode_t** dependencies,
                                                      size_t* dependency_count) {
  return result(capture_info(stream, status, id, graph, dependencies, dependency_count));
}

MEMLEDGER_ANSWER cudaError_t cudaStreamGetCaptureInfo_v3(cudaStream_t stream,
                                                         cudaStreamCaptureStatus* status,
                                                         unsigned long long* id, cudaGraph_t* graph,
                                                         const cudaGraphNode_t** dependencies,
                                                         const cudaGraphEdgeData** edges,
                                                         size_t* dependency_count) {
  if (edges) *edges = nullptr;
  return result(capture_info(stream, status, id, graph, dependencies, dependency_count));
}

MEMLEDGER_ANSWER cudaError_t cudaStreamUpdateCaptureDependencies(cudaStream_t stream,
                                                                 cudaGraphNode_t* dependencies,
                                                                 size_t count, unsigned flags) {
  return result(update_dependencies(stream, dependencies, count, flags));
}

MEMLEDGER_ANSWER cudaError_t cudaStreamUpdateCaptureDependencies_v2(cudaStream_t stream,
                                                                    cudaGraphNode_t* dependencies,
                                                                    const cudaGraphEdgeData*,
                                                                    size_t count, unsigned flags) {
  return result(update_dependencies(stream, dependencies, count, flags));
}
#endif

MEMLEDGER_ANSWER cudaError_t cudaStreamBeginCapture(cudaStream_t stream,
                                                    cudaStreamCaptureMode mode) {
  if (const cudaError_t error = ready()) return result(error);
  if (mode < cudaStreamCaptureModeGlobal || mode > cudaStreamCaptureModeRelaxed)
    return result(cudaErrorInvalidValue);
  return result(stream_result(
      streams().begin_capture(stream, current_device(), static_cast<CaptureMode>(mode))));
}

MEMLEDGER_ANSWER cudaError_t cudaStreamBeginCaptureToGraph(cudaStream_t stream, cudaGraph_t graph,
                                                           const cudaGraphNode_t* dependencies,
                                                           const cudaGraphEdgeData*, size_t count,
                                                           cudaStreamCaptureMode mode) {
  if (const cudaError_t error = ready()) return result(error);
  if (!graph || (count && !dependencies)) return result(cudaErrorInvalidValue);
  auto* const first = reinterpret_cast<GraphNode* const*>(dependencies);
  return result(stream_result(
      streams().begin_capture(stream, current_device(), static_cast<CaptureMode>(mode),
                              reinterpret_cast<Graph*>(graph), {first, first + count})));
}

MEMLEDGER_ANSWER cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  Graph* made = nullptr;
  const StreamError error = streams().end_capture(stream, current_device(), &made);
  if (graph) *graph = reinterpret_cast<cudaGraph_t>(made);
  return result(stream_result(error));
}

MEMLEDGER_ANSWER cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  if (!mode || *mode < cudaStreamCaptureModeGlobal || *mode > cudaStreamCaptureModeRelaxed)
    return result(cudaErrorInvalidValue);
  *mode =
      static_cast<cudaStreamCaptureMode>(Streams::exchange_mode(static_cast<CaptureMode>(*mode)));
  return cudaSuccess;
}

// Events.

MEMLEDGER_ANSWER cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  if (!event) return result(cudaErrorInvalidValue);
  if (const cudaError_t error = ready()) return result(error);
  if (flags & cudaEventInterprocess && !(flags & cudaEventDisableTiming))
    return result(cudaErrorInvalidValue);
  if (flags & cudaEventInterprocess && !Machine::get().is_shared()) {
    MEMLEDGER_SAY_REFUSED(kNoSharing);
    return result(cudaErrorNotSupported);
  }
  auto made = std::make_unique<Event>();
  made->flags = flags;
  *event = reinterpret_cast<cudaEvent_t>(made.get());
  streams().add_event(*event, current_device());
  Handles& h = handles();
  std::lock_guard<std::mutex> lock(h.mutex);
  h.events[*event] = std::move(made);
  return cudaSuccess;
}

MEMLEDGER_ANSWER cudaError_t cudaEventCreate(cudaEvent_t* event) {
  return cudaEventCreateWithFlags(event, cudaEventDefault);
}

MEMLEDGER_ANSWER cudaError_t cudaEventDestroy(cudaEvent_t event) {
  if (!streams().remove_event(event)) return result(cudaErrorInvalidResourceHandle);
  Handles& h = handles();
  std::lock_guard<std::mutex> lock(h.mutex);
  h.events.erase(event);
  return cudaSuccess;
}

namespace memledger::virtual_gpu {

cudaError_t record_event(cudaEvent_t event, cudaStream_t stream, bool external) {
  const StreamError error = streams().record(event, stream, current_device(), external);
  if (error != StreamError::kNone) return stream_result(error);
  if (Event* const found = find_event(event))
    found->recorded_at.store(now(), std::memory_order_relaxed);
  return cudaSuccess;
}

}  // namespace memledger::virtual_gpu

MEMLEDGER_ANSWER cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream,
                                                      unsigned flags) {
  if (const cudaError_t error = ready()) return result(error);
  return result(record_event(event, stream, (flags & cudaEventRecordExternal) != 0));
}

MEMLEDGER_ANSWER cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return cudaEventRecordWithFlags(event, stream, cudaEventRecordDefault);
}

MEMLEDGER_ANSWER cudaError_t cudaEventQuery(cudaEvent_t event) {
  return result(stream_result(streams().query_event(event)));
}

MEMLEDGER_ANSWER cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  return result(stream_result(streams().synchronize_event(event)));
}

MEMLEDGER_ANSWER cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start,
                                                  cudaEvent_t end) {
  if (!milliseconds) return result(cudaErrorInvalidValue);
  const Event* const first = find_event(start);
  const Event* const last = find_event(end);
  if (!first || !last || first->device != last->device ||
      (first->flags | last->flags) & cudaEventDisableTiming)
    return result(cudaErrorInvalidResourceHandle);
  for (const cudaEvent_t event : {start, end}) {
    if (const StreamError error = streams().check_recorded(event); error != StreamError::kNone)
      return result(stream_result(error));
  }
  const int64_t begun = first->recorded_at.load(std::memory_order_relaxed);
  const int64_t ended = last->recorded_at.load(std::memory_order_relaxed);
  // Time of the host, as no kernel takes any. Programs divide by it: never zero.
  const int64_t difference = ended - begun;
  *milliseconds = difference == 0 ? 1e-6f : static_cast<float>(difference) * 1e-6f;
  return cudaSuccess;
}

#if CUDART_VERSION >= 12080 && CUDART_VERSION < 13000
MEMLEDGER_ANSWER cudaError_t cudaEventElapsedTime_v2(float* milliseconds, cudaEvent_t start,
                                                     cudaEvent_t end) {
  return cudaEventElapsedTime(milliseconds, start, end);
}
#endif

// Host functions run in a thread of their own, as those of a device do; in the caller's only where
// the system gives no thread.

namespace {

template <typename F>
cudaError_t call_on_stream(cudaStream_t stream, F call,
                           std::shared_ptr<HostParameters> parameters) {
  const Streams::Submission submission =
      streams().submit(stream, current_device(), NodeKind::kHost, call, Streams::Order::kInStream,
                       std::move(parameters));
  if (submission.error != StreamError::kNone) return stream_result(submission.error);
  if (!submission.captured && !submission.queued) call();
  return cudaSuccess;
}

}  // namespace

MEMLEDGER_ANSWER cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function,
                                                void* data) {
  if (const cudaError_t error = ready()) return result(error);
  if (!function) return result(cudaErrorInvalidValue);
  return result(call_on_stream(
      stream, [function, data] { function(data); },
      std::make_shared<HostParameters>(HostParameters{{function, data}})));
}

MEMLEDGER_ANSWER cudaError_t cudaStreamAddCallback(cudaStream_t stream,
                                                   cudaStreamCallback_t callback, void* data,
                                                   unsigned) {
  if (const cudaError_t error = ready()) return result(error);
  if (!callback) return result(cudaErrorInvalidValue);
  return result(call_on_stream(
      stream, [=] { callback(stream, cudaSuccess, data); }, nullptr));
}
