#pragma once

// Which results of operators a C++ program keeps from one step to the next, and what their graphs
// hold: C++ shows nothing of its variables and containers.
//
// Results are looked at in the first steps, and from then on in steps that are powers of two, as
// long as one thread alone trains; graphs are walked on that thread only. Nothing is kept alive.
// Any thread may call these functions.

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <unordered_map>
#include <vector>

namespace memledger::inside {

// What keeps a storage, by StorageInfo::id: `MulBackward0.self in the graph of aten::sum [step 2]`,
// or, where a result's own graph alone holds it, `a cycle: aten::mul -> its graph -> NODE.SLOT`.
using HoldersById = std::unordered_map<uint64_t, std::vector<std::string>>;

// Returns the line that made a storage, `/home/me/train.cc:88 main`; empty: not known.
using LineOfStorage = std::function<std::string(uint64_t)>;

// How often graphs hold a tensor, by its address.
using SavedCounts = std::unordered_map<uintptr_t, int64_t>;

// So many graphs are walked when a step ends; for a report more, for 0.2 seconds at most.
inline constexpr size_t kMaxGraphs = 16;

// Adds what the graph of `root` holds, each storage once, as `NODE.SLOT in the graph of NAME`.
// Nothing if backward() has freed it. Threads: see saved_for_backward().
void add_graph(HoldersById& holders, const at::Tensor& root, const std::string& name,
               SavedCounts* counts = nullptr);

// Looks at results from now on: LibTorch then boxes inputs and results of each operator.
void look_at_results() noexcept;

// A step of an optimizer has ended on this thread. What is alive from an earlier one is kept by the
// program: walks the graphs of the newest 16 such results.
void note_end_of_step() noexcept;

// Adds what kept results held when a step ended, and what they hold now if the calling thread is
// the one that trains: from the newest on, until the time is over. Throws std::bad_alloc.
void add_kept_results(HoldersById& holders, const LineOfStorage& line_of);

}  // namespace memledger::inside
