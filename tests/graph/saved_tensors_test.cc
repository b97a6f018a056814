// What the graph holds, against LibTorch's own memory reports and sizes worked out by hand.

#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "graph/saved_tensors.h"

#include <c10/core/impl/COW.h>
#include <torch/csrc/autograd/generated/Functions.h>
#include <torch/torch.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "tests/support/allocation_count.h"
#include "tests/support/doctest_beside_torch.h"
#include "tests/support/sanitizers.h"
#include "tests/support/text_matchers.h"

namespace {

using memledger::memory_for_backward;
using memledger::Rounding;
using memledger::saved_for_backward;
using memledger::SavedRole;
using memledger::SavedTensorOptions;
using memledger::SavedTensorRow;
using memledger::SavedTensors;
using memledger::UnreadReason;
using memledger::testing::contains;
using memledger::testing::growth_over;
using memledger::testing::kWorkersAreKnown;
using torch::Tensor;

constexpr int64_t kMiB = int64_t{1} << 20;
constexpr int64_t kLossBytes = 4;  // one float

Tensor param(at::IntArrayRef sizes) { return torch::randn(sizes).set_requires_grad(true); }

// A net that owns nothing, where only the graph matters.
class EmptyNet : public torch::nn::Module {};

std::optional<SavedTensorRow> find_row(const SavedTensors& saved, const std::string& node,
                                       const std::string& slot) {
  for (const SavedTensorRow& row : saved.rows()) {
    if (row.node == node && row.slot == slot) return row;
  }
  return std::nullopt;
}

std::string message_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "nothing was thrown";
}

// The sum, over rows that count, of the bytes of activations.
int64_t sum_of_counted(const SavedTensors& saved) {
  int64_t sum = 0;
  for (const SavedTensorRow& row : saved.rows()) {
    if (row.counted && row.role == SavedRole::kActivation) {
      sum += row.storage_bytes.value();
    }
  }
  return sum;
}

// Builds a graph. What `forward` makes, keeps and does not return is the graph's alone.
struct Measured {
  Tensor loss;
  int64_t growth = 0;  // bytes that it left allocated, the loss not counted
};
Measured measure(const std::function<Tensor()>& forward) {
  const memledger::testing::AllocationGrowth allocated;
  Measured measured;
  measured.loss = forward();
  measured.growth = allocated.bytes() - static_cast<int64_t>(measured.loss.storage().nbytes());
  return measured;
}

struct Keep : torch::autograd::Function<Keep> {
  static Tensor forward(torch::autograd::AutogradContext* ctx, const Tensor& x) {
    ctx->save_for_backward({x, x.exp()});
    ctx->saved_data["mask"] = torch::ones({65536}, torch::kFloat);
    ctx->saved_data["list"] = std::vector<Tensor>{torch::ones({1024}), torch::ones({2048})};
    ctx->saved_data["alpha"] = 0.5;
    return x * 2;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    return {grads[0] * saved[1]};
  }
};

struct Nothing : torch::autograd::Function<Nothing> {
  static Tensor forward(torch::autograd::AutogradContext*, const Tensor& x) { return x * 2; }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 torch::autograd::variable_list grads) {
    return {grads[0] * 2};
  }
};

// Packs into half precision; counts how often it is asked to unpack.
struct HalfHooks : torch::autograd::SavedVariableHooks {
  explicit HalfHooks(int* unpacked) : unpacked(unpacked) {}
  void call_pack_hook(const Tensor& tensor) override {
    at::NoGradGuard no_grad;
    packed = tensor.detach().to(torch::kHalf);
  }
  Tensor call_unpack_hook() override {
    ++*unpacked;
    return packed.to(torch::kFloat);
  }
  std::optional<std::pair<c10::SafePyObject, c10::SafePyObject>> retrieve_unpack_hook_data()
      const override {
    return std::nullopt;
  }
  Tensor packed;
  int* unpacked;
};

// A node of the user's own, not declared to anyone.
struct PrivateNode : torch::autograd::Node {
  torch::autograd::variable_list apply(torch::autograd::variable_list&& grads) override {
    return std::move(grads);
  }
  std::string name() const override { return "PrivateNode"; }
  torch::autograd::SavedVariable kept;
};

}  // namespace

TEST_SUITE_BEGIN("saved tensors");

TEST_CASE("weights that a perceptron saves as views are not activations") {
  torch::nn::Sequential net(torch::nn::Linear(64, 128), torch::nn::ReLU(),
                            torch::nn::Linear(128, 128), torch::nn::ReLU(),
                            torch::nn::Linear(128, 32));
  Tensor input = torch::randn({16, 64});
  const Measured measured = measure([&] { return net->forward(input).sum(); });

  const int64_t input_bytes = 16 * 64 * 4;
  // The outputs of the two ReLUs, once each though two nodes save each.
  const int64_t by_hand = 2 * 16 * 128 * 4;
  CHECK(measured.growth == by_hand);
  CHECK(memory_for_backward(*net, measured.loss, {{input}}) == by_hand);
  CHECK(memory_for_backward(*net, measured.loss) == by_hand + input_bytes);
  CHECK(memory_for_backward(net, measured.loss) == by_hand + input_bytes);

  const SavedTensors saved = saved_for_backward(*net, measured.loss, {{input}});
  CHECK(saved.total_bytes() == by_hand);
  CHECK(saved.bytes(SavedRole::kExcluded) == input_bytes);
  CHECK(saved.bytes(SavedRole::kParameter) == (128 * 128 + 128 * 32) * 4);
  CHECK(saved.complete());
  CHECK(sum_of_counted(saved) == saved.total_bytes());
}

TEST_CASE("buffers are no activations, by storage") {
  torch::nn::Sequential net(torch::nn::Conv2d(3, 8, 3), torch::nn::BatchNorm2d(8));
  net->eval();  // running statistics are saved
  Tensor input = torch::randn({2, 3, 16, 16});
  const Measured measured = measure([&] { return net->forward(input).sum(); });
  CHECK(memory_for_backward(*net, measured.loss, {{input}}) == measured.growth);
  CHECK(saved_for_backward(*net, measured.loss).bytes(SavedRole::kBuffer) == 2 * 8 * 4);
}

TEST_CASE("the output of exp under sum is an activation, the root is not") {
  Tensor x = param({1024});
  SUBCASE("exp().sum()") {
    const Measured measured = measure([&] { return x.exp().sum(); });
    CHECK(saved_for_backward(measured.loss).total_bytes() == 4096);
    CHECK(measured.growth == 4096);
  }
  SUBCASE("exp() as the root") {
    Tensor root = x.exp();
    const SavedTensors saved = saved_for_backward(root);
    CHECK(saved.total_bytes() == 0);
    CHECK(saved.bytes(SavedRole::kRoot) == 4096);
    CHECK(saved.rows().at(0).role == SavedRole::kRoot);
  }
}

TEST_CASE("index saves a list, of which every index tensor counts") {
  Tensor p = param({100000});
  Tensor i = torch::randint(0, 100000, {100000});
  const Measured measured = measure([&] { return (p * 2).index({i.clone()}).sum(); });
  const SavedTensors saved = saved_for_backward(measured.loss);
  CHECK(saved.total_bytes() == measured.growth);
  const auto row = find_row(saved, "IndexBackward0", "indices#0");
  REQUIRE(row.has_value());
  CHECK(row->storage_bytes == 800000);
  CHECK((row->dtype == torch::kLong));
}

TEST_CASE("two index tensors are two slots") {
  Tensor p = param({300, 300});
  const Measured measured = measure([&] {
    return (p * 2)
        .index({torch::randint(0, 300, {100001}), torch::randint(0, 300, {100001})})
        .sum();
  });
  const SavedTensors saved = saved_for_backward(measured.loss);
  CHECK(saved.total_bytes() == measured.growth);
  CHECK(measured.growth >= 1600016);
  CHECK(find_row(saved, "IndexBackward0", "indices#0").has_value());
  CHECK(find_row(saved, "IndexBackward0", "indices#1").has_value());
}

TEST_CASE("a custom Function's saved variables and saved_data count, lists included") {
  Tensor x = param({262144});
  const Measured measured = measure([&] { return Keep::apply(x).sum(); });
  const SavedTensors saved = saved_for_backward(measured.loss, {{x}});
  CHECK(measured.growth == kMiB + 65536 * 4 + (1024 + 2048) * 4);
  CHECK(saved.total_bytes() == measured.growth);
  CHECK(saved.unread_nodes().empty());
  CHECK(saved.bytes(SavedRole::kExcluded) == kMiB);
  for (const SavedTensorRow& row : saved.rows()) {
    CHECK(contains(row.node, "Keep"));
    CHECK((row.slot.rfind("saved#", 0) == 0 || row.slot.rfind("saved_data.", 0) == 0));
  }
  measured.loss.backward();
  CHECK(torch::allclose(x.grad(), x.exp()));
}

TEST_CASE("a custom Function that saves nothing has no row and is read") {
  Tensor x = param({8});
  const SavedTensors saved = saved_for_backward(Nothing::apply(x).sum());
  CHECK(saved.row_count() == 0);
  CHECK(saved.complete());
}

TEST_CASE("a custom Function whose tensor was modified in place is counted, and flagged") {
  Tensor x = param({64});
  Tensor kept = torch::ones({64});
  struct Mutable : torch::autograd::Function<Mutable> {
    static Tensor forward(torch::autograd::AutogradContext* ctx, const Tensor& x,
                          const Tensor& kept) {
      ctx->save_for_backward({kept});
      return x * 2;
    }
    static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                   torch::autograd::variable_list grads) {
      return {grads[0], Tensor()};
    }
  };
  Tensor loss = Mutable::apply(x, kept).sum();
  CHECK_FALSE(saved_for_backward(loss).rows().at(0).in_place_modified);
  kept.add_(1);
  const SavedTensors saved = saved_for_backward(loss);
  CHECK(saved.total_bytes() == 256);
  CHECK(saved.rows().at(0).in_place_modified);
  CHECK(saved.complete());
}

TEST_CASE("a custom Function that marks outputs or inputs is read like any other") {
  struct Marking : torch::autograd::Function<Marking> {
    static torch::autograd::variable_list forward(torch::autograd::AutogradContext* ctx,
                                                  const Tensor& x, Tensor written) {
      Tensor indices = torch::arange(8);
      ctx->save_for_backward({indices});
      ctx->mark_non_differentiable({indices});
      written.mul_(2);
      ctx->mark_dirty({written});
      return {x * 2, indices, written};
    }
    static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                   torch::autograd::variable_list grads) {
      return {grads[0], grads[2]};
    }
  };
  Tensor x = param({8});
  Tensor loss;
  {
    const auto outputs = Marking::apply(x, x.sigmoid());
    loss = outputs[0].sum() + outputs[2].sum();
  }
  const SavedTensors saved = saved_for_backward(loss);
  CHECK(find_row(saved, saved.rows().at(0).node, "saved#0")->storage_bytes == 64);
  CHECK(saved.total_bytes() == 64 + 32);  // the indices, and sigmoid's result, which was written to
  CHECK(find_row(saved, "SigmoidBackward0", "result")->in_place_modified);
  CHECK(saved.complete());
}

TEST_CASE(
    "tensors in saved_data count, in tuples, dictionaries and optionals, too; what cannot be seen "
    "is named") {
  struct Deep : torch::autograd::Function<Deep> {
    static Tensor forward(torch::autograd::AutogradContext* ctx, const Tensor& x,
                          bool with_storage) {
      ctx->saved_data["tuple"] =
          std::make_tuple(torch::ones({10}), std::make_tuple(torch::ones({20}), int64_t{7}));
      c10::Dict<std::string, Tensor> dict;
      dict.insert("mask", torch::ones({30}));
      ctx->saved_data["dict"] = dict;
      ctx->saved_data["optional"] = std::optional<Tensor>(torch::ones({40}));
      ctx->saved_data["nothing"] = std::optional<Tensor>();
      ctx->saved_data["undefined"] = Tensor();
      ctx->saved_data["list"] = std::vector<Tensor>{torch::ones({50}), torch::ones({60})};
      if (with_storage) ctx->saved_data["storage"] = torch::ones({70}).storage();
      return x * 2;
    }
    static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                   torch::autograd::variable_list grads) {
      return {grads[0], Tensor()};
    }
  };
  Tensor x = param({8});
  const Measured measured = measure([&] { return Deep::apply(x, false).sum(); });
  const SavedTensors saved = saved_for_backward(measured.loss);
  CHECK(measured.growth == (10 + 20 + 30 + 40 + 50 + 60) * 4);
  CHECK(saved.total_bytes() == measured.growth);
  CHECK(saved.complete());
  const std::string node = saved.rows().at(0).node;
  CHECK(find_row(saved, node, "saved_data.tuple#1#0")->storage_bytes == 80);
  CHECK(find_row(saved, node, "saved_data.dict#0")->storage_bytes == 120);
  CHECK(find_row(saved, node, "saved_data.list#1")->storage_bytes == 240);
  // Slot names outlive the graph and the first value.
  SavedTensors raw = memledger::get_tensors_saved_for_backward(EmptyNet(), measured.loss, false);
  CHECK(find_row(raw, node, "saved_data.optional")->storage_bytes == 160);

  const SavedTensors unseen = saved_for_backward(Deep::apply(x, true).sum());
  REQUIRE(unseen.unread_nodes().size() == 1);
  CHECK(unseen.unread_nodes()[0].reason == UnreadReason::kFailed);
  CHECK(contains(unseen.unread_nodes()[0].detail, "saved_data.storage is a Storage"));
}

TEST_CASE("a custom Function that backward() has freed is known as freed") {
  Tensor x = param({64});
  Tensor loss = Nothing::apply(x.exp()).sum();
  loss.backward();
  CHECK(contains(message_of([&] { saved_for_backward(loss); }), "freed by backward()"));
}

TEST_CASE("inputs and gradients are counted apart, each storage with the first role that fits") {
  torch::nn::Linear net(8, 8);
  Tensor input = torch::ones({4, 8});
  net->forward(input).sum().backward();
  Tensor grad = net->weight.grad();
  Tensor leaf = param({16});
  (leaf * 2).sum().backward();
  SavedTensorOptions options;
  options.training_paused = !kWorkersAreKnown;
  options.inputs = {input};
  options.exclude = {input};  // the first that fits: input
  Tensor loss =
      (net->forward(input) * (net->weight * grad).sum()).sum() + (leaf * leaf.grad()).sum();
  const SavedTensors saved = saved_for_backward(net, loss, options);
  CHECK(saved.bytes(SavedRole::kInput) == 4 * 8 * 4);
  CHECK(saved.bytes(SavedRole::kExcluded) == 0);
  CHECK(saved.bytes(SavedRole::kGradient) ==
        8 * 8 * 4 + 16 * 4);  // the parameter's, and that of a leaf the graph reaches
  CHECK(saved.bytes(SavedRole::kParameter) ==
        0);                                     // no gradient goes to the input or to the gradient
  CHECK(saved.total_bytes() == 4 * 8 * 4 + 4);  // the two factors of the first product
  CHECK(contains(saved.to_json(), "\"gradient\":320"));
}

TEST_CASE("a slice of 40 bytes holds its storage of 16 MiB") {
  Tensor p = param({10});
  const Measured measured = measure([&] {
    Tensor big = torch::ones({4 * kMiB});
    return (p * big.slice(0, 0, 10)).sum();
  });
  CHECK(measured.growth == 16 * kMiB);
  const SavedTensors saved = saved_for_backward(measured.loss, {{p}});
  CHECK(saved.total_bytes() == 16 * kMiB);
  const auto row = find_row(saved, "MulBackward0", "other");
  REQUIRE(row.has_value());
  CHECK(row->view);
  CHECK(row->extent_bytes == 40);
  CHECK(row->storage_bytes == 16 * kMiB);
}

TEST_CASE("expand of one float holds four bytes") {
  Tensor p = param({256, 1024});
  const Measured measured = measure([&] {
    return (p * torch::ones({1}).expand({256, 1024})).sum();
  });
  CHECK(measured.growth == 4);
  const SavedTensors saved = saved_for_backward(measured.loss, {{p}});
  CHECK(saved.total_bytes() == 4);
  CHECK_FALSE(find_row(saved, "MulBackward0", "other")->view);
}

TEST_CASE("one storage saved under two dtypes counts once, and whole") {
  Tensor p = param({262144});
  Tensor q = torch::ones({600000}, torch::kFloat).set_requires_grad(true);
  const Measured measured = measure([&] {
    Tensor floats = torch::ones({262144});
    Tensor bytes = floats.view(torch::kUInt8).slice(0, 0, 600000);
    return (p * floats).sum() + (q * bytes).sum();
  });
  CHECK(measured.growth == kMiB);
  CHECK(saved_for_backward(measured.loss, {{p, q}}).total_bytes() == kMiB);
}

TEST_CASE("thirds of one packed storage count once, and name the first holder") {
  Tensor weight = param({32, 96});
  const Measured measured = measure([&] {
    const auto qkv = torch::matmul(torch::ones({64, 32}), weight).chunk(3, 1);
    return (torch::matmul(qkv[0], qkv[1].t()).softmax(-1)).matmul(qkv[2]).sum();
  });
  const SavedTensors saved = saved_for_backward(measured.loss, {{weight}});
  CHECK(saved.total_bytes() == measured.growth);
  int shared = 0;
  const auto rows = saved.rows();
  for (const SavedTensorRow& row : rows) {
    if (!row.shares_with) continue;
    ++shared;
    CHECK(rows.at(*row.shares_with).counted);
    CHECK(rows.at(*row.shares_with).storage_address == row.storage_address);
    CHECK_FALSE(row.counted);
  }
  CHECK(shared == 3);  // q and k with v; the softmax's result with itself
}

TEST_CASE("a lazy copy shares its storage and is not copied by being counted") {
  Tensor p = param({1024});
  Tensor a = torch::ones({1024});
  Tensor b = a._lazy_clone();
  Tensor loss = (p * a).sum() + (p * b).sum();
  REQUIRE(c10::impl::cow::is_cow_data_ptr(a.storage().data_ptr()));
  CHECK(saved_for_backward(loss, {{p}}).total_bytes() == 4096);
  CHECK(c10::impl::cow::is_cow_data_ptr(a.storage().data_ptr()));
  CHECK(c10::impl::cow::is_cow_data_ptr(b.storage().data_ptr()));
}

TEST_CASE("a saved tensor modified in place is still held, and flagged") {
  Tensor x = param({1024});
  SUBCASE("an output") {
    const Measured measured = measure([&] {
      Tensor y = x.exp();
      y.add_(1);
      return y.sum();
    });
    const SavedTensors saved = saved_for_backward(measured.loss);
    CHECK(saved.total_bytes() == measured.growth);
    CHECK(find_row(saved, "ExpBackward0", "result")->in_place_modified);
  }
  SUBCASE("an input") {
    Tensor kept = torch::ones({1024});
    Tensor loss = (x * kept).sum();
    CHECK_FALSE(find_row(saved_for_backward(loss), "MulBackward0", "other")->in_place_modified);
    kept.add_(1);
    CHECK(find_row(saved_for_backward(loss), "MulBackward0", "other")->in_place_modified);
  }
  SUBCASE("before it was saved") {
    Tensor kept = torch::ones({1024});
    kept.add_(1);
    CHECK_FALSE(
        find_row(saved_for_backward((x * kept).sum()), "MulBackward0", "other")->in_place_modified);
  }
  SUBCASE("a view whose base was modified") {
    Tensor base = x * 1;
    Tensor half = base.slice(0, 0, 512);
    Tensor other = param({512});
    Tensor loss = (half * other).sum();
    base.mul_(2);
    loss = loss + base.sum();
    CHECK(find_row(saved_for_backward(loss), "MulBackward0", "self")->in_place_modified);
  }
}

TEST_CASE("after an in-place operation on a view, what the node inside CopySlices holds counts") {
  Tensor x = param({64, 64});
  const Measured measured = measure([&] {
    Tensor base = torch::zeros({128, 64});
    base.slice(0, 0, 64).copy_(x);
    base.slice(0, 32, 64).mul_(torch::ones({32, 64}));
    return base.exp().sum();
  });
  const SavedTensors saved = saved_for_backward(measured.loss);
  CHECK(saved.complete());
  // exp's result, the factor of mul_, and nothing of the base: mul_ needs
  // the other factor only.
  CHECK(saved.total_bytes() == (128 * 64 + 32 * 64) * 4);
  CHECK(saved.total_bytes() == measured.growth);
}

TEST_CASE("after backward() the graph is freed, and the error says so") {
  Tensor x = param({1024});
  Tensor loss = x.exp().sum();
  loss.backward();
  const std::string message = message_of([&] { saved_for_backward(loss); });
  CHECK(contains(message, "freed by backward()"));
  CHECK(contains(message, "SumBackward0"));
  CHECK(contains(message, "retain_graph"));
  CHECK(
      contains(message_of([&] { memory_for_backward(EmptyNet(), loss); }), "memory_for_backward"));
}

TEST_CASE("after backward() with retain_graph nothing is missing") {
  Tensor x = param({1024});
  Tensor loss = x.exp().sum();
  loss.backward({}, /*retain_graph=*/true);
  CHECK(saved_for_backward(loss).total_bytes() == 4096);
  CHECK(saved_for_backward(loss).unread_nodes().empty());
}

TEST_CASE("a graph freed in part gives what is left and names what is gone") {
  Tensor x = param({1024});
  Tensor trunk = x.exp();
  Tensor first = trunk.sin().sum();
  Tensor second = trunk.cos().sum();
  first.backward();
  const SavedTensors saved = saved_for_backward(second);
  CHECK(saved.total_bytes() == 4096);  // cos still holds its input
  REQUIRE(saved.unread_nodes().size() == 1);
  CHECK(saved.unread_nodes()[0].reason == UnreadReason::kReleased);
  CHECK(saved.unread_nodes()[0].node == "ExpBackward0");
  CHECK(saved.complete());
}

TEST_CASE("a freed list of saved tensors is known as freed") {
  Tensor x = param({64});
  Tensor loss = torch::cat({x, x}).index({torch::arange(5)}).sum();
  loss.backward();
  CHECK(contains(message_of([&] { saved_for_backward(loss); }), "freed"));
}

TEST_CASE("slots that never held anything do not look freed") {
  Tensor x = param({8, 3, 6, 6});
  // The factor needs no gradient, so x itself is not saved.
  Tensor loss = (x * torch::ones({6})).sum();
  const SavedTensors saved = saved_for_backward(loss);
  CHECK(saved.unread_nodes().empty());
  CHECK(saved.total_bytes() == 6 * 4);
  // A graph that saves no tensor at all is no freed graph.
  CHECK(saved_for_backward(x.view({-1}).sum()).total_bytes() == 0);
}

TEST_CASE("a root without a graph is an error that says what to do") {
  Tensor x = param({4});
  SUBCASE("no_grad") {
    Tensor loss;
    {
      at::NoGradGuard no_grad;
      loss = x.exp().sum();
    }
    CHECK(contains(message_of([&] { saved_for_backward(loss); }), "NoGradGuard"));
  }
  SUBCASE("detached") {
    Tensor loss = x.exp().sum().detach();
    CHECK(contains(message_of([&] { saved_for_backward(loss); }), "detached"));
  }
  SUBCASE("a leaf") {
    CHECK(contains(message_of([&] { saved_for_backward(x); }), "leaf"));
  }
  SUBCASE("undefined") {
    CHECK(contains(message_of([&] { saved_for_backward(Tensor()); }), "undefined"));
  }
  SUBCASE("no root") {
    CHECK(contains(message_of([&] { saved_for_backward(std::vector<Tensor>{}); }), "no root"));
  }
  SUBCASE("the second of two") {
    Tensor loss = x.exp().sum();
    CHECK(contains(message_of([&] { saved_for_backward({loss, x}); }), "root 1"));
  }
}

TEST_CASE("several roots are one union") {
  Tensor x = param({262144});
  Tensor first;
  Tensor second;
  const int64_t growth = growth_over([&] {
    Tensor trunk = x.exp();
    first = trunk.sin().sum();
    second = trunk.tanh().sum();
    return 0;
  });
  CHECK(saved_for_backward(first).total_bytes() == kMiB);
  CHECK(saved_for_backward(second).total_bytes() == 2 * kMiB);
  const SavedTensors both = saved_for_backward({first, second});
  CHECK(both.total_bytes() == 2 * kMiB);
  CHECK(both.total_bytes() == growth - 2 * kLossBytes);
}

TEST_CASE("hooks are not run, and what they packed is listed") {
  int unpacked = 0;
  Tensor x = param({1024});
  Tensor loss = x.exp().sum();
  auto* exp = dynamic_cast<torch::autograd::generated::ExpBackward0*>(
      loss.grad_fn()->next_edge(0).function.get());
  REQUIRE(exp != nullptr);
  exp->result_.register_hooks(std::make_unique<HalfHooks>(&unpacked));
  const SavedTensors saved = saved_for_backward(loss);
  CHECK(unpacked == 0);
  CHECK(saved.total_bytes() == 0);
  REQUIRE(saved.unread_nodes().size() == 1);
  CHECK(saved.unread_nodes()[0].reason == UnreadReason::kPacked);
  CHECK(saved.unread_nodes()[0].node == "ExpBackward0");
  CHECK(saved.unread_nodes()[0].detail == "result");
  CHECK_FALSE(saved.complete());
  CHECK(contains(saved.to_json(), "\"reason\":\"packed\",\"detail\":\"result\"}]}"));
  loss.backward();
  CHECK(unpacked == 1);
}

// LibTorch counts references to nodes with std::shared_ptr up to 2.12, with its own intrusive_ptr
// from 2.13.
template <typename Pointer>
Pointer owning(typename Pointer::element_type* node) {
  if constexpr (std::is_constructible_v<Pointer, typename Pointer::element_type*>) {
    return Pointer(node);
  } else {
    return Pointer::unsafe_steal_from_new(node);
  }
}

TEST_CASE("a node of a type closed to us is listed by name") {
  Tensor x = param({16});
  const auto node =
      owning<std::decay_t<decltype(torch::autograd::Edge().function)>>(new PrivateNode);
  node->set_next_edges(torch::autograd::collect_next_edges(x));
  Tensor y = x.detach().clone();
  torch::autograd::create_gradient_edge(y, node);
  const SavedTensors saved = saved_for_backward((y * 2).sum());
  REQUIRE(saved.unread_nodes().size() == 1);
  CHECK(saved.unread_nodes()[0].node == "PrivateNode");
  CHECK(saved.unread_nodes()[0].reason == UnreadReason::kUnknownType);
  CHECK_FALSE(saved.complete());
}

TEST_CASE("what only a saved tensor's own graph holds is held, too") {
  struct Outer : torch::autograd::Function<Outer> {
    static Tensor forward(torch::autograd::AutogradContext* ctx, const Tensor& x) {
      Tensor inner;
      {
        at::AutoGradMode grad(true);
        inner = x.detach().set_requires_grad(true).exp().sin();
      }
      ctx->save_for_backward({inner});
      return x * 2;
    }
    static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                   torch::autograd::variable_list grads) {
      return {grads[0]};
    }
  };
  Tensor x = param({1024});
  const Measured measured = measure([&] { return Outer::apply(x).sum(); });
  CHECK(measured.growth == 2 * 4096);
  CHECK(saved_for_backward(measured.loss, {{x}}).total_bytes() == 2 * 4096);
}

TEST_CASE("use counts are as before, and no storage outlives the graph") {
  Tensor x = param({1024});
  Tensor kept = torch::ones({1024});
  Tensor y = x.exp();
  Tensor loss = (y * kept + Keep::apply(y)).sum();
  const auto counts = [&] {
    return std::vector<size_t>{x.use_count(),
                               kept.use_count(),
                               y.use_count(),
                               loss.use_count(),
                               x.storage().use_count(),
                               kept.storage().use_count(),
                               y.storage().use_count(),
                               loss.grad_fn().use_count() > 0 ? size_t{1} : 0,
                               static_cast<size_t>(y.grad_fn().use_count())};
  };
  const auto before = counts();
  SavedTensors saved = saved_for_backward(loss);
  CHECK(counts() == before);
  c10::weak_intrusive_ptr<c10::StorageImpl> weak(y.storage().getWeakStorageImpl());
  y.reset();
  loss.reset();
  CHECK(weak.expired());
  CHECK(saved.row_count() > 0);
}

TEST_CASE("backward() gives the same gradients with and without the call") {
  const auto gradients = [](bool look) {
    torch::manual_seed(7);
    torch::nn::Sequential net(torch::nn::Conv2d(3, 4, 3), torch::nn::BatchNorm2d(4),
                              torch::nn::ReLU(), torch::nn::Flatten(), torch::nn::Dropout(0.3),
                              torch::nn::Linear(4 * 36, 5));
    Tensor input = torch::randn({2, 3, 8, 8}).set_requires_grad(true);
    Tensor loss = (net->forward(input).exp() * Keep::apply(input).sum()).sum();
    if (look) {
      saved_for_backward(*net, loss);
      memory_for_backward(*net, loss);
    }
    loss.backward();
    std::vector<Tensor> all = {input.grad()};
    for (const Tensor& p : net->parameters()) all.push_back(p.grad());
    return all;
  };
  const auto without = gradients(false);
  const auto with = gradients(true);
  REQUIRE(with.size() == without.size());
  for (size_t i = 0; i < with.size(); ++i) {
    CHECK(torch::equal(with[i], without[i]));
  }
}

TEST_CASE("a node that backward() is running on is not read, and named") {
  struct Looking : torch::autograd::Function<Looking> {
    static Tensor forward(torch::autograd::AutogradContext* ctx, const Tensor& x) {
      ctx->save_for_backward({x});
      return x * 2;
    }
    static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                   torch::autograd::variable_list grads) {
      looking()();
      return {grads[0] * 2};
    }
    static std::function<void()>& looking() {
      static std::function<void()> callback;
      return callback;
    }
  };
  Tensor x = param({64});
  Tensor loss = Looking::apply(x.exp()).sum();
  SavedTensors seen;
  Looking::looking() = [&] { seen = saved_for_backward(loss); };
  loss.backward({}, /*retain_graph=*/true);
  REQUIRE(seen.unread_nodes().size() == 1);
  CHECK(seen.unread_nodes()[0].reason == UnreadReason::kBusy);
  CHECK(contains(seen.unread_nodes()[0].node, "Looking"));
  CHECK(seen.total_bytes() == 256);  // exp's result, held by its own node as well
  CHECK_FALSE(seen.complete());
  CHECK(saved_for_backward(loss).complete());
}

TEST_CASE(
    "a graph can be read while others train over the same parameters, and while backward() runs on "
    "it") {
  Tensor weight = param({64, 64});
  const Tensor mine = (weight.exp() * weight.sin()).sum();
  const int64_t bytes = saved_for_backward(mine, {{weight}}).total_bytes();
  CHECK(bytes == 2 * 64 * 64 * 4);
  std::atomic<bool> stop{false};
  std::thread other([&] {
    while (!stop) (weight.cos() * 2).sum().backward();
  });
  std::thread same([&] {
    while (!stop) mine.backward({}, /*retain_graph=*/true);
  });
  for (int i = 0; i < 300; ++i) {
    const SavedTensors seen = saved_for_backward(mine, {{weight}});
    CHECK(seen.total_bytes() <= bytes);
    CHECK((seen.total_bytes() == bytes || !seen.unread_nodes().empty()));
    for (const memledger::UnreadNode& node : seen.unread_nodes())
      CHECK(node.reason == UnreadReason::kBusy);
  }
  stop = true;
  other.join();
  same.join();
  CHECK(saved_for_backward(mine, {{weight}}).total_bytes() == bytes);
}

TEST_CASE("a deep graph needs no stack") {
  const int64_t depth = std::getenv("MEMLEDGER_FULL") != nullptr ? 1000000 : 200000;
  Tensor x = param({1});
  Tensor y = x;
  for (int64_t i = 0; i < depth; ++i) y = y.sin();
  const SavedTensors saved = saved_for_backward(y);
  CHECK(saved.row_count() == static_cast<size_t>(depth));
  CHECK(saved.total_bytes() == depth * 4);
  CHECK(saved.node_count() == static_cast<size_t>(depth) + 1);
}

TEST_CASE("odd tensors give rows, and nothing throws") {
  Tensor dense = param({8, 4});
  SUBCASE("sparse COO: indices and values") {
    Tensor coo =
        torch::sparse_coo_tensor(torch::arange(12).view({2, 6}) % 4, torch::ones({6}), {8, 8});
    Tensor loss = torch::mm(coo, dense).sum();
    const SavedTensors saved = saved_for_backward(loss, {{dense}});
    CHECK(saved.total_bytes() == 2 * 6 * 8 + 6 * 4);
    CHECK(saved.complete());
  }
  SUBCASE("sparse CSR: rows, columns and values") {
    Tensor csr = torch::sparse_csr_tensor(torch::arange(9), torch::arange(8), torch::ones({8}),
                                          {8, 8}, torch::kFloat);
    Tensor loss = torch::mm(csr, dense).sum();
    const SavedTensors saved = saved_for_backward(loss, {{dense}});
    CHECK(saved.total_bytes() == 9 * 8 + 8 * 8 + 8 * 4);
  }
  SUBCASE("mkldnn: bytes unknown") {
    if (!at::hasMKLDNN()) return;
    Tensor opaque = dense.detach().to_mkldnn();
    Tensor loss = (dense * torch::ones({8, 4})).sum();
    auto* sum = loss.grad_fn().get();
    auto* mul =
        dynamic_cast<torch::autograd::generated::MulBackward0*>(sum->next_edge(0).function.get());
    REQUIRE(mul != nullptr);
    mul->self_ = torch::autograd::SavedVariable(opaque, false);
    const SavedTensors saved = saved_for_backward(loss);
    CHECK(saved.unknown_rows() == 1);
    CHECK_FALSE(find_row(saved, "MulBackward0", "self")->storage_bytes);
    CHECK_FALSE(saved.complete());
    std::ostringstream text;
    text << saved;
    CHECK(contains(text.str(), " ?  MulBackward0"));
    CHECK(contains(saved.to_json(),
                   "\"storage_address\":null,\"storage_id\":null,\"storage_bytes\":null,"
                   "\"extent_bytes\":null,\"offset_bytes\":null"));
    CHECK(contains(saved.to_csv(), ",cpu,,,,,,0,0,0,,0,0,activation\n"));
  }
  SUBCASE("meta: what it would be") {
    Tensor meta = torch::ones({16}, torch::kMeta).set_requires_grad(true);
    const SavedTensors saved = saved_for_backward((meta * meta.exp()).sum());
    CHECK(saved.total_bytes() == 2 * 64);
    CHECK(saved.rows().at(0).device == c10::Device(c10::kMeta));
  }
  SUBCASE("nested") {
    Tensor nested = torch::nested::nested_tensor({torch::ones({2, 3}), torch::ones({4, 3})},
                                                 torch::TensorOptions().requires_grad(true));
    const SavedTensors saved = saved_for_backward((nested * nested).to_padded_tensor(0).sum());
    const auto row = find_row(saved, "MulBackward0", "self");
    REQUIRE(row.has_value());
    CHECK_FALSE(row->shape.has_value());
    CHECK(row->storage_bytes == 18 * 4);
  }
  SUBCASE("zero bytes") {
    Tensor none = param({0, 3});
    const SavedTensors saved = saved_for_backward((none * none.exp()).sum());
    CHECK(saved.row_count() == 3);
    CHECK(saved.total_bytes() == 0);
    CHECK(saved.complete());
  }
  SUBCASE("complex") {
    Tensor z = torch::randn({8}, torch::kComplexFloat).set_requires_grad(true);
    CHECK(saved_for_backward(torch::real(z.exp()).sum()).total_bytes() == 64);
  }
}

TEST_CASE("options choose the device and the rounding") {
  Tensor x = param({100});
  Tensor loss = x.exp().exp().sum();
  SavedTensorOptions options;
  CHECK(saved_for_backward(loss, options).total_bytes() == 800);
  options.rounding = Rounding::kCudaBlocks;
  CHECK(saved_for_backward(loss, options).total_bytes() == 1024);
  options.rounding = Rounding::kRequested;
  options.device = c10::Device("cpu");
  CHECK(saved_for_backward(loss, options).total_bytes() == 800);
  options.device = c10::Device("cuda:0");
  CHECK(saved_for_backward(loss, options).total_bytes() == 0);
}

TEST_CASE("exclude works by storage: a view excludes all of it") {
  Tensor x = param({64, 64});
  Tensor input = torch::ones({64, 64});
  SavedTensorOptions options;
  options.exclude = {input.select(0, 3)};
  const SavedTensors saved = saved_for_backward((x * input.t()).sum(), options);
  CHECK(saved.bytes(SavedRole::kExcluded) == 64 * 64 * 4);
  CHECK(saved.total_bytes() == 0);
}

TEST_CASE("get_tensors_saved_for_backward() gives raw rows, or one row for each storage") {
  torch::nn::Linear net(8, 8);
  Tensor input = torch::ones({4, 8});
  Tensor hidden = net->forward(input).exp();
  Tensor loss = (hidden * hidden.slice(0, 0, 1)).sum();
  const SavedTensors raw = memledger::get_tensors_saved_for_backward(*net, loss, false);
  const SavedTensors unique = memledger::get_tensors_saved_for_backward(*net, loss);
  CHECK(raw.row_count() == 4);  // input, exp's result, mul's two
  CHECK(unique.row_count() == 2);
  CHECK(unique.total_bytes() == 2 * 4 * 8 * 4);
  CHECK(raw.total_bytes() == unique.total_bytes());
  const c10::DimVector whole = {4, 8};
  for (const SavedTensorRow& row : unique.rows()) {
    CHECK(row.counted);
    CHECK((row.shape == whole));
    CHECK(row.role == SavedRole::kActivation);
  }
}

TEST_CASE("JSON and the table show every row and what is not included") {
  torch::nn::Linear net(8, 8);
  Tensor input = torch::ones({4, 8}).set_requires_grad(true);
  Tensor loss = net->forward(input).exp().sum();
  const SavedTensors saved = saved_for_backward(*net, loss, {{input}});
  const std::string json = saved.to_json();
  CHECK(contains(json, "{\"schema\":\"memledger.saved_tensors/2\",\"total_bytes\":128,"));
  CHECK(contains(json,
                 "\"slot\":\"result\",\"shape\":[4,8],"
                 "\"dtype\":\"torch.float32\",\"device\":\"cpu\""));
  CHECK(contains(json,
                 "\"storage_bytes\":128,\"extent_bytes\":128,\"offset_bytes\":0,\"view\":false,"
                 "\"lent\":false,\"counted\":true,\"shares_with\":null,"));
  CHECK(contains(json, "\"unread_nodes\":[]}"));
  std::ostringstream text;
  text << saved;
  CHECK(contains(text.str(), "Saved for backward: 128.00B (128 bytes), 3 saved"));
  CHECK(contains(text.str(), "Not included, parameter: 256.00B"));
  CHECK(contains(text.str(), "Not included, excluded: 128.00B"));
  CHECK(contains(text.str(), "   128.00B  ExpBackward0"));
  CHECK(contains(text.str(), " (4, 8)                   torch.float32  cpu"));
}

TEST_CASE("a scalar has the shape of no sizes in every format") {
  const SavedTensors saved = saved_for_backward((param({}).exp() * 2).exp());
  CHECK(contains(saved.to_json(), "\"shape\":[],\"dtype\":\"torch.float32\""));
  CHECK(contains(saved.to_csv(), ",(),torch.float32,cpu,"));
  std::ostringstream text;
  text << saved;
  CHECK(contains(text.str(), " ()  "));
}

TEST_CASE("where a view begins in its storage is told in bytes") {
  Tensor big = torch::ones({8, 4});
  const SavedTensors saved = saved_for_backward((param({4}) * big[2]).sum());
  CHECK(saved.rows().at(0).storage_offset_bytes == 2 * 4 * 4);
  CHECK(contains(saved.to_json(), "\"extent_bytes\":16,\"offset_bytes\":32,\"view\":true,"));
  CHECK(contains(saved.to_csv(), ",128,16,32,1,0,1,,0,0,activation\n"));
}

TEST_SUITE_END();
