// The verdicts and expectations under googletest's macros. googletest is not among the project's
// packages. So these macros are written here as in googletest 1.12 (gtest-assertion-result.h,
// gtest-internal.h, gtest-message.h).
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <ATen/ATen.h>

#include <sstream>
#include <string>
#include <type_traits>
#include <vector>

#include "tests/support/doctest_beside_torch.h"

namespace testing {

class AssertionResult {
 public:
  AssertionResult(const AssertionResult& other) = default;
  template <typename T>
  explicit AssertionResult(
      const T& success,
      typename std::enable_if<!std::is_convertible<T, AssertionResult>::value>::type* = nullptr)
      : success_(success) {}
  operator bool() const { return success_; }
  const char* message() const { return message_.c_str(); }
  const char* failure_message() const { return message(); }
  template <typename T>
  AssertionResult& operator<<(const T& value) {
    std::ostringstream text;
    text << value;
    message_ += text.str();
    return *this;
  }

 private:
  bool success_;
  std::string message_;
};

struct Failure {
  std::string file;
  int line;
  std::string text;
};
std::vector<Failure> failures;

// What ADD_FAILURE_AT makes, and what takes the text behind it.
class Message {
 public:
  template <typename T>
  Message& operator<<(const T& value) {
    text_ << value;
    return *this;
  }
  std::string text() const { return text_.str(); }

 private:
  std::ostringstream text_;
};
struct AssertHelper {
  const char* file;
  int line;
  void operator=(const Message& message) const { failures.push_back({file, line, message.text()}); }
};

}  // namespace testing

#define ADD_FAILURE_AT(file, line) ::testing::AssertHelper{file, line} = ::testing::Message()
#define EXPECT_TRUE(expression)                                                            \
  if (const ::testing::AssertionResult gtest_ar_ = ::testing::AssertionResult(expression)) \
    ;                                                                                      \
  else                                                                                     \
    ADD_FAILURE_AT(__FILE__, __LINE__)                                                     \
        << "Value of: " #expression "\n  Actual: false (" << gtest_ar_.message() << ")"

#include "tracker/expectations_gtest.h"
#include "tracker/growth_finder.h"

namespace memledger {
namespace {

TEST_SUITE_BEGIN("googletest");

TEST_CASE("EXPECT_TRUE takes a verdict and prints why it fails") {
  testing::failures.clear();
  EXPECT_TRUE(TestVerdict::passed("fine"));
  EXPECT_TRUE(TestVerdict());
  CHECK(testing::failures.empty());
  std::vector<at::Tensor> kept;
  GrowthFinder finder;
  for (int i = 0; i < 30; ++i) {
    kept.push_back(at::zeros({4}));
    finder.step();
  }
  EXPECT_TRUE(no_growth(finder));
  REQUIRE(testing::failures.size() == 1);
  CHECK(testing::failures[0].text ==
        "Value of: no_growth(finder)\n  Actual: false (growing 16.0 B per step since step 6\n"
        "  16.0 B per step since step 6: aten::zeros [forward] (4,) torch.float32 on cpu, 480.0 B "
        "in 30 storages)");
}

TEST_CASE("a scope that fails adds a failure at its own line") {
  testing::failures.clear();
  at::Tensor leaked;
  int line = 0;
  {
    line = __LINE__ + 1;
    const auto no_leak = expect_no_leak();
    leaked = at::zeros({4});
  }
  REQUIRE(testing::failures.size() == 1);
  CHECK(testing::failures[0].line == line);
  CHECK(testing::failures[0].text.find("1 storage (16.0 B) born since line") != std::string::npos);
}

TEST_SUITE_END();

}  // namespace
}  // namespace memledger
