// cuFile: files read straight into device memory. There is no memory to read into, and the driver
// for it is said to be missing.
#include "virtual_gpu/answer_macros.h"

namespace {

struct FileError {
  int error;
  int cuda_error;
};

constexpr int kDriverNotInitialized = 5001;
constexpr long kFailed = -1;
constexpr char kWhy[] = "GPUDirect Storage (cuFile) needs a real device.";

}  // namespace

#define REFUSES_FILE(name)             \
  MEMLEDGER_ANSWER FileError name() {  \
    MEMLEDGER_SAY_REFUSED(kWhy);       \
    return {kDriverNotInitialized, 0}; \
  }
REFUSES_FILE(cuFileBufRegister)
REFUSES_FILE(cuFileBufDeregister)
REFUSES_FILE(cuFileHandleRegister)
#undef REFUSES_FILE

#define REFUSES_TRANSFER(name)   \
  MEMLEDGER_ANSWER long name() { \
    MEMLEDGER_SAY_REFUSED(kWhy); \
    return kFailed;              \
  }
REFUSES_TRANSFER(cuFileRead)
REFUSES_TRANSFER(cuFileWrite)
#undef REFUSES_TRANSFER

MEMLEDGER_ANSWER void cuFileHandleDeregister(void*) {}
