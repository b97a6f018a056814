#pragma once

// Makes memledger::fits_on() start a googletest program again for the running test alone. Include
// it after <gtest/gtest.h>, in one file of the program.
//
//   const auto step = [&] { model->forward(input).sum().backward(); };
//   EXPECT_TRUE(memledger::fits_on("l4", step));

#if !defined(ADD_FAILURE_AT)
#error "include <gtest/gtest.h> before prediction/expectations_gtest.h"
#endif

#include <string>

#include "prediction/predict.h"

namespace memledger::predict_internal {

#if defined(GTEST_TEST)
inline RunningTest running_gtest() {
  const auto* const test = ::testing::UnitTest::GetInstance()->current_test_info();
  if (test == nullptr) return {};
  const std::string name = std::string(test->test_suite_name()) + "." + test->name();
  return {name, {"--gtest_filter=" + name}};
}

inline const bool gtest_is_known = set_running_test(&running_gtest);
#endif

}  // namespace memledger::predict_internal
