#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>

namespace memledger {

// Returns a text as a field of CSV: printable (text/names.h), quoted where it has to be, and with
// an apostrophe before what a spreadsheet would take for a formula.
std::string csv_field(std::string_view text);

// Writes one line of CSV, field after field. What is unknown stays empty.
//
//   text += CsvLine().text(row.name).number(row.bytes).flag(row.adopted).end();
class CsvLine {
 public:
  CsvLine& text(std::string_view field);
  CsvLine& text(const char* field) { return text(std::string_view(field)); }
  CsvLine& text(const std::string& field) { return text(std::string_view(field)); }
  CsvLine& text(const std::optional<std::string>& field);
  template <typename Integer, std::enable_if_t<std::is_integral_v<Integer>, int> = 0>
  CsvLine& number(Integer value) {
    return add(std::to_string(value));
  }
  template <typename Integer>
  CsvLine& number(const std::optional<Integer>& value) {
    return value.has_value() ? number(*value) : add("");
  }
  // Writes 1 or 0.
  CsvLine& flag(bool value);
  // Returns the line with its \n.
  std::string end() const;

 private:
  CsvLine& add(std::string_view field);

  std::string line_;
  bool first_ = true;
};

}  // namespace memledger
