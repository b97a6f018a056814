#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace memledger {

// Returns a text as a field of CSV: printable (text/names.h), quoted where it has to be, and with
// an apostrophe before what a spreadsheet would take for a formula.
std::string csv_field(std::string_view text);

// Writes one line of CSV, field after field; what is unknown stays empty.
//
//   text += CsvLine().text(row.name).number(row.bytes).flag(row.adopted).end();
class CsvLine {
 public:
  CsvLine& text(std::string_view field);
  CsvLine& text(const std::optional<std::string>& field);
  CsvLine& number(int64_t value);
  CsvLine& number(const std::optional<int64_t>& value);
  // 1 or 0.
  CsvLine& flag(bool value);
  // Returns the line with its \n.
  std::string end() const;

 private:
  CsvLine& add(std::string_view field);

  std::string line_;
  bool first_ = true;
};

}  // namespace memledger
