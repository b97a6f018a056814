// The runtime: streams, events, callbacks, capture. The rules are those of virtual_gpu/streams.h.
#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <unordered_map>

#include "virtual_gpu/answers/cudart.h"

namespace memledger::virtual_gpu {
namespace {

struct Event {
  const int device = current_device();
  unsigned flags;
  std::atomic<int64_t> recorded_at{-1};  // nanoseconds; -1 for never
};

// The events that are valid; a fork waits for its lock as for the machine's. Never destroyed.
struct Handles {
  std::mutex mutex;
  std::unordered_map<const void*, std::unique_ptr<Event>> events;
  unsigned long long next_stream_id = 8;
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

// Beside the host's time, what add_device_time() added.
std::atomic<int64_t> added_time{0};

int64_t now() {
  return added_time.load(std::memory_order_relaxed) +
         std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
             .count();
}

}  // namespace

void add_device_time(int64_t nanoseconds) {
  added_time.fetch_add(nanoseconds, std::memory_order_relaxed);
}

Streams& streams() {
  static Streams* const made = [] {
    made_streams = new Streams(Machine::get().specification().late_events);
    pthread_atfork([] { made_streams->lock(); }, [] { made_streams->unlock(); },
                   [] { made_streams->unlock(); });
    return made_streams;
  }();
  return *made;
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

MEMLEDGER_ANSWER cudaError_t cudaStreamCopyAttributes(cudaStream_t, cudaStream_t) {
  return cudaSuccess;
}
MEMLEDGER_ANSWER cudaError_t cudaStreamSetAttribute(cudaStream_t, cudaStreamAttrID,
                                                    const cudaStreamAttrValue*) {
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
  if (flags & cudaEventInterprocess) {
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

MEMLEDGER_ANSWER cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream,
                                                      unsigned flags) {
  if (const cudaError_t error = ready()) return result(error);
  const StreamError error =
      streams().record(event, stream, current_device(), (flags & cudaEventRecordExternal) != 0);
  if (error != StreamError::kNone) return result(stream_result(error));
  if (Event* const found = find_event(event))
    found->recorded_at.store(now(), std::memory_order_relaxed);
  return cudaSuccess;
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
  const int64_t begun = first->recorded_at.load(std::memory_order_relaxed);
  const int64_t ended = last->recorded_at.load(std::memory_order_relaxed);
  if (begun < 0 || ended < 0) return result(cudaErrorInvalidResourceHandle);
  // Time of the host, as no kernel takes any. Programs divide by it: never zero.
  const int64_t difference = ended - begun;
  *milliseconds = difference == 0 ? 1e-6f : static_cast<float>(difference) * 1e-6f;
  return cudaSuccess;
}

MEMLEDGER_ANSWER cudaError_t cudaIpcGetEventHandle(cudaIpcEventHandle_t*, cudaEvent_t) {
  MEMLEDGER_SAY_REFUSED(kNoSharing);
  return result(cudaErrorNotSupported);
}

MEMLEDGER_ANSWER cudaError_t cudaIpcOpenEventHandle(cudaEvent_t*, cudaIpcEventHandle_t) {
  MEMLEDGER_SAY_REFUSED(kNoSharing);
  return result(cudaErrorNotSupported);
}

// Callbacks, called at once: all work before them is done, and no lock is held.

MEMLEDGER_ANSWER cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function,
                                                void* data) {
  if (const cudaError_t error = ready()) return result(error);
  if (!function) return result(cudaErrorInvalidValue);
  return result(on_stream(stream, NodeKind::kHost, [function, data] {
    function(data);
    return cudaSuccess;
  }));
}

MEMLEDGER_ANSWER cudaError_t cudaStreamAddCallback(cudaStream_t stream,
                                                   cudaStreamCallback_t callback, void* data,
                                                   unsigned) {
  if (const cudaError_t error = ready()) return result(error);
  if (!callback) return result(cudaErrorInvalidValue);
  return result(on_stream(stream, NodeKind::kHost, [=] {
    callback(stream, cudaSuccess, data);
    return cudaSuccess;
  }));
}
