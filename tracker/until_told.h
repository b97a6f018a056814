#pragma once

#include <utility>

#include "registry/registry.h"

namespace memledger {

// Puts the cursor back if what was read from there could not be passed on, for want of memory: the
// next call tells it. For the holder of the lock that guards the cursor. Its making may throw
// std::bad_alloc, its end does not.
class UntilTold {
 public:
  explicit UntilTold(Cursor& cursor) : cursor_(cursor), before_(Registry::global().copy(cursor)) {}
  ~UntilTold() {
    if (!told_) cursor_ = std::move(before_);
  }
  UntilTold(const UntilTold&) = delete;
  UntilTold& operator=(const UntilTold&) = delete;
  void told() noexcept { told_ = true; }

 private:
  Cursor& cursor_;
  Cursor before_;
  bool told_ = false;
};

}  // namespace memledger
