// An autograd engine with saved-variable hooks of its own, like Python's: even custom Functions
// then hold packed tensors. Has a binary to itself, as it changes the engine of the process.

#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <torch/csrc/autograd/engine.h>
#include <torch/torch.h>

#include <memory>
#include <optional>
#include <utility>

#include "graph/saved_tensors.h"
#include "tests/support/doctest_beside_torch.h"

namespace {

using torch::Tensor;

int unpacked = 0;

struct CountingHooks final : torch::autograd::SavedVariableHooks {
  void call_pack_hook(const Tensor& tensor) override { packed = tensor.detach(); }
  Tensor call_unpack_hook() override {
    ++unpacked;
    return packed;
  }
  std::optional<std::pair<c10::SafePyObject, c10::SafePyObject>> retrieve_unpack_hook_data()
      const override {
    return std::nullopt;
  }
  Tensor packed;
};

struct PackingEngine final : torch::autograd::Engine {
  std::unique_ptr<torch::autograd::SavedVariableHooks> get_default_saved_variable_hooks() override {
    return std::make_unique<CountingHooks>();
  }
};

torch::autograd::Engine& packing_engine() {
  static auto* const kEngine = new PackingEngine;
  return *kEngine;
}

struct Keep : torch::autograd::Function<Keep> {
  static Tensor forward(torch::autograd::AutogradContext* ctx, const Tensor& x) {
    ctx->save_for_backward({x});
    return x * 2;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list grads) {
    return {grads[0] * ctx->get_saved_variables()[0]};
  }
};

}  // namespace

TEST_CASE("hooks of a foreign engine are not run, those of a custom Function included") {
  torch::autograd::set_default_engine_stub(&packing_engine);
  Tensor x = torch::ones({4}).set_requires_grad(true);
  Tensor loss = Keep::apply(x.exp()).sum();
  const memledger::SavedTensors saved = memledger::saved_for_backward(loss);
  CHECK(unpacked == 0);
  CHECK(saved.row_count() == 0);
  CHECK_FALSE(saved.complete());
  REQUIRE(saved.unread_nodes().size() == 2);
  for (const memledger::UnreadNode& node : saved.unread_nodes()) {
    CHECK((node.reason == memledger::UnreadReason::kPacked));
  }
  loss.backward();
  CHECK(unpacked == 2);
}
