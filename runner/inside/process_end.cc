#include "runner/inside/process_end.h"

#include <dlfcn.h>

namespace memledger::inside {

void observe_sudden_exit(SuddenExitObserver observer) noexcept {
  const auto observe = reinterpret_cast<decltype(&memledger_observe_sudden_exit)>(
      dlsym(RTLD_DEFAULT, "memledger_observe_sudden_exit"));
  if (observe != nullptr) observe(observer);
}

}  // namespace memledger::inside
