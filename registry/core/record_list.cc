#include "registry/core/record_list.h"

#include <utility>

namespace memledger::core {

RecordList::RecordList(LargeVector<StorageRecord> records) : records_(std::move(records)) {
  order_.reserve(records_.size());
  for (size_t i = 0; i < records_.size(); ++i)
    order_.push_back({records_[i].id, static_cast<uint32_t>(i)});
  sort_ascending(order_);
}

}  // namespace memledger::core
