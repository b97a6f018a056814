#include "registry/core/ledger.h"

#include <algorithm>
#include <iterator>
#include <new>
#include <unordered_set>
#include <utility>

#include "registry/core/ledger_events.h"
#include "registry/core/thread_context.h"

namespace memledger::core {

Ledger::ShardTotals& Ledger::add_totals(Shard& shard, DeviceKey device) {
  DeviceCounters& counters = counters_.at(device);
  ShardTotals& made = shard.totals.emplace_back();
  made.device = device;
  made.counters = &counters;
  return made;
}

Ledger::Slot Ledger::Shard::take_new_slot() {
  if (used == chunks.size() * kChunk) chunks.push_back(std::make_unique<Entry[]>(kChunk));
  return used++;
}

template <typename Wanted>
size_t Ledger::sweep_some(Shard& shard, Slot& next, size_t most,
                          const Wanted& wanted_for_instants) {
  size_t wanted = 0;
  for (; most > 0 && next != kNone; --most) {
    const Slot slot = next;
    const Entry& entry = shard.entry(slot);
    next = entry.newer;
    if (wanted_for_instants(entry)) {
      ++wanted;
    } else if (!is_wanted_for_peaks(entry, entry.death_order,
                                    *shard.totals_of(entry.device)->counters)) {
      for (Slot* const other : {&shard.sweeping, &shard.unpinning}) {
        if (*other == slot) *other = next;
      }
      shard.unlink(shard.dead, slot);
      shard.give_back(slot);
    }
  }
  if (next == kNone) shard.sweep_at = std::max(kFewTombstones, 2 * shard.dead.size);
  return wanted;
}

void Ledger::bury(Shard& shard, Slot slot, ShardTotals& totals, uint64_t death_order) noexcept {
  Entry& entry = shard.entry(slot);
  if (shard.ring != nullptr) shard.ring->add(entry, /*birth=*/false);
  totals.table_bytes -= entry.nbytes;
  if (entry.flags.adopted) totals.adopted_bytes -= entry.nbytes;
  if (entry.flags.raw_block) totals.raw_block_bytes -= entry.nbytes;
  if (entry.flags.library_workspace) totals.library_workspace_bytes -= entry.nbytes;
  shard.unlink(shard.live, slot);
  entry.add_to_state(Entry::kDead);
  entry.death_epoch = epoch_;
  entry.death_order = death_order;
  const bool for_instants = entry.birth_epoch <= newest_pin_;
  bool for_peaks = is_wanted_for_peaks(entry, death_order, *totals.counters);
  if (for_peaks && !keep_peaks_.load(std::memory_order_relaxed)) {
    totals.counters->note_lost_death(death_order);
    for_peaks = false;
  }
  if (!for_peaks && !for_instants) {
    shard.give_back(slot);
    return;
  }
  shard.append(shard.dead, slot);
  shard.dead_for_instants += for_instants;
  if (shard.sweeping == kNone) {
    if (shard.dead.size < shard.sweep_at) return;
    shard.sweeping = shard.dead.oldest;
  }
  // Which instants are pinned cannot be asked here; newest_pin_ bounds them.
  sweep_some(shard, shard.sweeping, kSweptByDeath,
             [this](const Entry& stone) { return stone.birth_epoch <= newest_pin_; });
}

uint32_t Ledger::calling_thread() noexcept { return this_thread().thread; }

uint64_t Ledger::new_number() noexcept {
  static std::atomic<uint64_t> ledgers{0};
  return ledgers.fetch_add(1, std::memory_order_relaxed) + 1;
}

uint64_t Ledger::take_id_block(ThreadContext& thread) noexcept {
  const uint64_t number = id_blocks_.taken.fetch_add(1, std::memory_order_relaxed);
  const uint64_t first = number * kIdBlock + 1;
  uint64_t newest = id_blocks_.newest_end.load(std::memory_order_relaxed);
  while (newest < first + kIdBlock && !id_blocks_.newest_end.compare_exchange_weak(
                                          newest, first + kIdBlock, std::memory_order_relaxed)) {
  }
  thread.ids = {number_, first + 1, first + kIdBlock, number};
  return first;
}

uint64_t Ledger::note_birth(const Birth& birth, void** lost_owner, BornEntry* born) noexcept {
  void* lost = nullptr;
  BornEntry made = {};
  ThreadContext& thread = this_thread();
  const Birthplace& place = birth.birthplace;
  const uint64_t id = enter(
      birth,
      [&place](Entry& entry, Entry::Flags& flags) {
        entry.set_birthplace(place);
        flags.phase_inferred = place.phase_inferred;
        flags.parameter_inferred = place.parameter_inferred;
      },
      place.thread != 0 ? place.thread : thread.thread, thread, lost, made);
  if (lost_owner != nullptr && lost != nullptr) *lost_owner = lost;
  if (born != nullptr && id != 0) *born = made;
  return id;
}

uint64_t Ledger::newest_id() const noexcept {
  const IdBlock& own = this_thread().ids;
  const uint64_t end = id_blocks_.newest_end.load(std::memory_order_relaxed);
  if (own.ledger == number_ && own.end == end) return own.next - 1;
  return end == 0 ? 0 : end - 1;
}

void Ledger::note_backward_pass() noexcept {
  const uint64_t now = next_id();
  uint64_t last = last_backward_pass();
  while (last < now && !last_backward_pass_.compare_exchange_weak(last, now)) {
  }
}

Ledger::ShardTotals* Ledger::make_room(Shard& shard, const Block& block,
                                       void*& lost_owner) noexcept {
  try {
    ShardTotals* const known = shard.totals_of(block.device);
    ShardTotals& totals = known != nullptr ? *known : add_totals(shard, block.device);
    shard.by_address.make_room();
    if (shard.free == kNone) shard.give_back(shard.take_new_slot());
    return &totals;
  } catch (...) {
    const AddressIndex::Found there = shard.look_up(block.address);
    if (there.slot != kNone) {
      lost_owner = drop_lost(shard, there.slot);
      shard.by_address.erase(there.place);
    }
    note_dropped_record();
    return nullptr;
  }
}

void* Ledger::drop_lost(Shard& shard, Slot slot) noexcept {
  Entry& lost = shard.entry(slot);
  void* const owner = lost.owner;
  lost.owner = nullptr;
  ShardTotals& totals = *shard.totals_of(lost.device);
  bury(shard, slot, totals, totals.counters->pass());
  note_dropped_record();
  return owner;
}

std::optional<Ledger::Death> Ledger::note_death(uintptr_t address) noexcept {
  const uint32_t thread = calling_thread();
  return note_death(address, {thread, thread});
}

bool Ledger::describe(uintptr_t address, uint32_t thread, uint32_t op_sequence,
                      const int64_t* sizes, size_t dims, int8_t dtype, void* owner,
                      bool is_result) noexcept {
  Shard& shard = shard_of(address);
  const BiasedLockHolder hold(shard.lock, calling_thread());
  Entry* const there = shard.find(address);
  if (there == nullptr) return false;
  Entry& record = *there;
  const bool takes_owner = owner != nullptr && record.owner == nullptr;
  if (takes_owner) record.owner = owner;
  const bool made_by_this_run = record.thread == thread && record.op_sequence == op_sequence;
  if (record.described() && !made_by_this_run) return takes_owner;
  if (is_result && made_by_this_run) record.add_to_state(Entry::kResult);
  try {
    record.shape.assign(sizes, dims);
  } catch (const std::bad_alloc&) {
    note_dropped_record();
    return takes_owner;
  }
  record.dtype = dtype;
  record.add_to_state(Entry::kDescribed);
  return takes_owner;
}

bool Ledger::set_owner(uintptr_t address, void* owner) noexcept {
  Shard& shard = shard_of(address);
  const BiasedLockHolder hold(shard.lock, calling_thread());
  Entry* const there = shard.find(address);
  if (there == nullptr) return false;
  Entry& record = *there;
  if (record.owner != nullptr) return false;
  record.owner = owner;
  return true;
}

void Ledger::set_phase(uintptr_t address, uint64_t id, Phase phase, bool inferred) noexcept {
  Shard& shard = shard_of(address);
  const BiasedLockHolder hold(shard.lock, calling_thread());
  Entry* const there = shard.find(address);
  if (there == nullptr) return;
  Entry& record = *there;
  if (record.id != id) return;
  record.phase = phase;
  record.flags.phase_inferred = inferred;
}

uint64_t Ledger::mark_parameter_like(uintptr_t address, bool* is_told) noexcept {
  Shard& shard = shard_of(address);
  const BiasedLockHolder hold(shard.lock, calling_thread());
  Entry* const there = shard.find(address);
  if (there == nullptr) return 0;
  Entry& record = *there;
  record.flags.parameter_like = true;
  if (is_told != nullptr) *is_told = record.flags.told_parameter;
  any_parameter_like_.store(true, std::memory_order_relaxed);
  return record.id;
}

void Ledger::mark_told_parameter(uintptr_t address) noexcept {
  uint64_t id = 0;
  {
    Shard& shard = shard_of(address);
    const BiasedLockHolder hold(shard.lock, calling_thread());
    Entry* const there = shard.find(address);
    if (there == nullptr || there->flags.told_parameter) return;
    there->flags.told_parameter = true;
    id = there->id;
    any_told_parameter_.store(true, std::memory_order_relaxed);
  }
  try {
    const LockHolder hold(told_lock_);
    if (told_.size() >= told_swept_at_) {
      for (auto told = told_.begin(); told != told_.end();) {
        const auto next = std::next(told);
        if (told_parameter_at(told->second) != told->first) told_.erase(told);
        told = next;
      }
      told_swept_at_ = std::max(told_swept_at_, 2 * told_.size());
    }
    told_.try_emplace(id, address);
  } catch (const std::bad_alloc&) {  // then a copy of it is taken for a parameter itself
  }
}

bool Ledger::is_told_parameter(uint64_t id) const noexcept {
  const LockHolder hold(told_lock_);
  const auto told = told_.find(id);
  return told != told_.end() && told_parameter_at(told->second) == id;
}

uint64_t Ledger::told_parameter_at(uintptr_t address) const noexcept {
  Shard& shard = shard_of(address);
  const BiasedLockHolder hold(shard.lock, calling_thread());
  const Entry* const there = shard.find(address);
  if (there == nullptr) return 0;
  return there->flags.told_parameter ? uint64_t{there->id} : 0;
}

void Ledger::note_consumer(uintptr_t address, uint64_t consumer) noexcept {
  Shard& shard = shard_of(address);
  const BiasedLockHolder hold(shard.lock, calling_thread());
  Entry* const there = shard.find(address);
  if (there == nullptr) return;
  Entry& record = *there;
  if (record.parameter_or_consumer != 0 || record.id == consumer || consumer == 0) return;
  record.parameter_or_consumer = consumer;
  record.flags.has_consumer = true;
}

bool Ledger::mark_gradient(uintptr_t gradient, uintptr_t leaf) noexcept {
  const uint64_t parameter = id_at(leaf);
  Shard& shard = shard_of(gradient);
  const BiasedLockHolder hold(shard.lock, calling_thread());
  Entry* const there = shard.find(gradient);
  if (there == nullptr) return false;
  Entry& record = *there;
  if (!record.flags.parameter_like) {
    record.flags.gradient = true;
    record.parameter_or_consumer = parameter;
    record.flags.has_consumer = false;
    record.flags.parameter_inferred = record.flags.read_parameter = false;
  }
  return !record.described();
}

uint64_t Ledger::mark_library_workspace(uintptr_t address, DeviceKey device) noexcept {
  Shard& shard = shard_of(address);
  const BiasedLockHolder hold(shard.lock, calling_thread());
  Entry* const there = shard.find(address);
  if (there == nullptr) return 0;
  Entry& record = *there;
  if (record.device != device || record.described() || record.flags.raw_block) return 0;
  if (!record.flags.library_workspace)
    shard.totals_of(device)->library_workspace_bytes += record.nbytes;
  record.flags.library_workspace = true;
  return record.id;
}

bool Ledger::is_parameter_like(uintptr_t address) const noexcept {
  Shard& shard = shard_of(address);
  const BiasedLockHolder hold(shard.lock, calling_thread());
  const Entry* const there = shard.find(address);
  return there != nullptr && there->flags.parameter_like;
}

Ledger::Made Ledger::made_at(uintptr_t address) const noexcept {
  Shard& shard = shard_of(address);
  const BiasedLockHolder hold(shard.lock, calling_thread());
  const Entry* const there = shard.find(address);
  return there == nullptr ? Made{} : Made{there->id, there->parameter()};
}

std::pair<NameId, NameId> Ledger::labels_at(uintptr_t address) const noexcept {
  Shard& shard = shard_of(address);
  const BiasedLockHolder hold(shard.lock, calling_thread());
  const Entry* const there = shard.find(address);
  if (there == nullptr) return {0, 0};
  return {there->label, there->forward_label};
}

std::pair<uint32_t, uint32_t> Ledger::run_at(uintptr_t address) const noexcept {
  Shard& shard = shard_of(address);
  const BiasedLockHolder hold(shard.lock, calling_thread());
  const Entry* const there = shard.find(address);
  if (there == nullptr || there->flags.adopted) return {0, 0};
  return {there->thread, there->op_sequence};
}

uint64_t Ledger::id_at(uintptr_t address) const noexcept {
  if (id_blocks_.taken.load(std::memory_order_relaxed) == 0)
    return 0;  // nothing was ever written down
  Shard& shard = shard_of(address);
  const BiasedLockHolder hold(shard.lock, calling_thread());
  const Entry* const there = shard.find(address);
  return there == nullptr ? 0 : uint64_t{there->id};
}

void* Ledger::base_deleter_at(uintptr_t address) const noexcept {
  Shard& shard = shard_of(address);
  const BiasedLockHolder hold(shard.lock, calling_thread());
  const Entry* const there = shard.find(address);
  return there == nullptr ? nullptr : there->base_deleter;
}

void Ledger::lock_all() const {
  bool takes_bias = false;
  for (Shard& shard : shards_) takes_bias |= shard.lock.lock_all_but_owner(calling_thread());
  if (takes_bias) BiasedLock::barrier_in_all_threads();
  for (Shard& shard : shards_) shard.lock.wait_for_owner();
}

void Ledger::unlock_all() const {
  for (Shard& shard : shards_) shard.lock.unlock(BiasedLock::Way::kSlow);
}

// Unpins an instant at its end, unless kept.
class Ledger::Pin {
 public:
  Pin(Ledger& ledger, uint64_t epoch) : ledger_(ledger), epoch_(epoch) {}
  ~Pin() ABSL_NO_THREAD_SAFETY_ANALYSIS {
    if (epoch_ != 0) ledger_.unpin(epoch_);
  }
  Pin(const Pin&) = delete;
  Pin& operator=(const Pin&) = delete;
  uint64_t keep() noexcept { return std::exchange(epoch_, 0); }

 private:
  Ledger& ledger_;
  uint64_t epoch_;
};

Ledger::Instant Ledger::take_instant(RecordingMark* mark) ABSL_NO_THREAD_SAFETY_ANALYSIS {
  Instant instant;
  // Room for every device a shard may know and for some new ones: nothing is allocated while all
  // shards are held, nor after the epoch has ended.
  instant.devices.reserve(counters_.count() + kShards);
  pins_.emplace(epoch_, 1);
  lock_all();
  const auto merge = [&](const ShardTotals& totals) {
    auto sums = std::find_if(instant.devices.begin(), instant.devices.end(),
                             [&](const DeviceTotals& d) { return d.device == totals.device; });
    if (sums == instant.devices.end()) {
      instant.devices.push_back({});
      sums = std::prev(instant.devices.end());
      sums->device = totals.device;
      if (DeviceCounters* const own = counters_.find(totals.device))
        own->read(sums->counters, calling_thread());
    }
    sums->table_bytes += totals.table_bytes;
    sums->adopted_bytes += totals.adopted_bytes;
    sums->raw_block_bytes += totals.raw_block_bytes;
    sums->library_workspace_bytes += totals.library_workspace_bytes;
    sums->counters.allocated_bytes += totals.allocated_bytes;
    sums->counters.allocated_count += totals.allocated_count;
    sums->counters.freed_bytes += totals.freed_bytes;
    sums->counters.freed_count += totals.freed_count;
  };
  for (const Shard& shard : shards_) {
    for (const ShardTotals& totals : shard.totals) merge(totals);
  }
  next_id();  // whatever is born later has a greater id than what is here
  instant.epoch = epoch_++;
  newest_pin_ = instant.epoch;
  instant.time = std::chrono::system_clock::now();
  if (mark != nullptr) mark_recording(*mark);
  unlock_all();
  std::sort(instant.devices.begin(), instant.devices.end(),
            [](const DeviceTotals& a, const DeviceTotals& b) {
              return std::pair(a.device.type, a.device.index) <
                     std::pair(b.device.type, b.device.index);
            });
  return instant;
}

void Ledger::unpin(uint64_t epoch) noexcept {
  const auto pin = pins_.find(epoch);
  if (pin == pins_.end() || --pin->second > 0) return;
  pins_.erase(pin);
  const uint64_t newest = pins_.empty() ? 0 : pins_.rbegin()->first;
  lock_all();
  newest_pin_ = newest;
  unlock_all();
  // Wanted while some pinned instant saw the storage alive.
  const auto wanted = [&](const Entry& stone) {
    const auto pin = pins_.lower_bound(stone.birth_epoch);
    return pin != pins_.end() && pin->first < stone.death_epoch;
  };
  for (Shard& shard : shards_) {
    {
      const BiasedLockHolder hold(shard.lock, calling_thread());
      if (shard.dead_for_instants == 0) continue;
      shard.dead_for_instants = 0;
      shard.unpinning = shard.dead.oldest;
    }
    for (bool more = true; more;) {
      shard.lock.let_others_in();
      const BiasedLockHolder hold(shard.lock, calling_thread());
      shard.dead_for_instants += sweep_some(shard, shard.unpinning, kChunk, wanted);
      more = shard.unpinning != kNone;
    }
  }
}

template <typename Wanted>
RecordList Ledger::gather_all(Share share, const Wanted& wanted) {
  // Until they are copied records can die, but none is added. So nothing grows while a shard is
  // held.
  size_t most = 0;
  for (Shard& shard : shards_) {
    size_t living = 0, dead = 0;
    {
      const BiasedLockHolder hold(shard.lock, calling_thread());
      living = shard.live.size;
      dead = shard.dead.size;
    }
    if (share == Share::kMost && dead <= living / 8) {
      most += living + dead;
    } else {
      visit_entries(shard, [&](const Entry& entry) { most += wanted(entry); });
    }
  }
  LargeVector<StorageRecord> records;
  records.reserve(most);
  take_page_faults(records.data(), most * sizeof(StorageRecord));
  for (Shard& shard : shards_) {
    visit_entries(shard, [&](const Entry& entry) {
      if (wanted(entry)) records.push_back(entry.record());
    });
  }
  return RecordList(std::move(records));
}

template <typename IsPast, typename Live, typename Dead, typename Visit>
void Ledger::visit_recent(Shard& shard, const IsPast& is_past, const Live& live, const Dead& dead,
                          const Visit& visit) {
  {
    const BiasedLockHolder hold(shard.lock, calling_thread());
    size_t recent = shard.dead.size;
    for (Slot slot = shard.live.newest;
         recent <= kFewEntries && slot != kNone && !is_past(shard.entry(slot));
         slot = shard.entry(slot).older)
      ++recent;
    if (recent <= kFewEntries) {
      for (Slot slot = shard.live.newest; slot != kNone && !is_past(shard.entry(slot));
           slot = shard.entry(slot).older) {
        if (live(shard.entry(slot))) visit(shard.entry(slot));
      }
      for (Slot slot = shard.dead.oldest; slot != kNone; slot = shard.entry(slot).newer) {
        if (dead(shard.entry(slot))) visit(shard.entry(slot));
      }
      return;
    }
  }
  visit_entries(shard, [&](const Entry& entry) {
    if (entry.is_alive() ? !is_past(entry) && live(entry) : dead(entry)) visit(entry);
  });
}

template <typename IsPast, typename Live, typename Dead>
RecordList Ledger::gather_recent(const IsPast& is_past, const Live& live, const Dead& dead) {
  size_t most = 0;
  for (Shard& shard : shards_)
    visit_recent(shard, is_past, live, dead, [&](const Entry&) { ++most; });
  LargeVector<StorageRecord> records;
  records.reserve(most);
  take_page_faults(records.data(), most * sizeof(StorageRecord));
  for (Shard& shard : shards_) {
    visit_recent(shard, is_past, live, dead,
                 [&](const Entry& entry) { records.push_back(entry.record()); });
  }
  return RecordList(std::move(records));
}

void Ledger::collect(uint64_t since, uint64_t instant, RecordList& born, RecordList* died) {
  if (since == 0) {
    born = gather_all(Share::kMost, [&](const Entry& entry) {
      return entry.birth_epoch <= instant && (entry.is_alive() || entry.death_epoch > instant);
    });
  } else {
    born = gather_recent([&](const Entry& entry) { return entry.birth_epoch <= since; },
                         [&](const Entry& entry) { return entry.birth_epoch <= instant; },
                         [&](const Entry& stone) {
                           const uint64_t birth = stone.birth_epoch;
                           return birth > since && birth <= instant && stone.death_epoch > instant;
                         });
  }
  if (died == nullptr) return;
  *died = gather_recent([](const Entry&) { return true; }, [](const Entry&) { return false; },
                        [&](const Entry& stone) {
                          return stone.birth_epoch <= since && stone.death_epoch > since &&
                                 stone.death_epoch <= instant;
                        });
}

LedgerSnapshot Ledger::snapshot() {
  const LockHolder hold(instants_lock_);
  Instant instant = take_instant();
  const Pin pin(*this, instant.epoch);
  LedgerSnapshot snapshot;
  snapshot.time = instant.time;
  snapshot.devices = std::move(instant.devices);
  collect(0, instant.epoch, snapshot.records, nullptr);
  return snapshot;
}

uint64_t Ledger::open_cursor() {
  const LockHolder hold(instants_lock_);
  cursors_.emplace(next_cursor_, 0);
  return next_cursor_++;
}

uint64_t Ledger::copy_cursor(uint64_t cursor) {
  const LockHolder hold(instants_lock_);
  const auto known = cursors_.find(cursor);
  const uint64_t epoch = known == cursors_.end() ? 0 : known->second;
  cursors_.emplace(next_cursor_, epoch);
  if (epoch != 0) ++pins_.find(epoch)->second;
  return next_cursor_++;
}

void Ledger::swap_cursors(uint64_t first, uint64_t second) noexcept {
  const LockHolder hold(instants_lock_);
  const auto one = cursors_.find(first), other = cursors_.find(second);
  if (one != cursors_.end() && other != cursors_.end()) std::swap(one->second, other->second);
}

void Ledger::close_cursor(uint64_t cursor) noexcept {
  const LockHolder hold(instants_lock_);
  const auto known = cursors_.find(cursor);
  if (known == cursors_.end()) return;
  const uint64_t epoch = known->second;
  cursors_.erase(known);
  if (epoch != 0) unpin(epoch);
}

LedgerChanges Ledger::changes_since(uint64_t cursor, bool rows) {
  const LockHolder hold(instants_lock_);
  LedgerChanges changes;
  uint64_t& epoch = cursors_[cursor];
  const uint64_t since = epoch;
  Instant instant = take_instant();
  Pin pin(*this, instant.epoch);
  changes.time = instant.time;
  changes.devices = std::move(instant.devices);
  changes.from_snapshot = since == 0;
  if (rows) collect(since, instant.epoch, changes.born, since == 0 ? nullptr : &changes.died);
  epoch = pin.keep();
  if (since != 0) unpin(since);
  return changes;
}

RecordList Ledger::alive_at(uint64_t cursor) {
  const LockHolder hold(instants_lock_);
  RecordList records;
  const auto known = cursors_.find(cursor);
  if (known != cursors_.end() && known->second != 0) collect(0, known->second, records, nullptr);
  return records;
}

void Ledger::mark_recording(RecordingMark& mark) const {
  static_assert(RecordingMark::kRings == kShards);
  for (size_t i = 0; i < kShards; ++i)
    mark.written[i] = shards_[i].ring == nullptr ? 0 : shards_[i].ring->written();
  mark.time_ns = steady_ns();
}

RecordingMark Ledger::start_recording(size_t events) {
  const LockHolder hold(instants_lock_);
  if (recorders_ == 0) {
    auto segments = std::make_unique<EventSegments>(events, kShards);
    std::array<std::unique_ptr<EventRing>, kShards> rings;
    for (size_t i = 0; i < kShards; ++i)
      rings[i] = std::make_unique<EventRing>(*segments, static_cast<uint32_t>(i));
    events_ = std::move(segments);
    for (size_t i = 0; i < kShards; ++i) {
      const BiasedLockHolder hold_shard(shards_[i].lock, calling_thread());
      shards_[i].ring = std::move(rings[i]);
    }
  } else {
    events_->grow(events);
  }
  ++recorders_;
  RecordingMark mark;
  lock_all();
  mark_recording(mark);
  unlock_all();
  return mark;
}

void Ledger::stop_recording() noexcept {
  const LockHolder hold(instants_lock_);
  if (recorders_ == 0 || --recorders_ > 0) return;
  for (Shard& shard : shards_) {
    std::unique_ptr<EventRing> ring;  // freed without the lock
    const BiasedLockHolder hold_shard(shard.lock, calling_thread());
    ring.swap(shard.ring);
  }
  events_.reset();
}

void Ledger::copy_events(const RecordingMark& since, const RecordingMark& end,
                         std::vector<LedgerEvent>& events) {
  const auto range_of = [&](uint32_t shard) -> EventSegments::Range {
    return {since.written[shard], end.written[shard]};
  };
  events_->for_each([&](const EventSegments::Segment& segment) {
    bool copied = false;
    while (!copied) {
      const std::optional<uint32_t> filling = events_->copy_closed(segment, range_of, events);
      if (!filling.has_value()) return;
      // What it has been filled with since the end lies behind the range.
      Shard& shard = shards_[*filling];
      const BiasedLockHolder hold_shard(shard.lock, calling_thread());
      copied = shard.ring->copy_open(segment, range_of(*filling), events);
    }
  });
}

LedgerRecording Ledger::recording(const RecordingMark& since, bool with_alive) {
  const LockHolder hold(instants_lock_);
  LedgerRecording result;
  if (with_alive) {
    Instant instant = take_instant(&result.end);
    const Pin pin(*this, instant.epoch);
    result.devices = std::move(instant.devices);
    collect(0, instant.epoch, result.alive, nullptr);
  } else {
    lock_all();
    mark_recording(result.end);
    unlock_all();
  }
  result.complete_since_ns = since.time_ns;
  if (events_ == nullptr) return result;
  uint64_t all = 0;
  for (size_t i = 0; i < kShards; ++i)
    all += result.end.written[i] - std::min(since.written[i], result.end.written[i]);
  // Grown here, as growing copies, and not while something is held.
  result.events.reserve(static_cast<size_t>(std::min<uint64_t>(all, events_->room())));
  copy_events(since, result.end, result.events);
  const auto by_time = [](const LedgerEvent& a, const LedgerEvent& b) {
    return a.time_ns < b.time_ns;
  };
  std::stable_sort(result.events.begin(), result.events.end(), by_time);
  // Some of the events from before the last that was dropped are dropped, too.
  const int64_t dropped_ns = events_->last_dropped_ns();
  auto first = std::find_if(result.events.begin(), result.events.end(),
                            [&](const LedgerEvent& event) { return event.time_ns > dropped_ns; });
  const auto most = static_cast<std::ptrdiff_t>(events_->capacity());
  if (result.events.end() - first > most) first = result.events.end() - most;
  result.events.erase(result.events.begin(), first);
  result.dropped = static_cast<int64_t>(all - result.events.size());
  if (result.dropped > 0)
    result.complete_since_ns =
        result.events.empty() ? result.end.time_ns : result.events.front().time_ns;
  if (!with_alive) complete_births(result.events);
  return result;
}

void Ledger::complete_births(std::vector<LedgerEvent>& events) {
  std::unordered_set<uint64_t> died;
  for (const LedgerEvent& event : events) {
    if (!event.birth) died.insert(event.id);
  }
  for (LedgerEvent& event : events) {
    if (!event.birth || died.count(event.id) > 0) continue;
    Shard& shard = shard_of(event.address);
    const BiasedLockHolder hold(shard.lock, calling_thread());
    const Entry* const there = shard.find(event.address);
    if (there != nullptr && there->id == event.id) EventRing::fill(event, *there);
  }
}

Counters Ledger::counters(DeviceKey device) const {
  Counters result;
  for (const Shard& shard : shards_) {
    const BiasedLockHolder hold(shard.lock, calling_thread());
    for (const ShardTotals& totals : shard.totals) {
      if (totals.device != device) continue;
      result.allocated_bytes += totals.allocated_bytes;
      result.allocated_count += totals.allocated_count;
      result.freed_bytes += totals.freed_bytes;
      result.freed_count += totals.freed_count;
    }
  }
  const BiasedLockHolder hold(shards_[0].lock, calling_thread());
  if (DeviceCounters* const own = counters_.find(device)) own->read(result, calling_thread());
  return result;
}

void Ledger::reset_peak(DeviceKey device) noexcept {
  const BiasedLockHolder hold(shards_[0].lock, calling_thread());
  if (DeviceCounters* own = counters_.find(device)) own->reset_peak(calling_thread());
}

void Ledger::restart_peaks() noexcept {
  const BiasedLockHolder hold(shards_[0].lock, calling_thread());
  unseen_births_.store(false, std::memory_order_relaxed);
  counters_.for_each([](DeviceCounters& own) { own.reset_device_peak(calling_thread()); });
}

template <typename PinPeak>
LedgerPeak Ledger::collect_peak(DeviceKey device, LabelSet label, const PinPeak& pin) {
  const LockHolder no_fork(instants_lock_);
  LedgerPeak result;
  DeviceCounters* const own = counters_.find(device);
  if (own == nullptr) return result;
  const Peak peak = [&] {
    const BiasedLockHolder hold(shards_[0].lock, calling_thread());
    return pin(*own);
  }();
  const std::unique_ptr<DeviceCounters, void (*)(DeviceCounters*)> unpin(
      own, [](DeviceCounters* pinned) { pinned->unpin(); });
  result.bytes = peak.bytes;
  result.maker = peak.maker;
  result.records = gather_all(Share::kSome, [&](const Entry& entry) {
    return entry.device == device && entry.birth_order <= peak.order &&
           (label == 0 || (entry.peak_labels & label) != 0) &&
           (entry.is_alive() || peak.order < entry.death_order);
  });
  result.labels_known = label == 0 || own->paths_known();
  // Read last, so that what was lost meanwhile counts.
  result.complete = own->last_lost_death() <= peak.order;
  return result;
}

LedgerPeak Ledger::peak(DeviceKey device) {
  return collect_peak(device, 0, [](DeviceCounters& own) { return own.pin_peak(); });
}

LedgerPeak Ledger::peak(DeviceKey device, size_t label) {
  return collect_peak(device, LabelSet{1} << label,
                      [label](DeviceCounters& own) { return own.pin_peak(label); });
}

size_t Ledger::tombstones() const noexcept {
  size_t count = 0;
  for (Shard& shard : shards_) {
    const BiasedLockHolder hold(shard.lock, calling_thread());
    count += shard.dead.size;
  }
  return count;
}

void Ledger::lock_for_fork() {
  instants_lock_.lock();
  told_lock_.lock();
  lock_all();
}

void Ledger::forget_other_threads() noexcept {
  for (Shard& shard : shards_) shard.lock.forget_other_threads();
  counters_.for_each([](DeviceCounters& own) { own.forget_other_threads(); });
}

void Ledger::unlock_after_fork() {
  unlock_all();
  told_lock_.unlock();
  instants_lock_.unlock();
}

}  // namespace memledger::core
