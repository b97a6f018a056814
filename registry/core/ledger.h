#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/base/attributes.h"
#include "absl/base/thread_annotations.h"
#include "registry/core/address_index.h"
#include "registry/core/biased_lock.h"
#include "registry/core/byte_counters.h"
#include "registry/core/event_ring.h"
#include "registry/core/growing_map.h"
#include "registry/core/lock.h"
#include "registry/core/name_table.h"
#include "registry/core/record_list.h"
#include "registry/core/recording_mark.h"
#include "registry/core/storage_record.h"
#include "registry/counters.h"

namespace memledger::core {

struct ThreadContext;

// What the ledger knows of one device at one instant.
struct DeviceTotals {
  DeviceKey device;
  Counters counters;          // the wrapper's own
  int64_t table_bytes = 0;    // sum over the table's rows
  int64_t adopted_bytes = 0;  // of these, born before tracking or while it was off
  int64_t raw_block_bytes = 0;
  int64_t library_workspace_bytes = 0;
};

struct LedgerSnapshot {
  std::chrono::system_clock::time_point time;
  RecordList records;
  std::vector<DeviceTotals> devices;
};

// The storages that were alive when a sum of bytes was highest.
struct LedgerPeak {
  int64_t bytes = 0;
  uint64_t maker = 0;  // the id of the storage whose birth made it; 0: counting began there
  // False: some that were freed since are missing, as peaks were not kept then or there was no
  // memory.
  bool complete = true;
  bool labels_known = true;  // see Snapshot
  RecordList records;
};

// What changed between two instants, coalesced: what was born and died between them appears
// nowhere.
struct LedgerChanges {
  // There was no earlier instant: `born` is everything alive, `died` is empty.
  bool from_snapshot = false;
  std::chrono::system_clock::time_point time;
  RecordList born;
  RecordList died;
  std::vector<DeviceTotals> devices;
};

// Births and deaths between two marks.
struct LedgerRecording {
  RecordingMark end;
  std::vector<LedgerEvent> events;  // by time
  int64_t dropped = 0;              // older ones, for which there was no room
  // Where events begin: the first mark, or later if some were dropped.
  int64_t complete_since_ns = 0;
  // What was alive at the end, if asked for.
  RecordList alive;
  std::vector<DeviceTotals> devices;
};

// The table of live storages, free of LibTorch, sharded by address.
//
//   note_birth ─▶ live ── note_death ─▶ gone, or
//                                       a tombstone while an instant that saw it alive matters
//
// An *instant* is taken with all shards held for a moment (no copying): it ends an epoch. Every
// record carries the epoch it was born in. So the storages alive at the instant can be collected
// afterwards, one shard at a time, while the program goes on: records born by then and still there,
// plus the tombstones of those that died since. Tombstones are kept only for storages that a cursor
// (or a running snapshot) saw alive: at most one per storage alive at each cursor's instant.
//
// Peaks use the same tombstones in another order: a device's births and deaths are numbered
// (DeviceCounters). The storages alive at a peak are those born by its number and still there, plus
// the tombstones of those that were alive at it and died since. Every new peak makes the tombstones
// of the one before worthless; a shard sweeps them out when it has twice as many as after the last
// sweep.
//
// Thread-safe. The hot path (note_birth, note_death, describe) takes one shard's lock, and within
// it the lock of the thread's share of the device's bytes (DeviceCounters), seldom the device's
// lock. While it holds them it calls nothing of the program or of LibTorch, and it never throws. A
// device's locks are only taken under a shard's. Locks of shards and shares are biased towards the
// thread that uses them alone.
class Ledger {
 public:
  // An instant holds all of them at once, and the thread sanitizer follows at most 64 locks of a
  // thread.
  static constexpr size_t kShards = 32;

  Ledger() noexcept { BiasedLock::allow_bias(); }
  Ledger(const Ledger&) = delete;
  Ledger& operator=(const Ledger&) = delete;

  // What is born, apart from where.
  struct Block {
    uintptr_t address = 0;
    int64_t nbytes = 0;
    DeviceKey device;
    void* base_deleter = nullptr;
    bool adopted = false;
    bool raw_block = false;
    bool names_only = false;
    LabelSet peak_labels = 0;
    uint32_t stack = 0;
    float stack_weight = 0;
  };
  struct Birth : Block {
    Birthplace birthplace;
  };
  // Enters a storage and returns its id; 0 when there was no memory for a record, which is counted
  // as dropped. A record already at that address lost its free somewhere: it is dropped and
  // counted, and its owner handed out. `born` is for describe(). `thread` is the calling one. The
  // inline ones are in ledger_events.h.
  inline uint64_t note_birth(const Block& block, ThreadContext& thread, void*& lost_owner,
                             BornEntry& born) noexcept;
  uint64_t note_birth(const Birth& birth, void** lost_owner = nullptr,
                      BornEntry* born = nullptr) noexcept;

  struct Death {
    uint64_t id = 0;
    int64_t nbytes = 0;
    void* base_deleter = nullptr;
    void* owner = nullptr;
    DeviceKey device;
  };
  // Takes the storage out. Call it before the memory is handed back, as its address can be given
  // out again at once.
  inline std::optional<Death> note_death(uintptr_t address, DeviceCounters::Caller caller) noexcept;
  std::optional<Death> note_death(uintptr_t address) noexcept;

  // Adds shape and dtype to the record at `address`. A later description replaces an earlier one
  // only if the same run of an operator (thread, op_sequence) made the storage: the operator's
  // result says more than the buffer it began with. Returns true if `owner` has become the
  // storage's owner; the caller has taken a reference for it, and gets it back at the death.
  //
  // `own` is the last storage that the calling thread has made. If it is this one, and the caller
  // keeps it alive, no lock is taken: nobody else describes it before its maker has. `is_result`:
  // of the outermost operator.
  bool describe(uintptr_t address, uint32_t thread, uint32_t op_sequence, const int64_t* sizes,
                size_t dims, int8_t dtype, void* owner, const BornEntry& own,
                bool is_result = false) noexcept {
    const uint8_t described = Entry::kDescribed | (is_result ? Entry::kResult : 0);
    if (own.address == address && own.entry != nullptr && own.entry->id == own.id) {
      Entry& entry = *own.entry;
      const uint8_t state = entry.state.load(std::memory_order_relaxed);
      const bool takes_owner = owner != nullptr && entry.owner == nullptr;
      if (state == 0) {
        if (entry.shape.assign_small(sizes, dims)) {
          if (takes_owner) entry.owner = owner;
          entry.dtype = dtype;
          entry.state.store(described, std::memory_order_release);
          return takes_owner;
        }
      } else if (state == described && !takes_owner && entry.dtype == dtype &&
                 entry.shape.equals(sizes, dims)) {
        return false;
      }
    }
    return describe(address, thread, op_sequence, sizes, dims, dtype, owner, is_result);
  }
  bool describe(uintptr_t address, uint32_t thread, uint32_t op_sequence, const int64_t* sizes,
                size_t dims, int8_t dtype, void* owner = nullptr, bool is_result = false) noexcept;
  bool set_owner(uintptr_t address, void* owner) noexcept;
  // Calls back with every live record of a device, in no order and with its shard locked: for a few
  // instructions each. What is born or dies meanwhile may be left out.
  template <typename Visit>
  void visit_live(DeviceKey device, const Visit& visit) const {
    for (Shard& shard : shards_) {
      visit_entries(shard, [&](const TableEntry& entry) {
        if (entry.is_alive() && entry.device == device) visit(entry);
      });
    }
  }
  void set_phase(uintptr_t address, uint64_t id, Phase phase, bool inferred) noexcept;

  // Remembers that an operator consumed the storage as a leaf that requires grad. Returns its id.
  uint64_t mark_parameter_like(uintptr_t address, bool* is_told = nullptr) noexcept;
  bool is_parameter_like(uintptr_t address) const noexcept;
  // What lies there, and the parameter of its birthplace; 0: none.
  struct Made {
    uint64_t id = 0;
    uint64_t parameter = 0;
  };
  Made made_at(uintptr_t address) const noexcept;
  // Returns the birthplace's label and forward label.
  std::pair<NameId, NameId> labels_at(uintptr_t address) const noexcept;
  // Returns whether any storage ever was: this program trains.
  bool any_parameter_like() const noexcept {
    return any_parameter_like_.load(std::memory_order_relaxed);
  }

  // Remembers that a module of the program has a parameter there.
  void mark_told_parameter(uintptr_t address) noexcept;
  // Returns the id of such a storage; 0: it is none.
  uint64_t told_parameter_at(uintptr_t address) const noexcept;
  bool any_told_parameter() const noexcept {
    return any_told_parameter_.load(std::memory_order_relaxed);
  }
  // Returns whether such a storage has this id and is alive.
  bool is_told_parameter(uint64_t id) const noexcept;
  // Remembers the first reader of what no layer has made: see StorageInfo::consumer.
  void note_consumer(uintptr_t address, uint64_t consumer) noexcept;

  // Notes that backward has made the storage at `gradient` the gradient of the leaf at `leaf`.
  // Returns whether nobody has described it.
  bool mark_gradient(uintptr_t gradient, uintptr_t leaf) noexcept;

  // Notes that LibTorch keeps this block for a library. Returns its id; 0 if there is none, or if a
  // tensor was seen on it: then the block that was meant has gone, and this is another.
  uint64_t mark_library_workspace(uintptr_t address, DeviceKey device) noexcept;

  // Returns the thread and the run of an operator that made what lies there; zeros: not known.
  std::pair<uint32_t, uint32_t> run_at(uintptr_t address) const noexcept;

  uint64_t id_at(uintptr_t address) const noexcept;  // 0: none
  // Returns a number above all ids until now, which no id from now on is below.
  uint64_t next_id() noexcept {
    // Nobody goes on with the block that he has.
    return (id_blocks_.taken.fetch_add(kMostBlocksSince + 1, std::memory_order_relaxed) +
            kMostBlocksSince + 1) *
               kIdBlock +
           1;
  }
  // Returns the highest id so far, or a number up to 64 above it if another thread has taken it.
  // 0: nothing was born.
  uint64_t newest_id() const noexcept;
  // Notes that a backward pass begins, on the calling thread.
  void note_backward_pass() noexcept;
  // Returns a number above the ids of all storages from before the last backward pass. None ran: 0.
  uint64_t last_backward_pass() const noexcept {
    return last_backward_pass_.load(std::memory_order_relaxed);
  }
  void* base_deleter_at(uintptr_t address) const noexcept;  // null: none

  // Readers throw std::bad_alloc and then have changed nothing: no cursor has moved, nothing stays
  // pinned.
  LedgerSnapshot snapshot();

  // Returns the number of a new cursor; the caller closes it.
  uint64_t open_cursor();
  void close_cursor(uint64_t cursor) noexcept;
  // Returns another cursor at the same place.
  uint64_t copy_cursor(uint64_t cursor);
  void swap_cursors(uint64_t first, uint64_t second) noexcept;
  // Returns what changed since the cursor and moves it to now. Cost: by what changed, plus a fixed
  // part for the shards; without `rows`, which are then empty, the fixed part alone.
  LedgerChanges changes_since(uint64_t cursor, bool rows = true);

  // Returns what was alive at the cursor's instant; nothing for a cursor that was not used yet.
  RecordList alive_at(uint64_t cursor);

  // Keeps births and deaths with their times, the last `events` of them, until as many
  // stop_recording() calls; the largest number asked for holds. Throws std::bad_alloc, and then
  // nothing has begun.
  RecordingMark start_recording(size_t events);
  void stop_recording() noexcept;
  // Returns what happened since the mark, as far as it was recorded.
  LedgerRecording recording(const RecordingMark& since, bool with_alive);

  Counters counters(DeviceKey device) const;
  // Restarts the peaks of the device and of its labels.
  void reset_peak(DeviceKey device) noexcept;
  // Restarts the peaks of all devices, not those of labels: counting begins again, and what is
  // adopted later was alive before it.
  void restart_peaks() noexcept;
  // Notes that storages may have been born unseen since peaks were restarted: what is adopted from
  // now on counts as born then.
  void note_unseen_births() noexcept { unseen_births_.store(true, std::memory_order_relaxed); }

  // Sets whether tombstones are made for peaks; their heights are counted in any case.
  void keep_peaks(bool keep) noexcept { keep_peaks_.store(keep, std::memory_order_relaxed); }
  LedgerPeak peak(DeviceKey device);
  LedgerPeak peak(DeviceKey device, size_t label);
  // Returns how many tombstones exist now, for peaks and for cursors.
  size_t tombstones() const noexcept;

  int64_t dropped_records() const noexcept {
    return dropped_records_.load(std::memory_order_relaxed);
  }
  void note_dropped_record() noexcept {
    dropped_records_.fetch_add(1, std::memory_order_relaxed);
    note_unseen_births();
  }

  void lock_for_fork() ABSL_NO_THREAD_SAFETY_ANALYSIS;
  void unlock_after_fork() ABSL_NO_THREAD_SAFETY_ANALYSIS;
  // In the child, before unlock_after_fork().
  void forget_other_threads() noexcept;

 private:
  using Slot = TableEntry::Slot;
  static constexpr Slot kNone = TableEntry::kNone;
  static constexpr size_t kChunk = 256;
  static constexpr size_t kFewTombstones = 16;
  static constexpr size_t kSweptByDeath = 64;
  static constexpr size_t kFewEntries = 4 * kChunk;  // of a shard: visited in one go

  // An entry becomes a tombstone by moving to another list: a death allocates nothing.
  using Entry = TableEntry;
  struct List {
    Slot oldest = kNone;
    Slot newest = kNone;
    size_t size = 0;
  };
  struct ShardTotals {
    DeviceKey device;
    DeviceCounters* counters = nullptr;  // the device's
    int64_t allocated_bytes = 0, freed_bytes = 0, allocated_count = 0, freed_count = 0;
    int64_t table_bytes = 0, adopted_bytes = 0, raw_block_bytes = 0, library_workspace_bytes = 0;
  };

  struct alignas(64) Shard {
    mutable BiasedLock lock;
    AddressIndex by_address ABSL_GUARDED_BY(lock);
    std::vector<std::unique_ptr<Entry[]>> chunks ABSL_GUARDED_BY(lock);
    Slot used ABSL_GUARDED_BY(lock) = 0;
    Slot free ABSL_GUARDED_BY(lock) = kNone;
    List live ABSL_GUARDED_BY(lock);  // by birth
    List dead ABSL_GUARDED_BY(lock);  // tombstones, by death
    // At most this many tombstones are there for an instant.
    size_t dead_for_instants ABSL_GUARDED_BY(lock) = 0;
    size_t sweep_at ABSL_GUARDED_BY(lock) = kFewTombstones;
    // The next tombstones to look at: by deaths, and by who gives back an instant. kNone: they are
    // through.
    Slot sweeping ABSL_GUARDED_BY(lock) = kNone;
    Slot unpinning ABSL_GUARDED_BY(lock) = kNone;
    std::vector<ShardTotals> totals ABSL_GUARDED_BY(lock);
    std::unique_ptr<EventRing> ring ABSL_GUARDED_BY(lock);  // null: nothing is recorded

    Entry& entry(Slot slot) ABSL_EXCLUSIVE_LOCKS_REQUIRED(lock) {
      return chunks[slot / kChunk][slot % kChunk];
    }
    AddressIndex::Found look_up(uintptr_t address) ABSL_EXCLUSIVE_LOCKS_REQUIRED(lock) {
      return by_address.find(
          address, [&](Slot slot) ABSL_NO_THREAD_SAFETY_ANALYSIS { return entry(slot).address; });
    }
    // Returns the live entry at `address`, null if there is none.
    Entry* find(uintptr_t address) ABSL_EXCLUSIVE_LOCKS_REQUIRED(lock) {
      const Slot slot = look_up(address).slot;
      return slot == kNone ? nullptr : &entry(slot);
    }
    // Returns null for a device of which the shard had no storage yet.
    ShardTotals* totals_of(DeviceKey device) ABSL_EXCLUSIVE_LOCKS_REQUIRED(lock) {
      for (ShardTotals& known : totals) {
        if (known.device == device) return &known;
      }
      return nullptr;
    }
    // Where make_room() has left one.
    Slot take_slot() ABSL_EXCLUSIVE_LOCKS_REQUIRED(lock) {
      const Slot slot = free;
      free = entry(slot).newer;
      return slot;
    }
    Slot take_new_slot() ABSL_EXCLUSIVE_LOCKS_REQUIRED(lock);
    void append(List& list, Slot slot) ABSL_EXCLUSIVE_LOCKS_REQUIRED(lock) {
      Entry& appended = entry(slot);
      appended.older = list.newest;
      appended.newer = kNone;
      (list.newest == kNone ? list.oldest : entry(list.newest).newer) = slot;
      list.newest = slot;
      ++list.size;
    }
    ABSL_ATTRIBUTE_ALWAYS_INLINE void unlink(List& list, Slot slot)
        ABSL_EXCLUSIVE_LOCKS_REQUIRED(lock) {
      const Entry& unlinked = entry(slot);
      (unlinked.older == kNone ? list.oldest : entry(unlinked.older).newer) = unlinked.newer;
      (unlinked.newer == kNone ? list.newest : entry(unlinked.newer).older) = unlinked.older;
      --list.size;
    }
    void give_back(Slot slot) ABSL_EXCLUSIVE_LOCKS_REQUIRED(lock) {
      Entry& given = entry(slot);
      given.id = 0;
      given.newer = free;
      free = slot;
    }
  };

  class Pin;
  struct Instant {
    uint64_t epoch = 0;
    std::chrono::system_clock::time_point time;
    std::vector<DeviceTotals> devices;
  };

  // Eight shards for what lies within the same 64 MiB, which are the size of glibc's arenas:
  // threads that have an arena of their own then seldom share a shard, and each may have the bias.
  Shard& shard_of(uintptr_t address) const noexcept {
    constexpr uint64_t kGolden = 0x9E3779B97F4A7C15;
    const uint64_t group = (address >> 26) * kGolden >> 62;
    return shards_[group << 3 | (address >> 6) * kGolden >> 61];
  }
  static uint32_t calling_thread() noexcept;
  static constexpr uint64_t kIdBlock = 64;
  static constexpr uint64_t kMostBlocksSince = 17;
  // Returns an id above all of this thread's, and at most 1 100 below those of others. Threads take
  // ids in blocks, so that births do not pass a cache line between cores. A thread that finds that
  // 16 others have been taken after its own begins a new one.
  inline uint64_t take_id(ThreadContext& thread) noexcept;
  // `set_place(entry, flags)` writes the birthplace; `share` is as in DeviceCounters::Caller.
  template <typename SetPlace>
  inline uint64_t enter(const Block& block, const SetPlace& set_place, uint32_t share,
                        ThreadContext& thread, void*& lost_owner, BornEntry& born) noexcept;
  uint64_t take_id_block(ThreadContext& thread) noexcept;
  void lock_all() const ABSL_NO_THREAD_SAFETY_ANALYSIS;
  void unlock_all() const ABSL_NO_THREAD_SAFETY_ANALYSIS;
  // Ends the current epoch and pins it: tombstones of what it saw alive are kept until unpin().
  // Sets `mark` to where recording is then. Throws std::bad_alloc, and then nothing is pinned.
  Instant take_instant(RecordingMark* mark = nullptr) ABSL_EXCLUSIVE_LOCKS_REQUIRED(instants_lock_);
  void unpin(uint64_t epoch) noexcept ABSL_EXCLUSIVE_LOCKS_REQUIRED(instants_lock_);
  // Collects what was alive at the instant and born after `since`; with since > 0 also what was
  // alive at `since` and has died.
  void collect(uint64_t since, uint64_t instant, RecordList& born, RecordList* died);
  // Copies the wanted records of all shards, one shard at a time. `is_past` ends a shard's live
  // ones, the newest first. A shard where that goes on for long is visited as by gather_all().
  template <typename IsPast, typename Live, typename Dead>
  RecordList gather_recent(const IsPast& is_past, const Live& live, const Dead& dead);
  template <typename IsPast, typename Live, typename Dead, typename Visit>
  static void visit_recent(Shard& shard, const IsPast& is_past, const Live& live, const Dead& dead,
                           const Visit& visit);
  // Copies the wanted records among all there are. An instant or a peak has settled which these
  // are, and entries stay in their slots. So a large shard is not locked for longer than kChunk
  // entries take. kMost takes room for all, kSome counts first.
  enum class Share { kMost, kSome };
  template <typename Wanted>
  RecordList gather_all(Share share, const Wanted& wanted);
  template <typename Visit>
  static void visit_entries(Shard& shard, const Visit& visit) {
    {
      const BiasedLockHolder hold(shard.lock, calling_thread());
      if (shard.live.size + shard.dead.size <= kFewEntries) {
        for (const List* list : {&shard.live, &shard.dead}) {
          for (Slot slot = list->oldest; slot != kNone; slot = shard.entry(slot).newer)
            visit(shard.entry(slot));
        }
        return;
      }
    }
    for (size_t chunk = 0;; ++chunk) {
      shard.lock.let_others_in();
      const BiasedLockHolder hold(shard.lock, calling_thread());
      if (chunk * kChunk >= shard.used) return;
      const Entry* const entries = shard.chunks[chunk].get();
      const size_t used = shard.used - chunk * kChunk;
      for (size_t i = 0; i < (used < kChunk ? used : kChunk); ++i) {
        if (entries[i].id != 0) visit(entries[i]);
      }
    }
  }
  // Makes room for one more storage; returns its device's totals. Null if memory ran out: then no
  // record is left at its address either.
  ShardTotals* make_room(Shard& shard, const Block& block, void*& lost_owner) noexcept
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(shard.lock);
  // Takes out a record whose free went past us, and leaves its place to the storage that is there
  // now. The counter keeps its bytes, so reports show them as unexplained. Returns its owner.
  void* drop_lost(Shard& shard, Slot slot) noexcept ABSL_EXCLUSIVE_LOCKS_REQUIRED(shard.lock);
  // Takes the record out of the living; `death_order` is the number its device gave the death.
  void bury(Shard& shard, Slot slot, ShardTotals& totals, uint64_t death_order) noexcept
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(shard.lock);
  // Makes the totals of a device that is new to the shard; throws std::bad_alloc.
  ShardTotals& add_totals(Shard& shard, DeviceKey device) ABSL_EXCLUSIVE_LOCKS_REQUIRED(shard.lock);
  static bool is_wanted_for_peaks(const Entry& entry, uint64_t death_order,
                                  const DeviceCounters& counters) noexcept {
    // In this order, as a reader pins a peak before the next one can be seen.
    return counters.alive_at_a_peak(entry.birth_order, death_order, entry.peak_labels) ||
           counters.is_pinned();
  }
  // Looks at some tombstones from `next` on, drops those that nobody wants, and moves `next` on.
  // Returns how many of them are wanted for instants.
  template <typename Wanted>
  size_t sweep_some(Shard& shard, Slot& next, size_t most, const Wanted& wanted_for_instants)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(shard.lock);
  // Completes births of what is still alive from the table: the event has what was known then.
  void complete_births(std::vector<LedgerEvent>& events);
  // Appends what was written between the marks and is still there.
  void copy_events(const RecordingMark& since, const RecordingMark& end,
                   std::vector<LedgerEvent>& events) ABSL_EXCLUSIVE_LOCKS_REQUIRED(instants_lock_);
  // The caller holds all shards.
  void mark_recording(RecordingMark& mark) const ABSL_NO_THREAD_SAFETY_ANALYSIS;
  template <typename PinPeak>
  LedgerPeak collect_peak(DeviceKey device, LabelSet label, const PinPeak& pin);

  static uint64_t new_number() noexcept;

  mutable std::array<Shard, kShards> shards_;
  mutable CountersByDevice counters_;
  // On a line of its own, which births read and few write.
  struct alignas(64) {
    std::atomic<uint64_t> taken{0};
    std::atomic<uint64_t> newest_end{0};  // of the blocks that threads have, not of those left out
  } id_blocks_;
  const uint64_t number_ = new_number();  // other than any other ledger's
  std::atomic<int64_t> dropped_records_{0};
  std::atomic<bool> keep_peaks_{true};
  std::atomic<bool> unseen_births_{false};
  std::atomic<uint64_t> last_backward_pass_{0};
  // Both change only while all shards are held, so any one shard's lock is enough to read them.
  uint64_t epoch_ = 1;
  uint64_t newest_pin_ = 0;  // 0: nothing pinned

  Lock instants_lock_;                                            // before the shards' locks
  std::map<uint64_t, int> pins_ ABSL_GUARDED_BY(instants_lock_);  // epoch → how many
  // Cursor → epoch, 0: not used yet.
  std::map<uint64_t, uint64_t> cursors_ ABSL_GUARDED_BY(instants_lock_);
  uint64_t next_cursor_ ABSL_GUARDED_BY(instants_lock_) = 1;
  int recorders_ ABSL_GUARDED_BY(instants_lock_) = 0;
  std::unique_ptr<EventSegments> events_ ABSL_GUARDED_BY(instants_lock_);  // null as Shard::ring is
  mutable Lock told_lock_;  // before the shards' locks
  // Id → address, also of some that have ended.
  GrowingMap<uint64_t, uintptr_t> told_ ABSL_GUARDED_BY(told_lock_);
  size_t told_swept_at_ ABSL_GUARDED_BY(told_lock_) = 1024;
  // Read by each operator under no_grad, so not next to what each birth writes.
  std::atomic<bool> any_parameter_like_{false};
  std::atomic<bool> any_told_parameter_{false};
};

}  // namespace memledger::core
