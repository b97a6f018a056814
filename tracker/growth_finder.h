#pragma once

// Finds which storages grow in number or size step after step, and where they were made.
//
//   memledger::GrowthFinder finder;
//   for (const Batch& batch : loader) {
//     train(batch);
//     finder.step();                                    // a step, a request, a minute: whatever
//     should leave nothing behind
//   }
//   std::cout << finder.report();
//
//   growing 12.0 KiB per step since step 40
//     12.0 KiB per step since step 40: aten::mul [replay, forward] (1024, 3) torch.float32 on cpu,
//     732.0 KiB in 61 storages
//
//   CHECK(memledger::no_growth(finder));                // in a test: doctest; EXPECT_TRUE(…) in
//   googletest
//
// Live storages are looked at when step() is called, in groups of one device, operator, autograd
// node, label, phase, shape and dtype, and where a stack was taken of every storage or of all above
// a size (RegistryOptions::stacks), of one stack: then the row ends with the program's line, `at
// replay.cc:17 ReplayBuffer::push`. Sampled stacks cut only groups of storages so large that all of
// them are taken, as else growth would be seen in a part. A storage keeps the group it was first
// seen in. When growth is spread over many such groups (a buffer of sequences of all lengths, a
// label per request), it shows in the sum of all that one operator made, and is told as that: `of
// several shapes or labels`; failing that, as `all of cpu`. growth_series.h says which groups count
// as growing, and why. Storages adopted from before tracking count as no growth.
//
// Memory that a program gives back between two calls of step() is never seen, so call it where
// little is alive: after backward, after the response was sent. With requests side by side, one
// call per finished request is right: what the others have in flight goes up and down, and only
// what stays is growth. For growth in time call step() from a timer and set `unit`.
//
// Not seen: memory that is not LibTorch's, such as the nodes of an autograd graph that holds no
// tensors.
//
// Thread-safety: every function may be called from any thread. Errors: where
// tracking cannot be had, a line on standard error says why, and the verdict is unknown. All throw
// std::bad_alloc without memory: a step() that did
// was no step, and the next one counts what it could not. Ownership: holds no tensor; activates the
// registry while it lives. Cost: step() by the storages born and freed since the last one, not by
// those alive; report() by the number of groups, some microseconds each, and for rows of stacks
// what looking up their lines takes (registry/stacks.h); step() on other threads does not wait for
// that. Memory: 56 bytes or so per live storage (and what the registry keeps for a cursor), some
// hundred bytes per group, and up to 16 KiB for one that grows.

#include <cstddef>
#include <cstdint>
#include <iosfwd>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tracker/growth_series.h"
#include "tracker/storage_group.h"
#include "tracker/test_verdict.h"

namespace memledger {

struct GrowthOptions {
  GrowthRule rule;
  std::optional<c10::Device> device;  // nothing: all
  // Of what step() ends one, as it is to read in reports: "request", "minute".
  std::string unit = "step";
  // Beyond that many, groups that have emptied are forgotten; if there are none, a new group counts
  // in the sums only.
  size_t max_groups = 4096;
};

// How much a row takes together.
enum class GrowthLevel : uint8_t { kStack, kGroup, kOperator, kDevice };

struct GrowthRow {
  GrowthLevel level = GrowthLevel::kGroup;
  // Its stack is of kStack only. Of kOperator: device, op, autograd_node and phase only; of
  // kDevice: the device only.
  StorageGroup place;
  Growth growth;
  int64_t bytes = 0;  // alive at the last step, as requested
  int64_t count = 0;  // storages

  // aten::mul [replay, forward] (1024, 3) torch.float32 on cpu; symbolizes the stack of a kStack
  // row.
  std::string where() const;
};

// steady, or growing 12.0 KiB per step since step 40
std::string verdict_text(const Growth& growth, const std::string& unit = "step");

struct GrowthReport {
  std::vector<GrowthRow> rows;  // those that grow, the fastest first
  std::string unit = "step";
  int64_t steps = 0;         // so far
  int64_t steps_needed = 0;  // before anything can be said
  size_t groups = 0;         // looked at
  // New groups that had no place of their own, see max_groups.
  int64_t groups_left_out = 0;

  bool tracked = true;  // false: the registry is not active, so nothing can be said

  bool known() const { return tracked && steps >= steps_needed; }
  bool growing() const { return !rows.empty(); }
  // Of all rows together: the sum of their slopes, since the first of their steps. `unknown: 7 of
  // at least 15 steps` when it is too early to tell.
  std::string verdict() const;
  // One object with "schema" and "version"; fixed keys, bytes as integers, null for unknown.
  std::string to_json() const;
};

// The verdict, then a line per row, at most 20 of them; without the last line's end.
std::string to_string(const GrowthReport& report);
std::ostream& operator<<(std::ostream& out, const GrowthReport& report);

class GrowthFinder {
 public:
  // What is alive now is there before step 1.
  explicit GrowthFinder(GrowthOptions options = {});
  ~GrowthFinder();
  GrowthFinder(const GrowthFinder&) = delete;
  GrowthFinder& operator=(const GrowthFinder&) = delete;

  // Ends a step; the first call ends step 1.
  void step();
  GrowthReport report() const;

 private:
  class Groups;
  std::unique_ptr<Groups> groups_;
};

// Fails if something grows, and if there were too few steps to tell.
TestVerdict no_growth(const GrowthReport& report);
TestVerdict no_growth(const GrowthFinder& finder);

}  // namespace memledger
