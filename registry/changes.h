#pragma once

// What was born and what died between two instants.
//
//   memledger::Cursor cursor;
//   memledger::Registry::global().skip_changes(cursor);  // from here on
//   output = model->forward(input);
//   const memledger::Changes changes = memledger::Registry::global().changes_since(cursor);
//   for (const memledger::StorageInfo& storage : changes.born) std::cout << storage << '\n';
//
// A storage born and freed between the two appears nowhere. Costs by the number of changes, not of
// live storages.

#include <chrono>
#include <cstdint>
#include <vector>

#include "registry/snapshot.h"

namespace memledger {

struct Changes {
  // There was no earlier instant to compare with: `born` has everything alive, `died` nothing. True
  // at a cursor's first use, and after there was no memory to remember what died.
  bool from_snapshot = false;
  std::chrono::system_clock::time_point time;  // the later instant
  std::vector<StorageInfo> born;               // by id
  std::vector<StorageInfo> died;
  std::vector<DeviceInfo> devices;  // at the later instant
  // As Snapshot::unseen_before_tracking() and tracking_was_off(), for the CPU and for CUDA devices.
  bool unseen_before_tracking = false;
  bool tracking_was_off = false;
  bool cuda_unseen_before_tracking = false;
  bool cuda_tracking_was_off = false;
  bool names_only = false;  // as Snapshot::names_only()
};

// A reader's place in the registry's changes. While it lives, the registry remembers what it saw
// alive and has died since: at most one small record per storage alive at its last use. For one
// thread at a time.
class Cursor {
 public:
  // Begins at the first use with Registry::changes_since() or skip_changes().
  Cursor() = default;
  ~Cursor();
  Cursor(Cursor&& other) noexcept : number_(other.number_) { other.number_ = 0; }
  Cursor& operator=(Cursor&& other) noexcept;
  Cursor(const Cursor&) = delete;
  Cursor& operator=(const Cursor&) = delete;

 private:
  friend class Registry;
  uint64_t number_ = 0;  // 0: not opened yet
};

}  // namespace memledger
