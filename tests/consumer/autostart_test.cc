// memledger_autostart: everything is seen from load on, tensors of the program's static objects
// included.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "tests/support/doctest_beside_torch.h"

#include <ATen/Functions.h>

#include "memledger.h"

namespace {

const at::Tensor made_before_main = at::ones({1000});

TEST_CASE("a static object's tensor is seen, and nothing is unknown") {
  const memledger::Snapshot snapshot = memledger::Registry::global().snapshot();
  CHECK(memledger::Registry::global().active());
  REQUIRE(snapshot.find(memledger::Registry::global().storage_id(made_before_main)) != nullptr);
  CHECK_FALSE(snapshot.find(memledger::Registry::global().storage_id(made_before_main))->adopted);
  CHECK(snapshot.total_bytes(at::kCPU) == 4000);
  CHECK_FALSE(snapshot.unseen_before_tracking());
}

}  // namespace
