#pragma once

#include <cstdint>
#include <string>

namespace memledger {

// 512.00B, 4.00K, 10.02M: powers of 1024, two decimals.
std::string readable_size(int64_t bytes);

}  // namespace memledger
