#pragma once

#include <cstdint>
#include <string>

namespace memledger {

// Returns bytes as reports print them: 512.00B, 4.00K, 10.02M. Powers of 1024, two decimals.
std::string readable_size(int64_t bytes);

// Returns bytes as sentences print them: 512.0 B, 4.0 KiB, 10.0 MiB. Powers of 1024, one decimal;
// a mean below 0.05 B with two digits.
std::string size_in_words(double bytes);

}  // namespace memledger
