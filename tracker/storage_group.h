#pragma once

// Storages of one birthplace that look alike; reports on growth and leaks name such groups. A plain
// value.
//
//   const memledger::Snapshot snapshot = memledger::Registry::global().snapshot();
//   for (const memledger::StorageInfo& storage : snapshot.storages(at::kCPU))
//     std::cout << memledger::to_string(memledger::storage_group(storage)) << '\n';

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "registry/birthplace.h"
#include "registry/snapshot.h"

namespace memledger {

// Members of the birthplace that do not tell groups apart are empty: forward_op, forward_label,
// parameter, thread, phase_inferred. So is the stack of a group that holds several.
struct StorageGroup : Birthplace {
  c10::Device device = c10::Device(c10::DeviceType::CPU);
  bool raw_block = false;                     // made by a raw allocation, see StorageInfo
  std::optional<c10::ScalarType> dtype;       // nothing: unknown
  std::optional<std::vector<int64_t>> shape;  // nothing: unknown

  friend bool operator==(const StorageGroup& a, const StorageGroup& b) {
    return a.device == b.device && a.op == b.op && a.autograd_node == b.autograd_node &&
           a.label == b.label && a.phase == b.phase && a.adopted == b.adopted &&
           a.raw_block == b.raw_block && a.stack == b.stack && a.dtype == b.dtype &&
           a.shape == b.shape;
  }
};

struct StorageGroupHash {
  size_t operator()(const StorageGroup& group) const;
};

// Returns the group of a storage, whatever its stack.
StorageGroup storage_group(const StorageInfo& storage);

// Returns aten::mul [encoder, forward] (1024, 3) torch.float32 on cpu. With a stack it ends in the
// program's line, ` at train.cc:42 main`; looking that up may take 100 ms, see stack_frames().
std::string to_string(const StorageGroup& group);
// Returns the part before the shape.
std::string maker_text(const StorageGroup& group);

}  // namespace memledger
