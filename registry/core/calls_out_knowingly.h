#pragma once

#include "registry/core/lock.h"

namespace memledger::core {

// Suspends the check of lock.h where LibTorch is called with a lock held and docs/design.md, "Locks", says so.
class CallsOutKnowingly {
 public:
#if MEMLEDGER_LOCKS_ARE_CHECKED
  CallsOutKnowingly() noexcept;
  ~CallsOutKnowingly();
#else
  CallsOutKnowingly() noexcept {}
  ~CallsOutKnowingly() {}
#endif
  CallsOutKnowingly(const CallsOutKnowingly&) = delete;
  CallsOutKnowingly& operator=(const CallsOutKnowingly&) = delete;

#if MEMLEDGER_LOCKS_ARE_CHECKED
 private:
  int locks_held_;
#endif
};

}  // namespace memledger::core
