#pragma once

// Makes failed memory expectations (memory_expectations.h) fail the running googletest test.
// Include it after <gtest/gtest.h>, in one file of the program.
//
//   auto no_leak = memledger::expect_no_leak();
//   model->forward(input);

#if !defined(ADD_FAILURE_AT)
#error "include <gtest/gtest.h> before tracker/expectations_gtest.h"
#endif

#include "tracker/memory_expectations.h"

namespace memledger {

inline void fail_gtest(const ExpectationFailure& failure) {
  ADD_FAILURE_AT(failure.where.file(), failure.where.line()) << failure.message;
}

inline const bool gtest_is_told = (set_failure_handler(&fail_gtest), true);

}  // namespace memledger
