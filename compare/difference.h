#pragma once

// What differs between two saved files.
//
//   const absl::StatusOr<Difference> difference = compare_files(before, after);
//   std::cout << difference_text(*difference, {});
//
// Every sum is exact: the changes of an account's rows and the change of its rest are the change of
// its total.

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "compare/match_rows.h"
#include "compare/saved.h"

namespace memledger::compare {

struct PartChange {
  std::string name;
  std::optional<int64_t> before, after;  // empty: only the change is known
  int64_t change = 0;
};

struct FigureChange {
  std::string name;
  std::optional<Figure> before, after;  // empty: one file does not say
  bool differs() const;
};

struct AccountChange {
  std::optional<int64_t> rank;  // empty: there is one process
  std::string device;           // `cuda:0`, or `cpu, now cuda:0`
  std::string moment;
  std::optional<int64_t> before, after;  // totals; 0 if a device is not used; empty: not known
  std::vector<RowPair> rows;             // those whose bytes differ, the largest change first
  size_t same = 0;                       // pairs of rows of the same bytes
  std::array<size_t, kMatches> matches{};
  int64_t rows_change = 0;
  // What the totals have besides rows; null without a total.
  std::optional<int64_t> rest_before, rest_after;
  size_t rows_without_bytes_before = 0, rows_without_bytes_after = 0;
  Prefixes prefixes;
  std::vector<PartChange> by_role, by_layer, by_line;  // what differs, the largest change first
  std::vector<FigureChange> figures;

  std::optional<int64_t> change() const;
  bool differs() const;
};

// Returns cuda:0, or rank 3, cuda:3.
std::string title_of(const AccountChange& account);

struct Difference {
  std::string before, after;  // names of the files
  FileKind before_kind = FileKind::kRunReport, after_kind = FileKind::kRunReport;
  std::vector<std::string> reasons;  // sentences
  std::vector<FigureChange> figures;
  std::vector<AccountChange> accounts;

  bool differs() const;
};

// InvalidArgument says in one sentence why the files cannot be compared, and what to do. Rows point
// into the files, which must outlive the result. A report that is compared with a prediction has a
// row for each layer from then on.
absl::StatusOr<Difference> compare_files(SavedFile& before, SavedFile& after);

// How much more is still no failure: 1%, 20MiB.
struct Limit {
  double share = 0;
  int64_t bytes = 0;
};
absl::StatusOr<Limit> parse_limit(const std::string& text);
// Returns a device whose total rose by more, or is not known; null if there is none.
const AccountChange* first_above(const Difference& difference, const Limit& limit);

}  // namespace memledger::compare
