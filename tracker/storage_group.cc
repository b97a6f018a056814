#include "tracker/storage_group.h"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <functional>

#include "registry/stacks.h"
#include "text/dtype.h"
#include "text/names.h"
#include "text/shape.h"

namespace memledger {

size_t StorageGroupHash::operator()(const StorageGroup& group) const {
  size_t hash = 0;
  const auto mix = [&hash](size_t part) {
    hash = (hash ^ part) * 0x9E3779B97F4A7C15U + (hash >> 29);
  };
  const std::hash<std::string_view> of_text;
  mix(static_cast<size_t>(group.device.type()) << 8 | static_cast<uint8_t>(group.device.index()));
  mix(of_text(group.op));
  mix(of_text(group.autograd_node));
  mix(of_text(group.label));
  mix(static_cast<size_t>(group.phase) << 2 | static_cast<size_t>(group.adopted) << 1 |
      static_cast<size_t>(group.raw_block));
  mix(group.stack);
  mix(group.dtype.has_value() ? static_cast<size_t>(*group.dtype) : 255);
  if (group.shape.has_value()) {
    for (const int64_t size : *group.shape) mix(static_cast<size_t>(size));
  }
  return hash;
}

StorageGroup storage_group(const StorageInfo& storage) {
  StorageGroup group;
  group.device = storage.device;
  static_cast<Birthplace&>(group) = storage;
  group.forward_op = group.forward_label = {};
  group.parameter = 0;
  group.stack = group.thread = 0;
  group.phase_inferred = false;
  group.raw_block = storage.raw_block;
  group.dtype = storage.dtype;
  if (storage.dtype.has_value()) group.shape.emplace(storage.shape.begin(), storage.shape.end());
  return group;
}

std::string maker_text(const StorageGroup& group) {
  if (group.adopted) return "before tracking";
  std::string text =
      group.op.empty() ? group.raw_block ? "raw block" : "outside operators" : table_name(group.op);
  std::string where;
  const auto add = [&where](const std::string& part) {
    if (!part.empty()) where += (where.empty() ? "" : ", ") + part;
  };
  add(table_name(group.label));
  add(table_name(group.autograd_node));
  if (group.phase != Phase::kOther) add(std::string(to_string(group.phase)));
  return where.empty() ? text : text + " [" + where + "]";
}

std::string to_string(const StorageGroup& group) {
  const std::string text = maker_text(group) + " " + shape_text(group.shape) + " " +
                           dtype_text(group.dtype) + " on " + group.device.str();
  if (group.stack == 0) return text;
  const std::string line = table_name(to_string(program_frame(group.stack)));
  return line.empty() ? text + " at an unknown line" : text + " at " + line;
}

}  // namespace memledger
