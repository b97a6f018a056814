#pragma once

namespace memledger::testing {

// Allocates and frees 300 blocks of many sizes with cudaMalloc, the same ones everywhere, and
// prints where they are, with tabs between the words:
//
//   address  allocate|free  BYTES  ADDRESS
//
// Takes up to 1 GiB. Returns CUDA's error number, 0 where there was none.
int print_address_series();

}  // namespace memledger::testing
