#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "virtual_gpu/values/size_reads.h"

namespace memledger::virtual_gpu {

// The list that is printed at exit, at most ten rows; empty where there is nothing to say. Rows are
// in the order of unknown_reads().
std::string read_list_text(const std::vector<ReadRow>& rows, uint32_t millionths);

}  // namespace memledger::virtual_gpu
