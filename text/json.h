#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace memledger {

// A JSON value whose objects keep the order in which members were added.
//
//   Json step = {{"label", label}, {"bytes", bytes}, {"dtype", or_null(known_dtype(dtype))}};
//   text += to_text(step);
//
// A list of a million rows is written row by row (JsonRow): the value of all of them would take ten
// times as much memory as their text.
using Json = nlohmann::ordered_json;

// Returns the value, null where it is unknown.
template <typename T>
Json or_null(const std::optional<T>& value) {
  return value.has_value() ? Json(*value) : Json(nullptr);
}

// Returns a shape as an array, [] for a scalar; null for a symbolic size, and where all of it is
// unknown.
template <typename Sizes>
Json shape_json(const std::optional<Sizes>& shape) {
  if (!shape.has_value()) return nullptr;
  Json sizes = Json::array();
  for (const int64_t size : *shape) sizes.push_back(size < 0 ? Json(nullptr) : Json(size));
  return sizes;
}

// Builds one object of a long list, from members whose keys all differ.
//
//   text += to_text(JsonRow().add("name", row.name).add("bytes", or_null(row.nbytes)).end());
//
// Three times as fast as braces, which copy each member, or operator[], which searches for the key.
class JsonRow {
 public:
  JsonRow() { members_.reserve(32); }
  JsonRow& add(const char* key, Json value) {
    members_.Container::emplace_back(key, std::move(value));
    return *this;
  }
  Json end() { return Json(std::move(members_)); }

 private:
  Json::object_t members_;
};

// Returns the JSON on one line. What is not well-formed UTF-8 becomes U+FFFD.
std::string to_text(const Json& value);

// Returns `text` as a JSON string, quotes included: for what is written piece by piece.
std::string json_string(std::string_view text);

}  // namespace memledger
