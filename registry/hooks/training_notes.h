#pragma once

// Gradients of leaves, for readers beside the threads that train them.
//
// A program sets a gradient to none, or to another tensor, without a lock and without telling
// anybody: who copies it on another thread meanwhile may copy a tensor that ends. So it is noted
// where it is made, at the end of its AccumulateGrad node and on the thread that ran it, by a weak
// reference. A note is believed as long as the leaf still points to that tensor, whose address the
// weak reference keeps from being used again.

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "registry/core/lock.h"

namespace memledger {

// Guards this copy's notes. No other lock is taken while it is held, but by the registry before a
// fork.
core::Lock& training_notes_lock();

// These three and GradientNotes ask the copy of memledger that watches, as only its hooks see who
// trains. Threads are numbered as by this_thread_number().

// Returns whether the calling thread may read what training threads set: no other live thread was
// seen to train. False where this copy was refused, as it sees none.
bool no_other_thread_trains() noexcept;
bool trains(uint32_t thread) noexcept;
void note_that_this_thread_trains() noexcept;

class GradientNotes {
 public:
  // Backward passes take notes while one of these lives.
  class Wanted {
   public:
    Wanted();
    ~Wanted();
    Wanted(const Wanted&) = delete;
    Wanted& operator=(const Wanted&) = delete;
  };

  // The gradient that `leaf` has now. On a thread that may read it.
  static void note(const at::Tensor& leaf);
  // The gradient that the node which the calling thread runs, an AccumulateGrad, has added to. For
  // the hooks.
  static void note_running_node();

  // The leaf's gradient if it was noted and still is, undefined else. On any thread; nothing that
  // another thread may change is looked into. The reference is strong: let go of it soon.
  static at::Tensor find(const at::Tensor& leaf);
};

// What CopyServices of the copy that watches answers with.
void want_gradients_here(bool wanted) noexcept;
void note_gradient_here(const at::Tensor& leaf);
at::Tensor noted_gradient_here(const at::Tensor& leaf);

// The gradient as the calling thread may know it: as noted, else read where no other thread trains.
// In this order, as another thread may begin to, and set to none what was noted. Undefined: none,
// or unknown.
at::Tensor gradient_of(const at::Tensor& leaf);

}  // namespace memledger
