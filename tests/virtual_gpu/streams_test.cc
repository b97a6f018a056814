// Streams, events, graphs and time, by hand: the rules of CUDA's programming guide, one by one.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "virtual_gpu/streams.h"

#include <doctest/doctest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

// doctest prints enumerations as numbers, which are CUDA's here.

namespace memledger::virtual_gpu {
namespace {

// Two streams that wait for nobody, one that waits for the legacy stream, and three events.
// Time is what the test sets.
std::atomic<int64_t> now{1};

struct Device {
  explicit Device(bool late = false) : streams(late, [] { return now.load(); }) {
    streams.add_stream(&a, {0, 0, false, 10});
    streams.add_stream(&b, {0, 0, false, 11});
    streams.add_stream(&blocking, {0, 0, true, 12});
    for (const char* event : {&first, &second, &third}) streams.add_event(event, 0);
  }

  StreamError begin(const void* stream, CaptureMode mode = CaptureMode::kGlobal) {
    return streams.begin_capture(stream, 0, mode);
  }
  StreamError end(const void* stream) { return streams.end_capture(stream, 0, &graph); }
  StreamError work(const void* stream) { return streams.submit_kernel(stream, 0).error; }
  StreamError record(const void* event, const void* stream) {
    return streams.record(event, stream, 0, false);
  }
  StreamError wait(const void* stream, const void* event) {
    return streams.wait(stream, 0, event, false);
  }
  CaptureStatus status(const void* stream) {
    Streams::CaptureInfo info;
    streams.capture_info(stream, 0, &info);
    return info.status;
  }

  char a, b, blocking, first, second, third;
  const void* const legacy = nullptr;
  Graph* graph = nullptr;
  Streams streams;
};

TEST_CASE("a stream that captures does nothing, and makes a graph of what it was given") {
  Device device;
  int done = 0;
  REQUIRE(device.begin(&device.a) == StreamError::kNone);
  CHECK(device.status(&device.a) == CaptureStatus::kActive);
  CHECK(device.status(&device.b) == CaptureStatus::kNone);
  const auto submission = device.streams.submit(&device.a, 0, NodeKind::kHost, [&] { ++done; });
  CHECK(submission.captured);
  CHECK(device.work(&device.a) == StreamError::kNone);
  REQUIRE(device.end(&device.a) == StreamError::kNone);
  CHECK(done == 0);
  CHECK(device.status(&device.a) == CaptureStatus::kNone);

  const auto nodes = device.streams.nodes_of(device.graph);
  REQUIRE(nodes.has_value());
  REQUIRE(nodes->size() == 2);
  CHECK((*nodes)[0]->kind == NodeKind::kHost);
  CHECK((*nodes)[0]->dependencies.empty());
  CHECK((*nodes)[1]->kind == NodeKind::kKernel);
  CHECK((*nodes)[1]->dependencies == std::vector<GraphNode*>{(*nodes)[0]});
  const auto steps = device.streams.steps_of(device.graph);
  REQUIRE(steps->size() == 2);
  CHECK((*steps)[1].run == nullptr);
  (*steps)[0].run();
  CHECK(done == 1);
  CHECK_FALSE(device.streams.submit(&device.a, 0, NodeKind::kKernel, nullptr).captured);

  CHECK(device.streams.remove_graph(device.graph));
  CHECK_FALSE(device.streams.remove_graph(device.graph));
  CHECK_FALSE(device.streams.nodes_of(device.graph).has_value());
}

TEST_CASE("an event brings another stream into the capture, and another one joins it again") {
  Device device;
  REQUIRE(device.begin(&device.a) == StreamError::kNone);
  device.work(&device.a);
  REQUIRE(device.record(&device.first, &device.a) == StreamError::kNone);
  REQUIRE(device.wait(&device.b, &device.first) == StreamError::kNone);
  CHECK(device.status(&device.b) == CaptureStatus::kActive);
  device.work(&device.b);
  REQUIRE(device.record(&device.second, &device.b) == StreamError::kNone);
  device.work(&device.a);
  REQUIRE(device.wait(&device.a, &device.second) == StreamError::kNone);
  Streams::CaptureInfo info;
  REQUIRE(device.streams.capture_info(&device.a, 0, &info) == StreamError::kNone);
  CHECK(info.dependency_count == 2);
  CHECK(info.id != 0);
  CHECK(info.graph != nullptr);
  device.work(&device.a);
  REQUIRE(device.end(&device.a) == StreamError::kNone);
  const auto nodes = device.streams.nodes_of(device.graph);
  REQUIRE(nodes->size() == 4);
  CHECK((*nodes)[3]->dependencies == std::vector<GraphNode*>{(*nodes)[2], (*nodes)[1]});
  CHECK(*device.streams.dependencies_of((*nodes)[1]) == std::vector<GraphNode*>{(*nodes)[0]});
  CHECK(device.status(&device.b) == CaptureStatus::kNone);
  CHECK(device.work(&device.b) == StreamError::kNone);
}

TEST_CASE("a fork that nobody joined is an error, one without work is not") {
  Device device;
  REQUIRE(device.begin(&device.a) == StreamError::kNone);
  device.work(&device.a);
  device.record(&device.first, &device.a);
  device.wait(&device.b, &device.first);
  SUBCASE("with work") {
    device.work(&device.b);
    CHECK(device.end(&device.a) == StreamError::kCaptureUnjoined);
    CHECK(device.graph == nullptr);
  }
  SUBCASE("without") { CHECK(device.end(&device.a) == StreamError::kNone); }
  CHECK(device.status(&device.b) == CaptureStatus::kNone);
}

TEST_CASE("what a capture does not allow ends it, and the stream works again afterwards") {
  Device device;
  REQUIRE(device.begin(&device.a) == StreamError::kNone);
  device.work(&device.a);
  SUBCASE("waiting for the stream") {
    CHECK(device.streams.synchronize_stream(&device.a, 0) == StreamError::kCaptureUnsupported);
  }
  SUBCASE("asking whether the stream is done") {
    CHECK(device.streams.query_stream(&device.a, 0) == StreamError::kCaptureUnsupported);
  }
  SUBCASE("waiting for the device") {
    CHECK(device.streams.synchronize_device(0) == StreamError::kCaptureUnsupported);
  }
  SUBCASE("waiting for an event of before") {
    device.record(&device.third, &device.b);
    CHECK(device.wait(&device.a, &device.third) == StreamError::kCaptureIsolation);
  }
  SUBCASE("asking for an event of the capture") {
    device.record(&device.first, &device.a);
    CHECK(device.streams.query_event(&device.first) == StreamError::kCapturedEvent);
  }
  SUBCASE("joining two captures") {
    REQUIRE(device.begin(&device.b) == StreamError::kNone);
    device.record(&device.first, &device.b);
    CHECK(device.wait(&device.a, &device.first) == StreamError::kCaptureMerge);
    CHECK(device.end(&device.b) == StreamError::kCaptureInvalidated);
  }
  SUBCASE("an unsafe call") {
    CHECK(device.streams.check_unsafe() == StreamError::kCaptureUnsupported);
  }
  SUBCASE("the legacy stream joining in") {
    device.record(&device.first, &device.a);
    CHECK(device.wait(device.legacy, &device.first) == StreamError::kCaptureImplicit);
  }
  SUBCASE("ending it on another thread") {
    std::thread([&] { CHECK(device.end(&device.a) == StreamError::kCaptureWrongThread); }).join();
  }
  CHECK(device.status(&device.a) == CaptureStatus::kInvalidated);
  CHECK(device.work(&device.a) == StreamError::kCaptureInvalidated);
  CHECK(device.end(&device.a) == StreamError::kCaptureInvalidated);
  CHECK(device.graph == nullptr);
  CHECK(device.status(&device.a) == CaptureStatus::kNone);
  CHECK(device.work(&device.a) == StreamError::kNone);
  REQUIRE(device.begin(&device.a) == StreamError::kNone);
  CHECK(device.end(&device.a) == StreamError::kNone);
}

TEST_CASE("who may begin and end a capture") {
  Device device;
  CHECK(device.begin(device.legacy) == StreamError::kCaptureUnsupported);
  CHECK(device.begin(&device.third) == StreamError::kInvalidHandle);
  CHECK(device.end(&device.a) == StreamError::kIllegalState);
  REQUIRE(device.begin(&device.a) == StreamError::kNone);
  CHECK(device.begin(&device.a) == StreamError::kIllegalState);
  device.record(&device.first, &device.a);
  device.wait(&device.b, &device.first);
  CHECK(device.end(&device.b) == StreamError::kCaptureUnmatched);
  CHECK(device.end(&device.a) == StreamError::kCaptureInvalidated);
  CHECK(device.wait(&device.a, &device.first) == StreamError::kCapturedEvent);
  CHECK(device.record(&device.first, &device.a) == StreamError::kNone);
  CHECK(device.wait(&device.a, &device.first) == StreamError::kNone);
}

TEST_CASE("the legacy stream refuses work while a stream captures that it would wait for") {
  Device device;
  REQUIRE(device.begin(&device.a) == StreamError::kNone);
  CHECK(device.work(device.legacy) == StreamError::kNone);
  CHECK(device.end(&device.a) == StreamError::kNone);
  REQUIRE(device.begin(&device.blocking) == StreamError::kNone);
  Streams::CaptureInfo info;
  CHECK(device.streams.capture_info(device.legacy, 0, &info) == StreamError::kCaptureImplicit);
  CHECK(device.status(&device.blocking) == CaptureStatus::kActive);
  CHECK(device.work(device.legacy) == StreamError::kCaptureImplicit);
  CHECK(device.end(&device.blocking) == StreamError::kCaptureInvalidated);
}

TEST_CASE("unsafe calls, by the mode of the capture and of the thread") {
  Device device;
  const auto elsewhere = [&](CaptureMode mode) {
    StreamError error = StreamError::kNone;
    std::thread([&] {
      Streams::exchange_mode(mode);
      error = device.streams.check_unsafe();
    }).join();
    return error;
  };
  REQUIRE(device.begin(&device.a, CaptureMode::kThreadLocal) == StreamError::kNone);
  CHECK(elsewhere(CaptureMode::kGlobal) == StreamError::kNone);
  CHECK(Streams::exchange_mode(CaptureMode::kRelaxed) == CaptureMode::kGlobal);
  CHECK(device.streams.check_unsafe() == StreamError::kNone);
  CHECK(Streams::exchange_mode(CaptureMode::kThreadLocal) == CaptureMode::kRelaxed);
  CHECK(device.streams.check_unsafe() == StreamError::kCaptureUnsupported);
  Streams::exchange_mode(CaptureMode::kGlobal);
  CHECK(device.end(&device.a) == StreamError::kCaptureInvalidated);

  REQUIRE(device.begin(&device.a, CaptureMode::kRelaxed) == StreamError::kNone);
  CHECK(device.streams.check_unsafe() == StreamError::kNone);
  CHECK(elsewhere(CaptureMode::kGlobal) == StreamError::kNone);
  CHECK(device.end(&device.a) == StreamError::kNone);

  REQUIRE(device.begin(&device.a, CaptureMode::kGlobal) == StreamError::kNone);
  CHECK(elsewhere(CaptureMode::kRelaxed) == StreamError::kNone);
  CHECK(elsewhere(CaptureMode::kThreadLocal) == StreamError::kNone);
  CHECK(device.status(&device.a) == CaptureStatus::kActive);
  CHECK(elsewhere(CaptureMode::kGlobal) == StreamError::kCaptureUnsupported);
  CHECK(device.end(&device.a) == StreamError::kCaptureInvalidated);
}

TEST_CASE("at once: everything is done when it is submitted") {
  Device device;
  device.work(&device.a);
  device.record(&device.first, &device.a);
  CHECK(device.streams.query_event(&device.first) == StreamError::kNone);
  CHECK(device.streams.query_stream(&device.a, 0) == StreamError::kNone);
}

TEST_CASE("late: work is done once the host has waited for what covers it") {
  Device device(true);
  Streams& streams = device.streams;
  CHECK(streams.query_event(&device.first) == StreamError::kNone);  // never recorded
  CHECK(streams.query_stream(&device.a, 0) == StreamError::kNone);
  device.work(&device.a);
  device.record(&device.first, &device.a);
  CHECK(streams.query_event(&device.first) == StreamError::kNotReady);
  CHECK(streams.query_stream(&device.a, 0) == StreamError::kNotReady);

  SUBCASE("the stream") {
    CHECK(streams.synchronize_stream(&device.a, 0) == StreamError::kNone);
    CHECK(streams.query_event(&device.first) == StreamError::kNone);
    CHECK(streams.query_stream(&device.a, 0) == StreamError::kNone);
  }
  SUBCASE("the device") {
    CHECK(streams.synchronize_device(0) == StreamError::kNone);
    CHECK(streams.query_event(&device.first) == StreamError::kNone);
  }
  SUBCASE("another device") {
    CHECK(streams.synchronize_device(1) == StreamError::kNone);
    CHECK(streams.query_event(&device.first) == StreamError::kNotReady);
  }
  SUBCASE("the event itself, but nothing behind it") {
    device.work(&device.a);
    device.record(&device.second, &device.a);
    CHECK(streams.synchronize_event(&device.first) == StreamError::kNone);
    CHECK(streams.query_event(&device.first) == StreamError::kNone);
    CHECK(streams.query_event(&device.second) == StreamError::kNotReady);
  }
  SUBCASE("another stream, which does not cover it") {
    device.work(&device.b);
    CHECK(streams.synchronize_stream(&device.b, 0) == StreamError::kNone);
    CHECK(streams.query_event(&device.first) == StreamError::kNotReady);
  }
  SUBCASE("another stream, which has waited for it") {
    device.wait(&device.b, &device.first);
    device.work(&device.b);
    CHECK(streams.synchronize_stream(&device.b, 0) == StreamError::kNone);
    CHECK(streams.query_event(&device.first) == StreamError::kNone);
  }
  SUBCASE("a third stream, through the second") {
    device.wait(&device.b, &device.first);
    device.work(&device.b);
    device.record(&device.second, &device.b);
    device.wait(&device.blocking, &device.second);
    device.record(&device.third, &device.blocking);
    CHECK(streams.synchronize_event(&device.third) == StreamError::kNone);
    CHECK(streams.query_event(&device.first) == StreamError::kNone);
    CHECK(streams.query_event(&device.second) == StreamError::kNone);
  }
  SUBCASE("the legacy stream, which does not wait for this one") {
    device.work(device.legacy);
    CHECK(streams.synchronize_stream(device.legacy, 0) == StreamError::kNone);
    CHECK(streams.query_event(&device.first) == StreamError::kNotReady);
  }
}

TEST_CASE("late: the legacy stream and the blocking ones wait for each other") {
  Device device(true);
  device.work(&device.blocking);
  device.record(&device.first, &device.blocking);
  device.work(device.legacy);
  CHECK(device.streams.synchronize_stream(device.legacy, 0) == StreamError::kNone);
  CHECK(device.streams.query_event(&device.first) == StreamError::kNone);
  device.work(device.legacy);
  device.record(&device.second, device.legacy);
  device.work(&device.blocking);
  CHECK(device.streams.query_event(&device.second) == StreamError::kNotReady);
  CHECK(device.streams.synchronize_stream(&device.blocking, 0) == StreamError::kNone);
  CHECK(device.streams.query_event(&device.second) == StreamError::kNone);
}

TEST_CASE(
    "late: a loop that polls comes to its end, a program that looks now and then does not wait") {
  Device device(true);
  device.work(&device.a);
  device.record(&device.first, &device.a);
  for (int i = 0; i < 10 * Streams::kPollsOfAWait; ++i) {
    REQUIRE(device.streams.query_event(&device.first) == StreamError::kNotReady);
    device.work(&device.b);
  }
  int polls = 1;
  while (device.streams.query_event(&device.first) == StreamError::kNotReady) ++polls;
  CHECK(polls == Streams::kPollsOfAWait);
  device.work(&device.a);
  polls = 1;
  while (device.streams.query_stream(&device.a, 0) == StreamError::kNotReady) ++polls;
  CHECK(polls == Streams::kPollsOfAWait);
}

TEST_CASE("late: a thread that only watches ends no wait by its speed, but time does") {
  Device device(true);
  device.work(&device.a);
  device.record(&device.first, &device.a);
  const auto watch = [&](int polls) {
    int ready = 0;
    std::thread([&] {
      for (int i = 0; i < polls; ++i)
        ready += device.streams.query_event(&device.first) == StreamError::kNone;
    }).join();
    return ready;
  };
  CHECK(watch(10 * Streams::kPollsOfAWait) == 0);
  CHECK(device.streams.query_event(&device.first) == StreamError::kNotReady);
  // It sleeps between its polls, as watchdogs do: done after ten of them and more than two seconds.
  int polls = 0;
  const int64_t begin = now;
  std::thread([&] {
    do {
      now += 100'000'000;
      ++polls;
    } while (device.streams.query_event(&device.first) == StreamError::kNotReady);
  }).join();
  CHECK(now - begin > Streams::kLongWait);
  CHECK(polls == 22);
  // Few polls, far apart, are looks now and then.
  device.work(&device.a);
  device.record(&device.first, &device.a);
  for (int i = 1; i < Streams::kPollsOfALongWait; ++i) {
    now += Streams::kLongWait;
    REQUIRE(device.streams.query_event(&device.first) == StreamError::kNotReady);
  }
}

TEST_CASE("late: the work of other threads does not make a loop endless") {
  Device device(true);
  device.work(&device.a);
  device.record(&device.first, &device.a);
  int polls = 1;
  while (device.streams.query_event(&device.first) == StreamError::kNotReady) {
    std::thread([&] { device.work(&device.b); }).join();
    REQUIRE(++polls <= Streams::kPollsOfAWait);
  }
}

TEST_CASE("late: events that are polled in turn are counted apart") {
  Device device(true);
  device.work(&device.a);
  device.record(&device.first, &device.a);
  device.record(&device.second, &device.a);
  for (int i = 0; i < 3 * Streams::kPollsOfAWait; ++i) {
    device.work(&device.b);
    REQUIRE(device.streams.query_event(&device.first) == StreamError::kNotReady);
    REQUIRE(device.streams.query_event(&device.second) == StreamError::kNotReady);
  }
}

TEST_CASE("what is replaced, or added by hand, need not be joined") {
  Device device;
  REQUIRE(device.begin(&device.a) == StreamError::kNone);
  device.work(&device.a);
  Streams::CaptureInfo info;
  REQUIRE(device.streams.capture_info(&device.a, 0, &info) == StreamError::kNone);
  GraphNode* const by_hand = device.streams.add_node(info.graph, {}, NodeKind::kEmpty, nullptr);
  REQUIRE(device.streams.add_node(info.graph, {by_hand}, NodeKind::kEmpty, nullptr) != nullptr);
  CHECK(device.streams.set_dependencies(&device.a, 0, {by_hand}, true) == StreamError::kNone);
  GraphNode stranger{NodeKind::kEmpty, {}, nullptr};
  CHECK(device.streams.set_dependencies(&device.a, 0, {&stranger}, false) ==
        StreamError::kInvalidValue);
  CHECK_FALSE(device.streams.remove_graph(info.graph));  // it is captured into
  CHECK(device.end(&device.a) == StreamError::kNone);
}

TEST_CASE("external events belong into captures only") {
  Device device;
  CHECK(device.streams.record(&device.first, &device.a, 0, true) == StreamError::kInvalidValue);
  CHECK(device.streams.wait(&device.a, 0, &device.first, true) == StreamError::kInvalidValue);
  REQUIRE(device.begin(&device.a) == StreamError::kNone);
  CHECK(device.streams.record(&device.first, &device.a, 0, true) == StreamError::kNone);
  CHECK(device.streams.wait(&device.a, 0, &device.first, true) == StreamError::kNone);
  REQUIRE(device.end(&device.a) == StreamError::kNone);
  CHECK(device.streams.nodes_of(device.graph)->size() == 2);
}

TEST_CASE("a stream that is destroyed leaves nothing behind") {
  Device device(true);
  device.work(&device.a);
  device.record(&device.first, &device.a);
  CHECK(device.streams.remove_stream(&device.a));
  // Its work goes on, until the host waits for the device.
  CHECK(device.streams.query_event(&device.first) == StreamError::kNotReady);
  CHECK(device.streams.synchronize_device(0) == StreamError::kNone);
  CHECK(device.streams.query_event(&device.first) == StreamError::kNone);
  REQUIRE(device.begin(&device.b) == StreamError::kNone);
  Streams::CaptureInfo info;
  REQUIRE(device.streams.capture_info(&device.b, 0, &info) == StreamError::kNone);
  CHECK(device.streams.remove_stream(&device.b));
  CHECK_FALSE(device.streams.is_graph(info.graph));
}

TEST_CASE("nodes by hand, and what is no graph or node is told") {
  Device device;
  Graph* const graph = device.streams.make_graph();
  GraphNode* const one = device.streams.add_node(graph, {}, NodeKind::kEmpty, nullptr);
  GraphNode* const two = device.streams.add_node(graph, {one}, NodeKind::kKernel, nullptr);
  REQUIRE(two != nullptr);
  CHECK(two->dependencies == std::vector<GraphNode*>{one});
  GraphNode stranger{NodeKind::kEmpty, {}, nullptr};
  CHECK(device.streams.add_node(graph, {&stranger}, NodeKind::kEmpty, nullptr) == nullptr);
  Graph no_graph;
  CHECK(device.streams.add_node(&no_graph, {}, NodeKind::kEmpty, nullptr) == nullptr);
  CHECK_FALSE(device.streams.dependencies_of(&stranger).has_value());
  REQUIRE(device.streams.begin_capture(&device.a, 0, CaptureMode::kGlobal, graph, {two}) ==
          StreamError::kNone);
  device.work(&device.a);
  REQUIRE(device.end(&device.a) == StreamError::kNone);
  CHECK(device.graph == graph);
  CHECK(device.streams.nodes_of(graph)->size() == 3);
  CHECK(device.streams.begin_capture(&device.a, 0, CaptureMode::kGlobal, &no_graph, {}) ==
        StreamError::kInvalidValue);
}

TEST_CASE("a graph's steps come after what they depend on, and a cycle has none") {
  Device device;
  Graph* const graph = device.streams.make_graph();
  const auto add = [&] { return device.streams.add_node(graph, {}, NodeKind::kEmpty, nullptr); };
  GraphNode *const one = add(), *const two = add(), *const three = add();
  CHECK(device.streams.add_edge(graph, three, one));
  CHECK_FALSE(device.streams.add_edge(graph, three, one));
  std::vector<GraphNode*> order;
  const auto steps = device.streams.steps_of(graph);
  REQUIRE(steps.has_value());
  for (const GraphStep& step : *steps) order.push_back(step.node);
  CHECK(order == std::vector<GraphNode*>{two, three, one});
  CHECK(*device.streams.dependents_of(three) == std::vector<GraphNode*>{one});
  const Predecessors before = device.streams.predecessors_of({one});
  CHECK(before.has(one->index));
  CHECK(before.has(three->index));
  CHECK_FALSE(before.has(two->index));
  CHECK(device.streams.add_edge(graph, one, three));
  CHECK_FALSE(device.streams.steps_of(graph).has_value());
  CHECK(device.streams.remove_edge(graph, one, three));
  CHECK(device.streams.remove_node(three));
  CHECK(device.streams.dependencies_of(one)->empty());
  CHECK(device.streams.steps_of(graph)->size() == 2);
}

// Per-thread default streams.

const void* const kPerThreadHandle = reinterpret_cast<const void*>(Streams::kPerThread);

TEST_CASE("the per-thread default stream is another one for each thread") {
  Device device(true);
  Streams& streams = device.streams;
  device.work(kPerThreadHandle);
  device.record(&device.first, kPerThreadHandle);
  std::thread([&] {
    device.work(kPerThreadHandle);
    device.record(&device.second, kPerThreadHandle);
    CHECK(streams.synchronize_stream(kPerThreadHandle, 0) == StreamError::kNone);
    CHECK(streams.query_event(&device.second) == StreamError::kNone);
    CHECK(streams.query_event(&device.first) == StreamError::kNotReady);
    device.work(kPerThreadHandle);
    device.record(&device.third, kPerThreadHandle);
  }).join();
  // What a thread leaves behind goes on.
  CHECK(streams.query_event(&device.third) == StreamError::kNotReady);
  CHECK(streams.synchronize_stream(kPerThreadHandle, 0) == StreamError::kNone);
  CHECK(streams.query_event(&device.first) == StreamError::kNone);
  CHECK(streams.query_event(&device.third) == StreamError::kNotReady);
  device.work(device.legacy);
  CHECK(streams.synchronize_stream(device.legacy, 0) == StreamError::kNone);
  CHECK(streams.query_event(&device.third) == StreamError::kNone);
}

TEST_CASE("a capture of a per-thread default stream is its thread's") {
  Device device;
  REQUIRE(device.begin(kPerThreadHandle, CaptureMode::kRelaxed) == StreamError::kNone);
  std::thread([&] {
    CHECK(device.status(kPerThreadHandle) == CaptureStatus::kNone);
    CHECK(device.end(kPerThreadHandle) == StreamError::kIllegalState);
    CHECK_FALSE(device.streams.submit_kernel(kPerThreadHandle, 0).captured);
    // Nobody can end this one.
    CHECK(device.begin(kPerThreadHandle, CaptureMode::kRelaxed) == StreamError::kNone);
  }).join();
  CHECK(device.streams.submit_kernel(kPerThreadHandle, 0).captured);
  REQUIRE(device.end(kPerThreadHandle) == StreamError::kNone);
  CHECK(device.streams.nodes_of(device.graph)->size() == 1);
  CHECK(device.streams.check_unsafe() == StreamError::kNone);
}

TEST_CASE("the legacy stream refuses work while a per-thread default stream captures") {
  Device device;
  REQUIRE(device.begin(kPerThreadHandle) == StreamError::kNone);
  CHECK(device.work(device.legacy) == StreamError::kCaptureImplicit);
  CHECK(device.end(kPerThreadHandle) == StreamError::kCaptureInvalidated);
}

// Host functions.

struct Flag {
  void set() {
    std::lock_guard<std::mutex> lock(mutex);
    is_set = true;
    changed.notify_all();
  }
  bool wait(std::chrono::milliseconds most = std::chrono::seconds(20)) {
    std::unique_lock<std::mutex> lock(mutex);
    return changed.wait_for(lock, most, [&] { return is_set; });
  }

  std::mutex mutex;
  std::condition_variable changed;
  bool is_set = false;
};

TEST_CASE("host functions run in a thread of their own, and what is behind them waits") {
  Flag go, done;
  std::vector<int> order;
  std::thread::id thread;
  Device device;
  Streams& streams = device.streams;
  const auto host = [&](const void* stream, std::function<void()> run) {
    const auto submission = streams.submit(stream, 0, NodeKind::kHost, std::move(run));
    CHECK(submission.error == StreamError::kNone);
    CHECK(submission.queued);
  };
  host(&device.a, [&] {
    go.wait();
    thread = std::this_thread::get_id();
    order.push_back(1);
  });
  CHECK(streams.query_stream(&device.a, 0) == StreamError::kNotReady);
  CHECK(streams.query_stream(&device.b, 0) == StreamError::kNone);
  device.record(&device.first, &device.a);
  device.record(&device.second, &device.b);
  CHECK(streams.query_event(&device.first) == StreamError::kNotReady);
  CHECK(streams.check_recorded(&device.first) == StreamError::kNotReady);
  CHECK(streams.query_event(&device.second) == StreamError::kNone);
  CHECK(streams.synchronize_stream(&device.b, 0) == StreamError::kNone);
  // Work with an effect is done behind them, but for what must be done at once.
  CHECK(streams.submit(&device.a, 0, NodeKind::kCopy, [&] { order.push_back(2); }).queued);
  CHECK_FALSE(streams
                  .submit(
                      &device.a, 0, NodeKind::kCopy, [] {}, Streams::Order::kAtOnce)
                  .queued);
  CHECK_FALSE(streams.submit(&device.b, 0, NodeKind::kCopy, [] {}).queued);
  // Another stream waits for the first.
  device.wait(&device.b, &device.first);
  CHECK(streams.query_stream(&device.b, 0) == StreamError::kNotReady);
  host(&device.b, [&] {
    order.push_back(3);
    CHECK(streams.synchronize_stream(&device.b, 0) == StreamError::kNotPermitted);
    CHECK(streams.synchronize_device(0) == StreamError::kNotPermitted);
    done.set();
  });
  go.set();
  CHECK(streams.synchronize_event(&device.first) == StreamError::kNone);
  CHECK(streams.query_event(&device.first) == StreamError::kNone);
  CHECK(streams.synchronize_stream(&device.b, 0) == StreamError::kNone);
  CHECK(done.wait());
  CHECK(order == std::vector<int>{1, 2, 3});
  CHECK(thread != std::this_thread::get_id());
  CHECK(streams.synchronize_device(0) == StreamError::kNone);
  CHECK_FALSE(streams.has_queued());
}

TEST_CASE("late: a host function runs once what is before it is done") {
  std::atomic<int> calls{0};
  Flag called;
  Device device(true);
  Streams& streams = device.streams;
  device.work(&device.a);
  device.record(&device.first, &device.a);
  streams.submit(&device.a, 0, NodeKind::kHost, [&] {
    ++calls;
    called.set();
  });
  device.record(&device.second, &device.a);
  SUBCASE("as nobody waits, it does not run") {
    CHECK_FALSE(called.wait(std::chrono::milliseconds(100)));
  }
  SUBCASE("waiting for what is before it is not enough") {
    CHECK(streams.synchronize_event(&device.first) == StreamError::kNone);
    CHECK_FALSE(called.wait(std::chrono::milliseconds(100)));
  }
  SUBCASE("the host waits for the stream") {
    CHECK(streams.synchronize_stream(&device.a, 0) == StreamError::kNone);
    CHECK(calls == 1);
  }
  SUBCASE("the program waits for its effect") {
    now += Streams::kIdle;
    CHECK(called.wait());
    CHECK(streams.query_event(&device.first) == StreamError::kNone);
    CHECK(streams.query_event(&device.second) == StreamError::kNotReady);
  }
  SUBCASE("a thread waits for its effect, while others go on") {
    for (int i = 0; i < 21; ++i) {
      CHECK(calls == 0);
      now += Streams::kIdle - 1;
      device.work(&device.b);
    }
    CHECK(called.wait());
  }
}

TEST_CASE("a node by hand depends on each node once") {
  Device device;
  Streams& streams = device.streams;
  Graph* const graph = streams.make_graph();
  GraphNode* const first = streams.add_node(graph, {}, NodeKind::kEmpty, nullptr);
  GraphNode* const second = streams.add_node(graph, {first}, NodeKind::kEmpty, nullptr);
  CHECK(streams.add_node(graph, {first, first}, NodeKind::kEmpty, nullptr) == nullptr);
  CHECK(streams.add_node(graph, {first, second, first}, NodeKind::kEmpty, nullptr) == nullptr);
  CHECK(streams.nodes_of(graph)->size() == 2);
  CHECK(streams.add_node(graph, {first, second}, NodeKind::kEmpty, nullptr) != nullptr);
}

#ifndef __SANITIZE_THREAD__  // which ends a child that starts a thread

void queue_host(Streams& streams, const void* stream, std::function<void()> run) {
  const auto submission = streams.submit(stream, 0, NodeKind::kHost, std::move(run));
  if (!submission.queued) std::abort();  // in a child, too
}

// The exit status of a child, negative where a signal ended it. One that hangs is ended.
int status_of(pid_t child) {
  int status = 0;
  for (int i = 0; i < 1000; ++i) {
    if (waitpid(child, &status, WNOHANG) == child)
      return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  kill(child, SIGKILL);
  waitpid(child, &status, 0);
  return -2;
}

// Does what the handlers of the process's streams do.
pid_t fork_with(Streams& streams) {
  streams.lock();
  const pid_t child = fork();
  if (child == 0) {
    streams.unlock_in_child();
  } else {
    streams.unlock();
  }
  return child;
}

TEST_CASE("a child of fork does not destroy what its parent's host functions hold") {
  Device device;
  Streams& streams = device.streams;
  Flag go;
  queue_host(streams, &device.a, [&] { go.wait(); });
  // A graph, say, whose end takes the lock.
  std::shared_ptr<char> graph(&device.first,
                              [&streams](const char* event) { streams.is_event(event); });
  queue_host(streams, &device.a, [held = std::move(graph)] { static_cast<void>(held); });
  std::fflush(nullptr);
  const pid_t child = fork_with(streams);
  if (child == 0) {
    Flag done;
    queue_host(streams, &device.a, [&] { done.set(); });
    _exit(done.wait() ? 0 : 1);
  }
  CHECK(status_of(child) == 0);
  go.set();
  CHECK(streams.synchronize_stream(&device.a, 0) == StreamError::kNone);
}

TEST_CASE("a host function may fork, and its child return from it") {
  Device device;
  Streams& streams = device.streams;
  std::atomic<pid_t> child{0};
  std::fflush(nullptr);
  queue_host(streams, &device.a, [&] {
    const pid_t made = fork_with(streams);
    if (made != 0) {
      child = made;
      return;
    }
    // What the child queues is run by a thread of its own.
    Flag done;
    queue_host(streams, &device.b, [&] { done.set(); });
    if (!done.wait()) _exit(1);
  });
  CHECK(streams.synchronize_stream(&device.a, 0) == StreamError::kNone);
  // There is nothing in the child that would go on.
  CHECK(status_of(child) == 0);
  CHECK_FALSE(streams.has_queued());
}

#endif

}  // namespace
}  // namespace memledger::virtual_gpu
