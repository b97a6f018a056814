#include "registry/core/ledger.h"

#include <algorithm>
#include <new>

namespace memledger::core {

Ledger::ShardTotals& Ledger::Shard::totals_of(DeviceKey device) {
  for (ShardTotals& one : totals) {
    if (one.device == device) return one;
  }
  ShardTotals& made = totals.emplace_back();
  made.device = device;
  return made;
}

Ledger::Slot Ledger::Shard::take_slot() {
  if (free != kNone) {
    const Slot slot = free;
    free = entry(slot).newer;
    return slot;
  }
  if (used == chunks.size() * kChunk) chunks.push_back(std::make_unique<Entry[]>(kChunk));
  return used++;
}

void Ledger::Shard::unlink(Slot slot) {
  Entry& gone = entry(slot);
  (gone.older == kNone ? oldest : entry(gone.older).newer) = gone.newer;
  (gone.newer == kNone ? newest : entry(gone.newer).older) = gone.older;
  gone.newer = free;
  gone.older = kNone;
  free = slot;
}

void Ledger::remember_for_peaks(ShardTotals& totals, const StorageRecord& record, DeviceCounters& counters,
                                uint64_t death_order) noexcept {
  // In this order, here and below: a reader pins a peak before the next one can be seen.
  if (!counters.alive_at_a_peak(record.birth_order, death_order, record.peak_labels) && !counters.is_pinned()) return;
  if (!keep_peaks_.load(std::memory_order_relaxed)) {
    counters.note_lost_death(death_order);
    return;
  }
  std::vector<PeakTombstone>& stones = totals.peak_tombstones;
  try {
    if (stones.size() >= totals.sweep_at) {
      const auto worthless = std::partition(stones.begin(), stones.end(), [&](const PeakTombstone& stone) {
        return counters.alive_at_a_peak(stone.record.birth_order, stone.death_order, stone.record.peak_labels);
      });
      if (!counters.is_pinned()) stones.erase(worthless, stones.end());
      totals.sweep_at = std::max(kFewTombstones, 2 * stones.size());
      if (stones.capacity() > 4 * totals.sweep_at) stones.shrink_to_fit();
    }
    stones.push_back({record, death_order});
  } catch (...) {
    counters.note_lost_death(death_order);
  }
}

void Ledger::drop(Shard& shard, Slot slot, DeviceCounters& counters, uint64_t death_order) {
  StorageRecord& record = shard.entry(slot).record;
  ShardTotals& totals = shard.totals_of(record.device);
  remember_for_peaks(totals, record, counters, death_order);
  totals.table_bytes -= record.nbytes;
  if (record.adopted) totals.adopted_bytes -= record.nbytes;
  if (record.birth_epoch <= newest_pin_) {
    try {
      shard.tombstones.push_back({std::move(record), epoch_});
    } catch (...) {
      lost_epoch_.store(epoch_, std::memory_order_relaxed);
    }
  }
  shard.unlink(slot);
}

uint64_t Ledger::note_birth(const Birth& birth) noexcept {
  Shard& shard = shard_of(birth.address);
  try {
    DeviceCounters& counters = counters_.at(birth.device);
    const LockHolder hold(shard.lock);
    ShardTotals& totals = shard.totals_of(birth.device);
    const auto [place, is_new] = shard.by_address.try_emplace(birth.address, kNone);
    if (!is_new && place->second != kNone) {
      // Its free went past us. The counter keeps its bytes, so the report shows them as unexplained.
      const DeviceKey device = shard.entry(place->second).record.device;
      DeviceCounters& lost_from = counters_.at(device);
      drop(shard, place->second, lost_from, lost_from.pass());
      place->second = kNone;
      note_dropped_record();
    }
    Slot slot = kNone;
    try {
      slot = shard.take_slot();
    } catch (...) {
      shard.by_address.erase(place);
      throw;
    }
    place->second = slot;
    Entry& entry = shard.entry(slot);
    StorageRecord& record = entry.record;
    record.id = next_id_.fetch_add(1, std::memory_order_relaxed);
    record.address = birth.address;
    record.nbytes = birth.nbytes;
    record.base_deleter = birth.base_deleter;
    record.birth_epoch = epoch_;
    record.birthplace = birth.birthplace;
    record.device = birth.device;
    record.dtype = kUnknownDtype;
    record.described = false;
    record.adopted = birth.adopted;
    record.raw_block = birth.raw_block;
    record.parameter_like = false;
    record.shape.clear();
    record.peak_labels = birth.adopted ? 0 : birth.peak_labels;
    entry.older = shard.newest;
    entry.newer = kNone;
    (shard.newest == kNone ? shard.oldest : shard.entry(shard.newest).newer) = slot;
    shard.newest = slot;

    totals.table_bytes += birth.nbytes;
    if (birth.adopted) totals.adopted_bytes += birth.nbytes;
    if (birth.adopted) {
      counters.add_adopted(birth.nbytes);
      record.birth_order = 0;
    } else {
      totals.allocated_bytes += birth.nbytes;
      ++totals.allocated_count;
      record.birth_order = counters.add(birth.nbytes, record.peak_labels);
    }
    return record.id;
  } catch (...) {
    // No memory for it. Whatever it is, it must not reach the program.
    note_dropped_record();
    return 0;
  }
}

std::optional<Ledger::Death> Ledger::note_death(uintptr_t address) noexcept {
  Shard& shard = shard_of(address);
  const LockHolder hold(shard.lock);
  const auto place = shard.by_address.find(address);
  if (place == shard.by_address.end()) return std::nullopt;
  const Slot slot = place->second;
  const StorageRecord& record = shard.entry(slot).record;
  const Death death{record.id, record.nbytes, record.base_deleter};
  const DeviceKey device = record.device;
  DeviceCounters* const counters = counters_.find(device);  // made at its birth
  drop(shard, slot, *counters, counters->subtract(death.nbytes, record.peak_labels));
  shard.by_address.erase(place);

  ShardTotals& totals = shard.totals_of(device);
  totals.freed_bytes += death.nbytes;
  ++totals.freed_count;
  return death;
}

void Ledger::describe(uintptr_t address, uint32_t thread, uint32_t op_sequence, const int64_t* sizes, size_t dims,
                      int8_t dtype) noexcept {
  Shard& shard = shard_of(address);
  const LockHolder hold(shard.lock);
  const auto place = shard.by_address.find(address);
  if (place == shard.by_address.end()) return;
  StorageRecord& record = shard.entry(place->second).record;
  const bool made_by_this_run = record.birthplace.thread == thread && record.birthplace.op_sequence == op_sequence;
  if (record.described && !made_by_this_run) return;
  try {
    record.shape.assign(sizes, sizes + dims);
  } catch (const std::bad_alloc&) {
    note_dropped_record();
    return;
  }
  record.dtype = dtype;
  record.described = true;
}

void Ledger::set_phase(uintptr_t address, uint64_t id, Phase phase, bool inferred) noexcept {
  Shard& shard = shard_of(address);
  const LockHolder hold(shard.lock);
  const auto place = shard.by_address.find(address);
  if (place == shard.by_address.end()) return;
  StorageRecord& record = shard.entry(place->second).record;
  if (record.id != id) return;
  record.birthplace.phase = phase;
  record.birthplace.phase_inferred = inferred;
}

void Ledger::mark_parameter_like(uintptr_t address) noexcept {
  Shard& shard = shard_of(address);
  const LockHolder hold(shard.lock);
  const auto place = shard.by_address.find(address);
  if (place != shard.by_address.end()) shard.entry(place->second).record.parameter_like = true;
}

bool Ledger::is_parameter_like(uintptr_t address) const noexcept {
  Shard& shard = shard_of(address);
  const LockHolder hold(shard.lock);
  const auto place = shard.by_address.find(address);
  return place != shard.by_address.end() && shard.entry(place->second).record.parameter_like;
}

uint64_t Ledger::id_at(uintptr_t address) const noexcept {
  Shard& shard = shard_of(address);
  const LockHolder hold(shard.lock);
  const auto place = shard.by_address.find(address);
  return place == shard.by_address.end() ? 0 : shard.entry(place->second).record.id;
}

void* Ledger::base_deleter_at(uintptr_t address) const noexcept {
  Shard& shard = shard_of(address);
  const LockHolder hold(shard.lock);
  const auto place = shard.by_address.find(address);
  return place == shard.by_address.end() ? nullptr : shard.entry(place->second).record.base_deleter;
}

void Ledger::lock_all() const {
  for (Shard& shard : shards_) shard.lock.lock();
}

void Ledger::unlock_all() const {
  for (Shard& shard : shards_) shard.lock.unlock();
}

Ledger::Instant Ledger::take_instant() ABSL_NO_THREAD_SAFETY_ANALYSIS {
  Instant instant;
  // Room for every device a shard may know, so that nothing is allocated while all shards are held.
  instant.devices.reserve(kShards);
  lock_all();
  const auto merge = [&](const ShardTotals& totals) {
    auto one = std::find_if(instant.devices.begin(), instant.devices.end(),
                            [&](const DeviceTotals& d) { return d.device == totals.device; });
    if (one == instant.devices.end()) {
      instant.devices.push_back({});
      one = std::prev(instant.devices.end());
      one->device = totals.device;
      if (const DeviceCounters* own = counters_.find(totals.device)) {
        one->counters.current_bytes = own->current_bytes();
        one->counters.current_count = own->current_count();
        one->counters.peak_bytes = own->peak_bytes();
        one->counters.peak_count = own->peak_count();
      }
    }
    one->table_bytes += totals.table_bytes;
    one->adopted_bytes += totals.adopted_bytes;
    one->counters.allocated_bytes += totals.allocated_bytes;
    one->counters.allocated_count += totals.allocated_count;
    one->counters.freed_bytes += totals.freed_bytes;
    one->counters.freed_count += totals.freed_count;
  };
  for (const Shard& shard : shards_) {
    for (const ShardTotals& totals : shard.totals) merge(totals);
  }
  instant.epoch = epoch_++;
  newest_pin_ = instant.epoch;
  instant.time = std::chrono::system_clock::now();
  unlock_all();
  ++pins_[instant.epoch];
  std::sort(instant.devices.begin(), instant.devices.end(), [](const DeviceTotals& a, const DeviceTotals& b) {
    return std::pair(a.device.type, a.device.index) < std::pair(b.device.type, b.device.index);
  });
  return instant;
}

void Ledger::unpin(uint64_t epoch) {
  const auto pin = pins_.find(epoch);
  if (pin == pins_.end()) return;
  if (--pin->second == 0) pins_.erase(pin);
  const uint64_t newest = pins_.empty() ? 0 : pins_.rbegin()->first;
  lock_all();
  newest_pin_ = newest;
  unlock_all();
  // A tombstone is of interest while some pinned instant saw the storage alive.
  const auto wanted = [&](const Tombstone& stone) {
    const auto first = pins_.lower_bound(stone.record.birth_epoch);
    return first != pins_.end() && first->first < stone.death_epoch;
  };
  for (Shard& shard : shards_) {
    const LockHolder hold(shard.lock);
    if (shard.tombstones.empty()) continue;
    const auto keep = std::partition(shard.tombstones.begin(), shard.tombstones.end(), wanted);
    shard.tombstones.erase(keep, shard.tombstones.end());
    if (shard.tombstones.empty()) shard.tombstones.shrink_to_fit();
  }
}

void Ledger::collect(uint64_t since, uint64_t instant, std::vector<StorageRecord>& born, std::vector<StorageRecord>* died) {
  for (Shard& shard : shards_) {
    const LockHolder hold(shard.lock);
    for (Slot slot = shard.newest; slot != kNone; slot = shard.entry(slot).older) {
      const StorageRecord& record = shard.entry(slot).record;
      if (record.birth_epoch <= since) break;
      if (record.birth_epoch <= instant) born.push_back(record);
    }
    for (const Tombstone& stone : shard.tombstones) {
      const uint64_t birth = stone.record.birth_epoch;
      if (birth > since && birth <= instant && stone.death_epoch > instant) born.push_back(stone.record);
      if (died && birth <= since && stone.death_epoch > since && stone.death_epoch <= instant) died->push_back(stone.record);
    }
  }
  const auto by_birth = [](const StorageRecord& a, const StorageRecord& b) { return a.id < b.id; };
  std::sort(born.begin(), born.end(), by_birth);
  if (died) std::sort(died->begin(), died->end(), by_birth);
}

LedgerSnapshot Ledger::snapshot() {
  const LockHolder hold(instants_lock_);
  Instant instant = take_instant();
  LedgerSnapshot snapshot;
  snapshot.time = instant.time;
  snapshot.devices = std::move(instant.devices);
  size_t count = 0;
  for (const DeviceTotals& device : snapshot.devices) count += static_cast<size_t>(device.counters.current_count);
  snapshot.records.reserve(count);
  collect(0, instant.epoch, snapshot.records, nullptr);
  unpin(instant.epoch);
  return snapshot;
}

uint64_t Ledger::open_cursor() {
  const LockHolder hold(instants_lock_);
  cursors_.emplace(next_cursor_, 0);
  return next_cursor_++;
}

void Ledger::close_cursor(uint64_t cursor) {
  const LockHolder hold(instants_lock_);
  const auto found = cursors_.find(cursor);
  if (found == cursors_.end()) return;
  const uint64_t epoch = found->second;
  cursors_.erase(found);
  if (epoch != 0) unpin(epoch);
}

LedgerChanges Ledger::changes_since(uint64_t cursor) {
  const LockHolder hold(instants_lock_);
  LedgerChanges changes;
  uint64_t& epoch = cursors_[cursor];
  const uint64_t last = epoch;
  Instant instant = take_instant();
  epoch = instant.epoch;
  const uint64_t since = last < lost_epoch_.load(std::memory_order_relaxed) ? 0 : last;
  changes.time = instant.time;
  changes.devices = std::move(instant.devices);
  changes.from_snapshot = since == 0;
  collect(since, instant.epoch, changes.born, since == 0 ? nullptr : &changes.died);
  if (last != 0) unpin(last);
  return changes;
}

Counters Ledger::counters(DeviceKey device) const {
  Counters result;
  for (const Shard& shard : shards_) {
    const LockHolder hold(shard.lock);
    for (const ShardTotals& totals : shard.totals) {
      if (totals.device != device) continue;
      result.allocated_bytes += totals.allocated_bytes;
      result.allocated_count += totals.allocated_count;
      result.freed_bytes += totals.freed_bytes;
      result.freed_count += totals.freed_count;
    }
  }
  if (const DeviceCounters* own = counters_.find(device)) {
    result.current_bytes = own->current_bytes();
    result.current_count = own->current_count();
    result.peak_bytes = own->peak_bytes();
    result.peak_count = own->peak_count();
  }
  return result;
}

void Ledger::reset_peak(DeviceKey device) noexcept {
  const LockHolder hold(shards_[0].lock);
  if (DeviceCounters* own = counters_.find(device)) own->reset_peak();
}

template <typename Pin>
LedgerPeak Ledger::collect_peak(DeviceKey device, LabelSet label, const Pin& pin) {
  const LockHolder no_fork(instants_lock_);
  LedgerPeak result;
  DeviceCounters* const own = counters_.find(device);
  if (own == nullptr) return result;
  const Peak peak = [&] {
    const LockHolder hold(shards_[0].lock);
    return pin(*own);
  }();
  const std::unique_ptr<DeviceCounters, void (*)(DeviceCounters*)> unpin(own, [](DeviceCounters* one) { one->unpin(); });
  result.bytes = peak.bytes;
  const auto counts = [&](const StorageRecord& record) {
    return record.device == device && record.birth_order <= peak.order && (label == 0 || (record.peak_labels & label) != 0);
  };
  for (Shard& shard : shards_) {
    const LockHolder hold(shard.lock);
    for (Slot slot = shard.oldest; slot != kNone; slot = shard.entry(slot).newer) {
      const StorageRecord& record = shard.entry(slot).record;
      if (counts(record)) result.records.push_back(record);
    }
    for (const PeakTombstone& stone : shard.totals_of(device).peak_tombstones) {
      if (counts(stone.record) && peak.order < stone.death_order) result.records.push_back(stone.record);
    }
  }
  std::sort(result.records.begin(), result.records.end(),
            [](const StorageRecord& a, const StorageRecord& b) { return a.id < b.id; });
  // Read last: what was lost meanwhile counts.
  result.complete = own->last_lost_death() <= peak.order;
  return result;
}

LedgerPeak Ledger::peak(DeviceKey device) {
  return collect_peak(device, 0, [](DeviceCounters& own) { return own.pin_peak(); });
}

LedgerPeak Ledger::peak(DeviceKey device, size_t label) {
  return collect_peak(device, LabelSet{1} << label, [label](DeviceCounters& own) { return own.pin_peak(label); });
}

size_t Ledger::tombstones() const noexcept {
  size_t count = 0;
  for (Shard& shard : shards_) {
    const LockHolder hold(shard.lock);
    count += shard.tombstones.size();
    for (const ShardTotals& totals : shard.totals) count += totals.peak_tombstones.size();
  }
  return count;
}

void Ledger::lock_for_fork() {
  instants_lock_.lock();
  lock_all();
}

void Ledger::unlock_after_fork() {
  unlock_all();
  instants_lock_.unlock();
}

}  // namespace memledger::core
