// NVSHMEM: memory that kernels of several devices share. There is none here, and LibTorch gets that
// answer when it asks.
#include <cstddef>

#include "virtual_gpu/answer_macros.h"

namespace {

constexpr int kFailed = 7;
constexpr int kNotInitialized = 0;
constexpr char kWhy[] = "NVSHMEM needs real devices.";

}  // namespace

MEMLEDGER_REFUSES(nvshmemid_hostlib_init_attr, kFailed, kWhy)
MEMLEDGER_REFUSES(nvshmem_team_split_strided, kFailed, kWhy)
MEMLEDGER_REFUSES(nvshmemx_cumodule_init, kFailed, kWhy)
MEMLEDGER_REFUSES(nvshmemx_get_uniqueid, kFailed, kWhy)
MEMLEDGER_REFUSES(nvshmemx_set_attr_uniqueid_args, kFailed, kWhy)
MEMLEDGER_REFUSES(nvshmemx_alltoallmem_on_stream, kFailed, kWhy)
MEMLEDGER_REFUSES(nvshmemx_broadcastmem_on_stream, kFailed, kWhy)

#define REFUSES_POINTER(name)     \
  MEMLEDGER_ANSWER void* name() { \
    MEMLEDGER_SAY_REFUSED(kWhy);  \
    return nullptr;               \
  }
REFUSES_POINTER(nvshmem_malloc)
REFUSES_POINTER(nvshmem_ptr)
REFUSES_POINTER(nvshmemx_mc_ptr)
#undef REFUSES_POINTER

#define REFUSES_SILENT_RESULT(name) \
  MEMLEDGER_ANSWER void name() { MEMLEDGER_SAY_REFUSED(kWhy); }
REFUSES_SILENT_RESULT(nvshmemx_getmem_on_stream)
REFUSES_SILENT_RESULT(nvshmemx_putmem_on_stream)
REFUSES_SILENT_RESULT(nvshmemx_putmem_signal_on_stream)
REFUSES_SILENT_RESULT(nvshmemx_signal_wait_until_on_stream)
#undef REFUSES_SILENT_RESULT

MEMLEDGER_ANSWER void nvshmem_init() { MEMLEDGER_SAY_REFUSED(kWhy); }
MEMLEDGER_ANSWER int nvshmemid_init_status() { return kNotInitialized; }
MEMLEDGER_ANSWER int nvshmem_team_n_pes(int) { return 1; }
MEMLEDGER_ANSWER void nvshmem_info_get_version(int* major, int* minor) {
  if (major != nullptr) *major = 3;
  if (minor != nullptr) *minor = 4;
}
MEMLEDGER_ANSWER void nvshmem_free(void*) {}
MEMLEDGER_ANSWER void nvshmemid_hostlib_finalize() {}
