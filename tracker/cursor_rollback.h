#pragma once

#include <utility>

#include "registry/registry.h"

namespace memledger {

// Puts a cursor back at the end of the scope unless commit() was called: if memory runs out before
// the changes were passed on, the next call passes them on. The caller holds the lock that guards
// the cursor. The constructor may throw std::bad_alloc, the destructor does not.
class CursorRollback {
 public:
  explicit CursorRollback(Cursor& cursor)
      : cursor_(cursor), before_(Registry::global().copy(cursor)) {}
  ~CursorRollback() {
    if (!committed_) cursor_ = std::move(before_);
  }
  CursorRollback(const CursorRollback&) = delete;
  CursorRollback& operator=(const CursorRollback&) = delete;
  void commit() noexcept { committed_ = true; }

 private:
  Cursor& cursor_;
  Cursor before_;
  bool committed_ = false;
};

}  // namespace memledger
