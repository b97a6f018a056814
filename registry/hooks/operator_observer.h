#pragma once

#include "registry/registry.h"

namespace memledger {

// Observes every dispatched operator (at::RecordFunction) and keeps the thread's context up to
// date: operator, autograd node, user scope, phase. When an operator that made storages ends, it
// enters its results' shapes and dtypes into the table.
//
// start() and stop() come in pairs, may be repeated, and must not be called by several threads at
// once.
class OperatorObserver {
 public:
  static void start(RegistryOptions::Detail detail);
  static void stop();
  // Sets whether storages born before tracking are adopted when an operator consumes them. At any
  // time.
  static void adopt_inputs(bool adopt) noexcept;
};

}  // namespace memledger
