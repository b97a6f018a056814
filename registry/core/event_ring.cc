#include "registry/core/event_ring.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <new>
#include <type_traits>

namespace memledger::core {

static_assert(std::is_trivially_copyable_v<LedgerEvent> &&
              std::is_trivially_destructible_v<LedgerEvent>);

int64_t steady_ns() noexcept {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

EventRing::Memory EventRing::memory_for(size_t capacity) {
  // Pages become memory when they are first written to.
  void* const memory = std::calloc(capacity, sizeof(LedgerEvent));
  if (memory == nullptr) throw std::bad_alloc();
  return Memory(static_cast<LedgerEvent*>(memory), &std::free);
}

EventRing::EventRing(size_t capacity)
    : capacity_(std::max<size_t>(capacity, 1)), events_(memory_for(capacity_)) {}

void EventRing::grow(size_t capacity) {
  if (capacity <= capacity_) return;
  Memory larger = memory_for(capacity);
  for (uint64_t i = first_; i < written_; ++i) larger[i % capacity] = events_[i % capacity_];
  events_ = std::move(larger);
  capacity_ = capacity;
}

void EventRing::add(const TableEntry& entry, bool birth) noexcept {
  LedgerEvent& event = events_[written_ % capacity_];
  if (written_ - first_ == capacity_) {
    last_dropped_ns_ = event.time_ns;
    ++first_;
  }
  ++written_;
  event.time_ns = steady_ns();
  event.birth = birth;
  fill(event, entry);
  event.complete = !birth;
}

void EventRing::fill(LedgerEvent& event, const TableEntry& entry) noexcept {
  event.id = entry.id;
  event.address = entry.address;
  event.nbytes = entry.nbytes;
  event.birthplace = entry.birthplace();
  event.stack = entry.stack;
  event.device = entry.device;
  const bool described = entry.described();
  event.dtype = described ? entry.dtype : kUnknownDtype;
  event.described = described && entry.shape.size() <= LedgerEvent::kMaxDims;
  event.adopted = entry.flags.adopted;
  event.raw_block = entry.flags.raw_block;
  event.library_workspace = entry.flags.library_workspace;
  event.parameter_like = entry.flags.parameter_like;
  event.names_only = entry.flags.names_only;
  event.dims = event.described ? static_cast<uint8_t>(entry.shape.size()) : 0;
  for (size_t i = 0; i < event.dims; ++i) event.shape[i] = entry.shape[i];
  event.complete = true;
}

void EventRing::copy(uint64_t begin, uint64_t end, std::vector<LedgerEvent>& events) const {
  for (uint64_t i = std::max(begin, first_); i < end; ++i) events.push_back(events_[i % capacity_]);
}

void LabelHistory::start() {
  const LockHolder hold(lock_);
  if (users_ == 0) {
    changes_.resize(kChanges);
    written_ = 0;
    last_overwritten_ns_ = 0;
  }
  ++users_;
  on_.store(true, std::memory_order_relaxed);
}

void LabelHistory::stop() noexcept {
  std::vector<Change> freed;
  const LockHolder hold(lock_);
  if (users_ == 0 || --users_ > 0) return;
  on_.store(false, std::memory_order_relaxed);
  freed.swap(changes_);
}

void LabelHistory::add(uint32_t thread, NameId label) noexcept {
  const LockHolder hold(lock_);
  if (changes_.empty()) return;
  Change& change = changes_[written_ % kChanges];
  if (written_++ >= kChanges) last_overwritten_ns_ = change.time_ns;
  change = {steady_ns(), thread, label};
}

LabelHistory::Reading LabelHistory::read(uint64_t begin, int64_t since_ns, int64_t until_ns) const {
  Reading result;
  result.changes.reserve(kChanges);
  const LockHolder hold(lock_);
  result.end = begin;
  if (changes_.empty()) return result;
  const uint64_t first = written_ > kChanges ? written_ - kChanges : 0;
  if (begin < first && last_overwritten_ns_ >= since_ns) result.overwritten = first - begin;
  for (uint64_t i = std::max(begin, first); i < written_; ++i) {
    const Change& change = changes_[i % kChanges];
    if (change.time_ns > until_ns) break;
    if (change.time_ns >= since_ns) result.changes.push_back(change);
    result.end = i + 1;
  }
  result.end = std::max(result.end, first);
  return result;
}

uint64_t LabelHistory::written() const {
  const LockHolder hold(lock_);
  return written_;
}

}  // namespace memledger::core
