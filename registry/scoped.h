#pragma once

// Scopes of the calling thread. They nest; each restores what it found when it ends, on the thread
// that opened it.
//
//   memledger::ScopedLabel epoch("epoch 3");
//   { memledger::ScopedLabel encoder("encoder"); ... }        // storages made here carry the label
//   "epoch 3/encoder" { memledger::ScopedPhase step(memledger::Phase::kOptimizer);
//   optimizer.step(); }
//
// A label that differs at each pass (a step number, a request id) is kept for the life of the
// process; past 65 536 different paths the label reads "(too many names)". Cost: one lock and one
// hash for a label, nothing to speak of for a phase.

#include <cstdint>
#include <string>

#include "registry/phase.h"

namespace memledger {

class ScopedLabel {
 public:
  explicit ScopedLabel(const std::string& label);
  ~ScopedLabel();
  ScopedLabel(const ScopedLabel&) = delete;
  ScopedLabel& operator=(const ScopedLabel&) = delete;

 private:
  uint32_t before_;
};

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
