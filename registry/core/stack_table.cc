#include "registry/core/stack_table.h"

#include <utility>

namespace memledger::core {
namespace {

// FNV-1a over the addresses, and Murmur3's finalizer. Stacks with equal hashes are told apart by
// probing on.
uint64_t hash_of(const std::vector<void*>& frames) {
  uint64_t hash = 0xcbf29ce484222325ull;
  for (const void* const frame : frames) {
    hash ^= reinterpret_cast<uintptr_t>(frame);
    hash *= 0x100000001b3ull;
  }
  hash ^= hash >> 33;
  hash *= 0xff51afd7ed558ccdull;
  return hash ^ hash >> 33;
}

}  // namespace

StackId StackTable::intern(std::vector<void*>&& frames) noexcept {
  if (frames.empty()) return 0;
  uint64_t hash = hash_of(frames);
  const LockHolder hold(lock_);
  try {
    for (;; ++hash) {
      const auto known = by_hash_.find(hash);
      if (known == by_hash_.end()) break;
      if (*stacks_[known->second - 1] == frames) return known->second;
    }
    if (stacks_.size() == kMaxStacks) return 0;
    stacks_.push_back(std::make_unique<const std::vector<void*>>(std::move(frames)));
    const auto id = static_cast<StackId>(stacks_.size());
    try {
      by_hash_.emplace(hash, id);
    } catch (...) {
      stacks_.pop_back();
      throw;
    }
    return id;
  } catch (...) {
    return 0;
  }
}

std::vector<void*> StackTable::frames(StackId id) const {
  const LockHolder hold(lock_);
  return id == 0 || id > stacks_.size() ? std::vector<void*>() : *stacks_[id - 1];
}

size_t StackTable::size() const noexcept {
  const LockHolder hold(lock_);
  return stacks_.size();
}

}  // namespace memledger::core
