#include "registry/core/byte_counters.h"

#include <algorithm>
#include <memory>

namespace memledger::core {
namespace {

constexpr std::memory_order kRelaxed = std::memory_order_relaxed;

template <typename Visit>
void for_each_bit(uint64_t bits, const Visit& visit) {
  for (; bits != 0; bits &= bits - 1) visit(static_cast<size_t>(__builtin_ctzll(bits)));
}

}  // namespace

void DeviceCounters::Sum::restart(uint64_t order, uint64_t maker) noexcept {
  peak = current;
  peak_maker = maker;
  // A thread that sees this peak sees the pins made before it.
  peak_order.store(order, std::memory_order_release);
}

uint64_t DeviceCounters::add_under_lock(int64_t nbytes, LabelSet labels, Caller caller,
                                        uint64_t id) noexcept {
  const BriefLockHolder hold(lock_);
  if (bytes_.current + nbytes > bytes_.peak || current_count_ + 1 > peak_count_)
    take_back_shares(caller.thread);
  bytes_.current += nbytes;
  ++current_count_;
  ++quiet_events_;
  if (current_count_ > peak_count_) {
    peak_count_ = current_count_;
    quiet_events_ = 0;
  }
  uint64_t order = order_ + 1;
  if (bytes_.current > bytes_.peak) {
    order_ = order;
    bytes_.restart(order, id);
    quiet_events_ = 0;
  }
  for_each_bit(labels, [&](size_t label) {
    Sum& sum = labels_[label];
    sum.current += nbytes;
    if (sum.current <= sum.peak) return;
    // Shares may keep their numbers: what has labels takes none.
    order_ = order;
    sum.restart(order, id);
  });
  if (labels == 0) give(caller, nbytes);
  return order;
}

uint64_t DeviceCounters::subtract_under_lock(int64_t nbytes, LabelSet labels,
                                             Caller caller) noexcept {
  const BriefLockHolder hold(lock_);
  bytes_.current -= nbytes;
  --current_count_;
  ++quiet_events_;
  for_each_bit(labels, [&](size_t label) { labels_[label].current -= nbytes; });
  const uint64_t order = order_ + 1;
  if (labels == 0) give(caller, nbytes);
  return order;
}

void DeviceCounters::give(Caller caller, int64_t nbytes) noexcept {
  if (quiet_events_ < kQuietEvents) return;
  const auto part_of = [](int64_t missing, int64_t least) {
    return std::min(missing, std::max(missing / 2, least));
  };
  const int64_t bytes = part_of(bytes_.peak - bytes_.current, nbytes);
  const int64_t count = part_of(peak_count_ - current_count_, 1);
  bytes_.current += bytes;
  current_count_ += count;
  const size_t share = caller.share % kShares;
  given_ |= uint64_t{1} << share;
  Share& taker = shares_[share];
  const BiasedLockHolder hold(taker.lock, caller.thread);
  if (!taker.given) taker.order = order_ + 1;
  taker.given = true;
  taker.bytes += bytes;
  taker.count += count;
}

void DeviceCounters::take_back_shares(uint32_t thread) noexcept ABSL_NO_THREAD_SAFETY_ANALYSIS {
  // All at once, so that one barrier is enough for all that have an owner.
  bool takes_bias = false;
  for_each_bit(given_, [&](size_t i) { takes_bias |= shares_[i].lock.lock_all_but_owner(thread); });
  if (takes_bias) BiasedLock::barrier_in_all_threads();
  for_each_bit(given_, [&](size_t i) {
    Share& share = shares_[i];
    share.lock.wait_for_owner();
    bytes_.current -= share.bytes;
    current_count_ -= share.count;
    share.given = false;
    share.bytes = share.count = 0;
    share.lock.unlock(BiasedLock::Way::kSlow);
  });
  given_ = 0;
}

uint64_t DeviceCounters::pass() noexcept {
  const BriefLockHolder hold(lock_);
  return order_ + 1;
}

uint64_t DeviceCounters::add_adopted(int64_t nbytes) noexcept {
  const BriefLockHolder hold(lock_);
  bytes_.current += nbytes;
  bytes_.peak += nbytes;
  ++current_count_;
  ++peak_count_;
  return 0;
}

void DeviceCounters::restart_device_peak(uint32_t thread) noexcept {
  take_back_shares(thread);
  bytes_.restart(++order_, 0);
  peak_count_ = current_count_;
}

void DeviceCounters::reset_device_peak(uint32_t thread) noexcept {
  const BriefLockHolder hold(lock_);
  restart_device_peak(thread);
}

void DeviceCounters::reset_peak(uint32_t thread) noexcept {
  const BriefLockHolder hold(lock_);
  restart_device_peak(thread);
  for (Sum& label : labels_) label.restart(order_, 0);
  unknown_deaths_before_.store(unknown_deaths_.load(kRelaxed), kRelaxed);
}

bool DeviceCounters::alive_at_a_label_peak(uint64_t birth_order, uint64_t death_order,
                                           LabelSet labels) const noexcept {
  bool alive = false;
  for_each_bit(labels, [&](size_t label) {
    alive = alive || was_alive_at(labels_[label], birth_order, death_order);
  });
  return alive;
}

Peak DeviceCounters::pin_peak() noexcept {
  const BriefLockHolder hold(lock_);
  pins_.fetch_add(1, std::memory_order_acq_rel);
  return bytes_.read();
}

Peak DeviceCounters::pin_peak(size_t label) noexcept {
  const BriefLockHolder hold(lock_);
  pins_.fetch_add(1, std::memory_order_acq_rel);
  return labels_[label].read();
}

void DeviceCounters::read(Counters& counters, uint32_t thread) noexcept {
  const BriefLockHolder hold(lock_);
  take_back_shares(thread);
  counters.current_bytes = bytes_.current;
  counters.current_count = current_count_;
  counters.peak_bytes = bytes_.peak;
  counters.peak_count = peak_count_;
}

void DeviceCounters::note_lost_death(uint64_t order) noexcept {
  uint64_t seen = lost_order_.load(kRelaxed);
  while (order > seen &&
         !lost_order_.compare_exchange_weak(seen, order, std::memory_order_acq_rel)) {
  }
}

CountersByDevice::~CountersByDevice() {
  for (const std::atomic<DeviceCounters*>& entry : counters_)
    delete entry.load(std::memory_order_relaxed);
}

DeviceCounters& CountersByDevice::at(DeviceKey device) {
  std::atomic<DeviceCounters*>& entry = counters_[slot(device)];
  if (DeviceCounters* there = entry.load(std::memory_order_acquire)) return *there;
  auto made = std::make_unique<DeviceCounters>();
  DeviceCounters* expected = nullptr;
  if (!entry.compare_exchange_strong(expected, made.get(), std::memory_order_acq_rel))
    return *expected;
  count_.fetch_add(1, std::memory_order_relaxed);
  return *made.release();
}

const DeviceCounters* CountersByDevice::find(DeviceKey device) const noexcept {
  return counters_[slot(device)].load(std::memory_order_acquire);
}

DeviceCounters* CountersByDevice::find(DeviceKey device) noexcept {
  return counters_[slot(device)].load(std::memory_order_acquire);
}

}  // namespace memledger::core
