#pragma once

// Gradients of leaves, for readers on any thread.
//
// A program sets a gradient to none, or to another tensor, without a lock and without an operator:
// another thread that copies it meanwhile may copy a tensor that ends. So each is noted where it is
// made, at the end of its AccumulateGrad node and on the thread that ran it, by a weak reference. A
// note is believed while the leaf still points to that tensor, whose address the weak reference
// keeps from being used again. The gradient itself is read only where nobody else can be setting
// it: LiveRead.

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "registry/core/lock.h"

namespace memledger {

// Guards this copy's notes. No other lock is taken while it is held, except by the registry before
// a fork.
core::Lock& training_notes_lock();

// Whether the calling thread may read gradients and optimizers' states as they are: it has promised
// that nobody else touches them (ScopedTrainingPaused), or the process has no other thread of the
// program's (core::OtherThreads). Only the outermost one of a thread looks at the threads: make one
// around many reads, in which the program is not called.
class LiveRead {
 public:
  LiveRead() noexcept;
  ~LiveRead();
  LiveRead(const LiveRead&) = delete;
  LiveRead& operator=(const LiveRead&) = delete;
  explicit operator bool() const noexcept { return may_; }

 private:
  bool may_;
};

// Asks the copy of memledger that watches, as only its hooks see gradients made.
class GradientNotes {
 public:
  // Backward passes note gradients while one of these lives.
  class Wanted {
   public:
    Wanted();
    ~Wanted();
    Wanted(const Wanted&) = delete;
    Wanted& operator=(const Wanted&) = delete;
  };

  // Notes the gradient that `leaf` has now. On a thread that may read it.
  static void note(const at::Tensor& leaf);
  // Notes the gradient that the calling thread's running node, an AccumulateGrad, has added to. For
  // the hooks.
  static void note_running_node();

  // Returns the leaf's gradient if it was noted and is still the same, undefined otherwise. On any
  // thread; reads nothing that another thread may change. Let go of the strong reference soon.
  static at::Tensor find(const at::Tensor& leaf);
};

// The answers of CopyServices in the copy that watches.
void want_gradients_here(bool wanted) noexcept;
void note_gradient_here(const at::Tensor& leaf);
at::Tensor noted_gradient_here(const at::Tensor& leaf);

// Returns the gradient as far as the calling thread may know it: read where it may be, else as
// noted. Undefined: none, or unknown.
at::Tensor gradient_of(const at::Tensor& leaf);
// Returns whether the leaf has a gradient at this moment, whoever is setting it: looks at the
// address in the leaf, not behind it.
bool seems_to_have_gradient(const at::Tensor& leaf) noexcept;

// A gradient is in its slot some moments before it is noted, on the thread that made it. Waits for
// notes, for two milliseconds in all.
class NotesAwaited {
 public:
  // Returns the leaf's gradient once it is noted; undefined where none is, or the time is up.
  at::Tensor find(const at::Tensor& leaf);

 private:
  int64_t deadline_ns_ = 0;  // 0: it has not begun
};

}  // namespace memledger
