#pragma once

// Scopes of the calling thread: labels and phases of what is made in them. They nest.
//
//   memledger::ScopedLabel epoch("epoch 3");
//   {
//     memledger::ScopedLabel encoder("encoder");
//     output = model->forward(input);  // labelled "epoch 3/encoder"
//   }

#include <cstdint>
#include <string>

#include "registry/phase.h"

namespace memledger {

// Appends a label to the thread's path of labels; restores the path when it ends, on the thread
// that made it. Every path is kept for the life of the process: past 65 536 different ones (step
// numbers, request ids) new ones read "(too many names)". Throws std::bad_alloc. Cost: a lock and a
// hash.
class ScopedLabel {
 public:
  explicit ScopedLabel(const std::string& label);
  ~ScopedLabel();
  ScopedLabel(const ScopedLabel&) = delete;
  ScopedLabel& operator=(const ScopedLabel&) = delete;

 private:
  uint32_t before_;
};

// Sets the thread's phase, whatever would be inferred; restores the one before when it ends, on the
// thread that made it. Costs next to nothing.
class ScopedPhase {
 public:
  explicit ScopedPhase(Phase phase);
  ~ScopedPhase();
  ScopedPhase(const ScopedPhase&) = delete;
  ScopedPhase& operator=(const ScopedPhase&) = delete;

 private:
  bool was_set_;
  Phase before_;
};

}  // namespace memledger
