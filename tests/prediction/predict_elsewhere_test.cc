// A program without a virtual GPU learns what it needs.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "tests/support/doctest_beside_torch.h"

#include <string>

#include "prediction/predict.h"

namespace {

TEST_CASE("without a virtual GPU nothing is predicted, and the step does not run") {
  bool has_run = false;
  const auto step = [&] { has_run = true; };
  const absl::Status status = memledger::predict(step).status();
  CHECK(absl::IsFailedPrecondition(status));
  const memledger::TestVerdict verdict = memledger::fits_on("l4", step);
  CHECK_FALSE(verdict);
  CHECK(verdict.message() ==
        "memledger::predict() needs a virtual GPU: start this program by `memledger run "
        "--virtual-gpu=GPU -- PROGRAM`, or link it with //:memledger_virtual_gpu (CMake: "
        "memledger::virtual_gpu)");
  CHECK_FALSE(has_run);
}

}  // namespace
