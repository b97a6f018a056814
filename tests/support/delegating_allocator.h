#pragma once

// An allocator of a program's own that counts and passes on, with or without a raw deleter, as both
// kinds exist.

#include <c10/core/Allocator.h>

#include <cstddef>

namespace memledger::testing {

class DelegatingAllocator : public c10::Allocator {
 public:
  explicit DelegatingAllocator(c10::Allocator* base, bool with_raw_deleter = true)
      : base_(base), with_raw_deleter_(with_raw_deleter) {}
  c10::DataPtr allocate(size_t nbytes) override {
    ++calls;
    return base_->allocate(nbytes);
  }
  c10::DeleterFnPtr raw_deleter() const override {
    return with_raw_deleter_ ? base_->raw_deleter() : nullptr;
  }
  void copy_data(void* dest, const void* src, size_t count) const override {
    base_->copy_data(dest, src, count);
  }

  int calls = 0;

 private:
  c10::Allocator* const base_;
  const bool with_raw_deleter_;
};

}  // namespace memledger::testing
