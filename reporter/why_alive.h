#pragma once

// Why one storage is still there, as a value.
//
//   std::cout << reporter.why(activation);
//   std::cout << reporter.why("Tensor7");          // or layer1.0.conv1.weight, as a report names
//   it
//
// Units: bytes as requested. What nobody knows is a std::optional without a value, shown as ?.
// Holds no tensor. Thread-safety: as any value.

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
  // Where that tensor lies in the storage; nothing where nobody knows.
  std::optional<int64_t> offset_bytes;
  std::optional<int64_t> extent_bytes;
};

// A slot of the autograd graph that saved a tensor on the storage for the backward pass.
struct SavedReference {
  std::string slot;  // ReluBackward0.result
  std::string root;  // the name of the tensor given to add_graph, or `graph 1`, `graph 2` … where
                     // it has none
  // Nodes from the root's to the slot's, both included; empty where edges do not lead there.
  std::vector<std::string> path;
};

struct WhyAlive {
  ReportRow row;  // as in a report
  c10::Device device = c10::Device(c10::kCPU);
  // Further names, gradient and optimizer slots among them, in order of role.
  std::vector<NamedReference> names;
  std::vector<SavedReference> saved;
  // References to the tensor object asked about: variables, containers, modules, saved slots.
  // Nothing if only a name or number of a storage was given that no living tensor is known of.
  std::optional<int64_t> tensor_references;
  // Tensor objects on the storage. Those known are distinct ones among names and saved slots, and
  // the one asked about.
  std::optional<int64_t> storage_references;
  int64_t known_tensors = 0;
  // Tensor objects that nothing registered leads to, the one asked about included if nothing does:
  // held by the program, by variables, containers, futures, or graphs that were not added.
  std::optional<int64_t> held_by_you;

  std::string to_json() const;
};

// One line, without its end.
std::ostream& operator<<(std::ostream& out, const NamedReference& name);
std::ostream& operator<<(std::ostream& out, const SavedReference& saved);
std::ostream& operator<<(std::ostream& out, const WhyAlive& why);

}  // namespace memledger
