// doctest, memledger, LibTorch: CHECK is doctest's. LibTorch's ends the program.
// clang-format off
#include <doctest/doctest.h>

#include "tracker/test_verdict.h"

#include <torch/types.h>
// clang-format on

TEST_CASE("doctest, memledger, LibTorch: a CHECK that fails fails its case, and the next one runs" *
          doctest::expected_failures(2)) {
  CHECK(memledger::TestVerdict::failed("the reason"));
  CHECK_EQ(1, 2);
}
