#pragma once

#include <cstddef>
#include <cstdint>

#include "registry/core/ascending.h"
#include "registry/core/huge_pages.h"
#include "registry/core/storage_record.h"

namespace memledger::core {

// Records by id. They lie as they were copied, shard by shard: moving them into order
// would cost as much as copying them again.
class RecordList {
 public:
  class Iterator {
   public:
    Iterator(const RecordList& list, size_t place) : list_(&list), place_(place) {}
    const StorageRecord& operator*() const { return (*list_)[place_]; }
    Iterator& operator++() {
      ++place_;
      return *this;
    }
    friend bool operator!=(const Iterator& a, const Iterator& b) { return a.place_ != b.place_; }

   private:
    const RecordList* list_;
    size_t place_;
  };

  RecordList() = default;
  // Takes records in any order.
  explicit RecordList(LargeVector<StorageRecord> records);

  size_t size() const { return order_.size(); }
  bool empty() const { return order_.empty(); }
  const StorageRecord& operator[](size_t place) const { return records_[order_[place].place]; }
  Iterator begin() const { return Iterator(*this, 0); }
  Iterator end() const { return Iterator(*this, size()); }

 private:
  LargeVector<StorageRecord> records_;
  LargeVector<Keyed> order_;  // by id
};

}  // namespace memledger::core
