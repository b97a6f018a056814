#pragma once

#include "registry/phase.h"

namespace memledger {

// Watches every dispatched operator (at::RecordFunction) and keeps the thread's context up to date:
// operator, autograd node, user scope, phase. When an operator that made storages ends, its
// results' shapes and dtypes go into the table.
//
// start() and stop() come in pairs and may be repeated; not to be called from several threads at
// once.
class OperatorObserver {
 public:
  static void start();
  static void stop();
  // Whether storages born before tracking are adopted when an operator consumes them. At any time.
  static void adopt_inputs(bool adopt) noexcept;
};

}  // namespace memledger
