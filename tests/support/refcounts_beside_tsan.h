#pragma once

namespace memledger::testing {

// Announces to the thread sanitizer, for the rest of the process, what LibTorch's reference counts
// order; nothing without the sanitizer. After Registry::activate().
//
// LibTorch is not instrumented, but what it allocates and frees is seen. One thread reads a tensor
// and lets go of it; another then lets go of it last and frees it. The decrements order the two,
// because they acquire and release, but the sanitizer sees only those in our code. Three pairs of
// stacks were looked at, in a report during zero_grad(); in each the reader holds a reference:
// - storage_of() a gradient in a report | operator delete by LibTorch, in
// TensorImpl::release_resources() on the thread that trains
// - operator new by materialize_autograd_meta() on the thread that trains | operator delete in
// release_gradients()
// - can_adopt() an operator's input on the thread that trains | operator delete in
// release_gradients() These edges are announced here, and nothing is suppressed: who reads a tensor
// without a reference is still found.
void tell_tsan_what_refcounts_order();

}  // namespace memledger::testing
