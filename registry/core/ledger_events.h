#pragma once

// The ledger's hot path. The allocators' hooks inline it, so that a birthplace is written once,
// into its entry. What happens seldom is in functions of its own.

#include <cstdint>
#include <optional>

#include "absl/base/attributes.h"
#include "absl/base/optimization.h"
#include "registry/core/ledger.h"
#include "registry/core/thread_context.h"

namespace memledger::core {

ABSL_ATTRIBUTE_ALWAYS_INLINE inline uint64_t Ledger::take_id(ThreadContext& thread) noexcept {
  IdBlock& block = thread.ids;
  const uint64_t taken = id_blocks_.taken.load(std::memory_order_relaxed);
  if (ABSL_PREDICT_FALSE(block.next == block.end || taken - block.number > kMostBlocksSince ||
                         block.ledger != number_))
    return take_id_block(thread);
  return block.next++;
}

template <typename SetPlace>
ABSL_ATTRIBUTE_ALWAYS_INLINE inline uint64_t Ledger::enter(const Block& block,
                                                           const SetPlace& set_place,
                                                           uint32_t share, ThreadContext& thread,
                                                           void*& lost_owner,
                                                           BornEntry& born) noexcept {
  Shard& shard = shard_of(block.address);
  const BiasedLockHolder hold(shard.lock, thread.thread);
  ShardTotals* totals = shard.totals_of(block.device);
  if (ABSL_PREDICT_FALSE(totals == nullptr || shard.free == kNone ||
                         !shard.by_address.has_room())) {
    totals = make_room(shard, block, lost_owner);
    if (totals == nullptr) return 0;
  }
  const AddressIndex::Found there = shard.look_up(block.address);
  if (ABSL_PREDICT_FALSE(there.slot != kNone)) lost_owner = drop_lost(shard, there.slot);
  const Slot slot = shard.take_slot();
  shard.by_address.insert(block.address, there.place, slot);
  Entry& entry = shard.entry(slot);
  const uint64_t id = take_id(thread);
  born = {&entry, id, block.address};
  entry.id = id;
  entry.address = block.address;
  entry.nbytes = block.nbytes;
  entry.birth_epoch = epoch_;
  entry.owner = nullptr;
  entry.base_deleter = block.base_deleter;
  entry.stack = block.stack;
  entry.stack_weight = block.stack_weight;
  entry.shape.clear();
  entry.peak_labels = static_cast<uint16_t>(block.adopted ? 0 : block.peak_labels);
  entry.device = block.device;
  entry.state.store(0, std::memory_order_relaxed);
  Entry::Flags flags = {};
  set_place(entry, flags);
  flags.adopted = block.adopted;
  flags.raw_block = block.raw_block;
  flags.names_only = block.names_only;
  flags.unknown_path = !block.adopted && block.peak_labels >= kUnknownPath;
  entry.flags = flags;
  shard.append(shard.live, slot);

  DeviceCounters& counters = *totals->counters;
  const DeviceCounters::Caller caller = {thread.thread, share};
  totals->table_bytes += block.nbytes;
  if (block.raw_block) totals->raw_block_bytes += block.nbytes;
  if (block.adopted) {
    totals->adopted_bytes += block.nbytes;
    entry.birth_order = unseen_births_.load(std::memory_order_relaxed)
                            ? counters.add_unseen(block.nbytes, caller, id)
                            : counters.add_adopted(block.nbytes);
  } else {
    totals->allocated_bytes += block.nbytes;
    ++totals->allocated_count;
    entry.birth_order = counters.add(block.nbytes, entry.peak_labels, caller, id);
    if (ABSL_PREDICT_FALSE(flags.unknown_path)) counters.note_unknown_path();
  }
  if (ABSL_PREDICT_FALSE(shard.ring != nullptr)) shard.ring->add(entry, /*birth=*/true);
  return id;
}

ABSL_ATTRIBUTE_ALWAYS_INLINE inline uint64_t Ledger::note_birth(const Block& block,
                                                                ThreadContext& thread,
                                                                void*& lost_owner,
                                                                BornEntry& born) noexcept {
  return enter(
      block,
      [&thread](Entry& entry, Entry::Flags& flags) {
        thread.tell(entry, entry.parameter_or_consumer, flags);
      },
      thread.thread, thread, lost_owner, born);
}

ABSL_ATTRIBUTE_ALWAYS_INLINE inline std::optional<Ledger::Death> Ledger::note_death(
    uintptr_t address, DeviceCounters::Caller caller) noexcept {
  Shard& shard = shard_of(address);
  const BiasedLockHolder hold(shard.lock, caller.thread);
  const AddressIndex::Found there = shard.look_up(address);
  if (there.slot == kNone) return std::nullopt;
  Entry& entry = shard.entry(there.slot);
  const Death death{entry.id, entry.nbytes, entry.base_deleter, entry.owner, entry.device};
  ShardTotals& totals = *shard.totals_of(death.device);  // made at its birth
  const uint64_t order = totals.counters->subtract(death.nbytes, entry.peak_labels, caller);
  if (ABSL_PREDICT_FALSE(entry.flags.unknown_path)) totals.counters->note_end_of_unknown_path();
  if (ABSL_PREDICT_FALSE(shard.ring != nullptr || entry.flags.adopted || entry.flags.raw_block ||
                         entry.flags.library_workspace || entry.birth_epoch <= newest_pin_ ||
                         is_wanted_for_peaks(entry, order, *totals.counters))) {
    bury(shard, there.slot, totals, order);
  } else {
    totals.table_bytes -= death.nbytes;
    shard.unlink(shard.live, there.slot);
    shard.give_back(there.slot);
  }
  shard.by_address.erase(there.place);
  totals.freed_bytes += death.nbytes;
  ++totals.freed_count;
  return death;
}

}  // namespace memledger::core
