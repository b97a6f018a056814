#pragma once

// The answer to "why is this tensor's memory still there?".
//
//   memledger::MemReporter reporter(model);
//   const memledger::WhyAlive why = reporter.why(input);
//   std::cout << why << why.held_by_you.value_or(0) << " tensors of your own keep it\n";
//
// A plain value that holds no tensor. A std::optional without a value is unknown, printed as ?.

#include <c10/core/Device.h>

#include <cstddef>
#include <cstdint>
#include <iosfwd>
#include <optional>
#include <string>
#include <vector>

#include "reporter/report.h"

namespace memledger {

// A tensor on the storage that a name leads to.
struct NamedReference {
  std::string name;  // Adam.weight.exp_avg
  Role role = Role::kTensor;
  bool same_tensor = false;  // the tensor asked about itself, not another one on its storage
  // Where that tensor begins in the storage, and how far it reaches; nothing where it is unknown.
  std::optional<int64_t> offset_bytes;
  std::optional<int64_t> extent_bytes;
};

// A slot of the autograd graph that saved a tensor on the storage for the backward pass.
struct SavedReference {
  std::string slot;  // ReluBackward0.result
  // The name of the tensor given to add_graph(), or `graph 1`, `graph 2` … if it has none.
  std::string root;
  // Nodes from the root's to the slot's, both included; empty where edges do not lead there.
  std::vector<std::string> path;
};

struct WhyAlive {
  ReportRow row;  // of the storage, as in a report
  c10::Device device = c10::Device(c10::kCPU);
  std::vector<NamedReference> names;  // by role; gradient and optimizer slots are among them
  std::vector<SavedReference> saved;
  // References to the tensor object asked about: variables, containers, modules, saved slots.
  // Nothing if only a name or number was given, and no living tensor is known by it.
  std::optional<int64_t> tensor_references;
  // Tensor objects on the storage.
  std::optional<int64_t> storage_references;
  // How many of them are known: the one asked about, and those among `names` and `saved`.
  int64_t known_tensors = 0;
  // How many of them nothing registered leads to, the one asked about included: the program holds
  // them in variables, containers, futures, or graphs that were not added.
  std::optional<int64_t> held_by_you;

  // Returns {"schema":"memledger.why_alive/2", …} (docs/formats.md).
  std::string to_json() const;
};

// Print one line, without its end.
std::ostream& operator<<(std::ostream& out, const NamedReference& name);
std::ostream& operator<<(std::ostream& out, const SavedReference& saved);
// Prints the answer, several lines with their ends.
std::ostream& operator<<(std::ostream& out, const WhyAlive& why);

}  // namespace memledger
