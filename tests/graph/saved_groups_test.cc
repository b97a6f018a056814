// Groups of saved tensors, TorchScript, and what the Python tools get wrong, against LibTorch's own
// memory reports and sizes worked out by hand. Tracking is on for the whole program.

#define DOCTEST_CONFIG_IMPLEMENT
#include "graph/saved_groups.h"

#include <torch/csrc/autograd/generated/Functions.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/torch.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "graph/counted_hooks.h"
#include "graph/saved_tensors.h"
#include "registry/registry.h"
#include "reporter/mem_reporter.h"
#include "tests/support/allocation_count.h"
#include "tests/support/doctest_beside_torch.h"
#include "tests/support/text_matchers.h"

namespace {

using memledger::CheckpointEstimate;
using memledger::Registry;
using memledger::saved_for_backward;
using memledger::SavedGroup;
using memledger::SavedGroups;
using memledger::SavedTensorRow;
using memledger::SavedTensors;
using memledger::UnreadReason;
using memledger::testing::contains;
using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr int64_t kMiB = int64_t{1} << 20;
constexpr int64_t kFloat = 4;

std::string message_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "nothing was thrown";
}

template <typename Value>
std::string text_of(const Value& value) {
  std::ostringstream out;
  out << value;
  return out.str();
}

SavedGroup group(const SavedGroups& groups, const std::string& name) {
  for (const SavedGroup& group : groups.groups) {
    if (group.name == name) return group;
  }
  FAIL("no group " << name << " in " << groups.to_json());
  return {};
}

Tensor param(at::IntArrayRef sizes) { return torch::randn(sizes).set_requires_grad(true); }

// Runs forward without a graph, keeps the input, and runs again in backward: what C++ users write,
// as they have no torch.utils.checkpoint.
struct Checkpoint : torch::autograd::Function<Checkpoint> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x, torch::nn::AnyModule* block) {
    ctx->save_for_backward({x});
    ctx->saved_data["block"] = reinterpret_cast<int64_t>(block);
    return block->forward(x);
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    at::AutoGradMode grad_on(true);
    const Tensor x = ctx->get_saved_variables()[0].detach().set_requires_grad(true);
    reinterpret_cast<torch::nn::AnyModule*>(ctx->saved_data["block"].toInt())
        ->forward(x)
        .backward(grads[0]);
    return {x.grad(), Tensor()};
  }
};

// Linear, GELU, dropout, with a shortcut around them, and a norm.
struct ResidualImpl : torch::nn::Module {
  explicit ResidualImpl(int64_t width)
      : linear(register_module("linear", torch::nn::Linear(width, width))),
        norm(register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})))) {}
  Tensor forward(const Tensor& x) {
    return norm(x + torch::dropout(torch::gelu(linear(x)), 0.3, true));
  }
  torch::nn::Linear linear;
  torch::nn::LayerNorm norm;
};
TORCH_MODULE(Residual);

struct Stack : torch::nn::Module {
  static constexpr int64_t kWidth = 32;
  Stack() {
    for (int i = 0; i < 3; ++i) {
      blocks.emplace_back(Residual(kWidth));
      register_module("block" + std::to_string(i), blocks.back().ptr());
    }
  }
  // The index of the block to checkpoint, or -1.
  Tensor forward(const Tensor& input, int checkpointed = -1) {
    Tensor x = input;
    for (int i = 0; i < 3; ++i) {
      x = i == checkpointed ? Checkpoint::apply(x, &blocks[static_cast<size_t>(i)])
                            : blocks[static_cast<size_t>(i)].forward(x);
    }
    return x.sum();
  }
  std::vector<torch::nn::AnyModule> blocks;
};

}  // namespace

TEST_SUITE_BEGIN("groups of saved tensors");

TEST_CASE("groups by node kind and by layer add up, and are as worked out by hand") {
  torch::nn::Sequential net(torch::nn::Linear(64, 128), torch::nn::Tanh(),
                            torch::nn::Linear(128, 32), torch::nn::Sigmoid());
  const Tensor input = torch::randn({16, 64});
  const SavedTensors saved = saved_for_backward(*net, net->forward(input).sum());
  const int64_t first = 16 * 64 * kFloat, tanh = 16 * 128 * kFloat, sigmoid = 16 * 32 * kFloat;
  REQUIRE(saved.total_bytes() == first + tanh + sigmoid);

  const SavedGroups kinds = memledger::by_node_kind(saved);
  CHECK(kinds.total_bytes() == saved.total_bytes());
  CHECK(group(kinds, "SigmoidBackward0").bytes == sigmoid);
  // The second Linear is the first to hold tanh's result, on the way from the root.
  CHECK(group(kinds, "AddmmBackward0").bytes == first + tanh);
  CHECK(group(kinds, "AddmmBackward0").storages == 2);
  CHECK(group(kinds, "TanhBackward0").bytes == 0);
  CHECK(group(kinds, "TanhBackward0").tensors == 1);
  CHECK(kinds.groups.front().name == "AddmmBackward0");

  const SavedGroups layers = memledger::by_layer(saved);
  CHECK(layers.total_bytes() == saved.total_bytes());
  CHECK(group(layers, "0").bytes == first);
  CHECK(group(layers, "2").bytes == tanh + sigmoid);

  CHECK(contains(text_of(kinds), "Saved for backward by node kind: 14.00K"));
  CHECK(contains(text_of(kinds), "    12.00K       2 in 2 storages  AddmmBackward0"));
  CHECK(contains(layers.to_json(),
                 "{\"schema\":\"memledger.saved_groups/2\",\"by\":\"layer\",\"total_bytes\":14336,"
                 "\"groups\":[{\"name\":\"2\",\"bytes\":10240,\"storages\":2,\"tensors\":2},"));
  CHECK(contains(layers.to_csv(), "layer,0,4096,1,2\n"));
  CHECK(contains(kinds.to_json(), "\"by\":\"node_kind\""));
  CHECK(contains(kinds.to_csv(), "node_kind,TanhBackward0,0,0,1\n"));
}

TEST_CASE("layers come from the parameters, and can be cut to a depth") {
  Stack net;
  const SavedTensors saved = saved_for_backward(net, net.forward(torch::randn({8, Stack::kWidth})));
  const SavedGroups deep = memledger::by_layer(saved), shallow = memledger::by_layer(saved, 1);
  CHECK(group(deep, "block1.linear").bytes > 0);
  CHECK(group(deep, "block1.norm").bytes > 0);
  CHECK(shallow.groups.size() == 3);
  CHECK(group(shallow, "block1").bytes ==
        group(deep, "block1.linear").bytes + group(deep, "block1.norm").bytes);
  CHECK(shallow.total_bytes() == saved.total_bytes());
}

TEST_CASE("a birthplace is the operator, its label and phase; unknown, it has no name") {
  const Tensor x = param({1024});
  Tensor loss;
  {
    const memledger::ScopedLabel label("encoder");
    loss = x.exp().cos().sum();
  }
  const SavedTensors saved = saved_for_backward(loss);
  const SavedGroups places = memledger::by_birthplace(saved, Registry::global().snapshot());
  CHECK(places.total_bytes() == 4096);
  CHECK(group(places, "aten::exp [encoder, forward]").bytes == 4096);
  const SavedGroups unknown = memledger::by_birthplace(saved, memledger::Snapshot());
  CHECK(group(unknown, "").bytes == 4096);
  CHECK(contains(unknown.to_json(), "[{\"name\":null,\"bytes\":4096,"));
  CHECK(contains(unknown.to_csv(), "\nbirthplace,,4096,1,"));
  CHECK(contains(text_of(unknown), " in 1 storage  ?\n"));
  CHECK(contains(text_of(memledger::by_layer(saved)), " in 1 storage  (no layer)\n"));
}

TEST_CASE("what a checkpoint gives back is what a real one does") {
  torch::manual_seed(3);
  Stack net;
  const Tensor input = torch::randn({8, Stack::kWidth});
  const auto growth_with = [&](int checkpointed) {
    const memledger::testing::AllocationGrowth allocated;
    const Tensor loss = net.forward(input, checkpointed);
    return allocated.bytes();
  };
  growth_with(0);  // the first run makes what is made only once
  const int64_t bare = growth_with(-1);
  for (int block = 0; block < 3; ++block) {
    CAPTURE(block);
    // The input is the program's own: not an activation that anything could give back.
    for (const bool input_given : {true, false}) {
      const SavedTensors saved =
          saved_for_backward(net, net.forward(input),
                             {input_given ? std::vector<Tensor>{input} : std::vector<Tensor>{}});
      const CheckpointEstimate estimate =
          memledger::if_checkpointed(saved, "block" + std::to_string(block));
      CHECK(estimate.bytes_back == bare - growth_with(block));
      CHECK(estimate.bytes_back > 0);
      // The input of the first block may be what the block began with.
      CHECK(estimate.exact == (input_given || block > 0));
      // addmm and the view of its weight, gelu, dropout as a product with a mask, the sum, the
      // norm; and after the last block the loss, which has no layer of its own
      CHECK(estimate.operators_again == (block < 2 ? 6 : 7));
    }
  }
  const SavedTensors saved = saved_for_backward(net, net.forward(input), {{input}});
  const auto candidates = memledger::checkpoint_candidates(saved);
  REQUIRE(candidates.size() == 3);
  CHECK(candidates[0].bytes_back >= candidates[2].bytes_back);
  CHECK(contains(text_of(candidates[0]), " back ("));
  CHECK(contains(text_of(candidates[0]), " operators run again"));
  CHECK(contains(message_of([&] { memledger::if_checkpointed(saved, "block7"); }),
                 "no layer 'block7'; it has block0.linear"));
  CHECK(contains(message_of([&] {
                   memledger::if_checkpointed(saved_for_backward(param({2}).exp().sum()), "x");
                 }),
                 "pass the module"));
}

// The mask is there before the block and stays under a checkpoint, no matter which code made it.
TEST_CASE("a mask from outside is kept, and the estimate is exact only where that is known") {
  struct Masked : torch::nn::Module {
    Masked() {
      first = register_module("first", torch::nn::Linear(64, 64));
      last = register_module("last", torch::nn::Linear(64, 64));
    }
    Tensor forward(const Tensor& x, const Tensor& mask) {
      return last(torch::relu(first(x)) * mask);
    }
    torch::nn::Linear first{nullptr}, last{nullptr};
  };
  struct Net : torch::nn::Module {
    Net() : scale(register_parameter("scale", torch::ones({1}))) {
      register_module("block", block);
    }
    std::shared_ptr<Masked> block = std::make_shared<Masked>();
    Tensor scale;
  };
  const auto net = std::make_shared<Net>();
  const Tensor input = torch::randn({256, 64});
  const int64_t one = 256 * 64 * kFloat;
  enum class Made { kHere, kElsewhere, kInTheBlock };
  for (const Made made : {Made::kHere, Made::kElsewhere, Made::kInTheBlock}) {
    CAPTURE(static_cast<int>(made));
    Tensor mask;
    const auto make = [&] { mask = (torch::rand(input.sizes()) > 0.5).to(torch::kFloat); };
    if (made == Made::kHere) make();
    if (made == Made::kElsewhere) std::thread(make).join();
    const Tensor x = (input * net->scale).relu();
    if (made == Made::kInTheBlock) make();  // as if its forward() had begun with it
    const Tensor loss = (net->block->forward(x, mask) * net->scale).relu().sum();
    const CheckpointEstimate estimate = memledger::if_checkpointed(
        saved_for_backward(*net, {loss}, {{}, {}, {}, {input}}), "block");
    // The results of relu and of the product; the mask, too, if it were made again.
    CHECK(estimate.bytes_back == 2 * one);
    CHECK(estimate.kept_bytes == one);
    CHECK(estimate.exact == (made == Made::kHere));
    CHECK(contains(text_of(estimate), "not exact") == (made != Made::kHere));
  }
}

TEST_CASE("a checkpoint by hand is read like any custom Function") {
  Stack net;
  const Tensor input = torch::randn({8, Stack::kWidth});
  Tensor loss;
  const memledger::testing::AllocationGrowth allocated;
  loss = net.forward(input, 1);
  const int64_t growth = allocated.bytes() - kFloat;
  CHECK(memledger::memory_for_backward(net, loss, {{input}}) == growth);
}

TEST_CASE("a reporter knows parameters, buffers and inputs that were registered") {
  torch::nn::Sequential net(torch::nn::Linear(8, 8), torch::nn::BatchNorm1d(8));
  net->eval();
  const Tensor input = torch::ones({4, 8}).set_requires_grad(true);
  memledger::MemReporter reporter(net);
  reporter.add_input("batch", input);
  const Tensor loss = (net->forward(input) * 2).exp().sum();
  const SavedTensors saved = reporter.saved_for_backward(loss);
  CHECK(saved.bytes(memledger::SavedRole::kInput) == 128);
  CHECK(saved.bytes(memledger::SavedRole::kParameter) ==
        (64 + 8) * 4);  // the matrix, and the norm's weight
  CHECK(saved.bytes(memledger::SavedRole::kBuffer) == 2 * 8 * 4);
  CHECK(saved.total_bytes() == memledger::memory_for_backward(net, loss, {{input}}));
  CHECK(group(memledger::by_layer(saved), "1").bytes > 0);
}

TEST_CASE(
    "what another thread makes of a layer's result belongs to that layer, though the thread counts "
    "operators from 0") {
  torch::nn::Linear net(16, 16);
  for (int i = 0; i < 20; ++i)
    static_cast<void>(net->forward(torch::randn({8, 16})));  // high numbers here
  torch::nn::Sequential model;
  model->push_back("tower", net);
  const Tensor result = model->forward(torch::randn({8, 16}));
  Tensor further;
  std::thread([&] { further = result.tanh().exp(); }).join();
  REQUIRE(further.grad_fn()->sequence_nr() < result.grad_fn()->sequence_nr());
  const SavedGroups layers = memledger::by_layer(saved_for_backward(*model, further));
  CHECK(group(layers, "tower").bytes ==
        2 * 8 * 16 * kFloat);  // its input and the result of tanh; that of exp is the root
  CHECK(layers.groups.size() == 1);
}

TEST_CASE("hooks that fail to say what they hold are listed, and the rest is read") {
  struct Failing final : memledger::CountedHooks {
    void call_pack_hook(const Tensor&) override {}
    Tensor call_unpack_hook() override { return {}; }
    std::vector<Tensor> packed_tensors() const override { throw 42; }
  };
  const Tensor x = param({1024});
  const Tensor loss = x.exp().tanh().sum();
  auto* tanh = dynamic_cast<torch::autograd::generated::TanhBackward0*>(
      loss.grad_fn()->next_edge(0).function.get());
  REQUIRE(tanh != nullptr);
  tanh->result_.register_hooks(std::make_unique<Failing>());
  const SavedTensors saved = saved_for_backward(loss);
  CHECK(saved.total_bytes() == 1024 * kFloat);  // exp's result
  CHECK_FALSE(saved.complete());
  REQUIRE(saved.unread_nodes().size() == 1);
  CHECK(saved.unread_nodes()[0].reason == UnreadReason::kPacked);
}

TEST_CASE("hooks that say what they hold are counted, and not run") {
  struct InHalf final : memledger::CountedHooks {
    void call_pack_hook(const Tensor& tensor) override { half = tensor.detach().to(at::kHalf); }
    Tensor call_unpack_hook() override {
      FAIL("unpacked");
      return half;
    }
    std::vector<Tensor> packed_tensors() const override { return {half}; }
    Tensor half;
  };
  const Tensor x = param({262144});
  Tensor loss;
  const memledger::testing::AllocationGrowth allocated;
  loss = x.exp().sum();
  auto* exp = dynamic_cast<torch::autograd::generated::ExpBackward0*>(
      loss.grad_fn()->next_edge(0).function.get());
  REQUIRE(exp != nullptr);
  exp->result_.register_hooks(std::make_unique<InHalf>());
  const SavedTensors saved = saved_for_backward(loss);
  CHECK(saved.total_bytes() == kMiB / 2);  // they say 1 MiB, and run the hook
  CHECK(saved.total_bytes() == allocated.bytes() - kFloat);
  CHECK(saved.complete());
  CHECK(saved.rows().at(0).slot == "result.packed");
}

TEST_CASE("hooks that are asked what they hold may look at the graph themselves") {
  struct Looking final : memledger::CountedHooks {
    void call_pack_hook(const Tensor&) override {}
    Tensor call_unpack_hook() override { return {}; }
    std::vector<Tensor> packed_tensors() const override {
      below_is_complete = saved_for_backward(below).complete();
      return {};
    }
    Tensor below;
    mutable bool below_is_complete = false;
  };
  Tensor below = param({16});
  for (int i = 0; i < 40; ++i) below = below.sin();
  const Tensor exp = below.exp();
  auto hooks = std::make_unique<Looking>();
  const Looking& looking = *hooks;
  hooks->below = below;
  dynamic_cast<torch::autograd::generated::ExpBackward0&>(*exp.grad_fn())
      .result_.register_hooks(std::move(hooks));
  const SavedTensors saved = saved_for_backward(exp.sum());
  CHECK(looking.below_is_complete);
  CHECK(saved.complete());
  CHECK(saved.total_bytes() == 40 * 16 * kFloat);  // what each sin() was given
}

TEST_CASE("CSV has a line per row, dot a box per node and bytes on the edges") {
  torch::nn::Linear net(8, 8);
  const Tensor input = torch::ones({4, 8});
  const SavedTensors saved = saved_for_backward(*net, net->forward(input).exp().sum());
  const std::string csv = saved.to_csv();
  CHECK(std::count(csv.begin(), csv.end(), '\n') == static_cast<int64_t>(saved.row_count()) + 1);
  CHECK(csv.rfind("node,sequence_number,forward_thread,slot,shape,", 0) == 0);
  CHECK(contains(csv, ",result,\"(4, 8)\",torch.float32,cpu,"));
  CHECK(contains(csv, ",128,128,0,0,0,1,,0,0,activation\n"));

  const std::string dot = saved.to_dot();
  CHECK(contains(dot, "digraph saved_for_backward {"));
  CHECK(contains(dot, "label=\"ExpBackward0\\n128.00B\""));
  CHECK(contains(dot, "label=\"weight\", style=filled"));
  CHECK(contains(dot, "n1 -> n0 [label=\"128.00B\"];"));
  CHECK(contains(message_of([&] { saved.to_dot(2); }), "more than max_nodes (2)"));
}

TEST_CASE("a tensor that an operator takes twice comes in by two edges from one node") {
  const Tensor y = param({16}).exp();
  const std::string dot = saved_for_backward((y * y).sum()).to_dot();
  const std::string edge = "n2 -> n1 [label=\"64.00B\"];";  // from exp to mul
  const size_t first = dot.find(edge);
  REQUIRE(first != std::string::npos);
  const size_t second = dot.find(edge, first + 1);
  REQUIRE(second != std::string::npos);
  CHECK(dot.find(edge, second + 1) == std::string::npos);
}

TEST_CASE("what a TorchScript node holds is inferred from births, and marked") {
  torch::jit::Module module("Keeping");
  module.define("def forward(self, x):\n    return torch.sigmoid(x * 2 + 1) * 3\n");
  const Tensor x = param({262144});
  // The first runs only profile.
  for (int i = 0; i < 3; ++i) module.forward({x}).toTensor().sum().backward();
  const memledger::testing::AllocationGrowth allocated;
  const Tensor loss = module.forward({x}).toTensor().sum();
  const int64_t growth = allocated.bytes() - kFloat;
  const SavedTensors saved = saved_for_backward(loss, {{x}});
  REQUIRE(saved.unread_nodes().size() == 1);
  CHECK(saved.unread_nodes()[0].reason == UnreadReason::kTorchScript);
  CHECK(contains(saved.unread_nodes()[0].node, "DifferentiableGraphBackward"));
  CHECK(growth >= kMiB);
  CHECK(saved.total_bytes() == growth);
  CHECK(saved.inferred_bytes() == growth);
  CHECK_FALSE(saved.complete());
  for (const SavedTensorRow& row : saved.rows())
    CHECK(row.inferred == (row.role == memledger::SavedRole::kActivation));
  CHECK(contains(text_of(saved), "Included, inferred: "));
}

TEST_CASE("what another TorchScript graph holds, or its results, is not this one's") {
  const auto keeping = [](const char* name) {
    torch::jit::Module module(name);
    module.define("def forward(self, x):\n    return torch.sigmoid(torch.tanh(x * 2) + 1) * 3\n");
    return module;
  };
  torch::jit::Module module = keeping("One"), other = keeping("Other");
  const Tensor x = param({1000}), y = param({1000});
  for (int i = 0; i < 3; ++i) {
    module.forward({x}).toTensor().sum().backward();
    other.forward({y}).toTensor().sum().backward();
  }
  Tensor loss = module.forward({x}).toTensor().sum();
  const int64_t alone = saved_for_backward(loss, {{x}}).total_bytes();
  CHECK(alone >= 2 * 1000 * kFloat);  // what tanh and sigmoid need of themselves
  const Tensor after = other.forward({y}).toTensor().sum();
  std::vector<Tensor> results;
  for (int i = 0; i < 3; ++i) results.push_back(other.forward({y}).toTensor().detach());
  CHECK(saved_for_backward(loss, {{x}}).total_bytes() == alone);
  loss.reset();
  loss = module.forward({x}).toTensor().sum();  // with the others made before
  CHECK(saved_for_backward(loss, {{x}}).total_bytes() == alone);
}

TEST_CASE("what hooks of the program may hold is not known, what LibTorch's hold is") {
  const Tensor x = param({256});
  Tensor y = x.exp();
  y.retain_grad();
  CHECK(saved_for_backward(y.sum()).complete());
  y.register_hook(
      [big = torch::ones({1000})](const Tensor& gradient) { return gradient * big[0]; });
  const SavedTensors saved = saved_for_backward(y.sum());
  CHECK_FALSE(saved.complete());
  CHECK(saved.total_bytes() == 256 * kFloat);
  REQUIRE(saved.unread_nodes().size() == 1);
  CHECK(saved.unread_nodes()[0].reason == UnreadReason::kHooks);
  CHECK(contains(text_of(saved), "Not read: ExpBackward0 (hooks: they may hold tensors)"));
  CHECK(contains(saved.to_json(), "\"reason\":\"hooks\""));
  // A leaf's are the leaf's own.
  x.register_hook(
      [big = torch::ones({1000})](const Tensor& gradient) { return gradient * big[0]; });
  CHECK(saved_for_backward(x.exp().sum()).complete());
}

TEST_CASE("hooks that were removed hold nothing") {
  const Tensor y = param({256}).exp();
  const auto hook = [big = torch::ones({1000})](const Tensor& gradient) { return gradient; };
  const unsigned first = y.register_hook(hook);
  const unsigned second = y.register_hook(hook);
  y.remove_hook(first);
  CHECK_FALSE(saved_for_backward(y.sum()).complete());
  y.remove_hook(second);
  CHECK(saved_for_backward(y.sum()).complete());
}

TEST_CASE("what a TorchScript node holds is unknown, not 0, if tracking was off") {
  torch::jit::Module module("Keeping");
  module.define("def forward(self, x):\n    return torch.sigmoid(x * 2 + 1) * 3\n");
  const Tensor x = param({1024});
  for (int i = 0; i < 3; ++i) module.forward({x}).toTensor().sum().backward();
  Registry::global().deactivate();
  const Tensor loss = module.forward({x}).toTensor().sum();
  const SavedTensors saved = saved_for_backward(loss, {{x}});
  REQUIRE(Registry::global().activate().ok());
  REQUIRE(saved.unread_nodes().size() == 1);
  CHECK(saved.unknown_rows() == 1);
  CHECK(saved.total_bytes() == 0);
  CHECK(contains(text_of(saved), "         ?  "));
  CHECK(contains(saved.to_json(),
                 "\"slot\":\"captures\",\"shape\":null,\"dtype\":null,\"device\":null,"));
  CHECK(contains(saved.to_json(), "\"reason\":\"torchscript\""));
  CHECK(contains(saved.to_csv(), ",captures,,,,,,,,,0,0,0,,0,0,activation\n"));
  CHECK(contains(text_of(saved), " (?)                      ?              ?"));
  CHECK_FALSE(saved.complete());
}

TEST_SUITE_END();

TEST_SUITE_BEGIN("what the Python tools get wrong");

TEST_CASE("they say 8 bytes for an index with a list of two") {
  const Tensor p = param({300, 300});
  Tensor loss;  // the factor is a tensor of 8 bytes, as Python makes one of a number
  const memledger::testing::AllocationGrowth allocated;
  loss = (p * torch::scalar_tensor(2, torch::kDouble))
             .index({torch::randint(0, 300, {100000}), torch::randint(0, 300, {100000})})
             .sum();
  CHECK(saved_for_backward(loss).total_bytes() == 1600008);
  CHECK(allocated.bytes() - kFloat == 1600008);
}

TEST_CASE("they count one third of a storage that is saved in thirds") {
  torch::nn::MultiheadAttention attention(torch::nn::MultiheadAttentionOptions(64, 4));
  const Tensor input = torch::randn({16, 8, 64});
  const auto attend = [&] { return std::get<0>(attention->forward(input, input, input)).sum(); };
  attend();
  Tensor loss;
  const memledger::testing::AllocationGrowth allocated;
  loss = attend();
  CHECK(memledger::memory_for_backward(*attention, loss, {{input}}) == allocated.bytes() - kFloat);
}

TEST_CASE("they take the transposed view of a hidden layer's weight for an activation") {
  torch::nn::Sequential net(torch::nn::Linear(1024, 1024), torch::nn::ReLU(),
                            torch::nn::Linear(1024, 1024), torch::nn::ReLU());
  const Tensor input = torch::randn({256, 1024});
  Tensor loss;
  const memledger::testing::AllocationGrowth allocated;
  loss = net->forward(input).sum();
  const int64_t growth = allocated.bytes() - kFloat;
  CHECK(growth == 2 * kMiB);
  CHECK(memledger::memory_for_backward(*net, loss, {{input}}) == 2 * kMiB);  // they say 7 MiB
}

TEST_SUITE_END();

int main(int argc, char** argv) {
  if (!Registry::global().activate().ok()) return 1;
  return doctest::Context(argc, argv).run();
}
