// The registry against LibTorch's own count of its CPU memory, through whatever moves storages
// about.
#define DOCTEST_CONFIG_IMPLEMENT
#include "tests/support/doctest_beside_torch.h"

#include <torch/torch.h>

#include <array>
#include <chrono>
#include <functional>
#include <thread>
#include <vector>

#include "registry/live_storages.h"
#include "registry/registry.h"
#include "tests/support/allocation_count.h"
#include "tests/support/printed_values.h"

MEMLEDGER_PRINT_BY_NAME(memledger::Phase)

namespace memledger {
namespace {

testing::AllocationCount& truth() {
  static auto* const count = new testing::AllocationCount;
  return *count;
}

Registry& registry() { return Registry::global(); }

void check_against_truth() {
  const Snapshot snapshot = registry().snapshot();
  CHECK(snapshot.total_bytes(at::kCPU) == truth().live_bytes());
  CHECK(snapshot.counters(at::kCPU).current_bytes == truth().live_bytes());
  CHECK(registry().counters(at::kCPU).current_bytes == truth().live_bytes());
  const HookHealth health = registry().health();
  CHECK(health.unknown_frees == 0);
  CHECK(health.dropped_records == 0);
  CHECK(health.swallowed_exceptions == 0);
}

const StorageInfo* row_of(const Snapshot& snapshot, const at::Tensor& tensor) {
  return snapshot.find(registry().storage_id(tensor));
}

TEST_CASE("a training step: forward, backward, optimizer, zero_grad") {
  torch::nn::Sequential net(torch::nn::Linear(64, 128), torch::nn::ReLU(),
                            torch::nn::Linear(128, 10));
  torch::optim::Adam adam(net->parameters());
  check_against_truth();
  for (int step = 0; step < 2; ++step) {
    auto loss = net->forward(torch::randn({32, 64})).sum();
    check_against_truth();
    loss.backward();
    check_against_truth();
    adam.step();
    check_against_truth();
    adam.zero_grad();
    check_against_truth();
  }
}

TEST_CASE("tensors freed on another thread than they were made on") {
  auto tensor = std::make_shared<at::Tensor>(torch::randn({1000}));
  std::thread([&] {
    const testing::AllocationCount::Scope scope(truth());
    auto mine = torch::zeros({500});
    tensor.reset();
    check_against_truth();
  }).join();
  check_against_truth();
}

TEST_CASE("resize_, in-place work and views that outlive their base") {
  auto tensor = torch::zeros({10});
  tensor.resize_({100000});
  check_against_truth();
  tensor.add_(1).mul_(2);
  check_against_truth();
  at::Tensor view;
  {
    auto base = torch::randn({256, 256});
    view = base.select(0, 3);
  }
  check_against_truth();
  const Snapshot snapshot = registry().snapshot();
  REQUIRE(row_of(snapshot, view) != nullptr);
  CHECK(row_of(snapshot, view)->nbytes == 256 * 256 * 4);
  CHECK(row_of(snapshot, view)->shape == c10::DimVector{256, 256});
}

TEST_CASE("copy-on-write: a lazy clone adds nothing until it is written to") {
  auto tensor = torch::randn({1024});
  const int64_t before = truth().live_bytes();
  auto lazy = at::_lazy_clone(tensor);
  CHECK(truth().live_bytes() == before);
  check_against_truth();
  lazy.add_(1);
  CHECK(truth().live_bytes() == before + 4096);
  check_against_truth();
  tensor = at::Tensor();
  check_against_truth();
}

TEST_CASE("memory from elsewhere is not counted") {
  std::vector<float> mine(4096);
  const int64_t before = registry().counters(at::kCPU).current_bytes;
  auto tensor = torch::from_blob(mine.data(), {4096});
  CHECK(registry().counters(at::kCPU).current_bytes == before);
  CHECK(registry().storage_id(tensor) == 0);
  auto sum = tensor + 1;
  check_against_truth();
}

TEST_CASE("raw blocks of oneDNN, sparse tensors, an empty tensor, an undefined one") {
  auto conv = torch::nn::Conv2d(torch::nn::Conv2dOptions(16, 32, 3));
  auto out = conv->forward(torch::randn({4, 16, 32, 32}));
  check_against_truth();
  auto lstm = torch::nn::LSTM(torch::nn::LSTMOptions(32, 64).num_layers(2));
  auto sequence = std::get<0>(lstm->forward(torch::randn({5, 3, 32})));
  sequence.sum().backward();
  check_against_truth();
  auto coo = torch::eye(50).to_sparse();
  auto csr = torch::eye(50).to_sparse_csr();
  auto product = torch::mm(csr, torch::ones({50, 50}));
  check_against_truth();
  CHECK(registry().storage_id(torch::empty({0})) == 0);
  CHECK(registry().storage_id(at::Tensor()) == 0);
  CHECK(registry().storage_id(coo) == 0);
}

TEST_CASE("failed checks print shapes and enumerations by name") {
  CHECK(doctest::toString(c10::DimVector{2, 8}) == "(2, 8)");
  CHECK(doctest::toString(Phase::kForward) == "forward");
}

TEST_CASE("a row tells the outermost operator, shape, dtype, phase, label and user scope") {
  auto weight = torch::randn({8, 4}, torch::requires_grad());
  at::Tensor out, half;
  {
    const ScopedLabel outer("epoch");
    const ScopedLabel inner("encoder");
    RECORD_USER_SCOPE("block");
    out = torch::linear(torch::ones({2, 4}), weight);
    half = out.to(torch::kHalf);
  }
  const Snapshot snapshot = registry().snapshot();
  const StorageInfo* row = row_of(snapshot, out);
  REQUIRE(row != nullptr);
  CHECK(row->op == "aten::linear");
  CHECK(row->shape == c10::DimVector{2, 8});
  CHECK(row->dtype == c10::ScalarType::Float);
  CHECK(row->phase == Phase::kForward);
  CHECK(row->label == "epoch/encoder/block");
  CHECK_FALSE(row->temporary);
  CHECK_FALSE(row->adopted);
  CHECK(row_of(snapshot, half)->dtype == c10::ScalarType::Half);

  out.sum().backward();
  const Snapshot after = registry().snapshot();
  const StorageInfo* grad = row_of(after, weight.grad());
  REQUIRE(grad != nullptr);
  CHECK(grad->phase == Phase::kBackward);
  CHECK_FALSE(grad->autograd_node.empty());
  CHECK(grad->label.empty());
  {
    const torch::NoGradGuard no_grad;
    CHECK(row_of(registry().snapshot(), torch::ones({3}))->phase == Phase::kOther);
  }
}

// A checkpoint by hand: forward without a graph, and again within backward.
struct Checkpoint : torch::autograd::Function<Checkpoint> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            const at::Tensor& weight) {
    context->save_for_backward({x, weight});
    return torch::linear(x, weight).exp();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    const auto saved = context->get_saved_variables();
    const at::Tensor x = saved[0].detach().requires_grad_();
    {
      const torch::AutoGradMode with_grad(true);
      const at::Tensor y = torch::linear(x, saved[1]);
      const at::Tensor z = y.exp();
      recomputed = {y, z};
      z.backward(gradients[0]);
    }
    of_backward = gradients[0] * 2;
    return {x.grad(), at::Tensor()};
  }
  static std::vector<at::Tensor> recomputed;
  static at::Tensor of_backward;
};
std::vector<at::Tensor> Checkpoint::recomputed;
at::Tensor Checkpoint::of_backward;

TEST_CASE("what backward computes again is of the forward pass, and of its layer") {
  auto weight = torch::randn({8, 4}, torch::requires_grad());
  const auto row = [](const at::Tensor& tensor) { return *row_of(registry().snapshot(), tensor); };
  const uint64_t id = row(weight).id;
  Checkpoint::apply(torch::ones({2, 4}).requires_grad_(), weight).sum().backward();
  for (const at::Tensor& tensor : Checkpoint::recomputed) {
    CHECK(row(tensor).phase == Phase::kForward);
    CHECK(row(tensor).recomputed);
    CHECK(row(tensor).parameter == id);
    CHECK(row(tensor).autograd_node.empty());
    CHECK_FALSE(row(tensor).awaits_backward);
  }
  CHECK(row(weight.grad()).phase == Phase::kBackward);
  CHECK(row(weight.grad()).forward_op == "aten::linear");
  CHECK_FALSE(row(weight.grad()).recomputed);
  CHECK(row(Checkpoint::of_backward).phase == Phase::kBackward);
  CHECK_FALSE(row(Checkpoint::of_backward).recomputed);
  // Backward that is to be differentiated runs with grad mode, and computes nothing again.
  const at::Tensor x = torch::ones({2, 4}).requires_grad_();
  const at::Tensor gradient =
      torch::autograd::grad({torch::linear(x, weight).exp().sum()}, {x}, {}, std::nullopt,
                            /*create_graph=*/true)[0];
  CHECK(row(gradient).phase == Phase::kBackward);
  CHECK_FALSE(row(gradient).recomputed);
  Checkpoint::recomputed.clear();
  Checkpoint::of_backward.reset();
}

// Keeps what its backward makes.
template <typename Number>
struct Scale : torch::autograd::Function<Scale<Number>> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x) {
    context->save_for_backward({x});
    return (x * 2).exp();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    kept = gradients[0] * context->get_saved_variables()[0];
    return {kept};
  }
  static at::Tensor kept;
};
template <typename Number>
at::Tensor Scale<Number>::kept;

TEST_CASE("a custom Function names itself, whatever operator ran before it, and has a layer") {
  torch::nn::Linear linear(8, 8), other(8, 8);
  const auto row = [](const at::Tensor& tensor) { return *row_of(registry().snapshot(), tensor); };
  const uint64_t layer = row(linear->bias).id, another = row(other->weight).id;
  const std::vector<std::function<at::Tensor()>> before = {
      [&] { return at::Tensor(); },
      [&] { return other->weight.detach().norm(); },  // no node
      [&] { return other->weight > 0; },
      [&] { return torch::arange(5); },
  };
  for (const auto& run : before) {
    const at::Tensor hidden = linear->forward(torch::ones({2, 8}));
    run();
    const at::Tensor result = Scale<float>::apply(hidden);
    CHECK(row(result).phase == Phase::kForward);
    CHECK(row(result).parameter == layer);
    CHECK(row(result).awaits_backward);
    run();
    Scale<at::Tensor>::apply(result).sum().backward();
    for (const at::Tensor& kept : {Scale<float>::kept, Scale<at::Tensor>::kept}) {
      CHECK(row(kept).forward_op == "Scale");
      CHECK(row(kept).parameter == layer);
      CHECK(row(kept).phase == Phase::kBackward);
    }
  }
  // Its own parameter's, be it the layer before or not; and the operator's within which it runs.
  const at::Tensor hidden = linear->forward(torch::ones({2, 8}));
  Checkpoint::apply(hidden, other->weight).sum().backward();
  CHECK(row(Checkpoint::of_backward).forward_op == "Checkpoint");
  CHECK(row(Checkpoint::of_backward).parameter == another);
  Checkpoint::recomputed.clear();
  Checkpoint::of_backward.reset();
  // What comes after it under no_grad is no forward pass.
  const at::Tensor result = Scale<float>::apply(hidden);
  const torch::NoGradGuard no_grad;
  const at::Tensor metric = result.abs();
  CHECK(row(metric).phase == Phase::kOther);
  Scale<float>::kept.reset();
  Scale<at::Tensor>::kept.reset();
}

StorageInfo row_now(const at::Tensor& tensor) { return *row_of(registry().snapshot(), tensor); }

// Without an operator but for its buffer, as a kernel of the program's would.
struct ByHand : torch::autograd::Function<ByHand> {
  static at::Tensor forward(torch::autograd::AutogradContext* /*context*/, const at::Tensor& x,
                            const at::Tensor& y) {
    at::Tensor result = torch::empty(x.sizes());
    result.data_ptr<float>()[0] = x.data_ptr<float>()[0] + y.data_ptr<float>()[0];
    return result;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* /*context*/,
                                                 const torch::autograd::variable_list& gradients) {
    kept = gradients[0] * 2;
    return {kept, at::Tensor()};
  }
  static at::Tensor kept;
};
at::Tensor ByHand::kept;

// A layer of the program's own.
template <int kWhich>
struct Fused : torch::autograd::Function<Fused<kWhich>> {
  static at::Tensor forward(torch::autograd::AutogradContext* /*context*/, const at::Tensor& x,
                            const at::Tensor& weight) {
    hidden = torch::linear(x, weight);
    return hidden.exp();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* /*context*/,
                                                 const torch::autograd::variable_list& gradients) {
    kept = gradients[0] * 2;
    return {kept, kept.sum(0).expand({8, 8})};
  }
  static at::Tensor hidden, kept;
};
template <int kWhich>
at::Tensor Fused<kWhich>::hidden;
template <int kWhich>
at::Tensor Fused<kWhich>::kept;

TEST_CASE("each of several custom Functions in a row is of the forward pass, and has its layer") {
  const at::Tensor weight = torch::randn({8, 8}).requires_grad_();
  const at::Tensor other = torch::randn({8, 8}).requires_grad_();
  const at::Tensor hidden = torch::linear(torch::ones({2, 8}), weight);
  const at::Tensor result = Scale<at::Tensor>::apply(Scale<float>::apply(hidden));
  CHECK(row_now(result).phase == Phase::kForward);
  CHECK(row_now(result).parameter == row_now(weight).id);
  {
    const torch::NoGradGuard no_grad;
    CHECK(row_now(result.abs()).phase == Phase::kOther);
  }
  // One after another, and side by side.
  const at::Tensor x = hidden * 2;
  const at::Tensor first = Fused<1>::apply(x, weight);
  SUBCASE("in a row") { Fused<2>::apply(first, other).sum().backward(); }
  SUBCASE("side by side") {
    torch::autograd::backward({first, Fused<2>::apply(x, other)},
                              {torch::ones({2, 8}), torch::ones({2, 8})});
  }
  CHECK(row_now(Fused<1>::hidden).phase == Phase::kForward);
  CHECK(row_now(Fused<2>::hidden).phase == Phase::kForward);
  CHECK(row_now(Fused<1>::kept).parameter == row_now(weight).id);
  CHECK(row_now(Fused<2>::kept).parameter == row_now(other).id);
  for (at::Tensor* tensor : {&Fused<1>::hidden, &Fused<1>::kept, &Fused<2>::hidden, &Fused<2>::kept,
                             &Scale<float>::kept, &Scale<at::Tensor>::kept})
    tensor->reset();
}

TEST_CASE("a custom Function is of the forward pass in each iteration that it begins") {
  const at::Tensor weight = torch::randn({8, 8}).requires_grad_();
  const at::Tensor data = torch::ones({2, 8});
  for (int step = 0; step < 2; ++step) {
    const at::Tensor result = Fused<1>::apply(data * 2, weight);
    CHECK(row_now(Fused<1>::hidden).phase == Phase::kForward);
    CHECK(row_now(result).phase == Phase::kForward);
    CHECK(row_now(result).parameter == row_now(weight).id);
    result.sum().backward();
  }
  Fused<1>::hidden.reset();
  Fused<1>::kept.reset();
}

TEST_CASE("what comes under no_grad after a custom Function is no forward pass") {
  const at::Tensor weight = torch::randn({8, 8}).requires_grad_();
  const at::Tensor hidden = torch::linear(torch::ones({2, 8}), weight);
  at::Tensor result;
  SUBCASE("one without operators") { result = ByHand::apply(hidden, hidden); }
  SUBCASE("one without operators, after another") {
    result = ByHand::apply(Scale<float>::apply(hidden), hidden);
  }
  SUBCASE("and a pass on another thread, as CUDA's") {
    result = Scale<float>::apply(hidden);
    std::thread([&] {
      const testing::AllocationCount::Scope scope(truth());
      torch::autograd::backward({result}, {torch::ones({2, 8})});
    }).join();
    result = weight;
  }
  const torch::NoGradGuard no_grad;
  CHECK(row_now(result.abs()).phase == Phase::kOther);
  Scale<float>::kept.reset();
}

// Python's Functions open such a scope, and switch grad mode off within.
TEST_CASE("what an operator within a Python Function makes of a parameter is its layer's output") {
  const at::Tensor weight = torch::randn({8, 8}).requires_grad_();
  const at::Tensor x = torch::ones({2, 8});
  RECORD_FUNCTION("MyLinear", std::vector<c10::IValue>({x, weight}));
  const torch::NoGradGuard no_grad;
  const at::Tensor buffer = torch::empty({2, 8});
  const at::Tensor result = torch::linear(x, weight);
  CHECK(row_now(result).parameter == row_now(weight).id);
  CHECK_FALSE(row_now(result).parameter_inferred);
  CHECK(row_now(buffer).parameter == row_now(weight).id);
  CHECK(row_now(buffer).parameter_inferred);
}

TEST_CASE("what an operator keeps beside its result is no output of its layer") {
  torch::nn::BatchNorm2d norm(8);
  const at::Tensor result = norm->forward(torch::ones({4, 8, 3, 3}));
  const Snapshot snapshot = registry().snapshot();
  const uint64_t layer = row_of(snapshot, norm->bias)->id;
  int kept = 0;
  for (const StorageInfo& row : snapshot.storages(at::kCPU)) {
    if (row.parameter != layer) continue;
    const bool is_result = row.id == row_of(snapshot, result)->id;
    kept += is_result ? 0 : 1;
    CHECK(row.parameter_inferred != is_result);
  }
  CHECK(kept == 2);  // mean and variance, for backward
}

TEST_CASE("a residual sum is of the layer that ran later, whichever has the newer parameter") {
  torch::nn::Linear late(8, 8), root(8, 8);  // as cuda() moves a module's own ones last
  const auto parameter = [](const at::Tensor& tensor) {
    return row_of(registry().snapshot(), tensor)->parameter;
  };
  const at::Tensor x = torch::ones({2, 8}) + root->weight.slice(0, 0, 2);
  const at::Tensor y = late->forward(x);
  CHECK(parameter(x + y) == parameter(y));
  CHECK(parameter(y + x) == parameter(y));
}

TEST_CASE("what autograd recorded awaits backward until a pass begins") {
  auto weight = torch::randn({8, 4}, torch::requires_grad());
  const auto awaits = [](const at::Tensor& tensor) {
    return row_of(registry().snapshot(), tensor)->awaits_backward;
  };
  const at::Tensor frozen = torch::linear(torch::ones({2, 4}), torch::ones({8, 4}));
  CHECK_FALSE(awaits(frozen));
  const at::Tensor first = torch::linear(torch::ones({2, 4}), weight);
  CHECK(awaits(first));
  at::Tensor unrecorded;
  {
    const torch::NoGradGuard no_grad;
    unrecorded = torch::linear(torch::ones({2, 4}), weight);
  }
  CHECK_FALSE(awaits(unrecorded));
  first.sum().backward();
  CHECK_FALSE(awaits(first));
  const at::Tensor second = torch::linear(torch::ones({2, 4}), weight);
  CHECK(awaits(second));
  CHECK_FALSE(awaits(first));
  // The runs of a thread's operators are numbered.
  const Snapshot snapshot = registry().snapshot();
  CHECK(row_of(snapshot, second)->operator_run > row_of(snapshot, first)->operator_run);
}

TEST_CASE("what backward makes names the operator of the forward pass that caused it") {
  torch::nn::Conv2d first(torch::nn::Conv2dOptions(3, 8, 3).bias(false)),
      second(torch::nn::Conv2dOptions(8, 8, 3).bias(false));
  const auto train = [&](const std::string& where) {
    first->zero_grad();
    second->zero_grad();
    at::Tensor x = torch::randn({1, 3, 12, 12});
    {
      const ScopedLabel label(where + "first");
      x = first->forward(x);
    }
    {
      const ScopedLabel label(where + "second");
      x = second->forward(x * 2);
      x = torch::log_softmax(x, 1);
    }
    return x.mean();
  };
  const auto check = [](const at::Tensor& grad, std::string_view op, std::string_view label) {
    const Snapshot snapshot = registry().snapshot();
    const StorageInfo* row = row_of(snapshot, grad);
    REQUIRE(row != nullptr);
    CHECK(row->phase == Phase::kBackward);
    CHECK(row->forward_op == op);
    CHECK(row->forward_label == label);
  };
  train("").backward();
  check(first->weight.grad(), "aten::conv2d", "first");
  check(second->weight.grad(), "aten::conv2d", "second");

  // Graphs made on other threads have numbers of their own; backward on this one.
  std::array<at::Tensor, 2> losses;
  std::thread([&] {
    const testing::AllocationCount::Scope scope(truth());
    losses[0] = train("a thread/");
  }).join();
  losses[1] =
      torch::linear(torch::randn({2, 3}), torch::randn({4, 3}).requires_grad_()).exp().sum();
  losses[0].backward();
  check(second->weight.grad(), "aten::conv2d", "a thread/second");
  // An operator that makes no node between, and one of several nodes.
  at::Tensor weight = torch::randn({4, 3}).requires_grad_();
  at::Tensor x = torch::linear(torch::randn({2, 3}), weight);
  torch::ones({3});
  at::layer_norm(x, {4}).sum().backward();
  check(weight.grad(), "aten::linear", "");
  CHECK(row_of(registry().snapshot(), torch::ones({3}))->forward_op.empty());
}

TEST_CASE("the optimizer's phase: given by a scope, else inferred and marked so") {
  torch::nn::Linear net(16, 16);
  const auto step_phase = [&](auto&& optimizer, bool scoped) {
    net->forward(torch::ones({1, 16})).sum().backward();
    Cursor cursor;
    registry().changes_since(cursor);
    if (scoped) {
      const ScopedPhase phase(Phase::kOptimizer);
      optimizer.step();
    } else {
      optimizer.step();
    }
    const Changes changes = registry().changes_since(cursor);
    REQUIRE_FALSE(changes.born.empty());
    for (const StorageInfo& storage : changes.born) {
      CAPTURE(storage.op);
      CHECK(storage.phase == Phase::kOptimizer);
      CHECK(storage.phase_inferred == !scoped);
    }
  };
  SUBCASE("Adam in a scope") { step_phase(torch::optim::Adam(net->parameters()), true); }
  SUBCASE("Adam") { step_phase(torch::optim::Adam(net->parameters()), false); }
  SUBCASE("SGD with momentum") {
    step_phase(torch::optim::SGD(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9)),
               false);
  }
  SUBCASE("RMSprop") { step_phase(torch::optim::RMSprop(net->parameters()), false); }
}

TEST_CASE("evaluation under no_grad right after or before a step is not the optimizer's") {
  torch::nn::Linear net(16, 16);
  torch::optim::Adam adam(net->parameters(),
                          torch::optim::AdamOptions().weight_decay(0.1).amsgrad(true));
  const auto evaluate = [&] {
    const torch::NoGradGuard no_grad;
    return net->forward(torch::ones({2, 16}));
  };
  for (int step = 0; step < 2; ++step) {
    net->forward(torch::ones({1, 16})).sum().backward();
    auto before = evaluate();
    Cursor cursor;
    registry().changes_since(cursor);
    adam.step();
    for (const StorageInfo& state : registry().changes_since(cursor).born)
      CHECK(state.phase == Phase::kOptimizer);
    auto after = evaluate();
    CHECK(row_of(registry().snapshot(), before)->phase == Phase::kOther);
    CHECK(row_of(registry().snapshot(), after)->phase == Phase::kOther);
  }
}

TEST_CASE("initializing a new module under no_grad is not an optimizer step") {
  Cursor cursor;
  registry().changes_since(cursor);
  torch::nn::Linear net(16, 16);
  for (const StorageInfo& storage : registry().changes_since(cursor).born)
    CHECK(storage.phase != Phase::kOptimizer);
}

TEST_CASE("operators leave their thread's state as they found it, also when they throw") {
  CHECK_THROWS(torch::mm(torch::ones({2, 3}), torch::ones({2, 3})));
  auto after = torch::ones({5});
  CHECK(row_of(registry().snapshot(), after)->op == "aten::ones");
}

TEST_CASE("changes_since reports births and deaths by identity") {
  Cursor cursor;
  CHECK(registry().changes_since(cursor).from_snapshot);
  auto kept = torch::ones({7});
  auto gone = torch::ones({9});
  registry().changes_since(cursor);
  gone = torch::ones({9});
  auto view = kept.slice(0, 0, 3);
  const Changes changes = registry().changes_since(cursor);
  REQUIRE(changes.born.size() == 1);
  REQUIRE(changes.died.size() == 1);
  CHECK(changes.born[0].nbytes == 36);
  CHECK(changes.born[0].id != changes.died[0].id);
  CHECK(changes.died[0].shape == c10::DimVector{9});
}

TEST_CASE("peak and totals agree with LibTorch's count") {
  torch::nn::Linear net(64, 64);
  net->forward(torch::ones({8, 64})).sum().backward();
  CHECK(registry().counters(at::kCPU).peak_bytes == truth().peak_bytes());
  registry().reset_peak(at::kCPU);
  const Counters before = registry().counters(at::kCPU);
  { auto tensor = torch::empty({1 << 20}); }
  const Counters after = registry().counters(at::kCPU);
  CHECK(after.peak_bytes == before.current_bytes + (4 << 20));
  CHECK((after - before).allocated_bytes == 4 << 20);
  CHECK((after - before).freed_bytes == 4 << 20);
  CHECK((after - before).current_count == 0);
}

TEST_CASE(
    "threads at work: the table equals LibTorch's count at every quiet point, and their phases do "
    "not mix") {
  for (int round = 0; round < 3; ++round) {
    std::vector<std::thread> threads;
    std::vector<std::vector<at::Tensor>> kept(8);
    for (size_t t = 0; t < kept.size(); ++t) {
      threads.emplace_back([&kept, t] {
        const testing::AllocationCount::Scope scope(truth());
        const ScopedLabel label("worker");
        for (int64_t i = 1; i < 200; ++i) {
          auto a = torch::ones({i}) + 1;
          if (i % 7 == 0) kept[t].push_back(a);
          if (i % 21 == 0) kept[t].clear();
        }
      });
    }
    for (int i = 0; i < 20; ++i) {
      const Snapshot snapshot = registry().snapshot();
      CHECK(snapshot.total_bytes(at::kCPU) == snapshot.counters(at::kCPU).current_bytes);
    }
    for (std::thread& thread : threads) thread.join();
    check_against_truth();
    for (const auto& tensors : kept) {
      for (const at::Tensor& tensor : tensors)
        CHECK(row_of(registry().snapshot(), tensor)->label == "worker");
    }
  }
  check_against_truth();
}

TEST_CASE("nothing is said to be unseen when tracking began with main") {
  const Snapshot snapshot = registry().snapshot();
  CHECK_FALSE(snapshot.unseen_before_tracking());
  CHECK_FALSE(snapshot.tracking_was_off());
}

TEST_CASE("use counts and results are those of a program that is not watched") {
  auto tensor = torch::randn({100});
  const auto uses = tensor.use_count();
  auto doubled = tensor * 2;
  registry().snapshot();
  CHECK(tensor.use_count() == uses);
  CHECK(tensor.storage().use_count() == 1);
}

// Last: from here on the program registers its parameters.
TEST_CASE("an input whose gradient is wanted is no layer of a Function that reads it") {
  const at::Tensor weight = torch::randn({8, 8}).requires_grad_();
  know_parameter(*weight.storage().unsafeGetStorageImpl());
  const at::Tensor hidden = torch::linear(torch::ones({2, 8}), weight);
  const at::Tensor wanted = torch::ones({2, 8}).requires_grad_();
  ByHand::apply(wanted, hidden).sum().backward();
  CHECK(row_now(ByHand::kept).forward_op == "ByHand");
  CHECK(row_now(ByHand::kept).parameter == row_now(weight).id);
  // What a checkpoint detaches.
  ByHand::apply(hidden.detach().requires_grad_(), wanted).sum().backward();
  CHECK(row_now(ByHand::kept).parameter == row_now(weight).id);
  ByHand::kept.reset();
}

}  // namespace
}  // namespace memledger

int main(int argc, char** argv) {
  if (!memledger::Registry::global().activate().ok()) return 1;
  const memledger::testing::AllocationCount::Scope scope(memledger::truth());
  return doctest::Context(argc, argv).run();
}
