#pragma once

#include <utility>

#include "registry/registry.h"

namespace memledger {

// Puts a cursor back at the end of the scope unless told() was called: if memory runs out before
// the changes were passed on, the next call passes them on. The caller holds the lock that guards
// the cursor. The constructor may throw std::bad_alloc, the destructor does not.
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
