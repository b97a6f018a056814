#pragma once

namespace memledger::virtual_gpu {

// Makes the number the thread's last error of the runtime, and gives it back. For files that do not
// see the runtime's header.
int runtime_result(int error);

}  // namespace memledger::virtual_gpu
