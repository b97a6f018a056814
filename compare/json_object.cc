#include "compare/json_object.h"

#include <utility>

#include "compare/saved.h"
#include "text/shape.h"

namespace memledger::compare {
namespace {

const Json& empty_object() {
  static const Json* const object = new Json(Json::object());
  return *object;
}

std::optional<int64_t> whole(const Json& json) {
  if (json.is_number_unsigned()) {
    const auto value = json.get<uint64_t>();
    return value <= kMaxBytes ? std::optional(static_cast<int64_t>(value)) : std::nullopt;
  }
  if (!json.is_number_integer()) return std::nullopt;
  const auto value = json.get<int64_t>();
  return value >= -kMaxBytes && value <= kMaxBytes ? std::optional(value) : std::nullopt;
}

}  // namespace

std::string JsonObject::path(const std::string& key) const { return path_ + key; }

void JsonObject::fail(const std::string& key, const char* what) const {
  if (fault_->what.empty()) *fault_ = {"`" + path(key) + "` " + what};
}

void JsonObject::refuse(const char* what) const {
  if (fault_->what.empty()) *fault_ = {what, false};
}

const Json* JsonObject::find(const char* key) const {
  const auto found = json_->find(key);
  return found == json_->end() || found->is_null() ? nullptr : &*found;
}

bool JsonObject::has(const char* key) const { return find(key) != nullptr; }

std::string JsonObject::text(const char* key) const {
  const Json* const json = find(key);
  if (json == nullptr) return "";
  if (json->is_string()) return json->get<std::string>();
  fail(key, "is no text");
  return "";
}

std::optional<int64_t> JsonObject::maybe_integer(const char* key) const {
  const Json* const json = find(key);
  if (json == nullptr) return std::nullopt;
  const std::optional<int64_t> value = whole(*json);
  if (!value) fail(key, "is no whole number");
  return value;
}

bool JsonObject::is_true(const char* key) const {
  const Json* const json = find(key);
  return json != nullptr && json->is_boolean() && json->get<bool>();
}

std::string JsonObject::needed_text(const char* key) const {
  if (!has(key)) fail(key, "is missing");
  return text(key);
}

int64_t JsonObject::integer(const char* key) const {
  if (!has(key)) fail(key, "is missing");
  return maybe_integer(key).value_or(0);
}

double JsonObject::number(const char* key) const {
  const Json* const json = find(key);
  if (json != nullptr && json->is_number()) return json->get<double>();
  fail(key, json == nullptr ? "is missing" : "is no number");
  return 0;
}

int64_t JsonObject::bytes(const char* key) const {
  const int64_t value = integer(key);
  if (value >= 0) return value;
  fail(key, "is below 0");
  return 0;
}

JsonObject JsonObject::object(const char* key) const {
  const Json* const json = find(key);
  JsonObject result(json != nullptr && json->is_object() ? *json : empty_object(), *fault_);
  if (result.json_ != json) fail(key, json == nullptr ? "is missing" : "is no object");
  result.path_ = path(key) + ".";
  return result;
}

std::vector<JsonObject> JsonObject::objects(const char* key) const {
  std::vector<JsonObject> result;
  const Json* const json = find(key);
  if (json == nullptr || !json->is_array()) {
    fail(key, json == nullptr ? "is missing" : "is no list");
    return result;
  }
  result.reserve(json->size());
  for (const Json& element : *json) {
    JsonObject object(element.is_object() ? element : empty_object(), *fault_);
    object.path_ = path(key) + "[" + std::to_string(result.size()) + "].";
    if (!element.is_object()) object.fail("", "is no object");
    result.push_back(std::move(object));
  }
  return result;
}

std::vector<std::pair<std::string, int64_t>> JsonObject::all_bytes() const {
  std::vector<std::pair<std::string, int64_t>> result;
  for (const auto& member : json_->items()) result.emplace_back(member.key(), 0);
  for (auto& [name, value] : result) value = bytes(name.c_str());
  return result;
}

std::string JsonObject::shape(const char* key) const {
  const Json* const json = find(key);
  if (json == nullptr || !json->is_array()) return "";
  std::vector<int64_t> sizes;
  for (const Json& size : *json) sizes.push_back(whole(size).value_or(-1));
  return shape_text(sizes);
}

}  // namespace memledger::compare
