#include "text/csv.h"

#include "text/escaped.h"
#include "text/names.h"

namespace memledger {

std::string csv_field(std::string_view text) {
  std::string field = printable(text);
  // Full-width forms, too: spreadsheets of East Asian locales read them as the plain ones.
  for (const std::string_view sign :
       {"=", "+", "-", "@", "\xef\xbc\x9d", "\xef\xbc\x8b", "\xef\xbc\x8d", "\xef\xbc\xa0"}) {
    if (field.compare(0, sign.size(), sign) == 0) {
      field.insert(0, 1, '\'');
      break;
    }
  }
  if (field.find_first_of(",;\"") == std::string::npos) return field;
  return '"' + escaped(field, [](char c) -> std::string_view { return c == '"' ? "\"\"" : ""; }) +
         '"';
}

CsvLine& CsvLine::text(std::string_view field) { return add(csv_field(field)); }

CsvLine& CsvLine::text(const std::optional<std::string>& field) {
  return add(field.has_value() ? csv_field(*field) : "");
}

CsvLine& CsvLine::flag(bool value) { return add(value ? "1" : "0"); }

std::string CsvLine::end() const { return line_ + '\n'; }

CsvLine& CsvLine::add(std::string_view field) {
  if (!first_) line_ += ',';
  first_ = false;
  line_ += field;
  return *this;
}

}  // namespace memledger
