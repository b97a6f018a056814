#pragma once

// The holders of what is still alive in a Python program, as a search finds them
// (runner/inside/python_holders.py): variables, attributes, frames, and the graphs of the tensors
// that those lead to.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "reporter/report.h"

namespace memledger::inside {

// In which way: the advice depends on it.
enum class HeldBy : uint8_t { kVariable, kGraph, kException, kCycle };

// One search at a time, by a thread that has Python's lock. Tensors stay alive until end_search().
// None throws: without memory, holders are missing.

// Has begin_search() search; before, nobody would report what it finds.
void want_holders() noexcept;
// Begins a search for the holders of every row without a name. Returns how many there are.
int begin_search() noexcept;
// Returns the tensor's storage if it is sought, else 0. The program reaches it: `key` is the
// caller's number of it. -1: it is not known whether it does.
uint64_t look_at(const at::Tensor& tensor, int key) noexcept;
// Whether it is one of the largest sought, and nothing holds it yet.
bool is_missing(uint64_t storage) noexcept;
int count_missing() noexcept;
// Notes that `text` leads to it: losses[3]. `about` is what the advice names: the tensor whose
// graph it is, the exception, ctx's attribute.
void add_found(uint64_t storage, HeldBy how, const char* text, const char* about) noexcept;
// Looks into the graphs of all tensors that were looked at, the outermost first. Returns how many
// of those sought they have saved; saved_in_graph() is for one.
int find_in_graphs() noexcept;
struct SavedInGraph {
  uint64_t storage = 0;
  int root = -1;     // its key
  std::string slot;  // MulBackward0.self
};
const SavedInGraph& saved_in_graph(int number) noexcept;
// The search's results take the place of those of the last one.
void end_search() noexcept;

// Forgets the results, which are of another moment.
void forget_holders() noexcept;
// Whether there are results.
bool looked_up_holders() noexcept;

// Fills in ReportRow::held_by of anonymous rows, by the ids of storages, with one look for all.
void add_holders_to(std::initializer_list<Report*> reports);

// Returns what would free the most of the device's rows, one line each; empty where nothing stands
// out.
std::vector<std::string> advice_on_holders(const DeviceReport& device);

}  // namespace memledger::inside
