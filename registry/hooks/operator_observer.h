#pragma once

#include "registry/phase.h"

namespace memledger {

// Observes every dispatched operator (at::RecordFunction) and keeps the thread's context up to
// date: operator, autograd node, user scope, phase. When an operator that made storages ends, it
// enters its results' shapes and dtypes into the table.
//
// start() and stop() come in pairs, may be repeated, and must not be called by several threads at
// once.
class OperatorObserver {
 public:
  // With `names_only` it looks at neither inputs nor results (RegistryOptions::Detail::kNames).
  static void start(bool names_only);
  static void stop();
  // Sets whether storages born before tracking are adopted when an operator consumes them. At any
  // time.
  static void adopt_inputs(bool adopt) noexcept;
};

}  // namespace memledger
