#pragma once

// Finds whether a sum of bytes, looked at once per step, grows and goes on growing. Knows numbers
// only: no LibTorch, no registry.
//
//   memledger::GrowthSeries series;
//   for (int64_t step = 1; step <= 100; ++step) series.note(step, 4096 * step);
//   const memledger::Growth growth = series.growth(/*now=*/100, memledger::GrowthRule());
//   if (growth.growing) std::cout << growth.bytes_per_step << " bytes per step\n";

#include <cstddef>
#include <cstdint>
#include <vector>

namespace memledger {

struct GrowthRule {
  // First steps, whose changes count as the program's start: they make gradients, optimizer state,
  // the loader's queue and libraries' workspaces. Five leave room for what the second or third step
  // makes.
  int64_t warm_up_steps = 5;
  // Bytes that any one group may grow by. Sums are exact and a leak may be of 4 bytes, so 0; a
  // cache that never fills while the program is watched needs its largest size.
  int64_t tolerance_bytes = 0;
  // Rises that make growth. A group that goes up or down by chance looks like growth at every step
  // n times in a row in 1 of 2^n cases: 10 is 1 in 1024.
  int64_t min_growths = 10;
};

struct Growth {
  bool growing = false;
  // Slope: the median of the slopes between pairs of points (Theil-Sen), which one jump does not
  // bend.
  double bytes_per_step = 0;
  int64_t since_step = 0;   // the first step that ended with more than before, for good
  int64_t grown_bytes = 0;  // since then
};

// Keeps the *floor* of the sum: at each step, the least it has been from then on. The floor rises
// only by what never went away again, so a sawtooth, an evaluation now and then and batches of
// varying size leave it flat.
//
// A plain value. Memory: less than 16 KiB however long it lasts, and next to nothing for what does
// not grow. Rises of long ago are put together, so their steps are known to an eighth of their age.
class GrowthSeries {
 public:
  GrowthSeries() = default;
  // Begins with what is there before the first step that counts.
  explicit GrowthSeries(int64_t bytes) : bytes_(bytes), floor_before_(bytes), highest_(bytes) {}

  // Notes that the sum is `bytes` from the end of `step` on; only needed when it has changed. Steps
  // ascend; a repeated or earlier one counts as the last one's successor. Cost: constant,
  // amortized.
  void note(int64_t step, int64_t bytes);
  // Allocates what the next note() needs, which then does not allocate.
  void make_room();
  // Judges the steps up to and including `now`. The sum is growing if there is a step since which
  // all of this holds:
  // - lasting: the floor rose at least min_growths times, and over min_growths times its longest
  //   pause between two rises. Growth at every 10th step is found as well, only later; a jump, or
  //   a few at random, is none.
  // - going on: the last rise is at most two longest pauses ago, so a cache that is full is steady.
  // - straight: the second half of that time brought at least half of what the first half did,
  //   jumps left aside. Growth like a logarithm or towards a bound ends as steady, growth like a
  //   square root does not.
  // - new ground: after it had come down it is higher than ever since warm-up, by a quarter or more
  //   of that way, so a buffer that fills again is steady until it is clearly larger.
  // - tolerance: the floor rose by more than tolerance_bytes.
  // A cache that fills for the first time looks like a leak: warm_up_steps and tolerance_bytes
  // exclude it.
  Growth growth(int64_t now, const GrowthRule& rule) const;

  int64_t bytes() const { return bytes_; }
  int64_t last_change() const { return last_step_; }
  // Returns how many points are kept in memory.
  size_t points() const { return rises_.size(); }

 private:
  // One rise of the floor, or several that were put together.
  struct Rise {
    int64_t first_step;
    int64_t last_step;
    int64_t count;
    int64_t longest_pause;   // between two of these; 0 for one
    int64_t below;           // floor before the first of these
    int64_t above;           // floor after the last
    int64_t highest_before;  // highest sum before the first
  };
  static void cut(Rise& rise, int64_t bytes);
  static Rise together(const Rise& older, const Rise& newer);
  void thin_out();

  int64_t bytes_ = 0;
  int64_t floor_before_ = 0;  // before the first rise
  int64_t highest_ = 0;
  int64_t last_step_ = 0;
  std::vector<Rise> rises_;  // oldest first, each above the one before
};

}  // namespace memledger
