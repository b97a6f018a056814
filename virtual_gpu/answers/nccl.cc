// NCCL: communicators can be made, with any number of ranks, and their collectives succeed at once.
// Nothing is sent: one process can stand for one rank of many, and what it receives is what it
// would receive if the others sent what it sends itself (of sums, one rank's part). The memory that
// NCCL takes for itself, outside LibTorch's allocator, is that of virtual_gpu/nccl_memory.h.
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

#include "virtual_gpu/answer_macros.h"
#include "virtual_gpu/answers/objects.h"
#include "virtual_gpu/known_values.h"
#include "virtual_gpu/machine.h"
#include "virtual_gpu/nccl_memory.h"

namespace memledger::virtual_gpu {
namespace {

constexpr int kUnhandledCudaError = 1;
constexpr int kSystemError = 2;
constexpr int kInvalidArgument = 4;
constexpr int kVersion = 22809;  // 2.28.9, what the wheels of LibTorch 2.11 require
constexpr int kNoColor = -1;
constexpr int kFirstCustomOperation = 5;  // after sum, product, maximum, minimum, average

struct Communicator {
  int ranks = 1;
  int rank = 0;
  int device = 0;
  NcclSettings settings;
  // What it was used for: ring, tree …, and a bit for each rank of the node sent to or received
  // from.
  std::atomic<unsigned> used{0};
  std::atomic<uint64_t> sent{0};
  std::atomic<uint64_t> received{0};
};

enum Use : unsigned {
  kRing = 1,
  kTree = 2,
  kNvls = 4,
  kRemoteSend = 8,
  kRemoteReceive = 16,
};

thread_local const char* last_error = "";

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

int bits(uint64_t set) { return __builtin_popcountll(set); }

// Takes what the communicator needs by now. NCCL's own words and number where it cannot be had.
int take_memory(const Communicator& communicator) {
  Machine& machine = Machine::get();
  if (!machine.is_device(communicator.device)) return 0;
  size_t bytes = machine.specification().nccl_bytes.value_or(0);
  if (machine.has_nccl_model(communicator.device)) {
    const unsigned used = communicator.used.load(std::memory_order_relaxed);
    NcclUse use;
    use.ring = used & kRing;
    use.tree = used & kTree;
    use.nvls = used & kNvls;
    use.remote_sends = used & kRemoteSend;
    use.remote_receives = used & kRemoteReceive;
    use.sends = bits(communicator.sent.load(std::memory_order_relaxed));
    use.receives = bits(communicator.received.load(std::memory_order_relaxed));
    bytes =
        NcclMemory(machine.profile(communicator.device), communicator.ranks, communicator.settings)
            .bytes(use);
  }
  if (bytes == 0 || machine.hold(communicator.device, &communicator, bytes)) return 0;
  last_error = "Failed to CUDA calloc the buffers of a communicator: the device is out of memory";
  return kUnhandledCudaError;
}

int drop(Communicator* communicator) {
  if (communicator == nullptr) return 0;
  Machine::get().release_held(communicator);
  return drop_object(communicator);
}

// The head of ncclConfig_t, which LibTorch's ProcessGroupNCCL::Options has.
struct Config {
  size_t bytes;
  unsigned magic;
  unsigned version;
  int blocking;
  int cga_cluster_size;
  int min_ctas;
  int max_ctas;
};

NcclSettings settings_of(const void* config) {
  constexpr unsigned kMagic = 0xcafebeef;
  constexpr int kUndefined = std::numeric_limits<int>::min();
  NcclSettings settings = NcclSettings::from_environment();
  Config head;
  if (config == nullptr) return settings;
  std::memcpy(&head, config, sizeof head);
  if (head.magic != kMagic || head.bytes < sizeof head) return settings;
  if (head.min_ctas != kUndefined && head.min_ctas > 0)
    settings.min_channels = std::max(settings.min_channels, std::min(64, head.min_ctas));
  if (head.max_ctas != kUndefined && head.max_ctas > 0)
    settings.max_channels = std::min(settings.max_channels, head.max_ctas);
  return settings;
}

int make(Communicator** out, int ranks, int rank, int device, const void* config = nullptr) {
  if (ranks < 1 || rank < 0 || rank >= ranks) return kInvalidArgument;
  Machine::get().note_ranks();
  if (const int status = make_object(out, kInvalidArgument, kSystemError)) return status;
  Communicator& made = **out;
  made.ranks = ranks;
  made.rank = rank;
  made.device = device;
  made.settings = settings_of(config);
  const int status = take_memory(made);
  if (status == 0) return 0;
  drop(*out);
  *out = nullptr;
  return status;
}

// Adds to what a communicator was used for, with the memory that it needs.
template <typename T>
int note(const Communicator& communicator, std::atomic<T>& set, T use) {
  if ((set.load(std::memory_order_relaxed) & use) == use) return 0;
  const T before = set.fetch_or(use, std::memory_order_relaxed);
  const int status = take_memory(communicator);
  if (status != 0) set.fetch_and(static_cast<T>(before | ~use), std::memory_order_relaxed);
  return status;
}

// Connects what an operation needs, the first time.
int connect(Communicator* communicator, unsigned use) {
  if (communicator == nullptr) return kInvalidArgument;
  if (communicator->ranks == 1) return 0;
  return note(*communicator, communicator->used, use);
}

int connect_peer(Communicator* communicator, int peer, bool sends) {
  if (communicator == nullptr || peer < 0 || peer >= communicator->ranks) return kInvalidArgument;
  if (peer == communicator->rank) return 0;
  const int local =
      communicator->settings.local_ranks > 0 ? std::min(communicator->settings.local_ranks, 64) : 8;
  if (peer / local != communicator->rank / local)
    return connect(communicator, sends ? kRemoteSend : kRemoteReceive);
  return note(*communicator, sends ? communicator->sent : communicator->received,
              uint64_t{1} << peer % local);
}

}  // namespace
}  // namespace memledger::virtual_gpu

using namespace memledger::virtual_gpu;

extern "C" int cudaMemcpyAsync(void* to, const void* from, size_t bytes, int kind, void* stream);

namespace {

constexpr int kDeviceToDevice = 3;

// What others sent nobody knows here, also where nothing is copied.
void note_received(void* to, size_t bytes) {
  known_values().wrote(reinterpret_cast<uintptr_t>(to), nullptr, bytes);
}

using Content = ExchangedBytes::Content;

int copy(void* to, const void* from, size_t bytes, int type, int ranks, void* stream,
         Content content = Content::kAsSent) {
  if (bytes == 0) return 0;
  if (to != from && cudaMemcpyAsync(to, from, bytes, kDeviceToDevice, stream) != 0)
    return kUnhandledCudaError;
  note_received(to, bytes);
  // Sizes and bytes of objects; what else the host has written is not read back.
  if (is_integer(type)) Machine::get().note_exchange(to, from, bytes, ranks, content);
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
  switch (result) {
    case 0:
      return "no error";
    case kUnhandledCudaError:
      return "unhandled cuda error";
    case kSystemError:
      return "unhandled system error";
    default:
      return "invalid argument";
  }
}
MEMLEDGER_ANSWER const char* ncclGetLastError(const Communicator*) { return last_error; }

// The id is passed by value, in memory.
MEMLEDGER_ANSWER int ncclCommInitRank(Communicator** out, int ranks, UniqueId, int rank) {
  return make(out, ranks, rank, current_device());
}
MEMLEDGER_ANSWER int ncclCommInitRankConfig(Communicator** out, int ranks, UniqueId, int rank,
                                            const void* config) {
  return make(out, ranks, rank, current_device(), config);
}
MEMLEDGER_ANSWER int ncclCommInitRankScalable(Communicator** out, int ranks, int rank, int,
                                              const UniqueId*, const void* config) {
  return make(out, ranks, rank, current_device(), config);
}
MEMLEDGER_ANSWER int ncclCommInitAll(Communicator** out, int devices, const int* list) {
  if (out == nullptr || devices < 1) return kInvalidArgument;
  for (int i = 0; i < devices; ++i) {
    const int status = make(&out[i], devices, i, list == nullptr ? i : list[i]);
    if (status == 0) continue;
    while (i > 0) drop(out[--i]);
    return status;
  }
  return 0;
}
// Which other ranks chose the same color is not known: the new communicator has as many as the old
// one.
MEMLEDGER_ANSWER int ncclCommSplit(const Communicator* from, int color, int, Communicator** out,
                                   const void* config) {
  if (from == nullptr || out == nullptr) return kInvalidArgument;
  *out = nullptr;
  return color == kNoColor ? 0 : make(out, from->ranks, from->rank, from->device, config);
}
MEMLEDGER_ANSWER int ncclCommShrink(const Communicator* from, const int* excluded,
                                    int excluded_ranks, Communicator** out, const void* config,
                                    int) {
  if (from == nullptr) return kInvalidArgument;
  int before = 0;
  for (int i = 0; i < excluded_ranks; ++i) before += excluded[i] < from->rank ? 1 : 0;
  return make(out, from->ranks - excluded_ranks, from->rank - before, from->device, config);
}
MEMLEDGER_ANSWER int ncclCommDestroy(Communicator* communicator) { return drop(communicator); }
MEMLEDGER_ANSWER int ncclCommAbort(Communicator* communicator) { return drop(communicator); }
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
                                   Communicator* communicator, void* stream) {
  if (const int status = connect(communicator, kRing | kTree | kNvls)) return status;
  return copy(to, from, count * size_of(type), type, communicator->ranks, stream,
              Content::kReduced);
}
MEMLEDGER_ANSWER int ncclReduce(const void* from, void* to, size_t count, int type, int, int root,
                                Communicator* communicator, void* stream) {
  if (const int status = connect(communicator, kRing)) return status;
  return root == communicator->rank ? copy(to, from, count * size_of(type), type,
                                           communicator->ranks, stream, Content::kReduced)
                                    : 0;
}
MEMLEDGER_ANSWER int ncclBroadcast(const void* from, void* to, size_t count, int type, int root,
                                   Communicator* communicator, void* stream) {
  if (const int status = connect(communicator, kRing)) return status;
  return copy(to, root == communicator->rank ? from : to, count * size_of(type), type,
              communicator->ranks, stream);
}
MEMLEDGER_ANSWER int ncclAllGather(const void* from, void* to, size_t count, int type,
                                   Communicator* communicator, void* stream) {
  if (const int status = connect(communicator, kRing | kNvls)) return status;
  const size_t bytes = count * size_of(type);
  int status = 0;
  for (int rank = 0; rank < communicator->ranks && status == 0; ++rank)
    status = copy(at(to, rank * bytes), from, bytes, type, communicator->ranks, stream);
  return status;
}
MEMLEDGER_ANSWER int ncclReduceScatter(const void* from, void* to, size_t count, int type, int,
                                       Communicator* communicator, void* stream) {
  if (const int status = connect(communicator, kRing | kNvls)) return status;
  const size_t bytes = count * size_of(type);
  return copy(to, at(from, communicator->rank * bytes), bytes, type, communicator->ranks, stream,
              Content::kReduced);
}
MEMLEDGER_ANSWER int ncclAlltoAll(const void* from, void* to, size_t count, int type,
                                  Communicator* communicator, void* stream) {
  if (communicator == nullptr) return kInvalidArgument;
  for (int peer = 0; peer < communicator->ranks; ++peer) {
    for (const bool sends : {true, false}) {
      if (const int status = connect_peer(communicator, peer, sends)) return status;
    }
  }
  const size_t bytes = count * size_of(type);
  const size_t mine = communicator->rank * bytes;
  int status = 0;
  for (int rank = 0; rank < communicator->ranks && status == 0; ++rank)
    status = copy(at(to, rank * bytes), at(from, mine), bytes, type, communicator->ranks, stream);
  return status;
}
MEMLEDGER_ANSWER int ncclBcast(void* buffer, size_t count, int type, int root,
                               Communicator* communicator, void* stream) {
  return ncclBroadcast(buffer, buffer, count, type, root, communicator, stream);
}
MEMLEDGER_ANSWER int ncclSend(const void*, size_t, int, int peer, Communicator* communicator,
                              void*) {
  return connect_peer(communicator, peer, true);
}
MEMLEDGER_ANSWER int ncclRecv(void* to, size_t count, int type, int peer,
                              Communicator* communicator, void*) {
  if (const int status = connect_peer(communicator, peer, false)) return status;
  note_received(to, count * size_of(type));
  return 0;
}
