// CUPTI, NVIDIA's tracing library: it can be asked for everything and has nothing to report, as no
// kernel runs.
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "virtual_gpu/answer_macros.h"

namespace {

// Numbers of CUptiResult.
constexpr int kSuccess = 0;
constexpr int kInvalidParameter = 1;
constexpr int kNoMoreRecords = 12;

}  // namespace

MEMLEDGER_DOES_NOTHING(cuptiActivityDisable)
MEMLEDGER_DOES_NOTHING(cuptiActivityEnable)
MEMLEDGER_DOES_NOTHING(cuptiActivityEnableCudaEventDeviceTimestamps)
MEMLEDGER_DOES_NOTHING(cuptiActivityEnableDriverApi)
MEMLEDGER_DOES_NOTHING(cuptiActivityEnableHWTrace)
MEMLEDGER_DOES_NOTHING(cuptiActivityEnableRuntimeApi)
MEMLEDGER_DOES_NOTHING(cuptiActivityFlushAll)
MEMLEDGER_DOES_NOTHING(cuptiActivityPushExternalCorrelationId)
MEMLEDGER_DOES_NOTHING(cuptiActivityRegisterCallbacks)
MEMLEDGER_DOES_NOTHING(cuptiActivityRegisterTimestampCallback)
MEMLEDGER_DOES_NOTHING(cuptiActivitySetAttribute)
MEMLEDGER_DOES_NOTHING(cuptiEnableCallback)
MEMLEDGER_DOES_NOTHING(cuptiEnableDomain)
MEMLEDGER_DOES_NOTHING(cuptiFinalize)
MEMLEDGER_DOES_NOTHING(cuptiUnsubscribe)

MEMLEDGER_ANSWER int cuptiActivityGetNextRecord(uint8_t*, size_t, void** record) {
  if (record) *record = nullptr;
  return kNoMoreRecords;
}

MEMLEDGER_ANSWER int cuptiActivityGetNumDroppedRecords(void*, uint32_t, size_t* dropped) {
  if (dropped) *dropped = 0;
  return kSuccess;
}

MEMLEDGER_ANSWER int cuptiActivityPopExternalCorrelationId(int, uint64_t* last) {
  if (last) *last = 0;
  return kSuccess;
}

MEMLEDGER_ANSWER int cuptiSubscribe(void** subscriber, void*, void*) {
  static char handle;
  if (!subscriber) return kInvalidParameter;
  *subscriber = &handle;
  return kSuccess;
}

MEMLEDGER_ANSWER int cuptiGetVersion(uint32_t* version) {
  if (!version) return kInvalidParameter;
  *version = CUDART_VERSION * 10;
  return kSuccess;
}

MEMLEDGER_ANSWER int cuptiGetTimestamp(uint64_t* timestamp) {
  if (timestamp) *timestamp = 0;
  return kSuccess;
}

MEMLEDGER_ANSWER int cuptiGetResultString(int error, const char** text) {
  if (!text) return kInvalidParameter;
  *text = error == kSuccess         ? "CUPTI_SUCCESS"
          : error == kNoMoreRecords ? "CUPTI_ERROR_MAX_LIMIT_REACHED"
                                    : "CUPTI_ERROR_UNKNOWN";
  return kSuccess;
}

MEMLEDGER_ANSWER int cuptiGetCallbackName(int, uint32_t, const char** name) {
  if (!name) return kInvalidParameter;
  *name = "";
  return kSuccess;
}
