// The lines of code built with -O2 -g are those of the same code at -O0.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "tests/support/doctest_beside_torch.h"

#include <fmt/format.h>

#include <map>
#include <set>
#include <string>
#include <vector>

#include "registry/hooks/inlined_calls.h"
#include "registry/recording.h"
#include "registry/registry.h"
#include "registry/stacks.h"
#include "tests/registry/line_programs.h"
#include "tracker/line_profiler.h"

std::vector<at::Tensor>& line_programs::kept() {
  static auto* const kept = new std::vector<at::Tensor>;
  return *kept;
}

namespace memledger {
namespace {

using line_programs::Program;
using BytesOfLines = std::map<std::string, int64_t>;

constexpr int64_t kBytes = 100'003;

BytesOfLines bytes_of_lines(const Program& program) {
  Recorder recorder;
  program.run(kBytes);
  line_programs::kept().clear();
  BytesOfLines lines;
  for (const Lifetime& life : recorder.read().lifetimes) {
    if (!life.born_ns.has_value() || life.storage.nbytes < kBytes) continue;
    const StackFrame frame = program_frame(life.storage.stack);
    lines[fmt::format("{}:{}", frame.file, frame.line)] += life.storage.nbytes;
  }
  return lines;
}

std::string text_of(const BytesOfLines& lines) {
  std::string text;
  for (const auto& [line, bytes] : lines) text += fmt::format("{} {}\n", line, bytes);
  return text;
}

TEST_CASE("the same line for every byte") {
  REQUIRE(InlinedCalls::are_known());
  // What the compiler may take away: a function that only returns what another makes jumps there,
  // and its bytes are its caller's line's.
  const std::set<std::string> tail_called = {"tail_call"};
  RegistryOptions options;
  options.stacks = StackOptions::all();
  const ScopedTracking tracking(options);
  const std::vector<Program> plain = line_programs::unoptimized::all();
  const std::vector<Program> optimized = line_programs::optimized::all();
  REQUIRE(plain.size() == optimized.size());
  CHECK(plain.size() >= 20);
  for (size_t i = 0; i < plain.size(); ++i) {
    CAPTURE(std::string(plain[i].name));
    const BytesOfLines expected = bytes_of_lines(plain[i]);
    CHECK(!expected.empty());
    for (const auto& [line, bytes] : expected)
      CHECK(line.find("line_programs.cc:") != std::string::npos);
    if (tail_called.count(plain[i].name) == 0)
      CHECK(text_of(bytes_of_lines(optimized[i])) == text_of(expected));
  }
}

BytesOfLines profiled_bytes(const Program& program, const std::string& function) {
  LineProfiler profiler({function});
  {
    const auto on = profiler.enable();
    program.run(kBytes);
    line_programs::kept().clear();
  }
  BytesOfLines lines;
  for (const LineTable& table : profiler.profile().tables) {
    for (const LineRow& row : table.rows) {
      const int64_t bytes = row.figures ? row.figures->line_allocated : 0;
      if (bytes >= kBytes) lines[std::to_string(row.line)] += bytes;
    }
  }
  return lines;
}

// What runs of a coroutine is another function than the one that begins it.
TEST_CASE("line profiles have the same line for every byte, too") {
  const std::map<std::string, std::string> inner = {{"coroutine", "steps"}};
  const std::set<std::string> tail_called = {"tail_call"};
  const std::vector<Program> plain = line_programs::unoptimized::all();
  const std::vector<Program> optimized = line_programs::optimized::all();
  for (size_t i = 0; i < plain.size(); ++i) {
    CAPTURE(std::string(plain[i].name));
    if (tail_called.count(plain[i].name) > 0) continue;
    const auto other = inner.find(plain[i].name);
    const std::string function = other == inner.end() ? plain[i].name : other->second;
    const BytesOfLines expected = profiled_bytes(plain[i], function);
    CHECK(!expected.empty());
    CHECK(text_of(profiled_bytes(optimized[i], function)) == text_of(expected));
  }
}

}  // namespace
}  // namespace memledger
