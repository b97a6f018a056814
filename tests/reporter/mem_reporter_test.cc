#define DOCTEST_CONFIG_IMPLEMENT
#include "tests/support/doctest_beside_torch.h"

#include <torch/torch.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <sstream>
#include <thread>

#include "registry/registry.h"
#include "reporter/mem_reporter.h"
#include "tests/reporter/report_parts.h"
#include "tests/support/allocation_count.h"

namespace memledger {
namespace {

using testing::contains;
using testing::cpu;
using testing::find_row;
using testing::text;
using testing::truth;
using testing::verbose_text;

void check_explained(const Report& report) {
  CHECK(cpu(report).unexplained_bytes == 0);
  CHECK(cpu(report).total_bytes == truth().live_bytes());
  CHECK(cpu(report).allocator_bytes == truth().live_bytes());
  int64_t by_role = 0;
  for (const int64_t bytes : cpu(report).bytes_by_role) by_role += bytes;
  CHECK(by_role == truth().live_bytes());
}

std::string row_text(const std::string& name, const std::string& size, const std::string& used) {
  std::string line = name + std::string(40 - name.size(), ' ');
  line += std::string(20 - size.size(), ' ') + size;
  return line + std::string(10 - used.size(), ' ') + used + "\n";
}

TEST_SUITE("the printed table") {
  TEST_CASE("pytorch_memlab's Linear example, before and after backward") {
    torch::nn::Linear linear(1024, 1024);
    auto input = torch::ones({512, 1024});
    const MemReporter reporter(linear);
    auto out = linear->forward(input).mean();
    const std::string header = "Element type" + std::string(28, ' ') + std::string(16, ' ') +
                               "Size" + "  Used MEM\n" + std::string(79, '-') +
                               "\nStorage on cpu\n";
    const std::string before = text(reporter);
    CAPTURE(before);
    CHECK(before.rfind(header, 0) == 0);
    CHECK(contains(before, row_text("weight", "(1024, 1024)", "4.00M")));
    CHECK(contains(before, row_text("bias", "(1024,)", "4.00K")));
    // The command's copy sees what the program's own does not: which layer reads it.
    const bool is_run_by_command = std::getenv("MEMLEDGER_LIBRARY") != nullptr;
    CHECK(contains(before, row_text("Tensor0", "(512, 1024)", "2.00M").substr(0, 70) +
                               (is_run_by_command ? "  aten::ones [input of Linear, forward]\n"
                                                  : "  aten::ones [forward]\n")));
    CHECK(contains(before, row_text("Tensor1", "(1,)", "4.00B").substr(0, 70) +
                               "  aten::mean [layer Linear, forward]\n"));
    CHECK(
        contains(before,
                 "Total Tensors: 1573889 \tUsed Memory: 6.00M\nThe allocated memory on cpu: 6.00M\n"
                 "Explained: 6.00M of 6.00M (0.00B unexplained)\n"
                 "  named: 4.00M; anonymous: 2.00M\n  by role: Parameter 4.00M, " +
                     std::string(is_run_by_command ? "Input 2.00M, Tensor 4.00B" : "Tensor 2.00M") +
                     "\n" + std::string(79, '-') + "\n"));
    out.backward();
    const std::string after = text(reporter);
    CAPTURE(after);
    CHECK(contains(after, row_text("weight.grad", "(1024, 1024)", "4.00M")));
    CHECK(contains(after, row_text("bias.grad", "(1024,)", "4.00K")));
    CHECK(contains(after, "Total Tensors: 2623489 \tUsed Memory: 10.01M\n"));
  }

  TEST_CASE("pytorch_memlab's shared weights: one row, and an arrow for the second when verbose") {
    torch::nn::Linear first(1024, 1024), second(1024, 1024);
    second->weight.set_data(first->weight);
    torch::nn::Sequential container(first, second);
    const MemReporter reporter(container);
    CHECK_FALSE(contains(text(reporter), "1.weight"));
    CHECK(contains(verbose_text(reporter),
                   row_text("1.weight(->0.weight)", "(1024, 1024)", "0.00B").substr(0, 70) +
                       "  offset 0, extent 4194304\n"));
    CHECK(cpu(reporter.collect()).total_bytes == truth().live_bytes());
  }

  TEST_CASE("one tensor under two names is a+b") {
    struct Tied : torch::nn::Module {
      Tied() {
        weight = register_parameter("encoder", torch::ones({64, 8}));
        register_parameter("decoder", weight);
      }
      at::Tensor weight;
    };
    const auto tied = std::make_shared<Tied>();
    const MemReporter reporter(*tied);
    CHECK(contains(text(reporter), row_text("encoder+decoder", "(64, 8)", "2.00K")));
  }

  TEST_CASE("anonymous rows alike are shown together, named ones never; the rest is summed up") {
    std::vector<at::Tensor> tensors;
    for (int i = 0; i < 3; ++i) tensors.push_back(torch::ones({256}));
    for (int i = 1; i <= 60; ++i) tensors.push_back(torch::zeros({i}));
    MemReporter reporter;
    reporter.add_tensor("mine", tensors[0]);
    const std::string shown = text(reporter);
    CAPTURE(shown);
    CHECK(contains(shown, row_text("mine", "(256,)", "1.00K")));
    CHECK(contains(shown, "2 x Tensor0 …"));
    // 1 named, 1 group, 60 single rows; 50 are shown, and the 12 smallest hold 4 * (1 + … + 12)
    // bytes.
    CHECK(contains(shown, "… and 12 more, 312.00B\n"));
    CHECK_FALSE(contains(verbose_text(reporter), "more, "));
    ReportOptions options;
    options.max_rows = 2;
    CHECK(contains(text(reporter, options), "… and 60 more, "));
  }

  TEST_CASE("columns line up behind a name that is not ASCII") {
    std::vector<at::Tensor> alike = {torch::ones({256}), torch::ones({256})};
    auto named = torch::ones({3});
    MemReporter reporter;
    reporter.add_tensor("größe…", named);
    const std::string shown = text(reporter);
    CAPTURE(shown);
    CHECK(contains(shown, "\n2 x Tensor0 …" + std::string(40 - 13, ' ') + std::string(14, ' ') +
                              "(256,)     2.00K  aten::ones"));
    CHECK(contains(
        shown, "\ngröße…" + std::string(40 - 6, ' ') + std::string(16, ' ') + "(3,)    12.00B\n"));
  }

  TEST_CASE("the sizes people read") {
    torch::nn::Linear big(1024, 2);
    auto scalar = torch::ones({}, torch::kDouble);
    MemReporter reporter(big);
    reporter.add_tensor("scalar", scalar);
    CHECK(contains(text(reporter), row_text("weight", "(2, 1024)", "8.00K")));
    CHECK(contains(text(reporter), row_text("scalar", "(1,)", "8.00B")));
  }

  TEST_CASE("reading changes nothing: two reports with nothing between are identical") {
    torch::nn::Linear linear(16, 16);
    auto out = linear->forward(torch::ones({2, 16})).sum();
    out.backward();
    MemReporter reporter(linear);
    reporter.add_tensor("out", out);
    const auto uses = linear->weight.use_count();
    const std::string first = verbose_text(reporter);
    CHECK(verbose_text(reporter) == first);
    CHECK(linear->weight.use_count() == uses);
    CHECK(linear->weight.storage().use_count() == 1);
  }

  TEST_CASE(
      "a small view that keeps a big storage alive is named with both sizes, other references are "
      "counted") {
    auto view = torch::ones({1 << 20}).slice(0, 0, 10);
    auto other = view.slice(0, 0, 5);
    MemReporter reporter;
    reporter.add_tensor("view", view);
    const std::string shown = verbose_text(reporter);
    CAPTURE(shown);
    CHECK(contains(shown, row_text("view", "(10,)", "4.00M")));
    CHECK(contains(shown, "  a view of 40.00B keeps 4.00M alive\n"));
    // `other`, and the base, which every view keeps.
    CHECK(contains(shown, "  and 2 more references\n"));
  }

  TEST_CASE("a device without tensors, and a filter") {
    MemReporter reporter;
    auto tensor = torch::ones({4});
    ReportOptions options;
    options.device = c10::Device(c10::kMeta);
    CHECK(contains(text(reporter, options), "No tensor is alive."));
    options.device = c10::Device(c10::kCPU);
    CHECK(contains(text(reporter, options), "Storage on cpu"));
  }
}

TEST_SUITE("names and roles") {
  TEST_CASE(
      "parameters, buffers, gradients, optimizer state, inputs, saved tensors; everything "
      "explained at every step") {
    torch::nn::Sequential net(torch::nn::Linear(32, 64), torch::nn::BatchNorm1d(64),
                              torch::nn::ReLU(), torch::nn::Linear(64, 4));
    torch::optim::Adam adam(net->parameters());
    auto input = torch::randn({16, 32});
    MemReporter reporter;
    reporter.add_module("net", net).add_optimizer(adam).add_input("x", input);
    Report report = reporter.collect();
    check_explained(report);
    CHECK(find_row(report, "Adam.net.0.weight.exp_avg") == nullptr);
    CHECK(find_row(report, "net.1.running_mean")->role == Role::kBuffer);
    CHECK(find_row(report, "x")->role == Role::kInput);

    auto loss = net->forward(input).square().sum();
    reporter.add_graph(loss);
    report = reporter.collect();
    check_explained(report);
    // The first Linear's result, batch norm's mean and deviation, ReLU's result, the second
    // Linear's result.
    CHECK(cpu(report).bytes_by_role[static_cast<size_t>(Role::kSaved)] ==
          (16 * 64 + 2 * 64 + 16 * 64 + 16 * 4) * 4);
    const ReportRow* saved = find_row(report, "ReluBackward0.result");
    REQUIRE(saved != nullptr);
    CHECK(saved->kind == RowKind::kShared);
    CHECK(find_row(report, saved->owner)->nbytes == 16 * 64 * 4);

    loss.backward();
    report = reporter.collect();
    check_explained(report);
    CHECK(find_row(report, "net.3.weight.grad")->role == Role::kGradient);
    CHECK(find_row(report, "net.3.weight.grad")->nbytes == 64 * 4 * 4);

    adam.step();
    report = reporter.collect();
    check_explained(report);
    CHECK(find_row(report, "Adam.net.0.weight.exp_avg")->role == Role::kOptimizerState);
    CHECK(cpu(report).bytes_by_role[static_cast<size_t>(Role::kOptimizerState)] ==
          2 * (32 * 64 + 64 + 64 + 64 + 64 * 4 + 4) * 4);

    adam.zero_grad();
    check_explained(reporter.collect());
  }

  TEST_CASE("every optimizer's state has names, lists included") {
    torch::nn::Linear net(4, 4);
    const auto step = [&](auto& optimizer) {
      const auto closure = [&] {
        optimizer.zero_grad();
        auto loss = net->forward(torch::ones({1, 4})).square().sum();
        loss.backward();
        return loss;
      };
      optimizer.step(closure);
    };
    const auto names = [&](auto optimizer) {
      MemReporter reporter(net);
      reporter.add_optimizer(optimizer);
      step(optimizer);
      step(optimizer);
      const Report report = reporter.collect();
      check_explained(report);
      std::string joined;
      for (const ReportRow& row : cpu(report).rows) joined += row.name + " ";
      return joined;
    };
    using namespace torch::optim;
    CHECK(contains(names(Adam(net->parameters(), AdamOptions().amsgrad(true))),
                   "Adam.weight.max_exp_avg_sq "));
    CHECK(contains(names(AdamW(net->parameters())), "AdamW.weight.exp_avg_sq "));
    CHECK(contains(names(SGD(net->parameters(), SGDOptions(0.01).momentum(0.9))),
                   "SGD.weight.momentum_buffer "));
    CHECK(contains(names(RMSprop(net->parameters(), RMSpropOptions().centered(true))),
                   "RMSprop.bias.grad_avg "));
    CHECK(contains(names(Adagrad(net->parameters())), "Adagrad.weight.sum "));
    CHECK(contains(names(LBFGS(net->parameters())), "LBFGS.weight.old_dirs.0 "));
  }

  TEST_CASE("parameters outside any module, by their own name or by place") {
    auto given = torch::ones({8}, torch::requires_grad());
    auto bare = torch::ones({9}, torch::requires_grad());
    torch::optim::SGD sgd({given, bare}, torch::optim::SGDOptions(0.1).momentum(0.9));
    MemReporter reporter;
    reporter.add_optimizer(sgd).add_tensor("given", given);
    (given.sum() + bare.sum()).backward();
    sgd.step();
    const Report report = reporter.collect();
    CHECK(find_row(report, "SGD.given.momentum_buffer") != nullptr);
    CHECK(find_row(report, "param0.1")->role == Role::kParameter);
    CHECK(find_row(report, "SGD.param0.1.momentum_buffer") != nullptr);
  }

  TEST_CASE("without registration, parameters and gradients have their roles and no names") {
    const MemReporter reporter;
    torch::nn::Linear net(torch::nn::LinearOptions(321, 5).bias(false));
    net->forward(torch::ones({2, 321})).sum().backward();
    int64_t parameters = 0, gradients = 0;
    const Report report = reporter.collect();
    for (const ReportRow& row : cpu(report).rows) {
      CHECK(row.anonymous);
      if (row.role == Role::kParameter) parameters += row.nbytes.value_or(0);
      if (row.role == Role::kGradient) gradients += row.nbytes.value_or(0);
    }
    CHECK(parameters == 4 * 321 * 5);
    CHECK(gradients == 4 * 321 * 5);
  }

  TEST_CASE("a new tensor never inherits a dead one's name, and keeps its own number") {
    MemReporter reporter;
    auto other = torch::ones({3});
    auto tensor = torch::ones({1000});
    const auto address = tensor.data_ptr();
    reporter.add_tensor("dead", tensor);
    CHECK(find_row(reporter.collect(), "dead") != nullptr);
    tensor = at::Tensor();
    auto successor = torch::ones({1000});
    CAPTURE(successor.data_ptr() == address);
    const Report report = reporter.collect();
    CHECK(find_row(report, "dead") == nullptr);
    CHECK(find_row(report, "Tensor0")->nbytes == 12);
    CHECK(find_row(report, "Tensor1")->nbytes == 4000);
    other = at::Tensor();
    CHECK(find_row(reporter.collect(), "Tensor1")->nbytes == 4000);
  }

  TEST_CASE("replaced parameters, set_data and a module that ends are followed") {
    MemReporter reporter;
    {
      torch::nn::Linear net(8, 8);
      reporter.add_module("net", net);
      net->weight.set_data(torch::zeros({2, 2}));
      CHECK(find_row(reporter.collect(), "net.weight")->nbytes == 16);
      net->to(torch::kDouble);
      CHECK(find_row(reporter.collect(), "net.weight")->nbytes == 32);
    }
    CHECK(find_row(reporter.collect(), "net.weight") == nullptr);
  }

  TEST_CASE("gradients of frozen parameters, and retained ones of results, have names") {
    torch::nn::Linear net(4, 3);
    net->forward(torch::ones({2, 4})).sum().backward();
    for (auto& parameter : net->parameters()) parameter.requires_grad_(false);
    auto weight = torch::ones({7}, torch::requires_grad());
    auto result = weight * 2;
    result.retain_grad();
    result.sum().backward();
    MemReporter reporter;
    reporter.add_module("net", *net).add_tensor("result", result);
    const Report report = reporter.collect();
    for (const std::string name : {"net.weight.grad", "net.bias.grad", "result.grad"}) {
      CAPTURE(name);
      const auto& rows = cpu(report).rows;
      const auto found = std::find_if(rows.begin(), rows.end(),
                                      [&](const ReportRow& row) { return row.name == name; });
      REQUIRE(found != rows.end());
      CHECK(found->role == Role::kGradient);
    }
  }

  TEST_CASE(
      "a registered tensor that a graph saves keeps its name in the default report, and is Saved") {
    auto weight = torch::ones({8}, torch::requires_grad());
    auto activation = weight.exp();
    MemReporter reporter;
    reporter.add_tensor("mine", activation);
    const int64_t elements = cpu(reporter.collect()).elements;
    CHECK(find_row(reporter.collect(), "mine")->role == Role::kTensor);
    auto loss = activation.square().sum();
    reporter.add_graph(loss);
    const Report report = reporter.collect();
    check_explained(report);
    const ReportRow* mine = find_row(report, "mine");
    REQUIRE(mine != nullptr);
    CHECK(mine->kind == RowKind::kStorage);
    CHECK(mine->role == Role::kSaved);
    CHECK(mine->nbytes == 32);
    CHECK(contains(text(reporter), "\nmine "));
    // The square saves the very tensor, the exponential another on its storage.
    CHECK(find_row(report, "PowBackward0.self") == nullptr);
    const ReportRow* slot = find_row(report, "ExpBackward0.result");
    REQUIRE(slot != nullptr);
    CHECK(slot->owner == "mine");
    // The sum; not the slot.
    CHECK(cpu(report).elements == elements + 1);
  }

  TEST_CASE("the better role wins over the user's order, the user's names come in order of role") {
    torch::nn::Linear net(4, 4);
    MemReporter reporter;
    reporter.add_tensor("view", net->weight).add_module("net", net);
    const Report report = reporter.collect();
    const ReportRow* row = find_row(report, "net.weight+view");
    REQUIRE(row != nullptr);
    CHECK(row->role == Role::kParameter);
  }

  TEST_CASE("one loss registered twice, or two losses of one graph, count once") {
    std::vector<float> mine(16, 1.0f);
    const auto elsewhere = torch::from_blob(mine.data(), {16});
    auto weight = torch::ones({16}, torch::requires_grad());
    auto activation = weight * elsewhere;
    auto loss = activation.square().sum();
    auto other_loss = activation.sum();
    MemReporter once, often;
    once.add_graph(loss);
    often.add_graph(loss).add_graph(loss).add_graph(other_loss);
    const Report expected = once.collect();
    const Report report = often.collect();
    CHECK(cpu(report).rows.size() == cpu(expected).rows.size());
    CHECK(cpu(report).elements == cpu(expected).elements);
    CHECK(cpu(report).external_bytes == 64);
  }

  TEST_CASE("a name in use passes to the tensor it is given to last") {
    auto first = torch::ones({4});
    auto second = torch::ones({5});
    MemReporter reporter;
    reporter.add_tensor("name", first).add_input("name", second);
    const Report report = reporter.collect();
    CHECK(find_row(report, "name")->nbytes == 20);
    CHECK(find_row(report, "name")->role == Role::kInput);
    CHECK(find_row(report, "Tensor0")->nbytes == 16);
    reporter.remove("name");
    CHECK_THROWS_AS(reporter.remove("name"), c10::Error);
  }

  TEST_CASE("the state of an optimizer that is not LibTorch's has its role") {
    torch::nn::Linear net(4, 4);
    const auto momentum = torch::zeros({4, 4});
    MemReporter reporter(net);
    reporter.add_state("Lion.weight.momentum", momentum);
    const Report report = reporter.collect();
    REQUIRE(find_row(report, "Lion.weight.momentum") != nullptr);
    CHECK(find_row(report, "Lion.weight.momentum")->role == Role::kOptimizerState);
    CHECK(find_row(report, "Lion.weight.momentum")->nbytes == 64);
    reporter.remove("Lion.weight.momentum");
    CHECK(find_row(reporter.collect(), "Lion.weight.momentum") == nullptr);
  }

  TEST_CASE("what has died is forgotten when something is added or read") {
    // The object of a dead tensor stays as long as somebody holds it weakly, so its uses show it.
    using Weak = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;
    MemReporter reporter;
    auto keep = torch::ones({1});
    reporter.add_tensor("keep", keep);
    const auto add_dead = [&] {
      auto tensor = torch::ones({2});
      auto loss = torch::ones({2}, torch::requires_grad()).sum();
      Weak weak_tensor(tensor.getIntrusivePtr());
      Weak weak_loss(loss.getIntrusivePtr());
      reporter.add_tensor("dead", tensor).add_graph(loss);
      return std::make_pair(std::move(weak_tensor), std::move(weak_loss));
    };
    auto weak = add_dead();
    CHECK(weak.first.weak_use_count() == 2);
    CHECK(weak.second.weak_use_count() == 2);
    SUBCASE("by a report") { reporter.collect(); }
    SUBCASE("by further additions") {
      for (int i = 0; i < 200; ++i) {
        reporter.add_tensor("dead" + std::to_string(i), torch::ones({1}))
            .add_graph(torch::ones({1}, torch::requires_grad()).sum());
      }
    }
    CHECK(weak.first.weak_use_count() == 1);
    CHECK(weak.second.weak_use_count() == 1);
    CHECK_THROWS_WITH_AS(reporter.remove("dead"), doctest::Contains("\"dead\""), c10::Error);
    CHECK(find_row(reporter.collect(), "keep") != nullptr);
  }

  TEST_CASE("names can be taken back; a wrong one is an error that names it") {
    auto tensor = torch::ones({4});
    MemReporter reporter;
    reporter.add_tensor("here", tensor);
    reporter.remove("here");
    CHECK(find_row(reporter.collect(), "here") == nullptr);
    CHECK_THROWS_WITH_AS(reporter.remove("here"), doctest::Contains("\"here\""), c10::Error);
    CHECK_THROWS_WITH_AS(reporter.add_tensor("none", at::Tensor()), doctest::Contains("\"none\""),
                         c10::Error);
  }
}

TEST_SUITE("odd tensors") {
  TEST_CASE("a row each, exact bytes or ?, never an exception") {
    std::vector<float> mine(100);
    const auto elsewhere = torch::from_blob(mine.data(), {100});
    const auto coo = torch::eye(10).to_sparse();
    const auto csr = torch::eye(10).to_sparse_csr();
    const auto csc = torch::eye(10).to_sparse_csc();
    const auto mkldnn = torch::ones({4, 4}).to_mkldnn();
    const auto quantized = torch::quantize_per_tensor(torch::ones({64}), 0.1, 0, torch::kQInt8);
    const auto complex = torch::ones({8}, torch::kComplexDouble);
    const auto fp8 = torch::ones({8}).to(torch::kFloat8_e4m3fn);
    const auto boolean = torch::ones({8}, torch::kBool);
    const auto empty = torch::empty({0, 3});
    const auto meta = torch::empty({1024}, torch::kMeta);
    const auto expanded = torch::ones({1}).expand({1000, 1000});
    const auto nested =
        at::_nested_tensor_from_tensor_list({torch::ones({2, 3}), torch::ones({4, 3})});
    MemReporter reporter;
    reporter.add_tensor("elsewhere", elsewhere)
        .add_tensor("coo", coo)
        .add_tensor("csr", csr)
        .add_tensor("csc", csc);
    reporter.add_tensor("mkldnn", mkldnn)
        .add_tensor("quantized", quantized)
        .add_tensor("complex", complex);
    reporter.add_tensor("fp8", fp8)
        .add_tensor("boolean", boolean)
        .add_tensor("empty", empty)
        .add_tensor("meta", meta);
    reporter.add_tensor("expanded", expanded).add_tensor("nested", nested);
    const Report report = reporter.collect();
    check_explained(report);
    const auto nbytes = [&](const std::string& name) {
      const ReportRow* row = find_row(report, name);
      CAPTURE(name);
      REQUIRE(row != nullptr);
      return row->nbytes;
    };
    CHECK(find_row(report, "elsewhere")->kind == RowKind::kExternal);
    CHECK(find_row(report, "elsewhere")->external_bytes == 400);
    CHECK(nbytes("elsewhere") == 0);
    CHECK(nbytes("coo.indices") == 2 * 10 * 8);
    CHECK(nbytes("coo.values") == 40);
    CHECK(nbytes("csr.compressed_indices") == 11 * 8);
    CHECK(nbytes("csc.values") == 40);
    CHECK(find_row(report, "mkldnn")->kind == RowKind::kUnknown);
    CHECK(nbytes("mkldnn") == std::nullopt);
    CHECK(nbytes("quantized") == 64);
    CHECK(nbytes("complex") == 128);
    CHECK(nbytes("fp8") == 8);
    CHECK(nbytes("boolean") == 8);
    CHECK(nbytes("empty") == 0);
    CHECK(nbytes("expanded") == 4);
    CHECK(nbytes("nested") == (2 * 3 + 4 * 3) * 4);
    CHECK(contains(verbose_text(reporter), "cannot be looked into"));
    CHECK(contains(verbose_text(reporter), "external: 400.00B\n"));
  }

  TEST_CASE("memory from elsewhere is counted once, whatever names lead to it") {
    std::vector<float> mine(100);
    const auto whole = torch::from_blob(mine.data(), {100});
    const auto view = whole.slice(0, 0, 10);
    MemReporter reporter;
    reporter.add_tensor("whole", whole).add_tensor("again", whole).add_tensor("view", view);
    const Report report = reporter.collect();
    CHECK(find_row(report, "whole+again")->external_bytes == 400);
    CHECK(find_row(report, "view")->kind == RowKind::kShared);
    CHECK(find_row(report, "view")->owner == "whole+again");
    CHECK(cpu(report).external_bytes == 400);
    const std::string shown = verbose_text(reporter);
    CAPTURE(shown);
    CHECK(contains(shown, "view(->whole+again)"));
    CHECK(contains(shown, "external: 400.00B\n"));
    check_explained(report);
  }

  TEST_CASE("what from_blob() wraps of LibTorch's memory is a part of that storage") {
    const auto base = torch::zeros({1000});
    const auto part = torch::from_blob(base.data_ptr<float>() + 100, {200});
    MemReporter reporter;
    reporter.add_tensor("part", part);
    const ReportRow* row = nullptr;
    Report report = reporter.collect();
    REQUIRE((row = find_row(report, "part")) != nullptr);
    CHECK(row->kind == RowKind::kStorage);
    CHECK(row->nbytes == 4000);
    CHECK(row->visible_bytes == 800);
    reporter.add_tensor("base", base);
    report = reporter.collect();
    CHECK(cpu(report).external_bytes == 0);
    const ReportRow* const shared = find_row(report, "base");
    REQUIRE(shared != nullptr);
    CHECK(shared->kind == RowKind::kShared);
    CHECK(shared->owner == "part");
    CHECK(find_row(report, "part")->visible_bytes == 4000);
    CHECK_FALSE(contains(verbose_text(reporter), "not LibTorch's"));
    check_explained(report);
  }

  TEST_CASE("a gradient that was taken out of .grad is a tensor") {
    torch::nn::Linear net(32, 32);
    MemReporter reporter;
    reporter.add_module("net", net);
    const auto train = [&] { net->forward(torch::ones({4, 32})).sum().backward(); };
    std::vector<at::Tensor> taken;
    for (int i = 0; i < 3; ++i) {
      train();
      taken.push_back(net->weight.grad());
      net->weight.mutable_grad().reset();
    }
    Report report = reporter.collect();
    CHECK(find_row(report, "net.weight.grad") == nullptr);
    CHECK(find_row(report, "net.bias.grad") != nullptr);
    int of_their_size = 0;
    for (const ReportRow& row : cpu(report).rows) {
      if (!row.anonymous || row.nbytes != 32 * 32 * 4) continue;
      ++of_their_size;
      CHECK(row.role == Role::kTensor);
    }
    CHECK(of_their_size == 3);
    train();
    report = reporter.collect();
    REQUIRE(find_row(report, "net.weight.grad") != nullptr);
    CHECK(contains(reporter.why("net.weight.grad").row.name, "net.weight.grad"));
    Registry::global().reset_peak(at::kCPU);
    train();
    // Which one .grad was at a peak is not known of several.
    const Report peak = reporter.collect_peak(at::kCPU);
    CHECK(std::count_if(cpu(peak).rows.begin(), cpu(peak).rows.end(),
                        [](const ReportRow& row) { return row.name == "net.weight.grad"; }) <= 1);
  }

  TEST_CASE("whether a parameter that has trained was frozen at the peak is not known") {
    torch::nn::Linear trained(64, 64), frozen(64, 64);
    for (auto& parameter : frozen->parameters()) parameter.requires_grad_(false);
    MemReporter reporter;
    reporter.add_module("trained", *trained).add_module("frozen", *frozen);
    Registry::global().reset_peak(at::kCPU);
    frozen(trained(torch::ones({512, 64}))).sum().backward();
    for (auto& parameter : trained->parameters()) parameter.requires_grad_(false);
    const Report peak = reporter.collect_peak(at::kCPU), now = reporter.collect();
    REQUIRE(find_row(peak, "trained.weight") != nullptr);
    CHECK(!find_row(peak, "trained.weight")->requires_grad.has_value());
    CHECK(find_row(peak, "frozen.weight")->requires_grad == false);
    CHECK(find_row(now, "trained.weight")->requires_grad == false);
  }

  TEST_CASE("no memory lies behind a meta tensor: 0 bytes, and what it would be") {
    const auto meta = torch::empty({1024, 1024}, torch::kMeta);
    const auto view = meta.view({-1});
    MemReporter reporter;
    reporter.add_tensor("meta", meta).add_tensor("view", view);
    const Report report = reporter.collect();
    const ReportRow* row = find_row(report, "meta");
    CHECK(row->kind == RowKind::kMeta);
    CHECK(row->nbytes == 0);
    CHECK(row->external_bytes == 0);
    CHECK(row->claimed_bytes == 4 << 20);
    ReportOptions options;
    options.device = c10::Device(c10::kMeta);
    const std::string shown = text(reporter, options);
    CAPTURE(shown);
    CHECK(contains(shown,
                   row_text("meta", "(1024, 1024)", "0.00B").substr(0, 70) + "  would be 4.00M\n"));
    CHECK(contains(shown,
                   "Used Memory: 0.00B\nThe allocated memory on meta: ?\nExplained: ? of ? (no "
                   "memory; would be 4.00M)\n"));
    CHECK_FALSE(contains(shown, "external"));
    // It takes nothing from what is known of the other devices.
    auto real = torch::ones({4});
    CHECK(reporter.collect().unexplained_bytes() == 0);
    CHECK(reporter.collect().allocator_bytes() == truth().live_bytes());
  }

  TEST_CASE("a device that nobody follows is unknown, not zero") {
    // A CUDA tensor as LibTorch would make it, without the device.
    std::vector<char> fake(4096);
    c10::DataPtr data(fake.data(), c10::Device(c10::kCUDA, 0));
    c10::Storage storage(c10::Storage::use_byte_size_t(), fake.size(), std::move(data), nullptr,
                         false);
    const auto tensor = at::detail::make_tensor<c10::TensorImpl>(
        std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CUDA),
        caffe2::TypeMeta::Make<float>());
    tensor.unsafeGetTensorImpl()->set_sizes_contiguous({32, 32});
    REQUIRE_FALSE(Registry::global().follows(tensor.device()));
    auto real = torch::ones({4});
    MemReporter reporter;
    reporter.add_tensor("far", tensor).add_tensor("near", real);
    const Report report = reporter.collect();
    check_explained(report);
    CHECK(cpu(report).followed);
    REQUIRE(report.devices.size() == 2);
    const DeviceReport& device = report.devices[1];
    CHECK_FALSE(device.followed);
    CHECK(device.allocator_bytes == std::nullopt);
    CHECK(device.unexplained_bytes == std::nullopt);
    CHECK(device.used_bytes() == std::nullopt);
    CHECK(device.external_bytes == 0);
    CHECK(report.allocator_bytes() == std::nullopt);
    CHECK(report.unexplained_bytes() == std::nullopt);
    CHECK(report.total_bytes() == truth().live_bytes());
    CHECK(find_row(report, "far")->kind == RowKind::kNotFollowed);
    CHECK(find_row(report, "far")->nbytes == std::nullopt);
    ReportOptions options;
    options.device = tensor.device();
    const std::string shown = text(reporter, options);
    CAPTURE(shown);
    CHECK(contains(shown, row_text("far", "(32, 32)", "?").substr(0, 70) +
                              "  not followed; its storage says 4.00K\n"));
    CHECK(contains(shown,
                   "Total Tensors: 1024 \tUsed Memory: ?\nThe allocated memory on cuda:0: "
                   "?\nExplained: ? of ? (not followed)\n"));
    CHECK_FALSE(contains(shown, "LibTorch's"));
    CHECK_FALSE(contains(shown, "0.00B"));
    const std::string json = report.to_json();
    CAPTURE(json);
    CHECK(
        contains(json,
                 "{\"device\":\"cuda:0\",\"followed\":false,\"total_bytes\":0,\"used_bytes\":null,"
                 "\"allocator_bytes\":null,"
                 "\"unexplained_bytes\":null,"));
    CHECK(contains(json, "\"kind\":\"not_followed\",\"name\":\"far\""));
  }
}

TEST_SUITE("machine formats") {
  TEST_CASE("JSON is read back by an independent parser and its sums hold; names are escaped") {
    auto tensor = torch::ones({25});
    MemReporter reporter;
    reporter.add_tensor("quote \" back \\ newline \n end", tensor);
    const Report report = reporter.collect();
    // NOLINTNEXTLINE(bugprone-command-processor): a command of our own.
    FILE* python = popen(
        "python3 -c \"import json,sys; r=json.load(sys.stdin); d=r['devices'][0]; rows=d['rows']; "
        "assert r['schema']=='memledger.report/2'; "
        "assert sum(x['bytes'] for x in rows)==d['total_bytes']==d['allocator_bytes']; "
        "assert any(x['name']=='quote \\\\\\\" back \\\\\\\\ newline \\\\n end' and "
        "x['bytes']==100 for x in rows), rows\"",
        "w");
    REQUIRE(python != nullptr);
    const std::string json = report.to_json();
    fwrite(json.data(), 1, json.size(), python);
    CHECK(pclose(python) == 0);
  }
}

// Two threads that take turns where it matters.
class Turns {
 public:
  // Waits for the other thread's call with the same number.
  void meet(int number) {
    std::unique_lock<std::mutex> hold(lock_);
    ++arrived_;
    changed_.notify_all();
    changed_.wait(hold, [&] { return arrived_ >= 2 * (number + 1); });
  }

 private:
  std::mutex lock_;
  std::condition_variable changed_;
  int arrived_ = 0;
};

TEST_SUITE("other threads") {
  TEST_CASE(
      "reports of a net that another thread trains: every row at every instant, LibTorch's own "
      "count when it rests") {
    constexpr int kRounds = 10;
    torch::nn::Sequential net(torch::nn::Linear(64, 48), torch::nn::ReLU(),
                              torch::nn::Linear(48, 40));
    torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.01).momentum(0.9));
    // So that the momentum is there from now on.
    net->forward(torch::ones({8, 64})).sum().backward();
    sgd.step();
    MemReporter reporter;
    reporter.add_module("net", net).add_optimizer(sgd);
    std::map<std::string, std::pair<uint64_t, int64_t>> expected;
    const Report before = reporter.collect();
    for (const ReportRow& row : cpu(before).rows) {
      if (!row.anonymous) expected[row.name] = {row.storage_id, *row.nbytes};
    }
    REQUIRE(expected.size() == 3 * 4);
    constexpr int64_t kGradientBytes = (64 * 48 + 48 + 48 * 40 + 40) * 4;

    Turns turns;
    std::atomic<bool> resting{false};
    std::thread trainer([&] {
      const testing::AllocationCount::Scope scope(truth());
      int turn = 0;
      for (int round = 0; round < kRounds; ++round) {
        for (int step = 0; step < 30; ++step) {
          sgd.zero_grad();
          auto loss = net->forward(torch::ones({8, 64})).square().sum();
          if (step == 29) {
            resting = true;
            turns.meet(turn++);  // with what the graph holds
            turns.meet(turn++);
          }
          loss.backward();
          sgd.step();
        }
        turns.meet(turn++);  // without
        turns.meet(turn++);
      }
    });
    size_t gradients = 0;  // in the last report
    const auto check_names = [&](const Report& report) {
      std::map<Role, size_t> found;
      int64_t sum = 0;
      for (const ReportRow& row : cpu(report).rows) {
        sum += row.nbytes.value_or(0);
        // It was not noted yet.
        if (row.kind == RowKind::kUnread && !resting) continue;
        CHECK(row.kind == RowKind::kStorage);
        if (row.anonymous) continue;
        ++found[row.role];
        CAPTURE(row.name);
        const auto known = expected.find(row.name);
        REQUIRE(known != expected.end());
        // Each step has gradients of its own.
        if (row.role != Role::kGradient) CHECK(row.storage_id == known->second.first);
        CHECK(row.nbytes == known->second.second);
      }
      CHECK(found[Role::kParameter] == 4);
      CHECK(found[Role::kOptimizerState] == 4);
      gradients = found[Role::kGradient];
      CHECK(sum == cpu(report).total_bytes);
      CHECK(sum == cpu(report).allocator_bytes);
      return sum;
    };
    int turn = 0;
    size_t reports = 0;
    for (int round = 0; round < kRounds; ++round) {
      while (!resting) {
        check_names(reporter.collect());
        ++reports;
      }
      turns.meet(turn++);
      const int64_t with_graph = check_names(reporter.collect());
      CHECK(with_graph == truth().live_bytes());
      CHECK(gradients == 0);
      resting = false;
      turns.meet(turn++);
      turns.meet(turn++);
      const int64_t without_graph = check_names(reporter.collect());
      CHECK(without_graph == truth().live_bytes());
      CHECK(gradients == 4);
      // At least the input, both layers' results and the square's sum are gone; the gradients are
      // there instead.
      CHECK(with_graph - (without_graph - kGradientBytes) >= (8 * 64 + 8 * 48 + 8 * 40 + 1) * 4);
      turns.meet(turn++);
    }
    trainer.join();
    CHECK(reports > 0);
    check_explained(reporter.collect());
  }

  TEST_CASE(
      "a registered tensor that another thread frees and replaces is never external, and no "
      "stranger gets its name") {
    // Long enough to read that the other thread gets in between names and snapshot.
    auto long_graph = torch::ones({1}, torch::requires_grad()) * 1;
    for (int i = 0; i < 300; ++i) long_graph = long_graph.sin();
    for (int round = 0; round < 150; ++round) {
      auto tensor = torch::ones({1000});
      const uint64_t id = Registry::global().storage_id(tensor);
      MemReporter reporter;
      reporter.add_tensor("mine", tensor).add_graph(long_graph);
      std::atomic<bool> go{false};
      std::atomic<bool> replaced{false};
      std::thread other([&] {
        const testing::AllocationCount::Scope scope(truth());
        while (!go) {
        }
        std::atomic<int> waits{0};
        while (waits.fetch_add(1, std::memory_order_relaxed) < round * 200) {
        }
        tensor = at::Tensor();
        std::vector<at::Tensor> strangers;
        for (int i = 0; i < 4; ++i) strangers.push_back(torch::zeros({1000}));
        replaced = true;
        while (go) {
        }
      });
      go = true;
      bool last = false;
      while (!last) {
        last = replaced;
        const Report report = reporter.collect();
        for (const ReportRow& row : cpu(report).rows) {
          if (row.name != "mine") continue;
          CHECK(row.kind == RowKind::kStorage);
          CHECK(row.storage_id == id);
          CHECK_FALSE(last);
        }
        CHECK(cpu(report).external_bytes == 0);
        CHECK(cpu(report).unexplained_bytes == 0);
      }
      go = false;
      other.join();
    }
  }
}

}  // namespace
}  // namespace memledger

int main(int argc, char** argv) {
  at::set_num_threads(1);
  if (!memledger::Registry::global().activate().ok()) return 1;
  const memledger::testing::AllocationCount::Scope scope(memledger::truth());
  return doctest::Context(argc, argv).run();
}
