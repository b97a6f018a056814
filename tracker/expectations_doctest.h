#pragma once

// Makes failed memory expectations (memory_expectations.h) fail the running doctest case. Include
// it after doctest's header, in one file of the program.
//
//   auto no_leak = memledger::expect_no_leak();
//   model->forward(input);

#if !defined(DOCTEST_ADD_FAIL_CHECK_AT)
#error "include doctest's header before tracker/expectations_doctest.h"
#endif

#include "tracker/doctest_check.h"
#include "tracker/memory_expectations.h"

namespace memledger {

inline void fail_doctest(const ExpectationFailure& failure) {
  DOCTEST_ADD_FAIL_CHECK_AT(failure.where.file(), failure.where.line(), failure.message);
}

inline const bool doctest_is_told = (set_failure_handler(&fail_doctest), true);

}  // namespace memledger
