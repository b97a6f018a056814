// Failed allocations on the CPU. The sizes are absurd, as a real exhaustion ends the process
// without an exception.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "tests/support/doctest_beside_torch.h"
#include "tests/support/fork_beside_threads.h"

#include <ATen/Functions.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "registry/allocation_failure.h"
#include "registry/registry.h"
#include "reporter/mem_reporter.h"
#include "reporter/out_of_memory.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/text_matchers.h"

namespace memledger {
namespace {

using testing::contains;
using testing::TemporaryFolder;

namespace fs = std::filesystem;

constexpr int64_t kAbsurd = int64_t{1} << 45;  // elements of one byte: 32 TiB

std::string message_of(int64_t bytes) {
  try {
    at::empty({bytes}, at::kByte);
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "no exception";
}

std::vector<std::string> told;
void note(const AllocationFailure& failure) noexcept {
  told.push_back(std::to_string(failure.requested_bytes) + " " + failure.device.str() + " " +
                 std::string(failure.op) + " " + std::string(failure.label) + " " +
                 std::string(to_string(failure.phase)));
  // Inside, nothing is reported: this would never end.
  CHECK(message_of(kAbsurd / 2) != "no exception");
}

std::string text_of(const std::string& file) {
  std::ifstream in(file);
  std::ostringstream out;
  out << in.rdbuf();
  return out.str();
}

TEST_CASE("the observer is told once, the program gets the same exception") {
  const std::string bare = message_of(kAbsurd);
  REQUIRE(contains(bare, "allocate memory"));
  const ScopedTracking tracking;
  CHECK(message_of(kAbsurd) == bare);

  CHECK((set_allocation_failure_observer(&note) == nullptr));
  {
    const ScopedLabel label("ingest");
    CHECK(message_of(kAbsurd) == bare);
  }
  CHECK((set_allocation_failure_observer(nullptr) == &note));
  CHECK(message_of(kAbsurd) == bare);
  REQUIRE(told.size() == 1);
  CHECK(told[0] == std::to_string(kAbsurd) + " cpu aten::empty ingest forward");
}

TEST_CASE("the report") {
  const ScopedTracking tracking;
  const TemporaryFolder folder;
  OutOfMemoryOptions options;
  options.folder = folder / "made/when missing";
  options.max_reports = 3;
  REQUIRE(write_out_of_memory_reports(options).ok());

  std::vector<at::Tensor> held;
  {
    const ScopedLabel label("replay buffer");
    for (int i = 0; i < 3; ++i) held.push_back(at::zeros({1 << 20}, at::kByte));
  }
  held.push_back(at::ones({2 << 20}, at::kByte));
  message_of(kAbsurd);
  REQUIRE(folder.files("made/when missing").size() == 1);
  const std::string name = fs::path(folder.files("made/when missing")[0]).filename().string();
  CHECK(contains(name, "oom-2"));
  CHECK(contains(name, "-" + std::to_string(getpid()) + ".txt"));
  const std::string text = text_of(folder.files("made/when missing")[0]);
  CAPTURE(text);
  CHECK(contains(text, "memledger: out of memory on cpu\n"));
  CHECK(contains(text, "Asked for: 32.00T (35184372088832 bytes) by aten::empty [forward]\n"));
  CHECK(contains(text, "LibTorch says: "));
  CHECK(contains(text, "Advice: The request alone is more than the "));
  CHECK(contains(
      text,
      "       3.00M       3 x  aten::zeros [replay buffer, forward]\n       2.00M       1 x  "
      "aten::ones [forward]\n"));
  CHECK(contains(
      text, "The allocated memory on cpu: 5.00M\nExplained: 5.00M of 5.00M (0.00B unexplained)"));

  // Two more in the same second have other names; then it is enough.
  for (int i = 0; i < 4; ++i) message_of(kAbsurd);
  REQUIRE(folder.files("made/when missing").size() == 3);
  int last = 0;
  for (const std::string& file : folder.files("made/when missing"))
    last += contains(text_of(file), "This was the last report");
  CHECK(last == 1);

  stop_out_of_memory_reports();
  options.max_reports = 100;
  message_of(kAbsurd);
  CHECK(folder.files("made/when missing").size() == 3);
}

TEST_CASE("without names: by role, as far as operators show it") {
  const ScopedTracking tracking;
  at::Tensor used = at::ones({3 << 18}, at::kFloat).set_requires_grad(true);
  const at::Tensor never_used = at::ones({1 << 19}, at::kFloat).set_requires_grad(true);
  const at::Tensor result = used * used;
  result.backward(at::ones_like(result));
  at::Tensor made_outside = [] {
    const at::NoGradGuard no_grad;
    return at::ones({5 << 18}, at::kFloat);
  }();
  AllocationFailure failure;
  failure.requested_bytes = kAbsurd;
  std::string text = out_of_memory_report(failure);
  CAPTURE(text);
  CHECK(contains(text,
                 "Who holds it, by role, as far as operators show it:\n"
                 "       5.00M       2 x  Tensor [forward]\n"
                 "       5.00M       1 x  Tensor [other]\n"
                 "       3.00M       1 x  Parameter (a leaf that requires grad)\n"
                 "       3.00M       1 x  Tensor [backward]\n"
                 "\nWho holds it, by birthplace:\n"));
  CHECK(contains(text, "Explained: 16.00M of 16.00M (0.00B unexplained)"));

  // A step that nobody has announced is inferred from what it does, and its state is called no more
  // than what it shows.
  made_outside = at::Tensor();
  const at::Tensor state = [&] {
    const at::NoGradGuard no_grad;
    at::Tensor made = at::zeros({3 << 18}, at::kFloat);
    used.add_(made);
    return made;
  }();
  text = out_of_memory_report(failure);
  CHECK(contains(text, "       3.00M       1 x  Tensor [optimizer (inferred)]\n"));
  CHECK_FALSE(contains(text, "OptimizerState"));
}

TEST_CASE("a child of fork makes its reports, whatever another thread was doing" *
          doctest::skip(testing::kChildrenMayHang)) {
  const ScopedTracking tracking;
  const TemporaryFolder folder;
  OutOfMemoryOptions options;
  options.folder = folder.path();
  std::atomic<bool> stop{false};
  std::thread other([&] {
    while (!stop) {
      CHECK(write_out_of_memory_reports(options).ok());
      stop_out_of_memory_reports();
    }
  });
  int failed = 0;
  for (int i = 0; i < 50; ++i) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(60);
      OutOfMemoryOptions quiet = options;
      quiet.quiet = true;
      if (!write_out_of_memory_reports(quiet).ok()) _exit(1);
      stop_out_of_memory_reports();
      _exit(0);
    }
    int status = -1;
    REQUIRE((waitpid(child, &status, 0) == child));
    failed += status != 0;
  }
  stop = true;
  other.join();
  CHECK(failed == 0);
}

TEST_CASE("with a reporter that knows names: by role") {
  const ScopedTracking tracking;
  const TemporaryFolder folder;
  MemReporter reporter;
  const at::Tensor weight = at::ones({3 << 18}, at::kFloat);
  const at::Tensor input = at::ones({1 << 18}, at::kFloat);
  const at::Tensor other = at::ones({1 << 17}, at::kFloat);
  reporter.add_tensor("weight", weight);
  reporter.add_input("input", input);
  OutOfMemoryOptions options;
  options.folder = folder.path();
  options.reporter = &reporter;
  REQUIRE(write_out_of_memory_reports(options).ok());
  message_of(kAbsurd);
  stop_out_of_memory_reports();
  REQUIRE(folder.files().size() == 1);
  const std::string text = text_of(folder.files()[0]);
  CAPTURE(text);
  CHECK(contains(
      text,
      "Who holds it, by role:\n       3.50M       2 x  Tensor\n       1.00M       1 x  Input\n"));
  CHECK(contains(text, "\nweight "));
}

TEST_CASE("a folder that cannot be") {
  const TemporaryFolder folder;
  std::ofstream(folder / "occupied") << "a file";
  OutOfMemoryOptions options;
  options.folder = folder / "occupied/logs";
  const absl::Status status = write_out_of_memory_reports(options);
  CHECK_FALSE(status.ok());
  CHECK(contains(std::string(status.message()), options.folder));
}

TEST_CASE("threads that fail at once, and inactive") {
  const TemporaryFolder folder;
  OutOfMemoryOptions options;
  options.folder = folder.path();
  options.max_reports = 1000;
  REQUIRE(write_out_of_memory_reports(options).ok());
  {
    const ScopedTracking tracking;
    std::vector<std::thread> threads;
    for (int i = 0; i < 8; ++i) {
      threads.emplace_back([] {
        for (int j = 0; j < 20; ++j) CHECK(contains(message_of(kAbsurd), "allocate memory"));
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  const size_t files = folder.files().size();
  CHECK(files >= 1);
  CHECK(files <= 160);
  message_of(kAbsurd);
  CHECK(folder.files().size() == files);
  CHECK(Registry::global().health().swallowed_exceptions == 0);
  stop_out_of_memory_reports();
}

}  // namespace
}  // namespace memledger
