// Built four times: with -O0 -g, with -O2 -g, without -g, and on top of that in the address sanitizer's runs. The bytes must be
// the same in all; which line they are on is only asked of the first.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "tracker/line_profiler.h"

#include <ATen/Context.h>
#include <ATen/ops/empty.h>
#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "registry/registry.h"
#include "tests/support/doctest_beside_torch.h"

// NOLINTBEGIN: what is profiled must not be optimised away, and keeps its own frame.
#define KEPT __attribute__((noinline))

using memledger::LineColumn;
using memledger::LineProfile;
using memledger::LineProfiler;
using memledger::LineRow;
using memledger::LineTable;

namespace profiled {

at::Tensor bytes(int64_t n) { return at::empty({n}, at::kByte); }

KEPT at::Tensor bytes_on(int gpu, int64_t n) {
  at::Tensor result =
      at::empty({n}, at::TensorOptions(c10::Device(at::kCUDA, static_cast<c10::DeviceIndex>(gpu))).dtype(at::kByte));
  asm volatile("nop");
  return result;
}

int line_of_first = 0, line_of_second = 0, line_of_call = 0;

KEPT void inner() {
  const at::Tensor gone = bytes(3000);
  asm volatile("nop");
}

KEPT void outer(std::vector<at::Tensor>& kept) {
  line_of_first = __LINE__ + 1;
  kept.push_back(bytes(1000));
  line_of_second = __LINE__ + 1;
  kept.push_back(bytes(500));
  line_of_call = __LINE__ + 1;
  inner();
  asm volatile("nop");
}

struct Net {
  KEPT void forward() {
    weight = bytes(700);
    asm volatile("nop");
  }
  at::Tensor weight;
};

template <typename T>
KEPT at::Tensor make(int64_t n) {
  at::Tensor result = bytes(n * static_cast<int64_t>(sizeof(T)));
  asm volatile("nop");
  return result;
}

KEPT void recurse(int depth, std::vector<at::Tensor>& kept) {
  kept.push_back(bytes(100));
  if (depth > 1) recurse(depth - 1, kept);
  asm volatile("nop");
}

__attribute__((always_inline)) inline at::Tensor inlined_bytes(int64_t n) { return at::empty({n}, at::kByte); }

KEPT int64_t with_inlined(int64_t n) {
  const at::Tensor one = inlined_bytes(n);
  return one.numel();
}

KEPT int64_t body_with_macro() {
  MEMLEDGER_PROFILE();
  const at::Tensor one = bytes(4242);
  return one.numel();
}

KEPT int64_t body_every(int64_t n) {
  MEMLEDGER_PROFILE_EVERY(2, true, "line.allocated", "active_bytes.all.peak");
  const at::Tensor one = bytes(n);
  return one.numel();
}

KEPT int64_t body_never(int64_t n) {
  MEMLEDGER_PROFILE_EVERY(1, false);
  const at::Tensor one = bytes(n);
  return one.numel();
}

}  // namespace profiled

namespace {

const bool watched = [] {
  memledger::Registry::global().activate().IgnoreError();
  return true;
}();

const LineTable& table_of(const LineProfile& profile, const std::string& function) {
  const auto found = std::find_if(profile.tables.begin(), profile.tables.end(),
                                  [&](const LineTable& table) { return table.function == function; });
  REQUIRE_MESSAGE(found != profile.tables.end(), function);
  return *found;
}

// The rows' sum, which must be the function's.
int64_t sum_of(const LineTable& table) {
  int64_t allocated = 0, freed = 0, left = 0;
  for (const LineRow& row : table.rows) {
    if (!row.figures) continue;
    allocated += row.figures->line_allocated;
    freed += row.figures->line_freed;
    left += row.figures->line_left;
  }
  CHECK(allocated == table.total.line_allocated);
  CHECK(freed == table.total.line_freed);
  CHECK(left == table.total.line_left);
  return allocated;
}

#ifdef EXPECT_LINES
const LineRow& row_of(const LineTable& table, int64_t line) {
  const auto found = std::find_if(table.rows.begin(), table.rows.end(), [&](const LineRow& row) { return row.line == line; });
  REQUIRE(found != table.rows.end());
  return *found;
}
#endif

memledger::Counters counters() { return memledger::Registry::global().counters(at::kCPU); }

// Where standard output goes, as long as it lives.
class Captured {
 public:
  Captured() : before_(std::cout.rdbuf(text_.rdbuf())) {}
  ~Captured() { std::cout.rdbuf(before_); }
  std::string text() const { return text_.str(); }

 private:
  std::ostringstream text_;
  std::streambuf* before_;
};

TEST_CASE("each line's bytes sum to the function's, and the function's to the registry's") {
  LineProfiler profiler({"outer", "profiled::inner"});
  REQUIRE(profiler.check_functions().ok());
  std::vector<at::Tensor> kept;
  const auto on_before = profiler.enable();
  const memledger::Counters before = counters();
  profiled::outer(kept);
  const memledger::Counters after = counters();
  const LineProfile profile = profiler.profile();
  const LineTable& outer = table_of(profile, "profiled::outer");
  CHECK(sum_of(outer) == 4500);
  CHECK(outer.total.line_allocated == after.allocated_bytes - before.allocated_bytes);
  CHECK(outer.total.line_freed == after.freed_bytes - before.freed_bytes);
  CHECK(outer.total.line_left == 1500);
  CHECK(sum_of(table_of(profile, "profiled::inner")) == 3000);
#ifdef EXPECT_LINES
  CHECK(row_of(outer, profiled::line_of_first).figures->line_allocated == 1000);
  CHECK(row_of(outer, profiled::line_of_second).figures->line_allocated == 500);
  CHECK(row_of(outer, profiled::line_of_second).figures->line_left == 500);
  CHECK(row_of(outer, profiled::line_of_call).figures->line_allocated == 3000);
  CHECK(row_of(outer, profiled::line_of_call).figures->line_left == 0);
  const auto peak = *LineColumn::parse("active_bytes.all.peak");
  CHECK(row_of(outer, profiled::line_of_first).figures->value(peak) == before.current_bytes + 1000);
  CHECK(row_of(outer, profiled::line_of_second).figures->value(peak) == before.current_bytes + 1500);
  CHECK(row_of(outer, profiled::line_of_call).figures->value(peak) == before.current_bytes + 4500);
  CHECK(outer.rows.front().figures->value(peak) == before.current_bytes);
  CHECK(outer.rows.front().code.find("void outer(") != std::string::npos);
  CHECK(outer.rows.back().code == "}");
  CHECK(row_of(outer, profiled::line_of_call).code == "  inner();");
  CHECK(outer.notes.empty());
#endif
#ifdef EXPECT_NO_LINES
  REQUIRE(outer.rows.size() == 1);
  CHECK(outer.rows.front().line == 0);
  REQUIRE(outer.notes.size() == 1);
  CHECK(outer.notes.front().find("-g") != std::string::npos);
#endif
  kept.clear();
  CHECK(table_of(profiler.profile(), "profiled::outer").total.line_left == 0);
}

TEST_CASE("methods, templates, lambdas, recursions and threads") {
  LineProfiler profiler({"Net::forward", "make", "recurse"});
  const auto lambda = [](int64_t n) KEPT {
    const at::Tensor one = profiled::bytes(n);
    return one.numel();
  };
  std::vector<at::Tensor> kept;
  const auto on = profiler.enable();
  profiled::Net net;
  net.forward();
  profiled::make<int32_t>(10);
  profiled::make<double>(10);
  profiled::recurse(5, kept);
  CHECK(lambda(64) == 64);
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([] {
      for (int j = 0; j < 50; ++j) profiled::make<char>(1000);
    });
  }
  for (std::thread& thread : threads) thread.join();
  const LineProfile profile = profiler.profile();
  CHECK(sum_of(table_of(profile, "profiled::Net::forward")) == 700);
  CHECK(sum_of(table_of(profile, "profiled::recurse")) == 500);
  int64_t made = 0;
  for (const LineTable& table : profile.tables) {
    if (table.function == "profiled::make") made += sum_of(table);
  }
  CHECK(made == 40 + 80 + 4 * 50 * 1000);
  // By an address in it: `operator()` has no name that anyone would write.
  LineProfiler of_lambda;
  using Lambda = decltype(lambda);
  const auto address = static_cast<int64_t (Lambda::*)(int64_t) const>(&Lambda::operator());
  const void* code = nullptr;
  static_assert(sizeof(address) >= sizeof(code));
  std::copy_n(reinterpret_cast<const char*>(&address), sizeof(code), reinterpret_cast<char*>(&code));
  of_lambda.add_function(code);
  {
    const auto on_lambda = of_lambda.enable();
    CHECK(lambda(128) == 128);
  }
  lambda(1);  // not while it is on
  const LineProfile lambdas = of_lambda.profile();
  REQUIRE(lambdas.tables.size() == 1);
  CHECK(sum_of(lambdas.tables.front()) == 128);
  CHECK(lambdas.tables.front().function.find("{lambda#") != std::string::npos);
}

TEST_CASE("the statistics' sums count no event twice, however many threads") {
  LineProfiler profiler({"profiled::inner"});
  const auto on = profiler.enable();
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([] {
      for (int j = 0; j < 500; ++j) profiled::inner();
    });
  }
  for (std::thread& thread : threads) thread.join();
  const LineProfile profile = profiler.profile();
  const LineTable& table = table_of(profile, "profiled::inner");
  CHECK(sum_of(table) == 4 * 500 * 3000);
  CHECK(table.total.value(*LineColumn::parse("requested_bytes.all.allocated")) == 4 * 500 * 3000);
  CHECK(table.total.value(*LineColumn::parse("requested_bytes.all.freed")) == 4 * 500 * 3000);
  CHECK(table.total.value(*LineColumn::parse("allocation.all.allocated")) == 4 * 500);
}

TEST_CASE("a library that is opened later") {
  LineProfiler profiler({"plugin_makes"});
  CHECK(absl::IsNotFound(profiler.check_functions()));
  const auto on = profiler.enable();
  void* const library = dlopen(std::getenv("PLUGIN"), RTLD_NOW);
  REQUIRE_MESSAGE(library != nullptr, std::getenv("PLUGIN"));
  const auto makes = reinterpret_cast<void (*)(int64_t)>(dlsym(library, "plugin_makes"));
  makes(777);
  CHECK(sum_of(table_of(profiler.profile(), "plugin_makes")) == 777);
}

TEST_CASE("a function or a column that does not exist: the right names") {
  const absl::Status status = LineProfiler({"profiled::outerr"}).check_functions();
  CHECK(absl::IsNotFound(status));
  CHECK(std::string(status.message()).find("near: `profiled::outer`") != std::string::npos);
  std::ostringstream out;
  const absl::Status column = LineProfiler().print_stats(out, {"active_bytes.all.peek"});
  CHECK(absl::IsInvalidArgument(column));
  CHECK(std::string(column.message()).find("active_bytes.all.peek") != std::string::npos);
  CHECK(std::string(column.message()).find("current, peak, allocated, freed") != std::string::npos);
}

TEST_CASE("clear forgets, the maximum of several runs is shown, sums go on") {
  LineProfiler profiler({"profiled::outer"});
  std::vector<at::Tensor> kept;
  const auto on = profiler.enable();
  const int64_t before = counters().current_bytes;
  profiled::outer(kept);
  profiled::outer(kept);
  const auto peak = *LineColumn::parse("active_bytes.all.peak");
  CHECK(table_of(profiler.profile(), "profiled::outer").total.value(peak) == before + 1500 + 4500);
  CHECK(table_of(profiler.profile(), "profiled::outer").total.line_allocated == 9000);
  profiler.clear();
  CHECK(table_of(profiler.profile(), "profiled::outer").total.line_allocated == 0);
  kept.clear();
}

TEST_CASE("what is freed after the profiler was disabled is not left behind") {
  LineProfiler profiler({"profiled::outer"});
  std::vector<at::Tensor> kept;
  {
    const auto on = profiler.enable();
    profiled::outer(kept);
  }
  CHECK(table_of(profiler.profile(), "profiled::outer").total.line_left == 1500);
  kept.pop_back();
  CHECK(table_of(profiler.profile(), "profiled::outer").total.line_left == 1000);
  {
    // While only another one is on, and on it again.
    LineProfiler other({"profiled::inner"});
    const auto on_other = other.enable();
    kept.clear();
    CHECK(table_of(profiler.profile(), "profiled::outer").total.line_left == 0);
    const auto on_again = profiler.enable();
    profiled::outer(kept);
  }
  kept.clear();
  const LineProfile profile = profiler.profile();
  CHECK(table_of(profile, "profiled::outer").total.line_left == 0);
  CHECK(table_of(profile, "profiled::outer").total.line_allocated == 9000);
  CHECK(table_of(profile, "profiled::outer").total.line_freed == 6000);
}

#ifdef EXPECT_LINES
TEST_CASE("the first row is of every run: after disable() and enable(), and after clear()") {
  LineProfiler profiler({"profiled::outer"});
  const auto peak = *LineColumn::parse("active_bytes.all.peak");
  const auto first_row = [&]() -> int64_t {
    const LineProfile profile = profiler.profile();
    const LineRow& row = table_of(profile, "profiled::outer").rows.front();
    return row.figures ? row.figures->value(peak) : -1;
  };
  std::vector<at::Tensor> kept;
  const int64_t before = counters().current_bytes;
  {
    const auto on = profiler.enable();
    profiled::outer(kept);
  }
  CHECK(first_row() == before);
  const at::Tensor more = profiled::bytes(10000);
  const int64_t then = counters().current_bytes;
  REQUIRE(then == before + 1500 + 10000);
  {
    const auto on = profiler.enable();
    profiled::outer(kept);
    CHECK(first_row() == then);
    profiler.clear();
    const int64_t cleared = counters().current_bytes;
    profiled::outer(kept);
    CHECK(first_row() == cleared);
  }
}
#endif

#ifndef EXPECT_NO_LINES
TEST_CASE("code that was inlined: its bytes are its caller's line's, and a note names it") {
  LineProfiler profiler({"profiled::with_inlined"});
  const auto on = profiler.enable();
  CHECK(profiled::with_inlined(321) == 321);
  const LineProfile profile = profiler.profile();
  const LineTable& table = table_of(profile, "profiled::with_inlined");
  CHECK(sum_of(table) == 321);
  std::string notes;
  for (const std::string& note : table.notes) notes += note + '\n';
  CHECK_MESSAGE(notes.find(": with code of ") != std::string::npos, notes);
  CHECK_MESSAGE(notes.find(", which was inlined") != std::string::npos, notes);
}
#endif

TEST_CASE("a target that is not there is refused") {
  CHECK_THROWS_AS(memledger::set_target_gpu(-1), c10::Error);
  CHECK_THROWS_AS(memledger::set_target_gpu(128), c10::Error);
  CHECK_THROWS_AS(memledger::set_target_device(at::kMeta), c10::Error);
}

TEST_CASE("who was alive at a line's peak") {
  const at::Tensor older = profiled::bytes(11111);
  LineProfiler profiler({"profiled::inner"}, {/*who_was_alive=*/true});
  CHECK(absl::IsFailedPrecondition(LineProfiler({"profiled::inner"}).alive_at_peak("profiled::inner", 1).status()));
  const auto on = profiler.enable();
  profiled::inner();
  const LineProfile profile = profiler.profile();
  const LineTable& table = table_of(profile, "profiled::inner");
  const auto row = std::find_if(table.rows.begin(), table.rows.end(),
                                [](const LineRow& one) { return one.figures && one.figures->line_allocated > 0; });
  REQUIRE(row != table.rows.end());
  const auto alive = profiler.alive_at_peak("profiled::inner", row->line);
  REQUIRE(alive.ok());
  int64_t bytes = 0;
  std::vector<int64_t> sizes;
  for (const memledger::StorageInfo& one : *alive) {
    bytes += one.nbytes;
    sizes.push_back(one.nbytes);
  }
  CHECK(bytes == row->figures->value(*LineColumn::parse("active_bytes.all.peak")));
  CHECK(std::count(sizes.begin(), sizes.end(), 3000) == 1);
  CHECK(std::count(sizes.begin(), sizes.end(), 11111) == 1);
}

TEST_CASE("the macros, mixed") {
  const Captured out;
  for (int i = 0; i < 5; ++i) profiled::body_every(100 * (i + 1));
  profiled::body_never(5);
  const std::string text = out.text();
  const size_t first = text.find("## profiled::body_every");
  REQUIRE(first != std::string::npos);
  const size_t second = text.find("## profiled::body_every", first + 1);
  REQUIRE(second != std::string::npos);
  CHECK(text.find("## profiled::body_every", second + 1) == std::string::npos);  // runs 2 and 4
  CHECK(text.find("allocated 300.00B") != std::string::npos);
  CHECK(text.find("allocated 1000.00B") != std::string::npos);
  CHECK(text.find("body_never") == std::string::npos);
  CHECK(profiled::body_with_macro() == 4242);
}

// Of line_profiler_cuda_test.
TEST_SUITE("on a CUDA device" * doctest::skip(!at::hasCUDA())) {
  TEST_CASE("the target: the first GPU once it is used, and any other at any point") {
    const at::Tensor early = profiled::bytes(5);
    LineProfiler profiler({"profiled::bytes_on"});
    const auto on = profiler.enable();
    const auto peak = *LineColumn::parse("active_bytes.all.peak");
    const at::Tensor first = profiled::bytes_on(0, 1000);
    CHECK(profiler.profile().device == "cuda:0");
    CHECK(table_of(profiler.profile(), "profiled::bytes_on").total.line_allocated == 1000);
    memledger::set_target_gpu(1);
    profiler.clear();
    const at::Tensor second = profiled::bytes_on(1, 3000);
    const at::Tensor elsewhere = profiled::bytes_on(0, 7000);
    const LineProfile profile = profiler.profile();
    CHECK(profile.device == "cuda:1");
    CHECK(table_of(profile, "profiled::bytes_on").total.line_allocated == 3000);
    CHECK(table_of(profile, "profiled::bytes_on").total.value(peak) == 3072);
  }
}

}  // namespace
// NOLINTEND
