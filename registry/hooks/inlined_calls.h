#pragma once

// Source lines of code from its debug information (DWARF), inlined calls among them. No LibTorch.
//
// elfutils' libdw reads it, which is loaded when a line is first asked for and need not be there.
// LibTorch's own symbolizer knows no inlined calls.

#include <cstdint>
#include <vector>

#include "registry/stacks.h"

namespace memledger {

// Thread-safe; one thread at a time reads. The first line of a source file that was compiled with
// all of LibTorch's headers takes some 100 ms. What was read is kept up to kMaxBytes, then
// forgotten.
class InlinedCalls {
 public:
  static constexpr size_t kMaxBytes = size_t{256} << 20;

  // Returns whether libdw is there.
  static bool are_known() noexcept;

  // Returns the frames at each return address, innermost first: the calls that were inlined there,
  // then the function that has a frame on the stack. None where libdw or debug information is
  // missing, and in LibTorch's and the system's libraries, which are large and nobody's own. A
  // function that other source files do not see, such as a lambda, has its bare name.
  static std::vector<std::vector<StackFrame>> frames_at(const std::vector<void*>& addresses);

  // Returns addresses in [begin, end) as return addresses, one for each part of the code that has
  // the same frames; none where frames_at() has none.
  static std::vector<void*> places(uintptr_t begin, uintptr_t end);

  // Called around fork.
  static void lock_for_fork();
  static void unlock_after_fork();
};

}  // namespace memledger
