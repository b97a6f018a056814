// The runtime: streams, events, callbacks. All work is done when it is asked for, so nothing is
// ever pending.
#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <unordered_map>

#include "virtual_gpu/answers/cudart.h"

namespace memledger::virtual_gpu {
namespace {

struct Stream {
  int device;
  int priority;
  unsigned flags;
  unsigned long long id;
};

struct Event {
  int device;
  unsigned flags;
  std::atomic<int64_t> recorded_at{-1};  // nanoseconds; -1 for never
};

// The handles that are valid; a fork waits for its lock as for the machine's. Never destroyed.
struct Handles {
  std::mutex mutex;
  std::unordered_map<const void*, Stream> streams;
  std::unordered_map<const void*, std::unique_ptr<Event>> events;
  unsigned long long next_stream_id = 8;
};

Handles* made_handles = nullptr;

Handles& handles() {
  static Handles* const made = [] {
    made_handles = new Handles;
    pthread_atfork([] { made_handles->mutex.lock(); }, [] { made_handles->mutex.unlock(); },
                   [] { made_handles->mutex.unlock(); });
    return made_handles;
  }();
  return *made;
}

bool is_default(cudaStream_t stream) {
  return !stream || stream == cudaStreamLegacy || stream == cudaStreamPerThread;
}

std::optional<Stream> find_stream(cudaStream_t stream) {
  if (is_default(stream)) {
    return Stream{current_device(), 0, cudaStreamDefault,
                  stream == cudaStreamPerThread ? 2ULL : 1ULL};
  }
  Handles& h = handles();
  std::lock_guard<std::mutex> lock(h.mutex);
  const auto found = h.streams.find(stream);
  if (found == h.streams.end()) return std::nullopt;
  return found->second;
}

// Valid until the program destroys the event, which it must not do while it uses it.
Event* find_event(cudaEvent_t event) {
  Handles& h = handles();
  std::lock_guard<std::mutex> lock(h.mutex);
  const auto found = h.events.find(event);
  return found == h.events.end() ? nullptr : found->second.get();
}

cudaError_t check(cudaStream_t stream) {
  if (const cudaError_t error = ready()) return error;
  return is_stream(stream) ? cudaSuccess : cudaErrorInvalidResourceHandle;
}

int64_t now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace

bool is_stream(cudaStream_t stream) {
  return is_default(stream) || find_stream(stream).has_value();
}

int stream_device(cudaStream_t stream) {
  const std::optional<Stream> found = find_stream(stream);
  return found ? found->device : current_device();
}

}  // namespace memledger::virtual_gpu

using namespace memledger::virtual_gpu;

MEMLEDGER_ANSWER cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags,
                                                          int priority) {
  if (!stream || flags > cudaStreamNonBlocking) return result(cudaErrorInvalidValue);
  if (const cudaError_t error = ready()) return result(error);
  Handles& h = handles();
  // The handle is the address of a byte of its own.
  auto* const handle = reinterpret_cast<cudaStream_t>(new char);
  std::lock_guard<std::mutex> lock(h.mutex);
  h.streams[handle] =
      Stream{current_device(), std::min(0, std::max(-5, priority)), flags, h.next_stream_id++};
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
  Handles& h = handles();
  std::lock_guard<std::mutex> lock(h.mutex);
  if (!h.streams.erase(stream)) return result(cudaErrorInvalidResourceHandle);
  delete reinterpret_cast<char*>(stream);
  return cudaSuccess;
}

MEMLEDGER_ANSWER cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  return result(check(stream));
}
MEMLEDGER_ANSWER cudaError_t cudaStreamQuery(cudaStream_t stream) { return result(check(stream)); }

MEMLEDGER_ANSWER cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  if (const cudaError_t error = check(stream)) return result(error);
  return result(find_event(event) ? cudaSuccess : cudaErrorInvalidResourceHandle);
}

MEMLEDGER_ANSWER cudaError_t cudaStreamGetPriority(cudaStream_t stream, int* priority) {
  const std::optional<Stream> found = find_stream(stream);
  if (!found) return result(cudaErrorInvalidResourceHandle);
  if (!priority) return result(cudaErrorInvalidValue);
  *priority = found->priority;
  return cudaSuccess;
}

MEMLEDGER_ANSWER cudaError_t cudaStreamGetFlags(cudaStream_t stream, unsigned* flags) {
  const std::optional<Stream> found = find_stream(stream);
  if (!found) return result(cudaErrorInvalidResourceHandle);
  if (!flags) return result(cudaErrorInvalidValue);
  *flags = found->flags;
  return cudaSuccess;
}

MEMLEDGER_ANSWER cudaError_t cudaStreamGetId(cudaStream_t stream, unsigned long long* id) {
  const std::optional<Stream> found = find_stream(stream);
  if (!found) return result(cudaErrorInvalidResourceHandle);
  if (!id) return result(cudaErrorInvalidValue);
  *id = found->id;
  return cudaSuccess;
}

#if CUDART_VERSION >= 12080
MEMLEDGER_ANSWER cudaError_t cudaStreamGetDevice(cudaStream_t stream, int* device) {
  const std::optional<Stream> found = find_stream(stream);
  if (!found) return result(cudaErrorInvalidResourceHandle);
  if (!device) return result(cudaErrorInvalidValue);
  *device = found->device;
  return cudaSuccess;
}
#endif

MEMLEDGER_ANSWER cudaError_t cudaStreamCopyAttributes(cudaStream_t, cudaStream_t) {
  return cudaSuccess;
}
MEMLEDGER_ANSWER cudaError_t cudaStreamSetAttribute(cudaStream_t, cudaStreamAttrID,
                                                    const cudaStreamAttrValue*) {
  return cudaSuccess;
}

// Capture never begins, so no stream is ever in one.

MEMLEDGER_ANSWER cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* status) {
  if (!status) return result(cudaErrorInvalidValue);
  *status = cudaStreamCaptureStatusNone;
  return cudaSuccess;
}

namespace {

cudaError_t no_capture(cudaStreamCaptureStatus* status, unsigned long long* id,
                       size_t* dependencies) {
  if (!status) return cudaErrorInvalidValue;
  *status = cudaStreamCaptureStatusNone;
  if (id) *id = 0;
  if (dependencies) *dependencies = 0;
  return cudaSuccess;
}

}  // namespace

#if CUDART_VERSION >= 13000
MEMLEDGER_ANSWER cudaError_t cudaStreamGetCaptureInfo(cudaStream_t, cudaStreamCaptureStatus* status,
                                                      unsigned long long* id, cudaGraph_t*,
                                                      const cudaGraphNode_t**,
                                                      const cudaGraphEdgeData**,
                                                      size_t* dependencies) {
  return result(no_capture(status, id, dependencies));
}
#else
// The header maps the name to that of its version.
MEMLEDGER_ANSWER cudaError_t cudaStreamGetCaptureInfo(cudaStream_t, cudaStreamCaptureStatus* status,
                                                      unsigned long long* id, cudaGraph_t*,
                                                      const cudaGraphNode_t**,
                                                      size_t* dependencies) {
  return result(no_capture(status, id, dependencies));
}
#endif

MEMLEDGER_ANSWER cudaError_t cudaStreamBeginCapture(cudaStream_t, cudaStreamCaptureMode) {
  MEMLEDGER_SAY_REFUSED(kNoGraphs);
  return result(cudaErrorNotSupported);
}

MEMLEDGER_ANSWER cudaError_t cudaStreamEndCapture(cudaStream_t, cudaGraph_t* graph) {
  if (graph) *graph = nullptr;
  return result(cudaErrorIllegalState);
}

MEMLEDGER_ANSWER cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  static thread_local cudaStreamCaptureMode current = cudaStreamCaptureModeGlobal;
  if (!mode) return result(cudaErrorInvalidValue);
  std::swap(*mode, current);
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
  made->device = current_device();
  made->flags = flags;
  *event = reinterpret_cast<cudaEvent_t>(made.get());
  Handles& h = handles();
  std::lock_guard<std::mutex> lock(h.mutex);
  h.events[*event] = std::move(made);
  return cudaSuccess;
}

MEMLEDGER_ANSWER cudaError_t cudaEventCreate(cudaEvent_t* event) {
  return cudaEventCreateWithFlags(event, cudaEventDefault);
}

MEMLEDGER_ANSWER cudaError_t cudaEventDestroy(cudaEvent_t event) {
  Handles& h = handles();
  std::lock_guard<std::mutex> lock(h.mutex);
  return result(h.events.erase(event) ? cudaSuccess : cudaErrorInvalidResourceHandle);
}

MEMLEDGER_ANSWER cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  if (const cudaError_t error = check(stream)) return result(error);
  Event* const found = find_event(event);
  // Event and stream must be of one device.
  if (!found || found->device != stream_device(stream))
    return result(cudaErrorInvalidResourceHandle);
  found->recorded_at.store(now(), std::memory_order_relaxed);
  return cudaSuccess;
}

MEMLEDGER_ANSWER cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream,
                                                      unsigned) {
  return cudaEventRecord(event, stream);
}

MEMLEDGER_ANSWER cudaError_t cudaEventQuery(cudaEvent_t event) {
  return result(find_event(event) ? cudaSuccess : cudaErrorInvalidResourceHandle);
}

MEMLEDGER_ANSWER cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  return cudaEventQuery(event);
}

MEMLEDGER_ANSWER cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start,
                                                  cudaEvent_t end) {
  if (!milliseconds) return result(cudaErrorInvalidValue);
  const Event* const first = find_event(start);
  const Event* const last = find_event(end);
  if (!first || !last || (first->flags | last->flags) & cudaEventDisableTiming)
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
  if (const cudaError_t error = check(stream)) return result(error);
  if (!function) return result(cudaErrorInvalidValue);
  function(data);
  return cudaSuccess;
}

MEMLEDGER_ANSWER cudaError_t cudaStreamAddCallback(cudaStream_t stream,
                                                   cudaStreamCallback_t callback, void* data,
                                                   unsigned) {
  if (const cudaError_t error = check(stream)) return result(error);
  if (!callback) return result(cudaErrorInvalidValue);
  callback(stream, cudaSuccess, data);
  return cudaSuccess;
}
