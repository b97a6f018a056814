// The saved slots of LibTorch's generated backward nodes.
//
//   if (VisitFunction visit = find_visit_function(typeid(node))) visit(node, visitor);
//
// Shows the fields only: no hook runs, nothing is unpacked. The functions are generated when
// memledger is built (generate_saved_slots.py). Thread-safe.

#pragma once

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/saved_variable.h>

#include <cstddef>
#include <typeinfo>
#include <vector>

namespace memledger::graph_internal {

// Slot names are string literals without the trailing underscore.
class SavedSlotVisitor {
 public:
  virtual ~SavedSlotVisitor() = default;
  virtual void one(const char* name, const torch::autograd::SavedVariable& slot) = 0;
  // `released`: backward has freed the list, which is then empty.
  virtual void list(const char* name, const std::vector<torch::autograd::SavedVariable>& slots,
                    bool released) = 0;
};

using VisitFunction = void (*)(const torch::autograd::Node&, SavedSlotVisitor&);

// Does nothing: for the nodes that save nothing.
void visit_nothing(const torch::autograd::Node& node, SavedSlotVisitor& visitor);

struct SavedSlotType {
  const std::type_info* type;
  VisitFunction visit;
};

// Returns the function for nodes of exactly this type, visit_nothing() for those that save nothing;
// null for a type that LibTorch does not generate.
VisitFunction find_visit_function(const std::type_info& type);

// Defined in the generated file.
const SavedSlotType* saved_slot_types();
size_t saved_slot_type_count();

}  // namespace memledger::graph_internal
