#pragma once

// Whether a sum of bytes, looked at once per step, grows and goes on growing. Knows numbers only:
// no LibTorch, no registry.
//
//   memledger::GrowthSeries series;
//   series.note(/*step=*/6, 4096);                       // only where the sum has changed
//   ...
//   memledger::Growth growth = series.growth(/*now=*/100, rule);
//   growth.growing, growth.bytes_per_step, growth.since_step
//
// The rule looks at the *floor*: at each step, the least the sum has been from then on. It rises
// only by what never went away again, so a sawtooth, an evaluation now and then and batches of
// varying size leave it flat.
//
//    bytes   ╱╲  ╱╲    ╱        the floor rose where the line below has a step
//          ╱   ╲╱  ╲╱╲╱
//          ▁▁▁▁▁▁▂▂▂▂▃▃▃
//
// Growing means that there is a step since which all of this holds:
//   lasting     The floor rose at least min_growths times, and over min_growths times its longest
//   pause between two rises. So
//               growth at every 10th step is found as growth at every step is, only later; one
//               jump, or a few at random, is not.
//   going on    The last rise is at most two longest pauses ago: a cache that is full now is
//   steady. straight    The second half of that time brought at least half of what the first half
//   brought (jumps left aside), so growth
//               like a logarithm, or towards a bound, ends as steady. Growth like a square root
//               counts as growth.
//   new ground  If the sum had come down before, it is now higher than ever (after warm-up), by a
//   quarter of the way that it
//               had come down or more: a buffer that fills again is steady until it is clearly
//               larger than when it was emptied.
//   tolerance   The floor rose by more than tolerance_bytes.
// What is still filling for the first time cannot be told from a leak: warm_up_steps and
// tolerance_bytes are for that.
//
// Units: bytes; slopes in bytes per step, the median of slopes between pairs of points (Theil-Sen),
// which one jump does not bend. Thread-safety: as a plain value. Errors: none. Cost: a change takes
// constant time, amortized. Memory: less than 16 KiB however long it lasts, and next to nothing for
// what does not grow: rises of long ago are put together, so a step of long ago is known to an
// eighth of its age only.

#include <cstddef>
#include <cstdint>
#include <vector>

namespace memledger {

struct GrowthRule {
  // Steps whose changes count as the program's start. The first steps make gradients and optimizer
  // state, fill the loader's queue and the libraries' workspaces; five leave room for what is made
  // in the second or third.
  int64_t warm_up_steps = 5;
  // What any one group may grow by unremarked. 0, as sums are exact and a leak may be of 4 bytes;
  // set it to the largest size of a cache that never is full while the program is watched.
  int64_t tolerance_bytes = 0;
  // Of a group that goes up or down by chance, 1 in 2^n looks like growth at every step n times in
  // a row: 10 is 1 in 1024.
  int64_t min_growths = 10;
};

struct Growth {
  bool growing = false;
  double bytes_per_step = 0;
  int64_t since_step = 0;   // the first step that ended with more than there was before, for good
  int64_t grown_bytes = 0;  // since then
};

class GrowthSeries {
 public:
  GrowthSeries() = default;
  // What is there before the first step that counts, and the most there was so far.
  explicit GrowthSeries(int64_t bytes) : bytes_(bytes), floor_before_(bytes), highest_(bytes) {}

  // From the end of `step` on it is `bytes`. Steps ascend; a repeated or earlier one is taken for
  // the last one's successor.
  void note(int64_t step, int64_t bytes);
  // The next note() needs no memory then, unlike others.
  void make_room();
  // Of the steps up to and including `now`.
  Growth growth(int64_t now, const GrowthRule& rule) const;

  int64_t bytes() const { return bytes_; }
  int64_t last_change() const { return last_step_; }
  size_t points() const { return rises_.size(); }  // kept in memory

 private:
  // One rise of the floor, or several that were put together.
  struct Rise {
    int64_t first_step;
    int64_t last_step;
    int64_t count;
    int64_t longest_pause;   // between two of these; 0 for one
    int64_t below;           // the floor before the first of these
    int64_t above;           // and after the last
    int64_t highest_before;  // of all steps before the first
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
