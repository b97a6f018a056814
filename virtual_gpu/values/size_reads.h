#pragma once

// Sizes that only the device knows: how many elements of a mask are true, how many values differ.
//
// LibTorch's operators read them back in the middle and allocate by them. On a virtual GPU such a
// read gets a size from here. It is exact if the operator's input is known. Otherwise it is the
// size that the program's other shapes demand (x[mask] = values), else the one of the
// specification's `reads=`. LibTorch then makes all allocations of that size itself. What else the
// host reads without knowing it gets a likely value (likely.h), or what this run is to assume
// (assumptions.h). All such reads are in a list at exit, on standard error.
//
// Begins by itself where a virtual GPU is there.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "virtual_gpu/values/size_loops.h"

namespace memledger::virtual_gpu {

// Says whether this thread's copies to the host are memledger's own from now on, and so no reads
// of the program's. Returns what was said before.
extern "C" __attribute__((visibility("default"))) int memledger_note_own_copies(int are_own);

enum class ReadKind : uint8_t {
  kAssumedSize,    // the policy's
  kUnboundedSize,  // no largest size follows from the shapes: one was taken that may be too small
  kNumber,         // a whole number, as of item<int64_t>(): it may become a size
  kReceived,       // a whole number that other ranks sent, taken to be this one's own
  kFraction,       // may become a size, too, or steer what runs
  kScalar,         // a truth: it may steer what runs
  kSaid,           // any of these where the user has said what it is
};

struct ReadRow {
  std::string op;  // "aten::nonzero", or "aten::nonzero in aten::index"
  ReadKind kind = ReadKind::kScalar;
  uint64_t count = 0;
  // The new storages that the outermost operators returned, all runs together.
  uint64_t dependent_bytes = 0;
  std::string where;  // the line of the first; may be empty
  // Where a number, a fraction or a truth is assumed: which read of the program it is, the same in
  // each run, and what the first was assumed to be. Empty: nothing else can be assumed.
  std::string site;
  double assumed = 0;
  // Where a size is capped as it drives a loop (size_loops.h): what it would have been, and the
  // line of the loop; 0: it is not.
  uint64_t before_cap = 0;
  std::string loop;
  uint64_t last_read = 0;  // of all reads of the process, from 1, the number of its last one
};

// Rows so far: sizes first and by bytes, then numbers. Lines of C++ take a while to look up;
// without them `where` is empty.
std::vector<ReadRow> unknown_reads(bool with_lines = true);

// Returns the first loop of a program that is measured that an assumed size drives and that would
// not end in time; nothing for most. Cheap; any thread.
std::optional<SizeLoop> found_size_loop();
// An optimizer has stepped: what is read from one step to the next is no such loop.
void forget_size_loops();

}  // namespace memledger::virtual_gpu
