#pragma once

// Writes a difference.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "compare/difference.h"
#include "text/json.h"

namespace memledger::compare {

struct ShownRows {
  // For each device; in text by default a quarter for the second and later ones. Rows that
  // differ in numbers only are one.
  size_t most = 20;
};

// Text for a terminal, and for a pull request. Names in them are harmless.
std::string difference_text(const Difference& difference, const ShownRows& shown);
std::string difference_markdown(const Difference& difference, const ShownRows& shown);
// Schema memledger.diff/1, with every row.
Json difference_json(const Difference& difference);

// Rows of one change that differ in numbers only.
struct ShownRow {
  int64_t change = 0;  // of all
  int64_t before = 0, after = 0;
  size_t count = 0;
  std::string what;   // came, went, grew, shrank
  std::string name;   // or the operator
  std::string where;  // layer and line; may be empty
  std::string shape;  // (256 → 320, 3) float32; may be empty
  std::string note;   // what it was called before, if that differs; may be empty
};
struct ShownAccount {
  std::vector<ShownRow> rows;  // the largest first
  int64_t shown_change = 0;    // of these
  size_t more = 0;             // rows of the file that are not shown
  int64_t more_change = 0;
};
ShownAccount shown_rows(const AccountChange& account, const ShownRows& shown);

// Returns `matched: 650 by name, 12 by layer, operator and shape`.
std::string matches_text(const AccountChange& account);
// Whether a figure differs, and no reason has said it already.
bool is_shown(const FigureChange& figure);
// Returns 1.58G or 1.58G…1.60G; ? if it is not known.
std::string figure_text(const std::optional<Figure>& figure);

}  // namespace memledger::compare
