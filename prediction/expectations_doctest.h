#pragma once

// Makes memledger::fits_on() start a doctest program again for the running test case alone. Include
// it after doctest's header, in one file of the program.
//
//   const auto step = [&] { model->forward(input).sum().backward(); };
//   CHECK(memledger::fits_on("l4", step));

#if !defined(DOCTEST_ADD_FAIL_CHECK_AT)
#error "include doctest's header before prediction/expectations_doctest.h"
#endif

#include <string>

#include "prediction/predict.h"
#include "tracker/doctest_check.h"

namespace memledger::predict_internal {

inline RunningTest running_doctest() {
  const auto* const test = doctest::getContextOptions()->currentTest;
  if (test == nullptr) return {};
  // A comma separates filters.
  std::string filter = "--test-case=";
  for (const char* c = test->m_name; *c != '\0'; ++c)
    filter += *c == ',' ? "\\," : std::string(1, *c);
  return {test->m_name, {filter}};
}

inline const bool doctest_is_known = set_running_test(&running_doctest);

}  // namespace memledger::predict_internal
