#pragma once

// Where a group of storages was made and what they look like: what growth and leaks are named by.
//
// Ownership: the views are of names that live as long as the process (see StorageInfo).
// Thread-safety: a plain value.

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "registry/phase.h"
#include "registry/snapshot.h"

namespace memledger {

struct Birthplace {
  c10::Device device = c10::Device(c10::DeviceType::CPU);
  std::string_view op;             // outermost operator; empty: outside operators
  std::string_view autograd_node;  // e.g. ConvolutionBackward0
  std::string_view label;          // ScopedLabels, outermost first, with '/' between
  Phase phase = Phase::kOther;
  bool adopted = false;    // born before tracking: nothing else is known
  bool raw_block = false;  // made past tensors, see StorageInfo
  uint32_t stack = 0;      // for stack_frames(); 0: not cut by stack
  // Nothing: unknown.
  std::optional<c10::ScalarType> dtype;
  std::optional<std::vector<int64_t>> shape;

  friend bool operator==(const Birthplace& a, const Birthplace& b) {
    return a.device == b.device && a.op == b.op && a.autograd_node == b.autograd_node &&
           a.label == b.label && a.phase == b.phase && a.adopted == b.adopted &&
           a.raw_block == b.raw_block && a.stack == b.stack && a.dtype == b.dtype &&
           a.shape == b.shape;
  }
};

struct BirthplaceHash {
  size_t operator()(const Birthplace& place) const;
};

// Not cut by stack.
Birthplace birthplace_of(const StorageInfo& storage);

// aten::mul [encoder, forward] (1024, 3) torch.float32 on cpu; with a stack also `at train.cc:42
// main`, which symbolizes it.
std::string to_string(const Birthplace& place);
// The part before the shape.
std::string maker_text(const Birthplace& place);

}  // namespace memledger
