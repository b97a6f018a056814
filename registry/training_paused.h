#pragma once

// A promise by which reports may read gradients and optimizers' states while other threads live.
//
//   memledger::MemReporter reporter(model);
//   const memledger::ScopedTrainingPaused paused;
//   reporter.report();

namespace memledger {

// While one of these lives, calls of memledger's on its thread read gradients and optimizers'
// states as they are, those that the program set by hand as well. You promise that meanwhile no
// other thread runs backward() or step(), nor sets, clears, swaps or replaces a gradient; in a
// child of fork, that none did so when it was made. A broken promise is a use after free.
//
// Without one, memledger reads them if the process has no other thread of the program's; otherwise
// it knows those that backward() and step() made. Destroy it on the thread that made it. Costs next
// to nothing.
class ScopedTrainingPaused {
 public:
  // With false, promises nothing: for an option.
  explicit ScopedTrainingPaused(bool promised = true) noexcept;
  ~ScopedTrainingPaused();
  ScopedTrainingPaused(const ScopedTrainingPaused&) = delete;
  ScopedTrainingPaused& operator=(const ScopedTrainingPaused&) = delete;

  // Returns whether one lives on the calling thread that promises.
  static bool is_promised() noexcept;

 private:
  const bool promised_;
};

}  // namespace memledger
