#pragma once

#include <c10/core/Allocator.h>

#include <cstddef>

#include "registry/second_copy/copies.h"

namespace memledger {

// Stands before LibTorch's CPU allocator and notes every allocation and free; the memory comes from
// the allocator found there.
//
// Made once per allocator found and never destroyed or taken out, as storages keep a pointer to it;
// while tracking is off it passes calls through. It is registered with the priority of the
// allocator that it wraps, so an allocator that the program sets later takes effect as it would
// without memledger. The next snapshot wraps that one, too, with the same wrapper as last time if
// it had one. Wrappers nest when the program's allocator stands on ours: only the outermost notes.
// A free is noted before the memory goes back, as the address can be given out again at once.
class TrackingCpuAllocator final : public c10::Allocator, public CopyInFront {
 public:
  // Puts a wrapper before the allocator in place, unless one of ours is. Not to be called by two
  // threads at once, nor while another sets allocators. Throws std::bad_alloc. After Wrappers::kMax
  // allocators further ones are left alone and count as unseen.
  static void put_in_front();
  static bool is_in_front() noexcept;

  c10::DataPtr allocate(size_t nbytes) override;
  c10::DeleterFnPtr raw_deleter() const override;
  bool is_simple_data_ptr(const c10::DataPtr& data) const override;
  void copy_data(void* dest, const void* src, size_t count) const override;
  const CopyOffer* memledger_copy() const noexcept override;

 private:
  TrackingCpuAllocator(c10::Allocator* base, size_t index) : base_(base), index_(index) {}
  ~TrackingCpuAllocator() override = default;

  c10::Allocator* const base_;
  const size_t index_;
};

}  // namespace memledger
