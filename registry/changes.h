#pragma once

// What happened between two instants, coalesced: a storage born and freed between them appears
// nowhere.
//
//   memledger::Cursor cursor;
//   registry.changes_since(cursor);                         // from now on
//   ...
//   memledger::Changes changes = registry.changes_since(cursor);
//
// Cost: by the number of changes, not of live storages.

#include <chrono>
#include <cstdint>
#include <vector>

#include "registry/snapshot.h"

namespace memledger {

struct Changes {
  // There was no earlier instant to compare with, so `born` lists everything alive and `died`
  // nothing: a cursor's first use, or one that was lost because there was no memory to remember
  // what died.
  bool from_snapshot = false;
  std::chrono::system_clock::time_point time;
  std::vector<StorageInfo> born;  // in order of birth
  std::vector<StorageInfo> died;
  std::vector<DeviceInfo> devices;  // as they were at the later instant
  // As Snapshot::unseen_before_tracking and tracking_was_off, of the CPU and of CUDA devices.
  bool unseen_before_tracking = false;
  bool tracking_was_off = false;
  bool cuda_unseen_before_tracking = false;
  bool cuda_tracking_was_off = false;
};

// A reader's place in the registry's changes. While one is alive, the registry remembers what it
// saw alive and has died since: at most one small record per storage alive at its last use. One
// thread at a time; not copyable.
class Cursor {
 public:
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
