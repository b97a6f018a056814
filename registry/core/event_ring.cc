#include "registry/core/event_ring.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <new>
#include <type_traits>
#include <utility>

namespace memledger::core {

static_assert(std::is_trivially_copyable_v<LedgerEvent> &&
              std::is_trivially_destructible_v<LedgerEvent>);

int64_t steady_ns() noexcept {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

namespace {

size_t segments_for(size_t events) {
  return events / EventSegments::kEvents + (events % EventSegments::kEvents != 0);
}

}  // namespace

// Each shard may have one segment that it has not filled, and has closed one whose first events are
// older than the last of the segment that is dropped.
EventSegments::EventSegments(size_t events, size_t shards)
    : shards_(shards), capacity_(std::max<size_t>(events, 1)) {
  add_part(segments_for(capacity_) + 2 * shards_);
}

void EventSegments::grow(size_t events) {
  if (events <= capacity_) return;
  add_part(segments_for(events - capacity_));
  capacity_ = events;
}

void EventSegments::add_part(size_t count) {
  parts_.reserve(parts_.size() + 1);
  // Pages become memory when they are first written to.
  constexpr size_t kBytes = kEvents * sizeof(LedgerEvent);
  void* const memory = std::calloc(count, kBytes);
  if (memory == nullptr) throw std::bad_alloc();
  Part part{{static_cast<LedgerEvent*>(memory), &std::free}, nullptr, count};
  part.segments = std::make_unique<Segment[]>(count);
  const BriefLockHolder hold(lock_);
  for (size_t i = 0; i < count; ++i) {
    part.segments[i].events = part.events.get() + i * kEvents;
    append(free_, part.segments[i]);
  }
  parts_.push_back(std::move(part));
  room_ += count * kEvents;
}

void EventSegments::append(List& list, Segment& segment) noexcept {
  segment.newer = nullptr;
  (list.newest == nullptr ? list.oldest : list.newest->newer) = &segment;
  list.newest = &segment;
}

EventSegments::Segment* EventSegments::take_oldest(List& list) noexcept {
  Segment* const oldest = list.oldest;
  if (oldest == nullptr) return nullptr;
  list.oldest = oldest->newer;
  if (list.oldest == nullptr) list.newest = nullptr;
  return oldest;
}

EventSegments::Segment* EventSegments::open(uint32_t shard, uint64_t first) noexcept {
  const BriefLockHolder hold(lock_);
  Segment* opened = take_oldest(free_);
  if (opened == nullptr) {
    opened = take_oldest(closed_);
    last_dropped_ns_ = std::max(last_dropped_ns_, opened->events[kEvents - 1].time_ns);
  }
  opened->state = Segment::State::kOpen;
  opened->shard = shard;
  opened->first = first;
  return opened;
}

void EventSegments::close(Segment* full) noexcept {
  const BriefLockHolder hold(lock_);
  full->state = Segment::State::kClosed;
  append(closed_, *full);
}

void EventSegments::copy(const Segment& segment, uint64_t end, Range range,
                         std::vector<LedgerEvent>& events) {
  end = std::min(end, range.end);
  for (uint64_t place = std::max(segment.first, range.begin); place < end; ++place)
    events.push_back(segment.events[place - segment.first]);
}

void EventRing::add(const TableEntry& entry, bool birth) noexcept {
  if (open_ == nullptr) open_ = segments_.open(shard_, written_);
  LedgerEvent& event = open_->events[written_ - open_->first];
  event.time_ns = steady_ns();
  event.birth = birth;
  fill(event, entry);
  event.complete = !birth;
  if (++written_ - open_->first < EventSegments::kEvents) return;
  segments_.close(open_);
  open_ = nullptr;
}

bool EventRing::copy_open(const EventSegments::Segment& segment, EventSegments::Range range,
                          std::vector<LedgerEvent>& events) const {
  if (open_ != &segment) return false;
  EventSegments::copy(segment, written_, range, events);
  return true;
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
