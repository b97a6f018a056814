#pragma once

#include <cuda_runtime_api.h>

#include "virtual_gpu/answer_macros.h"
#include "virtual_gpu/known_values.h"
#include "virtual_gpu/machine.h"
#include "virtual_gpu/streams.h"

// What the files of the runtime and the driver share. Error numbers of the two are the same where
// both have one.
namespace memledger::virtual_gpu {

// Every function of the runtime returns through this: cudaGetLastError returns the thread's last
// failure.
cudaError_t result(cudaError_t error);

// The driver's functions lean on those of the runtime, but do not touch the thread's last error.
class KeepLastError {
 public:
  KeepLastError();
  ~KeepLastError();
  KeepLastError(const KeepLastError&) = delete;
  KeepLastError& operator=(const KeepLastError&) = delete;

 private:
  cudaError_t kept_;
};

// Makes the context of the thread's device, or says why there is none.
cudaError_t ready();

// Whether CUDA still answers. A real runtime refuses every call after the exit handlers that were
// registered after its first context (error 4). It also refuses in a copy (fork, clone) of a
// process that had a context (error 3, measured with driver 580.159.04). Here only those calls
// refuse, and only past the exit handlers, by which a program asks what the device is and has.
cudaError_t answerable();

// The driver's number for the attribute is the runtime's.
cudaError_t device_attribute(int* value, int attribute, int device);

// "0000:17:00.0", of the device with that number among all of the machine.
void pci_bus_id(char* text, int length, int machine_number);
// The reverse; -1 where there is no such device.
int machine_number_at_pci_bus(const char* text);
void device_uuid(char (&uuid)[16], int device);

// Copies as the kinds of the pointers say.
cudaError_t transfer(void* destination, const void* source, size_t bytes, cudaMemcpyKind kind);
cudaError_t transfer_3d(const cudaMemcpy3DParms& copy);
cudaError_t fill(void* pointer, unsigned value, size_t width_bytes, size_t count);

// The same in the order of a stream: a node where the stream captures, refused where CUDA refuses
// it. Those that are not asynchronous let the host wait where CUDA's do.
cudaError_t copy_on_stream(void* destination, const void* source, size_t bytes, cudaMemcpyKind kind,
                           cudaStream_t stream, bool asynchronous);
cudaError_t copy_3d_on_stream(const cudaMemcpy3DParms& copy, cudaStream_t stream,
                              bool asynchronous);
// What a device calls pinned memory of the host. `caller`: the code that asks.
cudaError_t device_address_of(void** address, void* pointer, const void* caller);
// `height` rows, `pitch` bytes apart, of `count` values of `width_bytes` each.
cudaError_t fill_on_stream(void* pointer, size_t pitch, unsigned value, size_t width_bytes,
                           size_t count, size_t height, cudaStream_t stream, bool asynchronous);

// Counts a kernel on a stream: a node where the stream captures.
struct KernelLaunch {
  const void* kernel = nullptr;  // its stub on the host, or the CUfunction
  dim3 grid{0, 0, 0};            // 0: not known
  dim3 block{0, 0, 0};
  void* const* arguments = nullptr;  // see memledger_virtual_gpu_work
  const void* argument_bytes = nullptr;
  size_t argument_byte_count = 0;
  const void* origin = nullptr;  // where its code came from: an address in a mapped file
};
cudaError_t launch_kernel(cudaStream_t stream, const KernelLaunch& launch = {});
cudaError_t check_launch(dim3 grid, dim3 block, size_t shared_bytes);
// For a kernel of which nothing is known.
inline constexpr int kAssumedRegisters = 32;
int active_blocks(int block_size, size_t shared_bytes, int registers = kAssumedRegisters);
// Returns the maximum number of threads in a block if each has this many registers.
int threads_within(int registers);

// nullptr, and the two handles of CUDA's default streams, are streams, too.
bool is_stream(cudaStream_t stream);
int stream_device(cudaStream_t stream);
// What the event was created with; nothing for what is no event.
std::optional<unsigned> event_flags(cudaEvent_t event);

// The streams, events and graphs of this process; a fork waits for them as for the machine.
Streams& streams();
cudaError_t stream_result(StreamError error);

// Reports submitted work to the part that follows values.
void tell_of_work(const Streams::Submission& submission, const KernelLaunch& launch = {});
// While the nodes of a graph are done, each is reported in its turn.
bool launches_graph();

// Does `work`, which returns a cudaError_t, on a stream: now, after the host functions before it,
// or at each launch of the graph that the stream captures.
template <typename F>
cudaError_t on_stream(cudaStream_t stream, NodeKind kind, const F& work,
                      Streams::Order order = Streams::Order::kInStream) {
  const Streams::Submission submission = streams().submit(
      stream, current_device(), kind,
      [work] {
        work();
        if (!launches_graph()) known_values().wrote_anywhere();
      },
      order);
  if (submission.error != StreamError::kNone) return stream_result(submission.error);
  if (submission.captured || submission.queued) tell_of_work(submission);
  return submission.captured || submission.queued ? cudaSuccess : work();
}

// Makes the times between events longer, where a program compares what it ran by them.
void add_device_time(int64_t nanoseconds);

// Memory of the graph that a stream captures.
cudaError_t capture_allocation(void** pointer, size_t bytes, int device, cudaStream_t stream,
                               const Streams::CaptureInfo& capture);
cudaError_t capture_free(void* pointer, cudaStream_t stream, const Streams::CaptureInfo& capture);

// An event is recorded, also by a node of a graph.
cudaError_t record_event(cudaEvent_t event, cudaStream_t stream, bool external);

// Refuses what CUDA counts as unsafe while streams capture.
cudaError_t check_capture();

// The driver's function of that name as a version of CUDA has it (12030), considered or generated;
// nullptr where there is none.
void* find_driver_function(const char* name, int version);

inline constexpr char kNoSharing[] =
    "each process has its own virtual GPU, whose memory and events other processes cannot open. "
    "Processes share one where the specification says share=NAME.";

}  // namespace memledger::virtual_gpu
