#include "registry/core/record_list.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <new>
#include <utility>

namespace memledger::core {

void PackedShape::assign_large(const int64_t* sizes, size_t dims) {
  if (dims > std::numeric_limits<uint16_t>::max()) throw std::bad_alloc();
  auto* const all = new int64_t[dims];
  std::copy_n(sizes, dims, all);
  clear();
  std::memcpy(small_.data(), &all, sizeof(all));
  dims_ = static_cast<uint16_t>(dims);
  is_large_ = true;
}

StorageRecord TableEntry::record() const {
  StorageRecord record;
  record.id = id;
  record.address = address;
  record.nbytes = nbytes;
  record.base_deleter = is_alive() ? base_deleter : nullptr;
  record.owner = is_alive() ? static_cast<void*>(owner) : nullptr;
  record.birth_epoch = birth_epoch;
  record.birth_order = birth_order;
  record.birthplace = birthplace();
  record.consumer = consumer();
  record.peak_labels = peak_labels;
  record.stack = stack;
  record.stack_weight = stack_weight;
  record.device = device;
  record.described = described();
  record.adopted = flags.adopted;
  record.raw_block = flags.raw_block;
  record.library_workspace = flags.library_workspace;
  record.parameter_like = flags.parameter_like;
  record.told_parameter = flags.told_parameter;
  record.gradient = flags.gradient;
  record.names_only = flags.names_only;
  if (!record.described) return record;
  record.dtype = dtype;
  record.shape.resize(shape.size());
  for (size_t i = 0; i < shape.size(); ++i) record.shape[i] = shape[i];
  return record;
}

RecordList::RecordList(LargeVector<StorageRecord> records) : records_(std::move(records)) {
  order_.reserve(records_.size());
  for (size_t i = 0; i < records_.size(); ++i)
    order_.push_back({records_[i].id, static_cast<uint32_t>(i)});
  sort_ascending(order_);
}

}  // namespace memledger::core
