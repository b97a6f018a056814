#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace memledger {

// Names that are shown next to each other, and how many characters each may have.
struct NameInTable {
  std::string text;
  size_t most = 200;
};

// Returns them as table_name() does (text/names.h), but so that names which differ still do: such
// show where they begin to differ, or the whole.
std::vector<std::string> table_names(const std::vector<NameInTable>& names);

}  // namespace memledger
