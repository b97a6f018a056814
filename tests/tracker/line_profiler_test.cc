// Built four times: with -O0 -g, with -O2 -g, without -g, and on top of that in the address
// sanitizer's runs. The bytes must be the same in all; which line they are on is only asked of the
// first.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "tracker/line_profiler.h"

#include <ATen/Context.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <dlfcn.h>
#include <link.h>
#include <malloc.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "registry/registry.h"
#include "tests/support/doctest_beside_torch.h"
#include "tests/support/fork_beside_threads.h"

// NOLINTBEGIN: what is profiled must not be optimised away, and keeps its own frame.
#define KEPT __attribute__((noinline))

using memledger::LineColumn;
using memledger::LineProfile;
using memledger::LineProfiler;
using memledger::LineProfilerOptions;
using memledger::LineRow;
using memledger::LineTable;

static std::atomic<bool> lingering{false};

// In the place of glibc's, which a fork finds rarely in use: while `lingering` is set it takes
// longer. Not with the address sanitizer, which calls it before anything of the program's can run.
#ifndef __SANITIZE_ADDRESS__
namespace {

using Visit = int (*)(dl_phdr_info*, size_t, void*);
struct Visitor {
  Visit visit;
  void* data;
};
const auto real_dl_iterate_phdr =
    reinterpret_cast<int (*)(Visit, void*)>(dlsym(RTLD_NEXT, "dl_iterate_phdr"));

int linger_and_visit(dl_phdr_info* library, size_t size, void* data) {
  if (lingering) usleep(300);
  const auto& visitor = *static_cast<const Visitor*>(data);
  return visitor.visit(library, size, visitor.data);
}

}  // namespace

extern "C" int dl_iterate_phdr(Visit visit,
                               void* data) noexcept(noexcept(::dl_iterate_phdr(visit, data))) {
  if (real_dl_iterate_phdr == nullptr) return 0;  // not initialised yet
  Visitor visitor{visit, data};
  return real_dl_iterate_phdr(&linger_and_visit, &visitor);
}
#endif

namespace profiled {

at::Tensor bytes(int64_t n) { return at::empty({n}, at::kByte); }

KEPT at::Tensor bytes_on(int gpu, int64_t n) {
  at::Tensor result =
      at::empty({n}, at::TensorOptions(c10::Device(at::kCUDA, static_cast<c10::DeviceIndex>(gpu)))
                         .dtype(at::kByte));
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

__attribute__((always_inline)) inline at::Tensor inlined_bytes(int64_t n) {
  return at::empty({n}, at::kByte);
}

constexpr int64_t kLineOfInlined = __LINE__ + 2;
KEPT int64_t with_inlined(int64_t n) {
  const at::Tensor one = inlined_bytes(n);
  return one.numel();
}

constexpr int64_t kLineOfBranch = __LINE__ + 4;
KEPT int64_t with_branch(int64_t n) {
  at::Tensor one;
  if (n > 3) {
    one = at::zeros({n}, at::kByte);
  } else {
    one = inlined_bytes(n);
  }
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

KEPT int64_t body_every_run(int64_t n) {
  MEMLEDGER_PROFILE_EVERY();
  const at::Tensor one = bytes(n);
  return one.numel();
}

template <int I>
KEPT void site() {
  const at::Tensor one = bytes(I);
  asm volatile("nop");
}

template <size_t... I>
constexpr std::array<void (*)(), sizeof...(I)> sites(std::index_sequence<I...>) {
  return {&site<static_cast<int>(I) + 1>...};
}
constexpr auto kSites = sites(std::make_index_sequence<200>());

// A call site of its own for each number, of which the compiler makes one in optimised code.
#define FOUR(n) CASE(n) CASE((n) + 1) CASE((n) + 2) CASE((n) + 3)
#define SIXTEEN(n) FOUR(n) FOUR((n) + 4) FOUR((n) + 8) FOUR((n) + 12)
#define SIXTY_FOUR(n) SIXTEEN(n) SIXTEEN((n) + 16) SIXTEEN((n) + 32) SIXTEEN((n) + 48)
#define CASE(n)     \
  case n:           \
    bytes((n) + 1); \
    break;
KEPT void many_lines(int line) {
  switch (line) {
    SIXTY_FOUR(0)
    SIXTY_FOUR(64)
    default:
      break;
  }
  asm volatile("nop");
}

KEPT void turn_0() {
  const at::Tensor one = bytes(100);
  asm volatile("nop");
}
KEPT void turn_1() {
  const at::Tensor one = bytes(100);
  asm volatile("nop");
}
KEPT void turn_2() {
  const at::Tensor one = bytes(100);
  asm volatile("nop");
}
KEPT void turn_3() {
  const at::Tensor one = bytes(100);
  asm volatile("nop");
}
KEPT void turn_4() {
  const at::Tensor one = bytes(100);
  asm volatile("nop");
}
KEPT void turn_5() {
  const at::Tensor one = bytes(100);
  asm volatile("nop");
}
KEPT void turn_6() {
  const at::Tensor one = bytes(100);
  asm volatile("nop");
}
KEPT void turn_7() {
  const at::Tensor one = bytes(100);
  asm volatile("nop");
}
KEPT void turn_8() {
  const at::Tensor one = bytes(100);
  asm volatile("nop");
}
KEPT void turn_9() {
  const at::Tensor one = bytes(100);
  asm volatile("nop");
}
constexpr std::array kTurns = {&turn_0, &turn_1, &turn_2, &turn_3, &turn_4,
                               &turn_5, &turn_6, &turn_7, &turn_8, &turn_9};

// The example of pytorch_memlab's README, with its target changed on the way.
struct Switching {
  std::array<int, 4> lines{};
  std::array<int64_t, 4> peaks{};  // of the target, by LibTorch's own statistics

  static c10::CachingDeviceAllocator::DeviceStats statistics(int gpu) {
    auto* const allocator = dynamic_cast<c10::DeviceAllocator*>(c10::GetAllocator(at::kCUDA));
    return allocator->getDeviceStats(static_cast<c10::DeviceIndex>(gpu));
  }
  static int64_t active(int gpu) { return statistics(gpu).active_bytes[0].current; }

  KEPT void run() {
    std::vector<at::Tensor> kept;
    lines[0] = __LINE__ + 1;
    kept.push_back(bytes_on(0, 4 << 20));
    peaks[0] = active(0);
    memledger::set_target_gpu(1);
    lines[1] = __LINE__ + 1;
    kept.push_back(bytes_on(1, 2 << 20));
    peaks[1] = active(1);
    memledger::set_target_gpu(0);
    lines[2] = __LINE__ + 1;
    kept.push_back(bytes_on(0, 1 << 20));
    peaks[2] = active(0);
    lines[3] = __LINE__ + 1;
    kept.clear();
    peaks[3] = peaks[2];
  }
};

}  // namespace profiled

namespace {

const bool watched = [] {
  memledger::Registry::global().activate().IgnoreError();
  return true;
}();

const LineTable& table_of(const LineProfile& profile, const std::string& function) {
  const auto found =
      std::find_if(profile.tables.begin(), profile.tables.end(),
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
  const auto found = std::find_if(table.rows.begin(), table.rows.end(),
                                  [&](const LineRow& row) { return row.line == line; });
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
  CHECK(row_of(outer, profiled::line_of_second).figures->value(peak) ==
        before.current_bytes + 1500);
  CHECK(row_of(outer, profiled::line_of_call).figures->value(peak) == before.current_bytes + 4500);
  const auto on_first = [&](const std::string& column) {
    return row_of(outer, profiled::line_of_first).figures->value(*LineColumn::parse(column));
  };
  for (const std::string bytes :
       {"allocated_bytes", "reserved_bytes", "active_bytes", "requested_bytes"}) {
    CAPTURE(bytes);
    CHECK(on_first(bytes + ".all.peak") == before.current_bytes + 1000);
    CHECK(on_first(bytes + ".all.allocated") == 1000);
  }
  for (const std::string count : {"allocation", "active"}) {
    CAPTURE(count);
    CHECK(on_first(count + ".all.allocated") == 1);
  }
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
  std::copy_n(reinterpret_cast<const char*>(&address), sizeof(code),
              reinterpret_cast<char*>(&code));
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
  CHECK(absl::IsNotFound(LineProfiler().display("profiled::outer")));
}

TEST_CASE("a column that is named twice is there once") {
  const auto columns =
      memledger::parse_line_columns({"line.left", "active_bytes.all.peak", "line.left"});
  REQUIRE(columns.ok());
  REQUIRE(columns->size() == 2);
  CHECK((*columns)[0].name() == "line.left");
  CHECK((*columns)[1].name() == "active_bytes.all.peak");
}

TEST_CASE("many call sites in random order: memory grows with the sites, not with their pairs") {
  LineProfiler profiler({"profiled::many_lines", "profiled::site"});
  const auto on = profiler.enable();
  constexpr size_t kLines = 128;
  int64_t bytes = 0;
  const auto call = [&](size_t i) {
    // From one place each, so that the stacks are those of the sites.
    if (i < kLines) {
      profiled::many_lines(static_cast<int>(i));
      bytes += static_cast<int64_t>(i) + 1;
    } else {
      profiled::kSites[i - kLines]();
      bytes += static_cast<int64_t>(i - kLines) + 1;
    }
  };
  constexpr size_t kAll = kLines + profiled::kSites.size();
  for (size_t i = 0; i < 2 * kAll; ++i) call(i % kAll);
  const auto held = [] {
    const struct mallinfo2 info = mallinfo2();
    return static_cast<int64_t>(info.uordblks + info.hblkhd);
  };
  const int64_t before = held();
  uint32_t random = 1;
  for (int i = 0; i < 50000; ++i) {
    random = random * 1664525 + 1013904223;
    call((random >> 8) % kAll);
  }
  const int64_t growth = held() - before;
  CHECK_MESSAGE(growth < (4 << 20), growth);
  int64_t told = 0;
  for (const LineTable& table : profiler.profile().tables) {
    told += sum_of(table);
    CHECK(table.total.line_left == 0);
  }
  CHECK(told == bytes);
}

TEST_CASE("functions that are called in turn from one place: each has its first row") {
  std::vector<std::string> names;
  for (size_t i = 0; i < profiled::kTurns.size(); ++i)
    names.push_back("profiled::turn_" + std::to_string(i));
  LineProfiler profiler(names);
  const auto on = profiler.enable();
  const auto current = *LineColumn::parse("active_bytes.all.current");
  std::vector<at::Tensor> kept;
  std::vector<int64_t> held(names.size());
  for (int round = 0; round < 3; ++round) {
    // Each comes after each other one: more of them than are told apart.
    for (size_t step = 1; step < names.size(); ++step) {
      for (size_t i = 0; i < names.size(); ++i) {
        const size_t turn = i * step % names.size();
        if (i > 0 && turn == 0) break;
        held[turn] = counters().current_bytes;
        profiled::kTurns[turn]();
      }
      kept.push_back(profiled::bytes(1000));
    }
  }
  const LineProfile profile = profiler.profile();
  for (size_t i = 0; i < names.size(); ++i) {
    const LineTable& table = table_of(profile, names[i]);
    CHECK(sum_of(table) > 0);
#ifdef EXPECT_LINES
    REQUIRE(table.rows.front().figures);
    CHECK(table.rows.front().figures->value(current) == held[i]);
#else
    static_cast<void>(current);
#endif
  }
}

TEST_CASE("a child of fork can profile, whatever another thread was doing" *
          doctest::skip(memledger::testing::kChildrenMayHang)) {
  LineProfiler profiler({"profiled::inner"});
  profiler.enable().release();
  profiler.profile();
  lingering = true;
  std::atomic<bool> stop{false};
  std::thread shows([&] {
    while (!stop) profiler.profile();
  });
  for (int i = 0; i < 10; ++i) {
    usleep(3000);
    const pid_t child = fork();
    if (child == 0) {
      alarm(60);
      LineProfiler own({"profiled::inner"});
      {
        const auto on = own.enable();
        profiler.add_function("profiled::outer").disable();
        profiled::inner();
      }
      _exit(sum_of(table_of(own.profile(), "profiled::inner")) == 3000 ? 0 : 1);
    }
    int status = -1;
    waitpid(child, &status, 0);
    CHECK(status == 0);
  }
  stop = true;
  lingering = false;
  shows.join();
  profiler.disable();
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
void check_only_line(const LineProfile& profile, const std::string& function, int64_t line,
                     int64_t bytes) {
  const LineTable& table = table_of(profile, function);
  for (const LineRow& row : table.rows) {
    CAPTURE(row.line);
    CHECK((row.figures ? row.figures->line_allocated : 0) == (row.line == line ? bytes : 0));
  }
  for (const std::string& note : table.notes)
    CHECK_MESSAGE(note.find("inlined") == std::string::npos, note);
}

TEST_CASE("code that was inlined: its bytes are those of the line that calls it") {
  LineProfiler profiler({"profiled::with_inlined", "profiled::with_branch"});
  const auto on = profiler.enable();
  CHECK(profiled::with_inlined(321) == 321);
  CHECK(profiled::with_branch(4321) == 4321);
  const LineProfile profile = profiler.profile();
  check_only_line(profile, "profiled::with_inlined", profiled::kLineOfInlined, 321);
  check_only_line(profile, "profiled::with_branch", profiled::kLineOfBranch, 4321);
}
#endif

TEST_CASE("a target that is not there is refused") {
  CHECK_THROWS_AS(memledger::set_target_gpu(-1), c10::Error);
  CHECK_THROWS_AS(memledger::set_target_gpu(128), c10::Error);
  CHECK_THROWS_AS(memledger::set_target_device(at::kMeta), c10::Error);
  CHECK_THROWS_AS(LineProfiler({}, {false, 100}), c10::Error);
}

TEST_CASE("who was alive at a line's peak") {
  const at::Tensor older = profiled::bytes(11111);
  LineProfiler profiler({"profiled::inner"}, {/*who_was_alive=*/true});
  CHECK(absl::IsFailedPrecondition(
      LineProfiler({"profiled::inner"}).alive_at_peak("profiled::inner", 1).status()));
  const auto on = profiler.enable();
  profiled::inner();
  const LineProfile profile = profiler.profile();
  const LineTable& table = table_of(profile, "profiled::inner");
  const auto row = std::find_if(table.rows.begin(), table.rows.end(), [](const LineRow& one) {
    return one.figures && one.figures->line_allocated > 0;
  });
  REQUIRE(row != table.rows.end());
  const auto alive = profiler.alive_at_peak("profiled::inner", row->line);
  REQUIRE(alive.ok());
  CHECK(profiler.alive_at_peak("inner", row->line).ok());
  CHECK(absl::IsNotFound(profiler.alive_at_peak("nner", row->line).status()));
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

TEST_CASE("MEMLEDGER_PROFILE_EVERY() without a number: after every run") {
  const Captured out;
  for (int i = 0; i < 3; ++i) profiled::body_every_run(100);
  int tables = 0;
  const std::string text = out.text();
  for (size_t at = 0; (at = text.find("## profiled::body_every_run", at)) != std::string::npos;
       ++at)
    ++tables;
  CHECK(tables == 3);
}

// These run in line_profiler_cuda_test.
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
    // What the CPU has no figures of: LibTorch takes 2 MiB for the device's first small block.
    const auto& total = table_of(profile, "profiled::bytes_on").total;
    CHECK(total.value(*LineColumn::parse("segment.all.allocated")) == 1);
    CHECK(total.value(*LineColumn::parse("inactive_split_bytes.all.peak")) == (2 << 20) - 3072);
  }

  TEST_CASE(
      "the target changes within the function: each line is of its own, and nothing is left "
      "behind") {
    memledger::set_target_gpu(0);
    LineProfiler profiler({"Switching::run"});
    const auto on = profiler.enable();
    const int64_t at_entry = profiled::Switching::active(0);
    const auto freed_by_libtorch = [] {
      return profiled::Switching::statistics(0).requested_bytes[0].freed +
             profiled::Switching::statistics(1).requested_bytes[0].freed;
    };
    const int64_t freed_before = freed_by_libtorch();
    for (int run = 1; run <= 2; ++run) {
      profiled::Switching switching;
      switching.run();
      const LineProfile profile = profiler.profile();
      const LineTable& table = table_of(profile, "profiled::Switching::run");
      CHECK(sum_of(table) == run * (7 << 20));
      CHECK(table.total.line_freed == run * (7 << 20));
      CHECK(table.total.line_left == 0);
      CHECK(table.total.value(*LineColumn::parse("requested_bytes.all.allocated")) ==
            run * (7 << 20));
      CHECK(table.total.value(*LineColumn::parse("requested_bytes.all.freed")) ==
            freed_by_libtorch() - freed_before);
      const auto peak = *LineColumn::parse("active_bytes.all.peak");
      REQUIRE(table.rows.front().figures);
      CHECK(table.rows.front().figures->value(peak) == at_entry);
#ifdef EXPECT_LINES
      for (size_t i = 0; i < switching.lines.size(); ++i)
        CHECK(row_of(table, switching.lines[i]).figures->value(peak) == switching.peaks[i]);
#endif
      std::string notes;
      for (const std::string& note : profile.notes) notes += note + '\n';
      CHECK_MESSAGE(notes.find("of cuda:0, cuda:1") != std::string::npos, notes);
    }
  }

  TEST_CASE("a GPU that LibTorch does not see is refused, with how many there are") {
    for (const auto& set :
         {std::function<void()>([] { memledger::set_target_gpu(7); }),
          std::function<void()>([] { memledger::set_target_device(c10::Device(at::kCUDA, 7)); }),
          std::function<void()>([] {
            LineProfiler({}, {false, 7});
          })}) {
      std::string message;
      try {
        set();
      } catch (const c10::Error& error) {
        message = error.what_without_backtrace();
      }
      CHECK_MESSAGE(
          message.find("there is no cuda:7: LibTorch sees 2 CUDA devices") != std::string::npos,
          message);
    }
  }

  TEST_CASE("a target in the constructor") {
    LineProfilerOptions options;
    options.target_gpu = 1;
    LineProfiler profiler({"profiled::bytes_on"}, options);
    const auto on = profiler.enable();
    const at::Tensor there = profiled::bytes_on(1, 3000);
    const at::Tensor elsewhere = profiled::bytes_on(0, 7000);
    CHECK(profiler.profile().device == "cuda:1");
    CHECK(table_of(profiler.profile(), "profiled::bytes_on").total.line_allocated == 3000);
  }
}

}  // namespace
// NOLINTEND
