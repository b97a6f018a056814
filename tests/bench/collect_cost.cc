// What a report costs with many tensors alive: MemReporter::collect(), its parts, and the formats
// it is written in.
//
//   ./bazelw run //tests/bench:collect_cost -- --tensors=1000000
//
// Times of --rounds, on the clock and of the processor: on a machine that others use, too, the
// second says more.

#include <ATen/Functions.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "registry/registry.h"
#include "reporter/mem_reporter.h"

ABSL_FLAG(std::vector<std::string>, tensors, std::vector<std::string>({"50000", "1000000"}),
          "Live tensors, comma-separated.");
ABSL_FLAG(int, rounds, 7, "Reports of each kind.");
ABSL_FLAG(bool, formats, false, "Also write JSON, CSV, HTML and the table.");
ABSL_FLAG(bool, smoke, false, "Few tensors, one round: to see that it runs.");

namespace memledger {
namespace {

double now(clockid_t clock) {
  timespec time{};
  clock_gettime(clock, &time);
  return 1e3 * static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_nsec);
}

std::string least_and_median(std::vector<double> milliseconds) {
  std::sort(milliseconds.begin(), milliseconds.end());
  return fmt::format("{:>8.1f} {:>8.1f}", milliseconds.front(),
                     milliseconds[milliseconds.size() / 2]);
}

// The value is destroyed after the clock has stopped.
template <typename Work>
void time(const char* what, int rounds, const Work& work) {
  std::vector<double> wall, processor;
  for (int i = 0; i < rounds; ++i) {
    const double wall_start = now(CLOCK_MONOTONIC), processor_start = now(CLOCK_PROCESS_CPUTIME_ID);
    [[maybe_unused]] const auto value = work();
    processor.push_back(now(CLOCK_PROCESS_CPUTIME_ID) - processor_start);
    wall.push_back(now(CLOCK_MONOTONIC) - wall_start);
  }
  fmt::print("  {:<28} {}   {}\n", what, least_and_median(std::move(wall)),
             least_and_median(std::move(processor)));
  std::fflush(stdout);
}

int run() {
  if (!Registry::global().activate().ok()) return 1;
  const bool smoke = absl::GetFlag(FLAGS_smoke);
  const int rounds = smoke ? 1 : absl::GetFlag(FLAGS_rounds);
  for (const std::string& text :
       smoke ? std::vector<std::string>{"1000"} : absl::GetFlag(FLAGS_tensors)) {
    const int64_t count = std::stoll(text);
    std::vector<at::Tensor> tensors;
    tensors.reserve(count);
    for (int64_t i = 0; i < count; ++i) tensors.push_back(at::empty({1 + i % 64}));
    MemReporter anonymous;
    MemReporter named;
    for (int64_t i = 0; i < count; i += 10) named.add_tensor("t" + std::to_string(i), tensors[i]);
    fmt::print("{} live tensors, ms          clock: least, median   processor: least, median\n",
               count);
    time("Registry::snapshot()", rounds, [] { return Registry::global().snapshot(); });
    time("collect()", rounds, [&] { return anonymous.collect(); });
    time("collect(), a tenth named", rounds, [&] { return named.collect(); });
    if (!absl::GetFlag(FLAGS_formats) && !smoke) continue;
    const Report report = named.collect();
    time("to_json()", rounds, [&] { return report.to_json(); });
    time("to_csv()", rounds, [&] { return report.to_csv(); });
    time("to_html()", rounds, [&] { return report.to_html(); });
    time("operator<<, 50 rows", rounds, [&] {
      std::ostringstream out;
      out << report;
      return out.str();
    });
  }
  return 0;
}

}  // namespace
}  // namespace memledger

int main(int argc, char** argv) {
  absl::ParseCommandLine(argc, argv);
  return memledger::run();
}
