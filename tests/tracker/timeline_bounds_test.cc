// A timeline that is marked for ever takes no more memory for it, and a child of fork can go on
// with it.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <ATen/ops/ones.h>
#include <sys/wait.h>
#include <torch/types.h>
#include <unistd.h>

#include <atomic>
#include <sstream>
#include <string>
#include <thread>

#include "tests/support/doctest_beside_torch.h"
#include "tests/support/fork_beside_threads.h"
#include "tracker/timeline.h"

namespace memledger {
namespace {

TEST_SUITE_BEGIN("timeline: bounds");

TEST_CASE("names of storages that are long gone are forgotten, those of what is alive are not") {
  TimelineOptions options;
  options.max_events = 64;
  Timeline timeline(options);
  const at::Tensor kept = at::ones({100});
  timeline.add_tensor("kept", kept).mark("begin");
  for (int i = 0; i < 2000; ++i) {
    const at::Tensor one = at::ones({4});
    timeline.add_tensor("one", one).mark("one");
  }
  const TimelineData data = timeline.read();
  CHECK(data.recording.dropped_events > 0);
  CHECK(data.names.size() <= data.recording.lifetimes.size());
  bool found = false;
  for (const auto& [id, name] : data.names) found = found || name.name == "kept";
  CHECK(found);
  // Those that are left are of the time that is left, and no other vanishes without a count.
  CHECK(data.marks.size() <= 64);
  CHECK(data.dropped_marks == 2001 - static_cast<int64_t>(data.marks.size()));
  CHECK(data.marks.back().label == "one");
  for (const TimelineMark& mark : data.marks) CHECK(mark.time_ns >= data.recording.begin_ns);
}

TEST_CASE("max_events counts births and deaths, not where they were") {
  TimelineOptions options;
  options.max_events = 1000;
  Timeline timeline(options);
  timeline.mark("begin");
  for (int i = 0; i < 500; ++i) static_cast<void>(at::ones({16}));
  const TimelineData all = timeline.read();
  CHECK(all.recording.dropped_events == 0);
  CHECK(all.recording.lifetimes.size() == 500);
  CHECK(all.marks.size() == 1);
  CHECK(all.dropped_marks == 0);
  for (int i = 0; i < 100; ++i) static_cast<void>(at::ones({16}));
  const TimelineData last = timeline.read();
  CHECK(last.recording.dropped_events == 200);
  CHECK(last.recording.lifetimes.size() == 500);
  CHECK(last.marks.empty());
  CHECK(last.dropped_marks == 1);
}

TEST_CASE("marks without births: the last are kept, the others counted") {
  TimelineOptions options;
  options.max_events = 64;
  Timeline timeline(options);
  for (int i = 0; i < 1000; ++i) timeline.mark(std::to_string(i));
  const TimelineData data = timeline.read();
  REQUIRE(data.marks.size() == 64);
  CHECK(data.marks.front().label == "936");
  CHECK(data.marks.back().label == "999");
  CHECK(data.dropped_marks == 936);
  std::ostringstream trace;
  write_chrome_trace(data, trace);
  CHECK(trace.str().find("\"dropped_marks\":936,") != std::string::npos);
}

TEST_CASE("the last name holds, and earlier names stay with what has died") {
  Timeline timeline;
  {
    const at::Tensor gone = at::ones({10});
    timeline.add_tensor("first", gone).mark("1");
  }
  const at::Tensor kept = at::ones({20});
  timeline.add_tensor("second", kept).mark("2");
  timeline.add_tensor("third", kept);
  const TimelineData data = timeline.read();
  std::string first, last;
  for (const Lifetime& life : data.recording.lifetimes) {
    const auto found = data.names.find(life.storage.id);
    if (found == data.names.end()) continue;
    (life.died_ns ? first : last) = found->second.name;
  }
  CHECK(first == "first");
  CHECK(last == "second+third");
}

TEST_CASE("fork while another thread marks: the child can, too" *
          doctest::skip(testing::kChildrenMayHang)) {
  TimelineOptions options;
  options.max_events = 64;
  Timeline timeline(options);
  std::atomic<bool> stop{false};
  std::thread other([&] {
    while (!stop) timeline.mark("other");
  });
  int good = 0;
  constexpr int kForks = 20;
  for (int i = 0; i < kForks; ++i) {
    const pid_t child = ::fork();
    if (child == 0) {
      ::alarm(60);
      timeline.mark("child");
      ::_exit(timeline.read().marks.back().label == "child" ? 0 : 1);
    }
    int status = 1;
    good += ::waitpid(child, &status, 0) == child && status == 0;
    if (good <= i) break;
  }
  stop = true;
  other.join();
  CHECK(good == kForks);
}

TEST_SUITE_END();

}  // namespace
}  // namespace memledger
