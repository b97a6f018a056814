#pragma once

// Gradients of leaves, for readers on other threads than those that train them.
//
// A program sets a gradient to none, or to another tensor, without a lock and without an operator:
// another thread that copies it meanwhile may copy a tensor that ends. So each is noted where it is
// made, at the end of its AccumulateGrad node and on the thread that ran it, by a weak reference. A
// note is believed while the leaf still points to that tensor, whose address the weak reference
// keeps from being used again.

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "registry/core/lock.h"

namespace memledger {

// Guards this copy's notes. No other lock is taken while it is held, except by the registry before
// a fork.
core::Lock& training_notes_lock();

// These three and GradientNotes ask the copy of memledger that watches, as only its hooks see who
// trains. Threads are numbered as by this_thread_number().

// Returns whether the calling thread may read what training threads set: no other live thread was
// seen to train. False where this copy was refused, as it sees none.
bool no_other_thread_trains() noexcept;
bool trains(uint32_t thread) noexcept;

// Whether the calling thread may read what training threads set: no_other_thread_trains(), and a
// thread that begins to meanwhile waits. For some microseconds: a thread that waits for too long
// goes on.
class TrainingRead {
 public:
  TrainingRead() noexcept;
  ~TrainingRead();
  TrainingRead(const TrainingRead&) = delete;
  TrainingRead& operator=(const TrainingRead&) = delete;
  explicit operator bool() const noexcept { return may_; }

 private:
  const bool may_;
};

void note_that_this_thread_trains() noexcept;

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

// Returns the gradient as far as the calling thread may know it: as noted, else read where no other
// thread trains. In this order, as another thread may begin to train and set to none what was
// noted. Undefined: none, or unknown.
at::Tensor gradient_of(const at::Tensor& leaf);

}  // namespace memledger
