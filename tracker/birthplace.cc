#include "tracker/birthplace.h"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <functional>

#include "registry/stacks.h"
#include "text/names.h"
#include "tracker/log/log_text.h"

namespace memledger {

size_t BirthplaceHash::operator()(const Birthplace& place) const {
  size_t hash = 0;
  const auto mix = [&hash](size_t part) {
    hash = (hash ^ part) * 0x9E3779B97F4A7C15U + (hash >> 29);
  };
  const std::hash<std::string_view> of_text;
  mix(static_cast<size_t>(place.device.type()) << 8 | static_cast<uint8_t>(place.device.index()));
  mix(of_text(place.op));
  mix(of_text(place.autograd_node));
  mix(of_text(place.label));
  mix(static_cast<size_t>(place.phase) << 2 | static_cast<size_t>(place.adopted) << 1 |
      static_cast<size_t>(place.raw_block));
  mix(place.stack);
  mix(place.dtype.has_value() ? static_cast<size_t>(*place.dtype) : 255);
  if (place.shape.has_value()) {
    for (const int64_t size : *place.shape) mix(static_cast<size_t>(size));
  }
  return hash;
}

Birthplace birthplace_of(const StorageInfo& storage) {
  Birthplace place;
  place.device = storage.device;
  place.op = storage.op;
  place.autograd_node = storage.autograd_node;
  place.label = storage.label;
  place.phase = storage.phase;
  place.adopted = storage.adopted;
  place.raw_block = storage.raw_block;
  place.dtype = storage.dtype;
  if (storage.dtype.has_value()) place.shape.emplace(storage.shape.begin(), storage.shape.end());
  return place;
}

std::string maker_text(const Birthplace& place) {
  if (place.adopted) return "before tracking";
  std::string text =
      place.op.empty() ? place.raw_block ? "raw block" : "outside operators" : table_name(place.op);
  std::string where;
  const auto add = [&where](const std::string& part) {
    if (!part.empty()) where += (where.empty() ? "" : ", ") + part;
  };
  add(table_name(place.label));
  add(table_name(place.autograd_node));
  if (place.phase != Phase::kOther) add(std::string(to_string(place.phase)));
  return where.empty() ? text : text + " [" + where + "]";
}

std::string to_string(const Birthplace& place) {
  const std::string text = maker_text(place) + " " + log_text::size(place.shape) + " " +
                           log_text::dtype(place.dtype) + " on " + place.device.str();
  if (place.stack == 0) return text;
  const std::string line = table_name(to_string(program_frame(place.stack)));
  return line.empty() ? text + " at an unknown line" : text + " at " + line;
}

}  // namespace memledger
