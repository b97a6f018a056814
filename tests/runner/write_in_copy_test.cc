// What a copy of this process writes, and how often.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "runner/inside/write_in_copy.h"

#include <doctest/doctest.h>
#include <sys/mman.h>

#include <atomic>
#include <cstdlib>
#include <new>

namespace memledger::inside {
namespace {

// Seen by the copies, too.
struct Seen {
  std::atomic<int> first{0}, second{0};
  bool says_so = false;
};

Seen& new_seen() {
  void* const memory =
      mmap(nullptr, sizeof(Seen), PROT_READ | PROT_WRITE, MAP_ANONYMOUS | MAP_SHARED, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  return *new (memory) Seen;
}

// The first part ends its copy after it has written, as one does that gives memory back.
void write(void* context, int part) {
  Seen& seen = *static_cast<Seen*>(context);
  if (part == 1) {
    ++seen.second;
    return;
  }
  ++seen.first;
  if (seen.says_so) part_is_written();
  std::abort();
}

CopyResult write_both(Seen& seen) {
  CopyWork work;
  work.write = &write;
  work.context = &seen;
  work.parts = 2;
  work.finishes_calls = false;
  return write_in_copy(work);
}

TEST_CASE("a part that fails once it is written is not written again") {
  prepare_copies();
  Seen& seen = new_seen();
  seen.says_so = true;
  CHECK(write_both(seen) == CopyResult::kDone);
  CHECK(seen.first == 1);
  CHECK(seen.second == 1);
}

TEST_CASE("one that fails before is tried again, and then left out") {
  Seen& seen = new_seen();
  CHECK(write_both(seen) == CopyResult::kFailed);
  CHECK(seen.first > 1);
  CHECK(seen.second == 1);
}

TEST_CASE("outside of a copy nothing is said") {
  CHECK_FALSE(is_copy());
  part_is_written();
}

}  // namespace
}  // namespace memledger::inside
