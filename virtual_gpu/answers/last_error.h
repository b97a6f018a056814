#ifndef MEMLEDGER_VIRTUAL_GPU_ANSWERS_LAST_ERROR_H_
#define MEMLEDGER_VIRTUAL_GPU_ANSWERS_LAST_ERROR_H_

namespace memledger::virtual_gpu {

// Makes the number the thread's last error of the runtime, and gives it back. For files that do not see the runtime's header.
int runtime_result(int error);

}  // namespace memledger::virtual_gpu

#endif  // MEMLEDGER_VIRTUAL_GPU_ANSWERS_LAST_ERROR_H_
