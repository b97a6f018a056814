// On random graphs of 200 operators saved_for_backward() and LibTorch's own memory reports agree.
// 200 graphs; with MEMLEDGER_FULL=1 a thousand.

#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/csrc/autograd/custom_function.h>

#include <cstdint>
#include <cstdlib>
#include <functional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "graph/saved_tensors.h"
#include "registry/registry.h"
#include "tests/support/allocation_count.h"
#include "tests/support/doctest_beside_torch.h"

namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Saves an input, an output, something of its own, and tensors in saved_data.
struct Keeping : torch::autograd::Function<Keeping> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x) {
    Tensor out = x * 3;
    ctx->save_for_backward({x, out, at::ones({17})});
    ctx->saved_data["mask"] = x.gt(0);
    ctx->saved_data["several"] =
        std::make_tuple(at::ones({3}), std::vector<Tensor>{at::ones({5}), at::ones({7})});
    return out;
  }
  static variable_list backward(AutogradContext*, variable_list grads) { return {grads[0] * 3}; }
};

// Writes to its input, and has an output that needs no gradient.
struct Writing : torch::autograd::Function<Writing> {
  static variable_list forward(AutogradContext* ctx, Tensor x) {
    Tensor signs = x.sign();
    x.mul_(2);
    ctx->mark_dirty({x});
    ctx->mark_non_differentiable({signs});
    ctx->save_for_backward({signs});
    return {x, signs};
  }
  static variable_list backward(AutogradContext*, variable_list grads) { return {grads[0] * 2}; }
};

class RandomGraph {
 public:
  explicit RandomGraph(uint64_t seed) : random_(seed) {
    at::manual_seed(seed);
    for (int i = 0; i < 4; ++i)
      leaves_.push_back(at::randn({1 + below(8), 1 + below(24)}).requires_grad_());
    constants_ = {at::randn({8, 24}), at::randn({1}), at::randn({24})};
  }

  // What the caller holds, and the graph only refers to.
  std::vector<Tensor> outside() const {
    std::vector<Tensor> all = leaves_;
    all.insert(all.end(), constants_.begin(), constants_.end());
    return all;
  }

  // The roots. All else that was made is the graph's, or gone.
  std::vector<Tensor> build(int operators) {
    pool_ = leaves_;
    for (int i = 0; i < operators; ++i) {
      try {
        add_one();
      } catch (const c10::Error&) {
        // In-place on a leaf or on one of several views, sizes that do not fit: refused by
        // LibTorch, and nothing is made.
        ++refused_;
      }
      // Most things are forgotten, as in a program.
      if (pool_.size() > 24)
        pool_.erase(pool_.begin() + below(static_cast<int64_t>(pool_.size()) - 4));
    }
    std::vector<Tensor> roots;
    for (int i = 0; i < 2; ++i) {
      Tensor sum = leaves_[0].sum();
      for (size_t k = static_cast<size_t>(i); k < pool_.size(); k += 2) {
        try {
          sum = sum + pool_[k].sum();
        } catch (const c10::Error&) {
          ++refused_;  // one of several views, whose base was written to
        }
      }
      roots.push_back(sum);
    }
    pool_.clear();
    return roots;
  }

  int refused() const { return refused_; }
  const std::string& log() const { return log_; }

 private:
  int64_t below(int64_t end) { return std::uniform_int_distribution<int64_t>(0, end - 1)(random_); }
  const Tensor& any() {
    return pool_[static_cast<size_t>(below(static_cast<int64_t>(pool_.size())))];
  }
  int64_t any_dim(const Tensor& x) { return below(x.dim()); }
  Tensor indices(int64_t count, int64_t end) { return at::randint(end, {count}, at::kLong); }
  // What is written to a tensor comes from leaves only. If it were computed from that tensor, the
  // node that saved the tensor and the tensor's new history would hold each other: a cycle that
  // LibTorch never frees, and no root may lead to.
  Tensor leaf_mean() {
    return leaves_[static_cast<size_t>(below(static_cast<int64_t>(leaves_.size())))].mean();
  }
  // Two dimensions, and not too large.
  Tensor flat(const Tensor& x) {
    return x.dim() == 2 ? x : x.reshape({x.dim() == 0 ? 1 : x.size(0), -1});
  }

  void add(const char* name, const Tensor& made) {
    log_ += name;
    log_ += ' ';
    if (!made.is_floating_point() || made.numel() == 0) return;
    // Keeps sizes within bounds.
    pool_.push_back(made.numel() > 4096 ? made.reshape({-1}).slice(0, 0, 600).reshape({20, 30})
                    : made.dim() == 0   ? made.expand({3, 5})
                                        : made);
  }

  void add_one() {
    const Tensor x = any();
    const Tensor y = any();
    switch (below(56)) {
      case 0:
        return add("sin", x.sin());
      case 1:
        return add("exp", (x * 0.1).exp());
      case 2:
        return add("sigmoid", x.sigmoid());
      case 3:
        return add("tanh", x.tanh());
      case 4:
        return add("relu", x.relu());
      case 5:
        return add("abs", x.abs());
      case 6:
        return add("pow", x.pow(2));
      case 7:
        return add("softmax", x.softmax(-1));
      case 8:
        return add("log_softmax", x.log_softmax(-1));
      case 9:
        return add("clone", x.clone());
      case 10:
        return add("double", x.to(at::kDouble).to(at::kFloat));
      case 11:
        return add("dropout", at::dropout(x, 0.3, true));
      case 12:
        return add("mul", x * y);
      case 13:
        return add("add", x + y);
      case 14:
        return add("div", x / (y.abs() + 1));
      case 15:
        return add("maximum", at::maximum(x, y));
      case 16:
        return add("where", at::where(x > 0, x, y));
      case 17:
        return add("mul self", x * x);
      case 18:
        return add("mul constant", x * constants_[1]);
      case 19:
        return add("view", x.view(-1));
      case 20:
        return add("transpose", x.transpose(0, -1));
      case 21:
        return add("slice", x.slice(any_dim(x), 0, 1 + below(4)));
      case 22:
        return add("select", x.select(any_dim(x), 0).unsqueeze(0));
      case 23:
        return add("expand", x.unsqueeze(0).expand({2, -1, -1}));
      case 24:
        return add("chunk", x.chunk(3, -1).front());
      case 25:
        return add("unbind", x.unbind(0).back().unsqueeze(0));
      case 26:
        return add("diagonal", flat(x).diagonal().unsqueeze(0));
      case 27:
        return add("contiguous", x.transpose(0, -1).contiguous());
      case 28:
        return add("mul_", any().mul_(1.5));
      case 29:
        return add("mul_ by", any().mul_(leaf_mean()));
      case 30:
        return add("sigmoid_", any().sigmoid_());
      case 31:
        return add("relu_", any().relu_());
      case 32:
        return add("add_", any().add_(leaf_mean()));
      case 33:
        return add("zero_", any().zero_());
      case 34:
        return add("slice mul_", any().slice(0, 0, 1).mul_(2));
      case 35: {
        const Tensor base = x.clone();
        base.select(0, 0).copy_(y.reshape({-1})
                                    .slice(0, 0, base.select(0, 0).numel())
                                    .reshape(base.select(0, 0).sizes()));
        return add("copy_ into a view", base);
      }
      case 36: {
        const Tensor base = x.clone();
        base.slice(0, 0, 2).exp_().mul_(base.slice(0, 0, 2).detach().clone());
        return add("in place on a view, twice", base);
      }
      case 37:
        return add("cat", at::cat({x.reshape({-1}), y.reshape({-1})}));
      case 38:
        return add("stack", at::stack({x, x.cos(), x.cos()}));
      case 39:
        return add("index", x.index({indices(5, x.size(0))}));
      case 40:
        return add(
            "index two",
            flat(x).index({indices(6, flat(x).size(0)), indices(6, flat(x).size(1))}).unsqueeze(0));
      case 41:
        return add("index_select", x.index_select(0, indices(3, x.size(0))));
      case 42:
        return add("gather", flat(x).gather(
                                 0, at::randint(flat(x).size(0), {2, flat(x).size(1)}, at::kLong)));
      case 43:
        return add("masked_fill", x.masked_fill(x > 0.5, 0.1));
      case 44:
        return add("mean", x.mean(any_dim(x), true));
      case 45:
        return add("max", std::get<0>(x.max(any_dim(x), true)));
      case 46:
        return add("sort", std::get<0>(x.sort(-1)));
      case 47:
        return add("topk", std::get<0>(x.topk(1)));
      case 48:
        return add("var", x.var(any_dim(x), false, true));
      case 49:
        return add("norm", x.norm().reshape({1, 1}));
      case 50:
        return add("cumsum", x.cumsum(0));
      case 51:
        return add("matmul", at::matmul(flat(x), at::randn({flat(x).size(1), 6})));
      case 52:
        return add("linear", at::linear(x, at::randn({7, x.size(-1)}), at::randn({7})));
      case 53:
        return add("layer_norm", at::layer_norm(x, {x.size(-1)}));
      case 54:
        return add("custom", Keeping::apply(x));
      default:
        return add("custom in place", Writing::apply(x.clone())[0]);
    }
  }

  std::mt19937_64 random_;
  std::vector<Tensor> leaves_, constants_, pool_;
  int refused_ = 0;
  std::string log_;
};

int64_t bytes_of(const std::vector<Tensor>& roots) {
  std::set<const void*> seen;
  int64_t bytes = 0;
  for (const Tensor& root : roots) {
    const auto* storage = root.storage().unsafeGetStorageImpl();
    if (seen.insert(storage).second) bytes += static_cast<int64_t>(storage->nbytes());
  }
  return bytes;
}

// Returns what is alive and in no row, for the message of a failure.
std::string missed(const memledger::SavedTensors& saved, const std::vector<Tensor>& elsewhere) {
  std::set<uintptr_t> known;
  for (const memledger::SavedTensorRow& row : saved.rows()) known.insert(row.storage_address);
  for (const Tensor& tensor : elsewhere)
    known.insert(reinterpret_cast<uintptr_t>(tensor.storage().data()));
  std::string text;
  const memledger::Snapshot snapshot = memledger::Registry::global().snapshot();
  for (const memledger::StorageInfo& storage : snapshot.storages(at::kCPU)) {
    if (known.count(storage.address) > 0) continue;
    text += std::to_string(storage.nbytes) + " bytes of " + std::string(storage.op) + "; ";
  }
  return text;
}

}  // namespace

TEST_CASE("saved bytes are what the forward pass leaves allocated, on any graph") {
  at::set_num_threads(1);
  const bool full = std::getenv("MEMLEDGER_FULL") != nullptr;
  const uint64_t seeds = full ? 1000 : 200;
  const memledger::ScopedTracking tracking;
  int refused = 0;
  size_t nodes = 0;
  int64_t bytes = 0;
  for (uint64_t seed = 0; seed < seeds; ++seed) {
    CAPTURE(seed);
    RandomGraph graph(seed);
    const memledger::testing::AllocationGrowth allocated;
    std::vector<Tensor> roots = graph.build(200);
    const int64_t growth = allocated.bytes() - bytes_of(roots);
    const memledger::SavedTensors saved =
        memledger::saved_for_backward(roots, {/*exclude=*/graph.outside()});
    CAPTURE(graph.log());
    CHECK(saved.complete());
    CHECK(saved.unread_nodes().empty());
    if (saved.total_bytes() != growth) {
      std::vector<Tensor> elsewhere = graph.outside();
      elsewhere.insert(elsewhere.end(), roots.begin(), roots.end());
      CAPTURE(missed(saved, elsewhere));
      REQUIRE(saved.total_bytes() == growth);
    }
    roots.clear();
    CHECK(allocated.bytes() == 0);  // looking at the graph has kept nothing of it
    refused += graph.refused();
    nodes += saved.node_count();
    bytes += saved.total_bytes();
  }
  // The graphs are worth testing: few operators were refused, and nodes were made.
  CHECK(refused < static_cast<int>(seeds) * 60);
  CHECK(nodes > seeds * 150);
  CHECK(bytes > 0);
  MESSAGE(seeds << " graphs, " << nodes << " nodes, " << refused << " operators refused, " << bytes
                << " bytes");
}
