#pragma once

// Tests that link this have an `operator new` that can refuse, on the calling thread and as they
// say. Each is a binary of its own.

#include <cstdint>
#include <new>

namespace memledger::testing {

enum class Refused {
  kProgram,  // who calls from this executable: memledger, which is linked into it, and not
             // LibTorch, which is not
  kAll,
};

// While it lives, the calling thread's allocation number `which` from here on fails, and no other
// one. 0 is the first.
class OneFailingAllocation {
 public:
  explicit OneFailingAllocation(int64_t which, Refused whose = Refused::kProgram);
  ~OneFailingAllocation();
  OneFailingAllocation(const OneFailingAllocation&) = delete;
  OneFailingAllocation& operator=(const OneFailingAllocation&) = delete;
};

// While it lives, each allocation of the calling thread from this executable fails.
class NoMemory {
 public:
  NoMemory();
  ~NoMemory();
  NoMemory(const NoMemory&) = delete;
  NoMemory& operator=(const NoMemory&) = delete;
};

// On all threads, so far.
int64_t refused_allocations();

// Calls `read` with its first allocation failing, then its second, and so on until it comes
// through. After each failure `after_failure(which)` looks at what is left, and ends it by an
// exception. Returns how often it failed.
template <typename Read, typename AfterFailure>
int until_it_succeeds(const Read& read, const AfterFailure& after_failure,
                      Refused whose = Refused::kProgram) {
  for (int which = 0;; ++which) {
    try {
      const OneFailingAllocation one(which, whose);
      read();
      return which;
    } catch (const std::bad_alloc&) {
    }
    after_failure(which);
  }
}

}  // namespace memledger::testing
