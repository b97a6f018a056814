#pragma once

// Finds which storages grow in number or size step after step, and where they are made. See
// docs/it_grows.md.
//
//   memledger::GrowthFinder finder;
//   for (int step = 0; step < 60; ++step) {
//     model->forward(input).sum().backward();
//     finder.step();
//   }
//   std::cout << finder.report() << '\n';

#include <cstddef>
#include <cstdint>
#include <iosfwd>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tracker/growth_series.h"
#include "tracker/storage_group.h"
#include "tracker/test_verdict.h"

namespace memledger {

struct GrowthOptions {
  GrowthRule rule;
  // Device to look at; nothing: all.
  std::optional<c10::Device> device;
  // Noun for one interval in reports: "request", "minute".
  std::string unit = "step";
  // Groups kept at a time. Beyond that, empty ones are forgotten; where there are none, new ones
  // count in the sums only.
  size_t max_groups = 4096;
};

// What the storages of one row have in common. Rows of the higher levels are for growth that is
// spread over many groups, such as a buffer of sequences of all lengths.
enum class GrowthLevel : uint8_t {
  kStack,     // a group and one call stack
  kGroup,     // device, operator, autograd node, phase, label, shape, dtype
  kOperator,  // device, operator, autograd node, phase
  kDevice,    // the device
};

// Returns stack, group, operator or device.
constexpr std::string_view to_string(GrowthLevel level) {
  switch (level) {
    case GrowthLevel::kStack:
      return "stack";
    case GrowthLevel::kGroup:
      return "group";
    case GrowthLevel::kOperator:
      return "operator";
    case GrowthLevel::kDevice:
      break;
  }
  return "device";
}

struct GrowthRow {
  GrowthLevel level = GrowthLevel::kGroup;
  // What the level fixes; the rest is empty.
  StorageGroup group;
  Growth growth;
  int64_t bytes = 0;  // alive at the last step, as requested
  int64_t count = 0;  // storages alive at the last step

  // Returns aten::mul [replay, forward] (1024, 3) torch.float32 on cpu. Looks up the program's line
  // for a kStack row, which may take 100 ms.
  std::string where() const;
};

// Returns `steady`, or `growing 12.0 KiB per step since step 40`.
std::string verdict_text(const Growth& growth, const std::string& unit = "step");

struct GrowthReport {
  std::vector<GrowthRow> rows;  // those that grow, the fastest first
  std::string unit = "step";
  int64_t steps = 0;            // so far
  int64_t steps_needed = 0;     // before anything can be said
  size_t groups = 0;            // looked at
  int64_t groups_left_out = 0;  // new ones beyond GrowthOptions::max_groups
  bool tracked = true;          // false: the registry is not active, so nothing can be said

  bool known() const { return tracked && steps >= steps_needed; }
  bool growing() const { return !rows.empty(); }
  // Returns verdict_text() of all rows together: the sum of their slopes, since the first of their
  // steps. `unknown: 7 of at least 15 steps` if it is too early to say.
  std::string verdict() const;
  // Returns one JSON object, memledger.growth/2 in docs/formats.md.
  std::string to_json() const;
};

// Returns the verdict and a line per row, at most 20 of them, without the last line's end.
std::string to_string(const GrowthReport& report);
std::ostream& operator<<(std::ostream& out, const GrowthReport& report);

// Groups the storages alive at each step() by device, operator, autograd node, phase, label, shape
// and dtype, and by call stack unless stacks are sampled (RegistryOptions::stacks). Misses what is
// born and freed between two steps; ignores adopted storages. growth_series.h says what counts as
// growing.
//
// Thread-safety: call any function from any thread. Ownership: holds no tensor. Functions throw
// std::bad_alloc if memory runs out; such a step() does not count, and the next one makes up for
// it. Memory: some 56 bytes per live storage, a few hundred per group, up to 16 KiB for a group
// that grows.
class GrowthFinder {
 public:
  // Activates the registry while the finder lives. Where tracking cannot be had, the verdict is
  // unknown. What is alive now is there before step 1.
  explicit GrowthFinder(GrowthOptions options = {});
  ~GrowthFinder();
  GrowthFinder(const GrowthFinder&) = delete;
  GrowthFinder& operator=(const GrowthFinder&) = delete;

  // Ends a step. Call it where little is alive: after backward, after a response was sent, or from
  // a timer. Cost grows with the storages born and freed since the last one.
  void step();
  // Returns what grows now. Cost: some microseconds per group, and looking up the lines of kStack
  // rows; step() on other threads does not wait for those.
  GrowthReport report() const;

 private:
  class Groups;
  std::unique_ptr<Groups> groups_;
};

// Fail if something grows, after too few steps, and if tracking is off.
TestVerdict no_growth(const GrowthReport& report);
TestVerdict no_growth(const GrowthFinder& finder);

}  // namespace memledger
