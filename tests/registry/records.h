#pragma once

// Records of a ledger, made and looked at.

#include <cstdint>
#include <vector>

#include "registry/core/ledger.h"

namespace memledger::core {

constexpr DeviceKey kCpu{0, -1};
constexpr DeviceKey kCuda0{1, 0};

inline uint64_t bear(Ledger& ledger, uintptr_t address, int64_t nbytes, DeviceKey device = kCpu,
                     LabelSet labels = 0, uint32_t thread = 0) {
  Ledger::Birth birth;
  birth.address = address;
  birth.nbytes = nbytes;
  birth.device = device;
  birth.peak_labels = labels;
  birth.birthplace.thread = thread;
  return ledger.note_birth(birth);
}

inline std::vector<uint64_t> ids(const RecordList& records) {
  std::vector<uint64_t> result;
  for (const StorageRecord& record : records) result.push_back(record.id);
  return result;
}

inline int64_t sum(const RecordList& records) {
  int64_t bytes = 0;
  for (const StorageRecord& record : records) bytes += record.nbytes;
  return bytes;
}

}  // namespace memledger::core
