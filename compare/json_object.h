#pragma once

// Reads members of a file's JSON. Nothing throws: what is missing or of another type is noted once,
// with its path, and reads as nothing.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "text/json.h"

namespace memledger::compare {

// The first thing that is wrong; empty: nothing.
struct Fault {
  std::string what;       // `devices[0].rows[3].bytes` is no whole number
  bool is_damage = true;  // else the file is whole, and lacks what was asked for
};

class JsonObject {
 public:
  // Reads the whole file. Both arguments must outlive the object and all that it returns.
  JsonObject(const Json& json, Fault& fault) : json_(&json), fault_(&fault) {}

  bool has(const char* key) const;  // and it is not null
  // Return "" and nothing for a member that is missing or null.
  std::string text(const char* key) const;
  std::optional<int64_t> maybe_integer(const char* key) const;
  bool is_true(const char* key) const;
  // These members must be there.
  std::string needed_text(const char* key) const;
  int64_t integer(const char* key) const;
  double number(const char* key) const;
  // Bytes: 0 or more.
  int64_t bytes(const char* key) const;
  JsonObject object(const char* key) const;
  std::vector<JsonObject> objects(const char* key) const;
  // All members, which must be bytes.
  std::vector<std::pair<std::string, int64_t>> all_bytes() const;
  // `(3, 5)`; empty if it is missing, null or a text that is no array.
  std::string shape(const char* key) const;

  std::string path(const std::string& key) const;
  void fail(const std::string& key, const char* what) const;
  void refuse(const char* what) const;

 private:
  const Json* find(const char* key) const;

  const Json* json_;
  Fault* fault_;
  std::string path_;  // with a dot at its end
};

}  // namespace memledger::compare
