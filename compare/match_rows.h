#pragma once

// Finds the rows of two files that are the same tensor.

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "compare/names.h"
#include "compare/saved.h"

namespace memledger::compare {

// By what a row before and one after were found to be the same.
enum class Match : uint8_t {
  kNone,      // it came or went
  kName,      // the same name
  kPrefix,    // the same name but for a prefix or a wrapper
  kNumber,    // the same but for numbers in names or layers
  kMaker,     // the same layer, operator, shape and dtype
  kLayer,     // the same layer or line, and operator; another shape or dtype
  kOperator,  // the same layer and shape; another operator
};
constexpr size_t kMatches = 7;
std::string_view to_string(Match match);

// Pointers to rows of the two lists. One of them is null if `match` is kNone.
struct RowPair {
  const Row* before = nullptr;
  const Row* after = nullptr;
  Match match = Match::kNone;
  int64_t change() const {
    return (after == nullptr ? 0 : after->bytes) - (before == nullptr ? 0 : before->bytes);
  }
};

struct MatchedRows {
  std::vector<RowPair> pairs;  // each row is in one
  Prefixes prefixes;
};
// The lists must outlive the result.
MatchedRows match_rows(const std::vector<Row>& before, const std::vector<Row>& after);

}  // namespace memledger::compare
