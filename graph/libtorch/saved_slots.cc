#include "graph/libtorch/saved_slots.h"

#include <typeindex>

#include "absl/container/flat_hash_map.h"

namespace memledger::graph_internal {
namespace {

using Table = absl::flat_hash_map<std::type_index, VisitFunction>;

const Table& table() {
  static const Table* const kTable = [] {
    auto* table = new Table;
    table->reserve(saved_slot_type_count());
    for (size_t i = 0; i < saved_slot_type_count(); ++i) {
      const SavedSlotType& entry = saved_slot_types()[i];
      table->emplace(std::type_index(*entry.type), entry.visit);
    }
    return table;
  }();
  return *kTable;
}

}  // namespace

void visit_nothing(const torch::autograd::Node& /*node*/, SavedSlotVisitor& /*visitor*/) {}

VisitFunction find_visit_function(const std::type_info& type) {
  const auto entry = table().find(std::type_index(type));
  return entry == table().end() ? nullptr : entry->second;
}

}  // namespace memledger::graph_internal
