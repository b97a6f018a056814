#pragma once

// A check's result, in a form that doctest's CHECK and googletest's EXPECT_TRUE take as it is and
// print when it fails.
//
//   memledger::GrowthFinder finder;
//   finder.step();
//   const memledger::TestVerdict verdict = memledger::no_growth(finder);
//   if (!verdict) std::cerr << verdict << '\n';

#include <ostream>
#include <string>
#include <type_traits>
#include <utility>

#include "tracker/doctest_check.h"

namespace memledger {

class TestVerdict {
 public:
  // Passed, without a message.
  TestVerdict() = default;
  static TestVerdict failed(std::string message) {
    TestVerdict verdict;
    verdict.holds_ = false;
    verdict.message_ = std::move(message);
    return verdict;
  }
  static TestVerdict passed(std::string message) {
    TestVerdict verdict;
    verdict.message_ = std::move(message);
    return verdict;
  }

  explicit operator bool() const { return holds_; }
  // Returns what failed and who holds the memory: one line or several, without the last line's end.
  const std::string& message() const& { return message_; }
  std::string message() && { return std::move(message_); }

  friend std::ostream& operator<<(std::ostream& out, const TestVerdict& verdict) {
    return out << verdict.message_;
  }

  // Converts to ::testing::AssertionResult, known by its failure_message(), as EXPECT_TRUE prints
  // only such a result's message.
  template <typename Result, typename = decltype(std::declval<const Result&>().failure_message()),
            typename = std::enable_if_t<std::is_constructible_v<Result, bool>>>
  operator Result()
      const {  // NOLINT(google-explicit-constructor): EXPECT_TRUE asks for an implicit one
    Result result(holds_);
    if (!message_.empty()) result << message_;
    return result;
  }

 private:
  bool holds_ = true;
  std::string message_;
};

}  // namespace memledger
