#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "reporter/names/program_name.h"
#include "reporter/role.h"

namespace memledger {

// What one report reads of a tensor that has a name.
struct NamedTensorFacts {
  std::string name;
  Role role = Role::kTensor;
  std::string module;  // see ReportRow::module
  TiedEmbedding tied;
  c10::Device device = c10::Device(c10::kCPU);
  uintptr_t identity = 0;   // address of the tensor object; 0: unknown
  uint64_t storage_id = 0;  // 0: not in the registry
  uintptr_t address = 0;    // of its storage's data; 0: none to be seen
  bool has_storage = false;
  bool has_ended = false;  // the tensor object: its name is remembered by the storage
  bool unread = false;     // see NamedTensor::unread
  bool pinned = false;
  bool lent = false;                  // see StorageFacts::lent
  std::optional<bool> requires_grad;  // of a parameter
  std::optional<int64_t> storage_bytes;
  std::optional<int64_t> references;  // to the storage, without ours
  std::optional<std::vector<int64_t>> shape;
  std::optional<c10::ScalarType> dtype;
  std::optional<int64_t> offset_bytes;
  std::optional<int64_t> extent_bytes;  // from the first to the last element
  // Role::kSaved: the graph's node, and which of the reporter's graphs it was found in.
  uint64_t node_sequence = 0;
  uint64_t node_thread = 0;
  size_t graph = 0;
};

}  // namespace memledger
