// The driver's tables of functions that are in no header. A CUDA runtime that is linked into a
// program, nvcc's default, asks for them by UUID before it does anything else.
#include <pthread.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "virtual_gpu/answers/driver.h"
#include "virtual_gpu/md2.h"

using namespace memledger::virtual_gpu;

namespace {

using Uuid = std::array<unsigned char, 16>;
using Slot = const void*;

template <typename F>
Slot slot(F* function) {
  return reinterpret_cast<Slot>(function);
}

// A table begins with its size in bytes, where it says so at all.
template <size_t kSlots>
Slot size_of_table() {
  return reinterpret_cast<Slot>(kSlots * sizeof(Slot));
}

CUresult unknown_function() {
  MEMLEDGER_SAY_REFUSED("the CUDA runtime asks for a function of the driver that is not known.");
  return CUDA_ERROR_NOT_SUPPORTED;
}

// A table of many functions, of which few are known. Never destroyed.
template <size_t kSlots>
const Slot* large_table(std::initializer_list<std::pair<size_t, Slot>> known) {
  auto* const slots = new std::array<Slot, kSlots>;
  slots->fill(slot(unknown_function));
  (*slots)[0] = size_of_table<kSlots>();
  for (const auto& [number, function] : known) (*slots)[number] = function;
  return slots->data();
}

// What libraries keep for each context, under keys of their own. Their callbacks run when the
// context ends.

using ContextEnd = void (*)(CUcontext, void* key, void* value);

struct Stored {
  void* value;
  ContextEnd at_end;
};

struct Storage {
  std::mutex mutex;
  std::map<std::pair<CUcontext, void*>, Stored> values;
};

Storage* made_storage = nullptr;

Storage& storage() {
  static Storage* const made = [] {
    made_storage = new Storage;
    pthread_atfork([] { made_storage->mutex.lock(); }, [] { made_storage->mutex.unlock(); },
                   [] { made_storage->mutex.unlock(); });
    return made_storage;
  }();
  return *made;
}

// Null stands for the thread's context.
CUresult find_context(CUcontext* context) {
  if (!*context) cuCtxGetCurrent(context);
  return is_context(*context) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult put(CUcontext context, void* key, void* value, ContextEnd at_end) {
  if (const CUresult error = find_context(&context)) return error;
  Storage& s = storage();
  std::lock_guard<std::mutex> lock(s.mutex);
  s.values[{context, key}] = {value, at_end};
  return CUDA_SUCCESS;
}

CUresult remove(CUcontext context, void* key) {
  if (const CUresult error = find_context(&context)) return error;
  Storage& s = storage();
  std::lock_guard<std::mutex> lock(s.mutex);
  return s.values.erase({context, key}) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult get(void** value, CUcontext context, void* key) {
  if (!value) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult error = find_context(&context)) return error;
  Storage& s = storage();
  std::lock_guard<std::mutex> lock(s.mutex);
  const auto found = s.values.find({context, key});
  if (found == s.values.end()) return CUDA_ERROR_INVALID_HANDLE;
  *value = found->second.value;
  return CUDA_SUCCESS;
}

constexpr Uuid kContextStorage = {0xc6, 0x93, 0x33, 0x6e, 0x11, 0x21, 0xdf, 0x11,
                                  0xa8, 0xc3, 0x68, 0xf3, 0x55, 0xd8, 0x95, 0x93};
// This one does not begin with its size.
const Slot context_storage[4] = {slot(put), slot(remove), slot(get), slot(unknown_function)};

// What the runtime asks of the driver besides the functions of cuda.h.

CUresult load_wrapped(CUmodule* module, const void* code) { return cuModuleLoadData(module, code); }
CUresult load_with_options(CUmodule* module, const void* code, void*, void*, unsigned) {
  return cuModuleLoadData(module, code);
}
CUresult load_bare(const void* code, CUmodule* module, void*, void*, unsigned) {
  return cuModuleLoadData(module, code);
}

// The handle alone: the context is not made yet.
CUresult primary_context(CUcontext* context, CUdevice device) {
  if (!context) return CUDA_ERROR_INVALID_VALUE;
  if (!Machine::get().is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
  *context = context_of(device);
  return CUDA_SUCCESS;
}

void nothing(size_t) {}
CUresult succeed() { return CUDA_SUCCESS; }

constexpr Uuid kRuntime = {0x6b, 0xd5, 0xfb, 0x6c, 0x5b, 0xf4, 0xe7, 0x4a,
                           0x89, 0x87, 0xd9, 0x39, 0x12, 0xfd, 0x9d, 0xf9};
const Slot runtime[13] = {
    size_of_table<13>(),    slot(load_wrapped),     slot(primary_context),   slot(unknown_function),
    slot(unknown_function), slot(unknown_function), slot(load_with_options), slot(nothing),
    slot(load_bare),        slot(unknown_function), slot(unknown_function),  slot(unknown_function),
    slot(succeed)};

// Profilers subscribe to the runtime's calls here. There are none, so no call has a subscriber: one
// byte for each function of the runtime, and for each domain.

constexpr Uuid kSubscribers = {0xa0, 0x94, 0x79, 0x8c, 0x2e, 0x74, 0x2e, 0x74,
                               0x93, 0xf2, 0x08, 0x00, 0x20, 0x0c, 0x0a, 0x66};

void subscribed_functions(void** bytes, size_t* count) {
  static unsigned char none[4096];
  *bytes = none;
  *count = sizeof none;
}

void subscribed_domains(void** bytes, size_t* count) {
  static unsigned char none[64];
  *bytes = none;
  *count = sizeof none;
}

const Slot subscribers[7] = {size_of_table<7>(),         slot(unknown_function),
                             slot(subscribed_functions), slot(unknown_function),
                             slot(unknown_function),     slot(unknown_function),
                             slot(subscribed_domains)};

// What cuBLAS asks of the thread and its streams. What the slots do was read off the calls that
// NVIDIA's libraries made on an H200: tests/gpu/measured/h200_driver_tables.txt.

CUresult current_context(CUcontext* context) { return cuCtxGetCurrent(context); }

constexpr Uuid kCurrentContext = {0x42, 0xd8, 0x5a, 0x81, 0x23, 0xf6, 0xcb, 0x47,
                                  0x82, 0x98, 0xf6, 0xe7, 0x8a, 0x3a, 0xec, 0xdc};
const Slot current_contexts[3] = {size_of_table<3>(), slot(unknown_function),
                                  slot(current_context)};

// The value that was seen, for every context.
CUresult context_flag(CUcontext, uint64_t* flag) {
  if (!flag) return CUDA_ERROR_INVALID_VALUE;
  *flag = 1;
  return CUDA_SUCCESS;
}

// The driver's own object for a stream, which callers only hand back.
CUresult stream_object(CUcontext, CUstream stream, void** object) {
  if (!object) return CUDA_ERROR_INVALID_VALUE;
  static int default_stream = 0;
  *object = stream ? static_cast<void*>(stream) : &default_stream;
  return CUDA_SUCCESS;
}

// The value that was seen, for the default stream.
CUresult stream_number(CUcontext, void*, uint64_t* number) {
  constexpr uint64_t kDefaultStream = 7;
  if (!number) return CUDA_ERROR_INVALID_VALUE;
  *number = kDefaultStream;
  return CUDA_SUCCESS;
}

constexpr Uuid kStreams = {0x21, 0x31, 0x8c, 0x60, 0x97, 0x14, 0x32, 0x48,
                           0x8c, 0xa6, 0x41, 0xff, 0x73, 0x24, 0xc8, 0xf2};
const Slot* stream_table() {
  static const Slot* const table = large_table<93>(
      {{4, slot(context_flag)}, {39, slot(stream_number)}, {51, slot(stream_object)}});
  return table;
}

// Whether the context is in a state that forbids calls; it never is.

CUresult check_context(CUcontext, unsigned* state, const void**) {
  if (state) *state = 0;
  return CUDA_SUCCESS;
}
unsigned no_check() { return 0; }

constexpr Uuid kContextChecks = {0x26, 0x3e, 0x88, 0x60, 0x7c, 0xd2, 0x61, 0x43,
                                 0x92, 0xf6, 0xbb, 0xd5, 0x00, 0x6d, 0xfa, 0x7e};
const Slot context_checks[4] = {size_of_table<4>(), slot(unknown_function), slot(check_context),
                                slot(no_check)};

// The runtime's test that it and the driver agree: a hash over what both know.

CUresult validate(unsigned runtime_version, uint64_t seconds, unsigned char* digest);

constexpr Uuid kValidity = {0xd4, 0x08, 0x20, 0x55, 0xbd, 0xe6, 0x70, 0x4b,
                            0x8d, 0x34, 0xba, 0x12, 0x3c, 0x66, 0xe1, 0xf2};
const Slot validity[3] = {size_of_table<3>(), slot(validate), slot(unknown_function)};

class Message {
 public:
  template <typename T>
  void add(const T& value) {
    const auto* const begin = reinterpret_cast<const unsigned char*>(&value);
    bytes_.insert(bytes_.end(), begin, begin + sizeof(T));
  }
  const std::vector<unsigned char>& bytes() const { return bytes_; }

 private:
  std::vector<unsigned char> bytes_;
};

CUresult validate(unsigned runtime_version, uint64_t seconds, unsigned char* digest) {
  constexpr Md2Digest kKey = {0x14, 0x6a, 0xdd, 0xae, 0x53, 0xa9, 0xa7, 0x52,
                              0xaa, 0x08, 0x41, 0x36, 0x0b, 0xf5, 0x5a, 0x9f};
  if (!digest) return CUDA_ERROR_INVALID_VALUE;
  int driver_version = 0;
  if (const CUresult error = cuDriverGetVersion(&driver_version)) return error;
  Message message;
  message.add(driver_version);
  message.add(runtime_version);
  message.add(static_cast<uint32_t>(getpid()));
  message.add(static_cast<uint32_t>(pthread_self()));
  message.add(&runtime);
  message.add(&validity);
  message.add(validity[1]);
  message.add(seconds);
  for (int device = 0; device < Machine::get().device_count(); ++device) {
    char uuid[16];
    device_uuid(uuid, device);
    message.add(uuid);
    for (const CUdevice_attribute attribute :
         {CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID, CU_DEVICE_ATTRIBUTE_PCI_BUS_ID,
          CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID}) {
      int value = 0;
      device_attribute(&value, attribute, device);
      message.add(value);
    }
  }
  const Md2Digest result = keyed_md2(kKey, message.bytes());
  std::memcpy(digest, result.data(), result.size());
  return CUDA_SUCCESS;
}

// cuBLASLt asks for this one before it multiplies bfloat16 on Hopper, and does not look whether it
// is there. Without what slot 4 gives it goes another way; no call was seen on a device.
CUresult not_there() { return CUDA_ERROR_NOT_SUPPORTED; }

constexpr Uuid kUnseen = {0x17, 0x34, 0xdc, 0x26, 0x80, 0x0d, 0x47, 0x45,
                          0x87, 0x26, 0xc0, 0xf1, 0xe7, 0xdd, 0x8b, 0xca};
const Slot unseen[8] = {size_of_table<8>(),     slot(unknown_function), slot(unknown_function),
                        slot(unknown_function), slot(not_there),        slot(unknown_function),
                        slot(unknown_function), slot(unknown_function)};

// What cuFFT asks: each function of a module, without names. The value that was seen is returned,
// for modules with one function.

using FunctionVisitor = void (*)(void* data, CUfunction function);

unsigned visit_functions(CUcontext, CUmodule module, FunctionVisitor visit, void* data) {
  const std::vector<CUfunction> functions = functions_of(module);
  for (const CUfunction function : functions) visit(data, function);
  return functions.empty() ? 0 : 1;
}

constexpr Uuid kModules = {0x6e, 0x16, 0x3f, 0xbe, 0xb9, 0x58, 0x44, 0x4d,
                           0x83, 0x5c, 0xe1, 0x82, 0xaf, 0xf1, 0x99, 0x1e};
const Slot* module_table() {
  static const Slot* const table = large_table<99>({{7, slot(visit_functions)}, {93, nullptr}});
  return table;
}

struct Table {
  const Uuid& id;
  const Slot* slots;  // nullptr: made by `make` when it is asked for
  const Slot* (*make)() = nullptr;
};

const Table kTables[] = {
    {kRuntime, runtime},   {kSubscribers, subscribers},       {kCurrentContext, current_contexts},
    {kValidity, validity}, {kContextChecks, context_checks},  {kContextStorage, context_storage},
    {kUnseen, unseen},     {kStreams, nullptr, stream_table}, {kModules, nullptr, module_table},
};

}  // namespace

namespace memledger::virtual_gpu {

void drop_context_storage(int device) {
  const CUcontext context = context_of(device);
  std::vector<std::pair<void*, Stored>> ended;
  {
    Storage& s = storage();
    std::lock_guard<std::mutex> lock(s.mutex);
    for (auto entry = s.values.begin(); entry != s.values.end();) {
      if (entry->first.first == context) {
        ended.emplace_back(entry->first.second, entry->second);
        entry = s.values.erase(entry);
      } else {
        ++entry;
      }
    }
  }
  for (const auto& [key, stored] : ended) {
    if (stored.at_end) stored.at_end(context, key, stored.value);
  }
}

}  // namespace memledger::virtual_gpu

// A table that is not known is not there, which those who ask expect of older drivers.
MEMLEDGER_ANSWER CUresult cuGetExportTable(const void** table, const CUuuid* id) {
  if (!table || !id) return CUDA_ERROR_INVALID_VALUE;
  *table = nullptr;
  for (const Table& known : kTables) {
    if (std::memcmp(known.id.data(), id, sizeof *id) != 0) continue;
    *table = known.slots ? known.slots : known.make();
    return CUDA_SUCCESS;
  }
  return CUDA_ERROR_NOT_FOUND;
}
