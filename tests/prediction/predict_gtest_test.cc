// The adaptor for googletest, with googletest itself.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>

#include "prediction/expectations_gtest.h"
#include "prediction/predict.h"

namespace {

at::Tensor bytes_on_gpu(int64_t bytes) {
  return at::empty({bytes}, at::TensorOptions(at::kCUDA).dtype(at::kByte));
}

constexpr int64_t kMiB = int64_t{1} << 20;
// With one order of addresses: half the runs.
constexpr char kSmall[] = "h100:256MiB,addresses=down";

// A file with a line for each process that ran the first test.
std::string log_path() { return std::string(std::getenv("TEST_TMPDIR")) + "/other_test"; }

TEST(Other, LeavesMemoryOnTheGpu) {
  static auto* const left = new at::Tensor(bytes_on_gpu(200 * kMiB));
  EXPECT_TRUE(left->defined());
  std::ofstream(log_path(), std::ios::app) << "ran\n";
}

// Started again for this test alone: what the one before left is not there, and it would not fit.
TEST(Step, FitsBesideNothingOfOtherTests) {
  EXPECT_TRUE(memledger::fits_on(kSmall, [] { bytes_on_gpu(100 * kMiB); }));
  std::ifstream log(log_path());
  const std::string lines((std::istreambuf_iterator<char>(log)), std::istreambuf_iterator<char>());
  EXPECT_EQ(lines, "ran\n");
}

TEST(Step, SaysWhyItDoesNotFit) {
  const memledger::TestVerdict verdict =
      memledger::fits_on(kSmall, [] { bytes_on_gpu(300 * kMiB); });
  EXPECT_FALSE(verdict);
  const ::testing::AssertionResult result(verdict);
  EXPECT_NE(std::string(verdict.message()).find("does not fit: "), std::string::npos)
      << verdict.message();
}

class Sizes : public ::testing::TestWithParam<int> {};

TEST_P(Sizes, AreOfTheRunningTest) {
  const int64_t bytes = GetParam() * kMiB;
  EXPECT_EQ(static_cast<bool>(memledger::fits_on(kSmall, [bytes] { bytes_on_gpu(bytes); })),
            bytes < 256 * kMiB);
}

INSTANTIATE_TEST_SUITE_P(Both, Sizes, ::testing::Values(120, 280));

}  // namespace
