#pragma once

// Why two files may differ, in sentences: what is printed before any row.

#include <string>
#include <vector>

#include "compare/difference.h"

namespace memledger::compare {

struct FactsOf {
  std::string device;  // empty: the whole file
  bool is_one_kind;    // both files should know the same facts
};
// Adds a sentence for each fact that differs; for files of one kind, also for one that only one of
// them knows.
void add_reasons(const std::vector<Fact>& before, const std::vector<Fact>& after,
                 const FactsOf& facts, std::vector<std::string>& reasons);

// Adds what the rows of a device show: dtypes, operators, workspaces, a graph that is kept.
void add_reasons(const AccountChange& account, const std::vector<RowPair>& pairs,
                 std::vector<std::string>& reasons);

}  // namespace memledger::compare
