// The runtime and the driver: memory and events of other processes, which can be had where
// processes share devices
// (`share=NAME`). Opened memory has addresses of its own and takes none of the device's memory, as
// it is counted where it was allocated. What another process wrote there is not known here.
#include <cuda.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>

#include "virtual_gpu/answers/cudart.h"

namespace memledger::virtual_gpu {
namespace {

struct EventTicket {
  SharedDevices::Ticket devices;
  pid_t process;
};

static_assert(sizeof(SharedDevices::Ticket) <= sizeof(cudaIpcMemHandle_t));
static_assert(sizeof(EventTicket) <= sizeof(cudaIpcEventHandle_t));

template <typename H, typename T>
void write_handle(H* handle, const T& content) {
  std::memset(handle, 0, sizeof *handle);
  std::memcpy(handle, &content, sizeof content);
}

template <typename T, typename H>
T read_handle(const H& handle) {
  T content;
  std::memcpy(&content, &handle, sizeof content);
  return content;
}

}  // namespace
}  // namespace memledger::virtual_gpu

using namespace memledger::virtual_gpu;

#define MEMLEDGER_NEEDS_SHARING()                                \
  do {                                                           \
    if (const cudaError_t error = ready()) return result(error); \
    if (!Machine::get().is_shared()) {                           \
      MEMLEDGER_SAY_REFUSED(kNoSharing);                         \
      return result(cudaErrorNotSupported);                      \
    }                                                            \
  } while (false)

MEMLEDGER_ANSWER cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t* handle, void* pointer) {
  MEMLEDGER_NEEDS_SHARING();
  if (!handle) return result(cudaErrorInvalidValue);
  const auto ticket = Machine::get().export_memory(pointer);
  if (!ticket) return result(cudaErrorInvalidValue);
  write_handle(handle, *ticket);
  return cudaSuccess;
}

MEMLEDGER_ANSWER cudaError_t cudaIpcOpenMemHandle(void** pointer, cudaIpcMemHandle_t handle,
                                                  unsigned flags) {
  MEMLEDGER_NEEDS_SHARING();
  if (!pointer || flags != cudaIpcMemLazyEnablePeerAccess) return result(cudaErrorInvalidValue);
  switch (Machine::get().import_memory(read_handle<SharedDevices::Ticket>(handle), pointer)) {
    case Machine::ImportError::kNone:
      return cudaSuccess;
    case Machine::ImportError::kInvalid:
      return result(cudaErrorInvalidResourceHandle);
    case Machine::ImportError::kSameProcess:
      return result(cudaErrorDeviceUninitialized);
    case Machine::ImportError::kNoDevice:
      return result(cudaErrorInvalidDevice);
    case Machine::ImportError::kNoAddresses:
      break;
  }
  return result(cudaErrorMapBufferObjectFailed);
}

MEMLEDGER_ANSWER cudaError_t cudaIpcCloseMemHandle(void* pointer) {
  MEMLEDGER_NEEDS_SHARING();
  if (const std::optional<Region> region = Machine::get().find(pointer))
    streams().wait_for_device(region->device);
  return result(Machine::get().close_import(pointer) ? cudaSuccess : cudaErrorInvalidValue);
}

MEMLEDGER_ANSWER cudaError_t cudaIpcGetEventHandle(cudaIpcEventHandle_t* handle,
                                                   cudaEvent_t event) {
  MEMLEDGER_NEEDS_SHARING();
  if (!handle) return result(cudaErrorInvalidValue);
  const std::optional<unsigned> flags = event_flags(event);
  if (!flags || !(*flags & cudaEventInterprocess)) return result(cudaErrorInvalidResourceHandle);
  write_handle(handle, EventTicket{Machine::get().ticket(), getpid()});
  return cudaSuccess;
}

// The work of other processes is done: what is opened is an event that nothing was recorded with.
MEMLEDGER_ANSWER cudaError_t cudaIpcOpenEventHandle(cudaEvent_t* event,
                                                    cudaIpcEventHandle_t handle) {
  MEMLEDGER_NEEDS_SHARING();
  if (!event) return result(cudaErrorInvalidValue);
  const EventTicket ticket = read_handle<EventTicket>(handle);
  if (!Machine::get().is_valid(ticket.devices)) return result(cudaErrorInvalidResourceHandle);
  if (ticket.process == getpid()) return result(cudaErrorDeviceUninitialized);
  return cudaEventCreateWithFlags(event, cudaEventDisableTiming);
}

// The driver's names for them.

namespace {

template <typename F, typename... A>
CUresult as_runtime(F function, A... arguments) {
  const KeepLastError keep;
  return static_cast<CUresult>(function(arguments...));
}

}  // namespace

MEMLEDGER_ANSWER CUresult cuIpcGetMemHandle(CUipcMemHandle* handle, CUdeviceptr address) {
  return as_runtime(cudaIpcGetMemHandle, reinterpret_cast<cudaIpcMemHandle_t*>(handle),
                    reinterpret_cast<void*>(address));
}

MEMLEDGER_ANSWER CUresult cuIpcOpenMemHandle_v2(CUdeviceptr* address, CUipcMemHandle handle,
                                                unsigned flags) {
  cudaIpcMemHandle_t same;
  static_assert(sizeof same == sizeof handle);
  std::memcpy(&same, &handle, sizeof same);
  return as_runtime(cudaIpcOpenMemHandle, reinterpret_cast<void**>(address), same, flags);
}

MEMLEDGER_ANSWER CUresult cuIpcCloseMemHandle(CUdeviceptr address) {
  return as_runtime(cudaIpcCloseMemHandle, reinterpret_cast<void*>(address));
}

MEMLEDGER_ANSWER CUresult cuIpcGetEventHandle(CUipcEventHandle* handle, CUevent event) {
  return as_runtime(cudaIpcGetEventHandle, reinterpret_cast<cudaIpcEventHandle_t*>(handle), event);
}

MEMLEDGER_ANSWER CUresult cuIpcOpenEventHandle(CUevent* event, CUipcEventHandle handle) {
  cudaIpcEventHandle_t same;
  static_assert(sizeof same == sizeof handle);
  std::memcpy(&same, &handle, sizeof same);
  return as_runtime(cudaIpcOpenEventHandle, event, same);
}

// Physical memory goes to others as a file descriptor, whose file has the ticket in it.

namespace {

CUresult can_share(CUmemAllocationHandleType type) {
  if (!Machine::get().is_shared()) {
    MEMLEDGER_SAY_REFUSED(kNoSharing);
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) {
    MEMLEDGER_SAY_REFUSED("memory of a virtual GPU is shared by file descriptors only.");
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  return CUDA_SUCCESS;
}

}  // namespace

MEMLEDGER_ANSWER CUresult cuMemExportToShareableHandle(void* handle,
                                                       CUmemGenericAllocationHandle memory,
                                                       CUmemAllocationHandleType type,
                                                       unsigned long long flags) {
  if (const CUresult error = can_share(type)) return error;
  if (!handle || flags) return CUDA_ERROR_INVALID_VALUE;
  const auto ticket = Machine::get().export_physical(reinterpret_cast<PhysicalMemory*>(memory));
  if (!ticket) return CUDA_ERROR_INVALID_VALUE;
  const int file = memfd_create("memledger", MFD_CLOEXEC);
  if (file < 0) return CUDA_ERROR_OPERATING_SYSTEM;
  if (pwrite(file, &*ticket, sizeof *ticket, 0) != sizeof *ticket) {
    close(file);
    return CUDA_ERROR_OPERATING_SYSTEM;
  }
  *static_cast<int*>(handle) = file;
  return CUDA_SUCCESS;
}

MEMLEDGER_ANSWER CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle* memory,
                                                         void* handle,
                                                         CUmemAllocationHandleType type) {
  if (const CUresult error = can_share(type)) return error;
  const int file = static_cast<int>(reinterpret_cast<intptr_t>(handle));
  SharedDevices::Ticket ticket;
  PhysicalMemory* imported = nullptr;
  if (!memory || pread(file, &ticket, sizeof ticket, 0) != sizeof ticket)
    return CUDA_ERROR_INVALID_VALUE;
  switch (Machine::get().import_physical(ticket, &imported)) {
    case Machine::ImportError::kNone:
      *memory = reinterpret_cast<CUmemGenericAllocationHandle>(imported);
      return CUDA_SUCCESS;
    case Machine::ImportError::kNoDevice:
      return CUDA_ERROR_INVALID_DEVICE;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}
