// Expectations as objects: what fails, what it says, and that failing does no harm.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "tracker/memory_expectations.h"

#include <ATen/ATen.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "registry/registry.h"
#include "tests/support/doctest_beside_torch.h"
#include "tests/support/text_matchers.h"
#include "text/bytes.h"
#include "tracker/expectations_doctest.h"
#include "tracker/growth_finder.h"

namespace memledger {
namespace {

using testing::contains;

std::vector<ExpectationFailure> failures;

void collect(const ExpectationFailure& failure) { failures.push_back(failure); }

// Instead of doctest's handler: what would have failed is looked at.
class Collecting {
 public:
  Collecting() : before_(set_failure_handler(&collect)) { failures.clear(); }
  ~Collecting() { set_failure_handler(before_); }

 private:
  FailureHandler before_;
};

TEST_SUITE_BEGIN("memory expectations");

TEST_CASE("no leak: what is freed in the scope, before it, or in views of older storages is none") {
  std::vector<at::Tensor> before = {at::zeros({16}), at::zeros({16})};
  std::vector<at::Tensor> views;
  const auto no_leak = expect_no_leak();
  const at::Tensor passing = at::zeros({1024});
  before.pop_back();
  views.push_back(before[0].narrow(0, 0, 2));
}

TEST_CASE("a leak is told with line, birthplace, bytes and number") {
  const Collecting collecting;
  std::vector<at::Tensor> leaked;
  int line = 0;
  {
    line = __LINE__ + 1;
    const auto no_leak = expect_no_leak();
    const ScopedLabel label("encoder");
    for (int i = 0; i < 2; ++i) leaked.push_back(at::ones({32, 32}));
    leaked.push_back(at::arange(10));
  }
  REQUIRE(failures.size() == 1);
  CHECK(failures[0].where.line() == line);
  CHECK(contains(failures[0].where.file(), "memory_expectations_test.cc"));
  CHECK(failures[0].message ==
        "no leak expected, but 3 storages (8.1 KiB) born since line " + std::to_string(line) +
            " of memory_expectations_test.cc are alive:\n"
            "  8.0 KiB in 2: aten::ones [encoder, forward] (32, 32) torch.float32 on cpu\n"
            "  80.0 B in 1: aten::arange [encoder, forward] (10,) torch.int64 on cpu");
}

TEST_CASE("ten groups are listed, the largest first, and the rest is summed") {
  const Collecting collecting;
  std::vector<at::Tensor> leaked;
  {
    const auto no_leak = expect_no_leak();
    for (int64_t i = 1; i <= 13; ++i) leaked.push_back(at::zeros({i}));
  }
  REQUIRE(failures.size() == 1);
  const std::string& message = failures[0].message;
  CHECK(contains(message, "but 13 storages (364.0 B)"));
  CHECK(contains(message, ":\n  52.0 B in 1: aten::zeros [forward] (13,)"));
  CHECK(contains(message,
                 "  16.0 B in 1: aten::zeros [forward] (4,) torch.float32 on cpu\n  … and 3 more "
                 "groups, 24.0 B"));
  CHECK_FALSE(contains(message, "(3,)"));
}

TEST_CASE("what is meant to stay, what is tolerated, and what is asked for early") {
  const Collecting collecting;
  at::Tensor result;
  std::vector<at::Tensor> leaked;
  {
    auto no_leak = expect_no_leak();
    result = at::zeros({8});
    no_leak.keep(result);
  }
  {
    const auto no_leak = expect_no_leak({at::kCPU, 64});
    leaked.push_back(at::zeros({16}));
  }
  CHECK(failures.empty());
  {
    auto no_leak = expect_no_leak();
    leaked.push_back(at::zeros({16}));
    const TestVerdict early = no_leak.check();
    CHECK_FALSE(early);
    CHECK(contains(early.message(), "1 storage (64.0 B)"));
    CHECK(contains(early.message(), " is alive:"));
    leaked.pop_back();
    CHECK(no_leak.check());
    leaked.push_back(at::zeros({16}));
    leaked.push_back(at::zeros({16}));
    CHECK(contains(no_leak.check().message(), "2 storages"));
  }
  CHECK(failures.empty());
  {
    const auto no_leak = expect_no_leak({c10::Device(c10::kCUDA, 0)});
    leaked.push_back(at::zeros({16}));
  }
  CHECK(failures.empty());
}

TEST_CASE("a storage leaked by another thread is one, too") {
  const Collecting collecting;
  at::Tensor leaked;
  {
    const auto no_leak = expect_no_leak();
    std::thread([&] { leaked = at::zeros({4}); }).join();
  }
  CHECK(failures.size() == 1);
}

TEST_CASE("a budget is above what was there, a peak above nothing") {
  const Collecting collecting;
  const ScopedTracking tracking;
  const at::Tensor ballast = at::zeros({1024, 1024});
  {
    MemoryBudget budget(at::kCPU, 8192);
    const at::Tensor exactly = at::zeros({2048});
  }
  CHECK(failures.empty());
  int line = 0;
  {
    line = __LINE__ + 1;
    MemoryBudget budget(at::kCPU, 8192);
    const at::Tensor held = at::zeros({1024});
    const at::Tensor passing = at::ones({1025});
  }
  REQUIRE(failures.size() == 1);
  const int64_t start = Registry::global().counters(at::kCPU).current_bytes;
  CHECK(failures[0].where.line() == line);
  CHECK(failures[0].message ==
        "a budget of 8.0 KiB (above " + size_in_words(static_cast<double>(start)) +
            ") expected on cpu since line " + std::to_string(line) +
            " of memory_expectations_test.cc, but it was 8.0 KiB, 4 bytes more. Alive then:\n"
            "  4.0 KiB in 1: aten::ones [forward] (1025,) torch.float32 on cpu\n"
            "  4.0 KiB in 1: aten::zeros [forward] (1024,) torch.float32 on cpu\n"
            "  " +
            size_in_words(static_cast<double>(start)) + " of it was alive before the scope");
  failures.clear();
  {
    const auto peak = expect_peak_at_most(start + 100);
    const at::Tensor passing = at::zeros({25});
  }
  CHECK(failures.empty());
  { const auto peak = expect_peak_at_most(start - 1); }
  REQUIRE(failures.size() == 1);
  CHECK(contains(failures[0].message, "a peak of at most 4.0 MiB expected on cpu"));
  CHECK(contains(failures[0].message, ", 1 bytes more. Alive then:"));
}

TEST_CASE("a peak before the scope, however high, does not count") {
  const Collecting collecting;
  { const at::Tensor high = at::zeros({1 << 20}); }
  {
    MemoryBudget budget(at::kCPU, 100);
    const at::Tensor low = at::zeros({25});
  }
  CHECK(failures.empty());
}

TEST_CASE(
    "a storage from before tracking that comes to light in the scope is in no budget and no leak") {
  const Collecting collecting;
  REQUIRE_FALSE(Registry::global().active());
  const at::Tensor old = at::zeros({1 << 20});
  {
    const auto no_leak = expect_no_leak();
    MemoryBudget budget(at::kCPU, 100);
    const at::Tensor sum = old.sum();
    CHECK(Registry::global().counters(at::kCPU).current_bytes >= 4 << 20);
    CHECK(budget.check());
    const at::Tensor more = at::zeros({30});
    CHECK(budget.check().message().find(" was 124.0 B, 24 bytes more") != std::string::npos);
  }
  CHECK(failures.empty());
}

TEST_CASE("nested and overlapping expectations do not disturb each other") {
  const Collecting collecting;
  SUBCASE("the outer one is exceeded before the inner one begins") {
    {
      MemoryBudget outer(at::kCPU, 4000);
      { const at::Tensor high = at::zeros({2000}); }
      {
        MemoryBudget inner(at::kCPU, 400);
        const at::Tensor low = at::zeros({100});
      }
      CHECK(failures.empty());
    }
    REQUIRE(failures.size() == 1);
    CHECK(contains(failures[0].message, "aten::zeros [forward] (2000,)"));
    CHECK(contains(failures[0].message, "4000 bytes more"));
  }
  SUBCASE("the inner one is exceeded, the outer one not") {
    {
      MemoryBudget outer(at::kCPU, 4000);
      MemoryBudget inner(at::kCPU, 396);
      const at::Tensor low = at::zeros({100});
    }
    REQUIRE(failures.size() == 1);
    CHECK(contains(failures[0].message, "a budget of 396.0 B"));
  }
  SUBCASE("the outer one is exceeded within the inner one, or after it") {
    for (const bool within : {true, false}) {
      failures.clear();
      MemoryBudget outer(at::kCPU, 4000);
      {
        MemoryBudget inner(at::kCPU, 100000);
        if (within) at::zeros({2000});
      }
      {
        MemoryBudget inner(at::kCPU, 1);
        CHECK(inner.check());
      }
      if (!within) at::zeros({2000});
      CHECK_FALSE(outer.check());
    }
    CHECK(failures.empty());
  }
  SUBCASE("the higher of two is told") {
    MemoryBudget outer(at::kCPU, 100);
    at::zeros({500});
    MemoryBudget inner(at::kCPU, 10);
    at::zeros({1000});
    CHECK(contains(outer.check().message(), "3900 bytes more"));
    CHECK(contains(inner.check().message(), "3990 bytes more"));
    at::zeros({200});
    CHECK(contains(outer.check().message(), "3900 bytes more"));
  }
  SUBCASE("in four threads") {
    std::atomic<int> exceeded{0};
    MemoryBudget outer(at::kCPU, 4 * (1 << 20));
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i) {
      threads.emplace_back([&] {
        for (int j = 0; j < 50; ++j) {
          MemoryBudget budget(at::kCPU, 4 * (1 << 18) * 4);
          const at::Tensor passing = at::empty({1 << 18});
          if (!budget.check()) ++exceeded;
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    CHECK(exceeded == 0);
    CHECK(outer.check());
  }
}

TEST_CASE("nothing is told while an exception leaves the scope, and no handler's exception does") {
  const Collecting collecting;
  std::vector<at::Tensor> leaked;
  const auto throws = [&] {
    const auto no_leak = expect_no_leak();
    MemoryBudget budget(at::kCPU, 1);
    leaked.push_back(at::zeros({4}));
    throw std::runtime_error("the failure");
  };
  CHECK_THROWS_WITH_AS(throws(), "the failure", std::runtime_error);
  CHECK(failures.empty());
  set_failure_handler([](const ExpectationFailure&) {
    throw std::runtime_error("as --gtest_throw_on_failure does");
  });
  {
    const auto no_leak = expect_no_leak();
    leaked.push_back(at::zeros({4}));
  }
  set_failure_handler(&collect);
  // In a destructor that runs because of an exception, a scope that is left as usual still reports.
  struct Cleanup {
    std::vector<at::Tensor>& kept;
    ~Cleanup() {
      const auto no_leak = expect_no_leak();
      kept.push_back(at::zeros({4}));
    }
  };
  try {
    const Cleanup cleanup{leaked};
    throw std::runtime_error("another");
  } catch (const std::runtime_error&) {
  }
  CHECK(failures.size() == 1);
}

TEST_CASE("without a handler the program ends, loudly") {
  const FailureHandler before = set_failure_handler(nullptr);
  CHECK((before == &fail_doctest));
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  const pid_t child = fork();
  if (child == 0) {
    signal(SIGABRT, SIG_DFL);  // doctest has its own
    dup2(ends[1], 2);
    at::Tensor leaked;
    const auto no_leak = expect_no_leak();
    leaked = at::zeros({4});
    { const auto peak = expect_peak_at_most(0); }
    _exit(0);
  }
  close(ends[1]);
  std::string text;
  char buffer[4096];
  for (ssize_t n = 0; (n = read(ends[0], buffer, sizeof buffer)) > 0;)
    text.append(buffer, static_cast<size_t>(n));
  close(ends[0]);
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  set_failure_handler(before);
  CHECK(WIFSIGNALED(status));
  CHECK(WTERMSIG(status) == SIGABRT);
  CHECK(contains(text, "memory_expectations_test.cc:"));
  CHECK(contains(text, "a peak of at most 0.0 B expected on cpu"));
}

// Run by doctest as failing cases: should_fail turns their failure into a pass, and a pass into a
// failure.
TEST_CASE("doctest is told of a leak" * doctest::should_fail()) {
  at::Tensor leaked;
  const auto no_leak = expect_no_leak();
  leaked = at::zeros({4});
}

TEST_CASE("doctest is told of a peak" * doctest::should_fail()) {
  const auto peak = expect_peak_at_most(0);
  const at::Tensor passing = at::zeros({4});
}

TEST_CASE("CHECK takes a verdict that fails" * doctest::should_fail()) {
  std::vector<at::Tensor> kept;
  GrowthFinder finder;
  for (int i = 0; i < 30; ++i) {
    kept.push_back(at::zeros({4}));
    finder.step();
  }
  CHECK(no_growth(finder));
}

TEST_CASE("and a case that fails by it goes on, and prints the verdict") {
  CHECK(doctest::toString(TestVerdict::failed("because")) == "because");
  std::ostringstream out;
  out << TestVerdict();
  CHECK(out.str().empty());
}

TEST_CASE("a device that nobody follows is refused by name") {
  CHECK_THROWS_WITH_AS(MemoryBudget(c10::Device(c10::kMeta), 1),
                       doctest::Contains("memledger does not follow that device"), c10::Error);
}

TEST_SUITE_END();

}  // namespace
}  // namespace memledger
