#include "registry/record_values.h"

#include "registry/state.h"

namespace memledger {

Birthplace birthplace_value(const core::Birthplace& birthplace) {
  const RegistryState& state = RegistryState::get();
  Birthplace value;
  value.op = state.names.name(birthplace.op);
  value.autograd_node = state.names.name(birthplace.autograd_node);
  value.label = state.labels.name(birthplace.label);
  value.forward_op = state.names.name(birthplace.forward_op);
  value.forward_label = state.labels.name(birthplace.forward_label);
  value.parameter = birthplace.parameter;
  value.thread = birthplace.thread;
  value.phase = birthplace.phase;
  value.phase_inferred = birthplace.phase_inferred;
  return value;
}

}  // namespace memledger
