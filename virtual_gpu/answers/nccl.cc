// NCCL: communicators can be made, with any number of ranks, and their collectives succeed at once.
// Nothing is sent: one process can stand for one rank of many, and what it receives is what it
// would receive if the others sent what it sends itself (of sums, one rank's part). The memory that
// NCCL takes for itself, outside LibTorch's allocator, is not taken here.
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "virtual_gpu/answer_macros.h"
#include "virtual_gpu/answers/objects.h"
#include "virtual_gpu/machine.h"

namespace memledger::virtual_gpu {
namespace {

constexpr int kSystemError = 2;
constexpr int kInvalidArgument = 4;
constexpr int kVersion = 22809;  // 2.28.9, what the wheels of LibTorch 2.11 require
constexpr int kNoColor = -1;
constexpr int kFirstCustomOperation = 5;  // after sum, product, maximum, minimum, average

struct Communicator {
  int ranks = 1;
  int rank = 0;
  int device = 0;
};

struct Registration {
  int unused = 0;
};

struct UniqueId {
  char bytes[128];
};

std::atomic<uint64_t> next_id{1};
std::atomic<int> next_operation{kFirstCustomOperation};

size_t size_of(int data_type) {
  switch (data_type) {
    case 2:  // int32
    case 3:
    case 7:  // float
      return 4;
    case 4:  // int64
    case 5:
    case 8:  // double
      return 8;
    case 6:  // half
    case 9:  // bfloat16
      return 2;
    default:
      return 1;
  }
}

bool is_integer(int data_type) { return data_type >= 0 && data_type <= 5; }

int make(Communicator** out, int ranks, int rank) {
  if (ranks < 1 || rank < 0 || rank >= ranks) return kInvalidArgument;
  Machine::get().note_ranks();
  const int status = make_object(out, kInvalidArgument, kSystemError);
  if (status == 0) **out = {ranks, rank, current_device()};
  return status;
}

}  // namespace
}  // namespace memledger::virtual_gpu

using namespace memledger::virtual_gpu;

extern "C" int cudaMemcpyAsync(void* to, const void* from, size_t bytes, int kind, void* stream);

namespace {

constexpr int kDeviceToDevice = 3;
constexpr int kUnhandledCudaError = 1;

int copy(void* to, const void* from, size_t bytes, int type, int ranks, void* stream) {
  if (bytes == 0) return 0;
  if (to != from && cudaMemcpyAsync(to, from, bytes, kDeviceToDevice, stream) != 0)
    return kUnhandledCudaError;
  // Sizes and bytes of objects; what else the host has written is not read back.
  if (is_integer(type)) Machine::get().note_exchange(to, from, bytes, ranks);
  return 0;
}

char* at(void* begin, size_t offset) { return static_cast<char*>(begin) + offset; }
const char* at(const void* begin, size_t offset) {
  return static_cast<const char*>(begin) + offset;
}

}  // namespace

MEMLEDGER_ANSWER int ncclGetVersion(int* version) {
  if (version == nullptr) return kInvalidArgument;
  Machine::get().note_ranks();
  *version = kVersion;
  return 0;
}
MEMLEDGER_ANSWER int ncclGetUniqueId(UniqueId* id) {
  if (id == nullptr) return kInvalidArgument;
  std::memset(id, 0, sizeof(*id));
  const uint64_t number = next_id.fetch_add(1, std::memory_order_relaxed);
  std::memcpy(id->bytes, &number, sizeof(number));
  return 0;
}
MEMLEDGER_ANSWER const char* ncclGetErrorString(int result) {
  return result == 0 ? "no error" : "invalid argument";
}
MEMLEDGER_ANSWER const char* ncclGetLastError(const Communicator*) { return ""; }

// The id is passed by value, in memory.
MEMLEDGER_ANSWER int ncclCommInitRank(Communicator** out, int ranks, UniqueId, int rank) {
  return make(out, ranks, rank);
}
MEMLEDGER_ANSWER int ncclCommInitRankConfig(Communicator** out, int ranks, UniqueId, int rank,
                                            void*) {
  return make(out, ranks, rank);
}
MEMLEDGER_ANSWER int ncclCommInitRankScalable(Communicator** out, int ranks, int rank, int,
                                              const UniqueId*, void*) {
  return make(out, ranks, rank);
}
MEMLEDGER_ANSWER int ncclCommInitAll(Communicator** out, int devices, const int* list) {
  if (out == nullptr || devices < 1) return kInvalidArgument;
  for (int i = 0; i < devices; ++i) {
    const int status = make(&out[i], devices, i);
    if (status != 0) return status;
    out[i]->device = list == nullptr ? i : list[i];
  }
  return 0;
}
// Which other ranks chose the same color is not known: the new communicator has as many as the old
// one.
MEMLEDGER_ANSWER int ncclCommSplit(const Communicator* from, int color, int, Communicator** out,
                                   void*) {
  if (from == nullptr || out == nullptr) return kInvalidArgument;
  *out = nullptr;
  return color == kNoColor ? 0 : make(out, from->ranks, from->rank);
}
MEMLEDGER_ANSWER int ncclCommShrink(const Communicator* from, const int* excluded,
                                    int excluded_ranks, Communicator** out, void*, int) {
  if (from == nullptr) return kInvalidArgument;
  int before = 0;
  for (int i = 0; i < excluded_ranks; ++i) before += excluded[i] < from->rank ? 1 : 0;
  return make(out, from->ranks - excluded_ranks, from->rank - before);
}
MEMLEDGER_ANSWER int ncclCommDestroy(Communicator* communicator) {
  return drop_object(communicator);
}
MEMLEDGER_ANSWER int ncclCommAbort(Communicator* communicator) { return drop_object(communicator); }
MEMLEDGER_ANSWER int ncclCommCount(const Communicator* communicator, int* count) {
  if (communicator == nullptr || count == nullptr) return kInvalidArgument;
  *count = communicator->ranks;
  return 0;
}
MEMLEDGER_ANSWER int ncclCommUserRank(const Communicator* communicator, int* rank) {
  if (communicator == nullptr || rank == nullptr) return kInvalidArgument;
  *rank = communicator->rank;
  return 0;
}
MEMLEDGER_ANSWER int ncclCommCuDevice(const Communicator* communicator, int* device) {
  if (communicator == nullptr || device == nullptr) return kInvalidArgument;
  *device = communicator->device;
  return 0;
}
MEMLEDGER_ANSWER int ncclCommGetAsyncError(const Communicator*, int* error) {
  if (error == nullptr) return kInvalidArgument;
  *error = 0;
  return 0;
}

MEMLEDGER_ANSWER int ncclMemAlloc(void** out, size_t bytes) {
  if (out == nullptr || bytes == 0) return kInvalidArgument;
  *out = Machine::get().allocate(current_device(), bytes);
  return *out == nullptr ? kSystemError : 0;
}
MEMLEDGER_ANSWER int ncclMemFree(void* pointer) {
  return pointer == nullptr || Machine::get().free(pointer) ? 0 : kInvalidArgument;
}
MEMLEDGER_ANSWER int ncclCommRegister(const Communicator*, void*, size_t, Registration** out) {
  return make_object(out, kInvalidArgument, kSystemError);
}
MEMLEDGER_ANSWER int ncclCommDeregister(const Communicator*, Registration* registration) {
  return drop_object(registration);
}
MEMLEDGER_ANSWER int ncclCommWindowRegister(const Communicator*, void*, size_t, Registration** out,
                                            int) {
  return make_object(out, kInvalidArgument, kSystemError);
}
MEMLEDGER_ANSWER int ncclCommWindowDeregister(const Communicator*, Registration* window) {
  return drop_object(window);
}
MEMLEDGER_ANSWER int ncclRedOpCreatePreMulSum(int* operation) {
  if (operation == nullptr) return kInvalidArgument;
  *operation = next_operation.fetch_add(1, std::memory_order_relaxed);
  return 0;
}

// Kernels that talk to other devices themselves.
MEMLEDGER_REFUSES(ncclDevCommCreate, 5, "NCCL's device-side communicators need a real device.")
MEMLEDGER_DOES_NOTHING(ncclDevCommDestroy)

MEMLEDGER_DOES_NOTHING(ncclRedOpDestroy)
MEMLEDGER_DOES_NOTHING(ncclCommFinalize)
MEMLEDGER_DOES_NOTHING(ncclGroupStart)
MEMLEDGER_DOES_NOTHING(ncclGroupEnd)
MEMLEDGER_DOES_NOTHING(ncclGroupSimulateEnd)

MEMLEDGER_ANSWER int ncclAllReduce(const void* from, void* to, size_t count, int type, int,
                                   const Communicator* communicator, void* stream) {
  if (communicator == nullptr) return kInvalidArgument;
  return copy(to, from, count * size_of(type), type, communicator->ranks, stream);
}
MEMLEDGER_ANSWER int ncclReduce(const void* from, void* to, size_t count, int type, int, int root,
                                const Communicator* communicator, void* stream) {
  if (communicator == nullptr) return kInvalidArgument;
  return root == communicator->rank
             ? copy(to, from, count * size_of(type), type, communicator->ranks, stream)
             : 0;
}
MEMLEDGER_ANSWER int ncclBroadcast(const void* from, void* to, size_t count, int type, int root,
                                   const Communicator* communicator, void* stream) {
  if (communicator == nullptr) return kInvalidArgument;
  return copy(to, root == communicator->rank ? from : to, count * size_of(type), type,
              communicator->ranks, stream);
}
MEMLEDGER_ANSWER int ncclAllGather(const void* from, void* to, size_t count, int type,
                                   const Communicator* communicator, void* stream) {
  if (communicator == nullptr) return kInvalidArgument;
  const size_t bytes = count * size_of(type);
  int status = 0;
  for (int rank = 0; rank < communicator->ranks && status == 0; ++rank)
    status = copy(at(to, rank * bytes), from, bytes, type, communicator->ranks, stream);
  return status;
}
MEMLEDGER_ANSWER int ncclReduceScatter(const void* from, void* to, size_t count, int type, int,
                                       const Communicator* communicator, void* stream) {
  if (communicator == nullptr) return kInvalidArgument;
  const size_t bytes = count * size_of(type);
  return copy(to, at(from, communicator->rank * bytes), bytes, type, communicator->ranks, stream);
}
MEMLEDGER_ANSWER int ncclAlltoAll(const void* from, void* to, size_t count, int type,
                                  const Communicator* communicator, void* stream) {
  if (communicator == nullptr) return kInvalidArgument;
  const size_t bytes = count * size_of(type);
  const size_t mine = communicator->rank * bytes;
  int status = 0;
  for (int rank = 0; rank < communicator->ranks && status == 0; ++rank)
    status = copy(at(to, rank * bytes), at(from, mine), bytes, type, communicator->ranks, stream);
  return status;
}
MEMLEDGER_ANSWER int ncclBcast(void* buffer, size_t count, int type, int root,
                               const Communicator* communicator, void* stream) {
  return ncclBroadcast(buffer, buffer, count, type, root, communicator, stream);
}
MEMLEDGER_DOES_NOTHING(ncclSend)
MEMLEDGER_DOES_NOTHING(ncclRecv)
