// What a report calls things and why they are alive: pytorch_memlab's faults, TorchScript modules,
// layers, shared and odd memory.
#define DOCTEST_CONFIG_IMPLEMENT
#include "tests/support/doctest_beside_torch.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <torch/torch.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "registry/registry.h"
#include "reporter/mem_reporter.h"
#include "tests/reporter/report_parts.h"
#include "tests/support/allocation_count.h"
#include "tests/support/printed_values.h"
#include "tests/support/script_resnet.h"
#include "tests/support/text_matchers.h"

namespace memledger {
namespace {

using testing::contains;
using testing::count_of;
using testing::cpu;
using testing::find_row;
using testing::text;
using testing::truth;
using testing::verbose_text;

void check_explained(const Report& report) {
  CHECK(cpu(report).unexplained_bytes == 0);
  CHECK(cpu(report).total_bytes == truth().live_bytes());
}

std::string temporary_file(const std::string& name) {
  const char* const folder = std::getenv("TEST_TMPDIR");
  return std::string(folder == nullptr ? "/tmp" : folder) + "/" + name;
}

TEST_SUITE("pytorch_memlab's faults") {
  TEST_CASE("it prints 4 times the bytes of a float tensor") {
    const auto tensor = torch::ones({1000});
    MemReporter reporter;
    reporter.add_tensor("floats", tensor);
    CHECK(find_row(reporter.collect(), "floats")->nbytes == 4000);
    CHECK(contains(text(reporter), "3.91K"));
    CHECK_FALSE(contains(text(reporter), "15.6"));
    CHECK(tensor.nbytes() == 4000);
  }

  TEST_CASE("it lists gradients twice in a second report") {
    torch::nn::Linear net(8, 8);
    net->forward(torch::ones({2, 8})).sum().backward();
    const MemReporter reporter(net);
    const std::string first = text(reporter);
    const std::string second = text(reporter);
    CHECK(count_of(second, ".grad") == 2);
    CHECK(first == second);
    check_explained(reporter.collect());
  }

  TEST_CASE("it dies on a CSR tensor") {
    const auto csr = torch::eye(10).to_sparse_csr();
    MemReporter reporter;
    reporter.add_tensor("csr", csr);
    const Report report = reporter.collect();
    CHECK(find_row(report, "csr.compressed_indices")->nbytes == 11 * 8);
    CHECK(find_row(report, "csr.plain_indices")->extent_bytes == 10 * 8);
    CHECK(find_row(report, "csr.values")->nbytes == 10 * 4);
    check_explained(report);
  }

  TEST_CASE("it dies on an mkldnn tensor") {
    const auto mkldnn = torch::ones({4, 4}).to_mkldnn();
    MemReporter reporter;
    reporter.add_tensor("mkldnn", mkldnn);
    CHECK(contains(text(reporter), "(4, 4)         ?  cannot be looked into\n"));
    CHECK(find_row(reporter.collect(), "mkldnn")->nbytes == std::nullopt);
    check_explained(reporter.collect());
  }

  TEST_CASE("it dies on a nested tensor") {
    const auto nested =
        at::_nested_tensor_from_tensor_list({torch::ones({2, 3}), torch::ones({4, 3})});
    MemReporter reporter;
    reporter.add_tensor("nested", nested);
    const Report report = reporter.collect();
    CHECK(find_row(report, "nested")->nbytes == 18 * 4);
    CHECK(find_row(report, "nested.sizes")->nbytes == 2 * 2 * 8);
    CHECK(contains(text(reporter), "(?)    72.00B"));
    check_explained(report);
  }

  TEST_CASE("it dies on a meta tensor") {
    const auto meta = torch::empty({1024, 1024}, torch::kMeta);
    MemReporter reporter;
    reporter.add_tensor("meta", meta);
    CHECK(contains(text(reporter), "0.00B  would be 4.00M\n"));
    check_explained(reporter.collect());
  }

  TEST_CASE("it gives a fresh tensor a dead one's name") {
    MemReporter reporter;
    bool reused = false;
    for (int i = 0; i < 1000 && !reused; ++i) {
      auto tensor = torch::ones({100 + i});
      const void* const address = tensor.data_ptr();
      reporter.add_tensor("dead", tensor);
      tensor = at::Tensor();
      const auto fresh = torch::zeros({100 + i});
      reused = fresh.data_ptr() == address;
      const Report report = reporter.collect();
      CHECK(find_row(report, "dead") == nullptr);
      const DeviceReport& device = cpu(report);
      REQUIRE(device.rows.size() == 1);
      CHECK(device.rows[0].name.rfind("Tensor", 0) == 0);
    }
#if !defined(__SANITIZE_ADDRESS__)  // which keeps freed memory back
    CHECK(reused);
#endif
  }
}

TEST_SUITE("names") {
  TEST_CASE(
      "a TorchScript module: parameters, buffers, attributes, lists, constants, gradients; and it "
      "may end") {
    MemReporter reporter;
    {
      torch::jit::Module net = testing::script_resnet({1, 1}, 8, 10);
      net.register_attribute("scale", c10::TensorType::get(), torch::ones({7}));
      net.register_attribute("tables", c10::ListType::ofTensors(),
                             c10::List<at::Tensor>({torch::ones({11}), torch::ones({13})}));
      const auto uses = net._ivalue().use_count();
      reporter.add_module("script", net);
      Report report = reporter.collect();
      CHECK(find_row(report, "script.conv1.weight")->role == Role::kParameter);
      CHECK(find_row(report, "script.conv1.weight")->nbytes == 8 * 3 * 49 * 4);
      CHECK(find_row(report, "script.layer2.0.downsample.1.running_var")->role == Role::kBuffer);
      CHECK(find_row(report, "script.scale")->nbytes == 28);
      CHECK(find_row(report, "script.tables.1")->nbytes == 52);
      CHECK(find_row(report, "script.layer1.0.bn3.bias")->module == "script.layer1.0.bn3");
      check_explained(report);
      for (const ReportRow& row : cpu(report).rows) CHECK_FALSE(row.anonymous);

      net.forward({torch::ones({2, 3, 16, 16})}).toTensor().sum().backward();
      report = reporter.collect();
      CHECK(find_row(report, "script.fc.weight.grad")->role == Role::kGradient);
      check_explained(report);
      CHECK(net._ivalue().use_count() == uses);
    }
    CHECK(find_row(reporter.collect(), "script.conv1.weight") == nullptr);
    CHECK_THROWS_WITH_AS(reporter.remove("script"), doctest::Contains("\"script\""), c10::Error);
  }

  TEST_CASE("a frozen TorchScript module has its parameters as constants") {
    torch::jit::Module net = testing::script_resnet({1}, 8, 10);
    net.eval();
    const torch::jit::Module frozen = torch::jit::freeze(net);
    net = torch::jit::Module("nothing");
    const MemReporter reporter(frozen);
    const Report report = reporter.collect();
    check_explained(report);
    int64_t constants = 0;
    for (const ReportRow& row : cpu(report).rows) {
      CAPTURE(row.name);
      CHECK(row.name.rfind("forward.constant.", 0) == 0);
      constants += row.nbytes.value_or(0);
    }
    CHECK(constants > 0);
  }

  TEST_CASE("the prototype layer that a TransformerEncoder keeps") {
    torch::nn::TransformerEncoder encoder(
        torch::nn::TransformerEncoderOptions(torch::nn::TransformerEncoderLayerOptions(8, 2), 2));
    const MemReporter reporter(encoder);
    const Report report = reporter.collect();
    CHECK(find_row(report, "options.encoder_layer.linear1.weight")->nbytes == 8 * 2048 * 4);
    CHECK(find_row(report, "layers.1.linear1.weight")->nbytes == 8 * 2048 * 4);
    CHECK(cpu(report).anonymous_bytes == 0);
    check_explained(report);
  }

  TEST_CASE("an undefined buffer and an undefined gradient are no rows and no errors") {
    struct Holes : torch::nn::Module {
      Holes() {
        register_parameter("none", at::Tensor(), false);
        register_buffer("nothing", at::Tensor());
        register_parameter("weight", torch::ones({4}));
      }
    };
    const auto module = std::make_shared<Holes>();
    const MemReporter reporter(*module);
    const Report report = reporter.collect();
    CHECK(cpu(report).rows.size() == 1);
    CHECK(find_row(report, "weight")->nbytes == 16);
  }

  TEST_CASE("zero_grad(set_to_none) and a parameter that is replaced between reports") {
    torch::nn::Linear net(4, 4);
    const MemReporter reporter(net);
    net->forward(torch::ones({1, 4})).sum().backward();
    CHECK(find_row(reporter.collect(), "weight.grad") != nullptr);
    net->zero_grad(/*set_to_none=*/true);
    CHECK(find_row(reporter.collect(), "weight.grad") == nullptr);
    net->named_parameters(false)["weight"].set_data(torch::ones({4, 40}));
    CHECK(find_row(reporter.collect(), "weight")->nbytes == 640);
    check_explained(reporter.collect());
  }
}

TEST_SUITE("layers") {
  TEST_CASE(
      "an anonymous result is the output of the layer whose parameter the operator consumed") {
    torch::nn::Conv1d conv(torch::nn::Conv1dOptions(3, 8, 3));
    torch::nn::Linear linear(16, 32), without_bias(torch::nn::LinearOptions(16, 32).bias(false));
    torch::nn::LayerNorm norm(torch::nn::LayerNormOptions({32}));
    MemReporter reporter;
    reporter.add_module("net.conv", conv)
        .add_module("net.linear", linear)
        .add_module("bare", without_bias);
    reporter.add_module("norm", norm);
    const auto convolved = conv->forward(torch::ones({1, 3, 9}));
    const auto first = linear->forward(torch::ones({4, 16}));
    const auto batched = linear->forward(torch::ones({2, 4, 16}));
    const auto bare = without_bias->forward(torch::ones({4, 16}));
    const auto second = torch::relu(first);
    const auto third = norm->forward(second);
    const Report report = reporter.collect();
    const auto row_of = [&](const at::Tensor& tensor) {
      const uint64_t id = Registry::global().storage_id(tensor);
      for (const ReportRow& row : cpu(report).rows) {
        if (row.storage_id == id) return row;
      }
      FAIL("no row");
      return ReportRow();
    };
    for (const auto& [tensor, module] : {std::make_pair(convolved, "net.conv"),
                                         {first, "net.linear"},
                                         {batched, "net.linear"},
                                         {bare, "bare"},
                                         {third, "norm"}}) {
      CAPTURE(module);
      CHECK(row_of(tensor).module == module);
      CHECK(row_of(tensor).is_output);
    }
    CHECK(contains(text(reporter), "  aten::addmm [output of net.linear, forward]\n"));
    // relu reads no parameter, but what a layer has made.
    CHECK(row_of(second).module == "net.linear");
    CHECK_FALSE(row_of(second).is_output);
    CHECK(contains(text(reporter), "  aten::relu [layer net.linear, forward]\n"));
    CHECK(find_row(report, "net.conv.weight")->module == "net.conv");
    CHECK_FALSE(find_row(report, "net.conv.weight")->is_output);
    check_explained(report);
    third.sum().backward();
    const Report after = reporter.collect();
    for (const ReportRow& row : cpu(after).rows) {
      CAPTURE(row.name);
      CHECK_FALSE((row.phase == Phase::kBackward && row.is_output));
    }
  }

  TEST_CASE("a module without a path is called by its type") {
    torch::nn::Linear net(16, 32);
    const MemReporter reporter(net);
    const auto out = net->forward(torch::ones({4, 16}));
    CHECK(contains(text(reporter), "aten::addmm [output of Linear, forward]\n"));
  }
}

TEST_SUITE("sharing") {
  TEST_CASE("verbose tells where each further tensor lies, and how many more there are") {
    auto base = torch::ones({1024});
    auto middle = base.slice(0, 256, 512);
    auto more = std::vector<at::Tensor>{base.slice(0, 0, 8), base.slice(0, 8, 16)};
    MemReporter reporter;
    reporter.add_tensor("base", base).add_tensor("middle", middle);
    const std::string shown = verbose_text(reporter);
    CAPTURE(shown);
    CHECK(contains(shown, "middle(->base)"));
    CHECK(contains(shown, "     0.00B  offset 1024, extent 1024\n"));
    CHECK(contains(shown, "  and 2 more references\n"));
    CHECK_FALSE(contains(shown, "keeps"));
  }

  TEST_CASE("several small views of a big storage: together they show a part, and pin all of it") {
    auto first = torch::ones({1 << 20}).slice(0, 0, 10);
    auto second = first.as_strided({10}, {1}, 5);
    auto third = first.as_strided({2}, {100}, 1000);
    MemReporter reporter;
    reporter.add_tensor("first", first).add_tensor("second", second).add_tensor("third", third);
    // 0 to 60 and 4000 to 4404; 10 floats from 0, 10 from 20 bytes on.
    CHECK(find_row(reporter.collect(), "first")->visible_bytes == 60 + 404);
    CHECK(contains(text(reporter), "  a view of 464.00B keeps 4.00M alive\n"));
  }
}

TEST_SUITE("why alive") {
  TEST_CASE("a parameter: its names, its optimizer and gradient, the graph that saved it") {
    torch::nn::Linear net(8, 4);
    torch::optim::Adam adam(net->parameters());
    MemReporter reporter;
    reporter.add_module("net", net).add_optimizer(adam);
    const auto input = torch::ones({2, 8}).requires_grad_();
    const auto loss = net->forward(input).square().sum();
    reporter.add_tensor("loss", loss).add_graph(loss);
    const WhyAlive why = reporter.why(net->weight);
    std::ostringstream shown;
    shown << why;
    CAPTURE(shown.str());
    CHECK(why.row.name == "net.weight");
    CHECK(why.row.nbytes == 8 * 4 * 4);
    REQUIRE(why.names.size() == 1);
    CHECK(why.names[0].same_tensor);
    // Addmm saves a transposed view of it.
    REQUIRE(why.saved.size() == 1);
    CHECK(why.saved[0].slot == "AddmmBackward0.mat2");
    CHECK(why.saved[0].root == "loss");
    CHECK(why.saved[0].path ==
          std::vector<std::string>{"SumBackward0", "PowBackward0", "AddmmBackward0"});
    // The module's member and its list of parameters, the optimizer's list, the graph's
    // AccumulateGrad.
    CHECK(why.tensor_references == static_cast<int64_t>(net->weight.use_count()));
    CHECK(why.held_by_you == 0);
    CHECK(reporter.why("net.weight").tensor_references == why.tensor_references);
    CHECK(contains(reporter.why(net->weight).to_json(), "\"path\":[\"SumBackward0\""));
  }

  TEST_CASE("a result that only a variable holds, by itself and by its number") {
    MemReporter reporter;
    auto mine = torch::ones({100}).exp();
    const auto second = mine;
    const auto view = mine.slice(0, 0, 10);
    const WhyAlive why = reporter.why(mine);
    CHECK(why.row.name == "Tensor0");
    CHECK(why.row.op == "aten::exp");
    CHECK(why.names.empty());
    CHECK(why.saved.empty());
    CHECK(why.tensor_references == static_cast<int64_t>(mine.use_count()));
    CHECK(why.storage_references == 2);
    CHECK(why.held_by_you == 2);
    const WhyAlive by_number = reporter.why("Tensor0");
    CHECK(by_number.row.nbytes == 400);
    CHECK(by_number.storage_references == std::nullopt);
    CHECK(by_number.held_by_you == std::nullopt);
    CHECK_THROWS_WITH_AS(reporter.why("Tensor99"), doctest::Contains("\"Tensor99\""), c10::Error);
    CHECK_THROWS_WITH_AS(reporter.why("nobody"), doctest::Contains("\"nobody\""), c10::Error);
    CHECK_THROWS_AS(reporter.why(at::Tensor()), c10::Error);
    CHECK(mine.use_count() == 3);  // ours, second's, and the view's base
  }

  TEST_CASE("an activation that the graph alone keeps, held by you besides") {
    auto weight = torch::ones({16}, torch::requires_grad());
    auto activation = weight.exp();
    auto loss = activation.square().sum();
    MemReporter reporter;
    reporter.add_graph(loss);
    const WhyAlive why = reporter.why(activation);
    std::set<std::string> slots;
    for (const SavedReference& saved : why.saved) slots.insert(saved.slot);
    CHECK(slots == std::set<std::string>{"ExpBackward0.result", "PowBackward0.self"});
    CHECK(why.saved[0].root == "graph 1");
    loss = at::Tensor();
    CHECK(reporter.why(activation).saved.empty());
    // Ours, and what its own graph saved, which is known no more.
    CHECK(reporter.why(activation).held_by_you == 2);
  }

  TEST_CASE("odd ones: sparse, external, opaque, meta") {
    std::vector<float> mine(100);
    const auto blob = torch::from_blob(mine.data(), {100});
    const auto meta = torch::empty({4}, torch::kMeta);
    const auto mkldnn = torch::ones({4, 4}).to_mkldnn();
    const auto coo = torch::eye(10).to_sparse();
    MemReporter reporter;
    CHECK(reporter.why(blob).row.external_bytes == 400);
    CHECK(reporter.why(meta).row.kind == RowKind::kMeta);
    CHECK(reporter.why(mkldnn).row.kind == RowKind::kUnknown);
    CHECK(reporter.why(coo).row.nbytes == 2 * 10 * 8);
    reporter.add_tensor("coo", coo);
    CHECK(reporter.why(coo).names[0].name == "coo.indices");
  }
}

// As a backend outside LibTorch would make it.
at::Tensor foreign_tensor(std::vector<char>& memory) {
  c10::DataPtr data(memory.data(), c10::Device(c10::kPrivateUse1, 0));
  c10::Storage storage(c10::Storage::use_byte_size_t(), memory.size(), std::move(data), nullptr,
                       false);
  const auto tensor = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
      caffe2::TypeMeta::Make<float>());
  tensor.unsafeGetTensorImpl()->set_sizes_contiguous({static_cast<int64_t>(memory.size()) / 4});
  return tensor;
}

struct OpaqueImpl : c10::TensorImpl {
  OpaqueImpl()
      : c10::TensorImpl(c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                        caffe2::TypeMeta::Make<float>(), c10::Device(c10::kPrivateUse1, 0)) {
    set_storage_access_should_throw();
    set_sizes_contiguous({3, 5});
  }
};

TEST_SUITE("odd tensors") {
  TEST_CASE("block-sparse, sub-byte, scalar, overlapping, of a foreign backend") {
    const auto bsr = torch::eye(8).to_sparse_bsr({2, 2});
    const auto bsc = torch::eye(8).to_sparse_bsc({2, 2});
    const auto bits = torch::empty({8}, at::kBits4x2);
    const auto half_bytes =
        at::_empty_affine_quantized({9}, at::device(at::kCPU).dtype(at::kQUInt4x2), 0.1, 0);
    const auto scalar = torch::ones({}, torch::kDouble);
    const auto overlapping = torch::ones({10}).as_strided({8, 3}, {1, 1});
    std::vector<char> memory(256);
    const auto foreign = foreign_tensor(memory);
    const auto opaque = at::detail::make_tensor<OpaqueImpl>();
    MemReporter reporter;
    reporter.add_tensor("bsr", bsr)
        .add_tensor("bsc", bsc)
        .add_tensor("bits", bits)
        .add_tensor("half", half_bytes);
    reporter.add_tensor("scalar", scalar)
        .add_tensor("overlapping", overlapping)
        .add_tensor("foreign", foreign);
    reporter.add_tensor("opaque", opaque);
    const Report report = reporter.collect();
    check_explained(report);
    const auto nbytes = [&](const std::string& name) {
      CAPTURE(name);
      const ReportRow* const row = find_row(report, name);
      REQUIRE(row != nullptr);
      return row->nbytes;
    };
    CHECK(nbytes("bsr.values") == 4 * 4 * 4);
    CHECK(nbytes("bsr.compressed_indices") == 5 * 8);
    CHECK(find_row(report, "bsc.plain_indices")->extent_bytes == 4 * 8);
    CHECK(nbytes("bits") == 8);
    CHECK(nbytes("half") == 5);
    CHECK(nbytes("scalar") == 8);
    CHECK(nbytes("overlapping") == 40);
    CHECK(find_row(report, "overlapping")->visible_bytes == 40);
    CHECK(find_row(report, "foreign")->kind == RowKind::kNotFollowed);
    CHECK(find_row(report, "foreign")->claimed_bytes == 256);
    CHECK(nbytes("foreign") == std::nullopt);
    CHECK(nbytes("opaque") == std::nullopt);
    const std::string shown = verbose_text(reporter);
    CHECK(contains(shown, "(3, 5)         ?"));
    CHECK_NOTHROW(report.to_json());
    CHECK_NOTHROW(report.to_csv());
    CHECK_NOTHROW(report.to_html());
  }

  TEST_CASE("mapped from a file, shared memory, the program's own: external, each by its kind") {
    const std::string path = temporary_file("weights.bin");
    std::ofstream(path, std::ios::binary) << std::string(4096, 'x');
    const auto mapped = at::from_file(path, /*shared=*/true, 1024, torch::kFloat);
    const auto privately = at::from_file(path, /*shared=*/false, 512, torch::kFloat);
    const int memory = memfd_create("memledger_test", 0);
    REQUIRE(memory >= 0);
    REQUIRE(ftruncate(memory, 8192) == 0);
    void* const pages = mmap(nullptr, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
    REQUIRE(pages != MAP_FAILED);
    const auto shared = torch::from_blob(pages, {2048});
    std::vector<float> mine(100);
    const auto blob = torch::from_blob(mine.data(), {100});
    MemReporter reporter;
    reporter.add_tensor("mapped", mapped)
        .add_tensor("privately", privately)
        .add_tensor("shared", shared)
        .add_tensor("blob", blob);
    const Report report = reporter.collect();
    CHECK(cpu(report).unexplained_bytes == 0);
    // LibTorch itself counts what it maps as allocated.
    CHECK(cpu(report).total_bytes + cpu(report).mapped_bytes == truth().live_bytes());
    CHECK(find_row(report, "mapped")->external == ExternalMemory::kMappedFile);
    CHECK(find_row(report, "mapped")->external_bytes == 4096);
    CHECK(contains(find_row(report, "mapped")->mapped_from, "weights.bin"));
    CHECK(find_row(report, "privately")->external == ExternalMemory::kMappedFile);
    CHECK(find_row(report, "shared")->external == ExternalMemory::kSharedMemory);
    CHECK(find_row(report, "blob")->external == ExternalMemory::kProgram);
    CHECK(cpu(report).external_bytes == 4096 + 2048 + 8192 + 400);
    CHECK(cpu(report).mapped_bytes == 4096 + 2048);
    CHECK(cpu(report).shared_bytes == 8192);
    const std::string shown = text(reporter);
    CAPTURE(shown);
    CHECK(contains(shown, "  external, mapped from "));
    CHECK(
        contains(shown, "external: 14.39K, of it mapped files 6.00K, of it shared memory 8.00K\n"));
    munmap(pages, 8192);
    close(memory);
  }

  TEST_CASE("external storages that nobody names are rows from the operator on that shows them") {
    const std::string path = temporary_file("nameless.bin");
    std::ofstream(path, std::ios::binary) << std::string(4096, 'x');
    std::vector<float> mine(100);
    MemReporter reporter;
    const auto externals = [&] {
      std::vector<ReportRow> rows;
      const Report report = reporter.collect();
      CHECK(cpu(report).unexplained_bytes == 0);
      for (const ReportRow& row : cpu(report).rows) {
        if (row.kind == RowKind::kExternal) rows.push_back(row);
      }
      int64_t bytes = 0;
      for (const ReportRow& row : rows) bytes += row.external_bytes;
      CHECK(cpu(report).external_bytes == bytes);
      return rows;
    };
    REQUIRE(externals().empty());
    {
      const auto mapped = at::from_file(path, /*shared=*/true, 1024, torch::kFloat);
      const auto part = mapped.slice(0, 1, 2);
      const auto blob = torch::from_blob(mine.data(), {100});
      CHECK(externals().size() == 1);  // nothing is known of the blob
      const auto sum = blob.sum();
      const auto own = torch::ones({100});
      // A part of what has a row.
      const auto again = torch::from_blob(own.data_ptr<float>(), {50});
      const auto of_part = again.sum();
      const std::vector<ReportRow> rows = externals();
      REQUIRE(rows.size() == 2);
      const bool is_first = rows[0].external == ExternalMemory::kMappedFile;
      const ReportRow& file = rows[is_first ? 0 : 1];
      const ReportRow& program = rows[is_first ? 1 : 0];
      CHECK(file.external_bytes == 4096);
      CHECK(file.op == "aten::from_file");
      CHECK(contains(file.mapped_from, "nameless.bin"));
      CHECK(file.shape == c10::DimVector{1024});
      CHECK(file.anonymous);
      CHECK(file.nbytes == 0);
      CHECK(program.external == ExternalMemory::kProgram);
      CHECK(program.external_bytes == 400);
      CHECK(program.op.empty());  // no operator made it
      const std::string shown = text(reporter);
      CAPTURE(shown);
      CHECK(contains(shown, "External"));
      CHECK(contains(shown, "nameless.bin: 4.00K, aten::from_file"));
      reporter.add_tensor("named", mapped);
      CHECK(externals().size() == 2);  // not twice
      CHECK(find_row(reporter.collect(), "named")->external_bytes == 4096);
    }
    CHECK(externals().empty());
  }

  TEST_CASE("what the process holds besides: the tensors' pages are in it") {
    MemReporter reporter;
    const int64_t before = reporter.collect().process.value().anonymous_bytes;
    const auto big = torch::ones({16 << 20});
    const Report report = reporter.collect();
    REQUIRE(report.process.has_value());
    CHECK(report.process->anonymous_bytes - before > 60 << 20);
    CHECK(report.process->resident_bytes == report.process->anonymous_bytes +
                                                report.process->file_bytes +
                                                report.process->shared_bytes);
  }
}

TEST_SUITE("order and groups") {
  TEST_CASE("by bytes, size, name and birth") {
    const auto wide = torch::ones({100}, torch::kDouble);
    const auto many = torch::ones({150}, torch::kByte);
    const auto last = torch::ones({120});
    MemReporter reporter;
    reporter.add_tensor("c", wide).add_tensor("a", many).add_tensor("b", last);
    const auto order = [&](SortBy sort) {
      ReportOptions options;
      options.sort = sort;
      std::string names;
      const Report report = reporter.collect(options);
      for (const ReportRow& row : cpu(report).rows) names += row.name;
      return names;
    };
    CHECK(order(SortBy::kBytes) == "cba");
    CHECK(order(SortBy::kSize) == "abc");
    CHECK(order(SortBy::kName) == "abc");
    CHECK(order(SortBy::kBirth) == "cab");
  }

  TEST_CASE("numbers stay with their storages when others come and go between") {
    MemReporter reporter;
    std::vector<at::Tensor> tensors;
    for (int i = 0; i < 5; ++i) tensors.push_back(torch::ones({10 + i}));
    const auto name_of = [&](const at::Tensor& tensor) {
      const uint64_t id = Registry::global().storage_id(tensor);
      const Report report = reporter.collect();
      for (const ReportRow& row : cpu(report).rows) {
        if (row.storage_id == id) return row.name;
      }
      return std::string();
    };
    CHECK(name_of(tensors[3]) == "Tensor3");
    tensors.erase(tensors.begin());
    reporter.add_tensor("named", tensors[0]);  // Tensor1 until now
    CHECK(name_of(tensors[2]) == "Tensor3");
    tensors.push_back(torch::ones({3}));
    CHECK(name_of(tensors.back()) == "Tensor5");
    reporter.remove("named");
    CHECK(name_of(tensors[0]) == "Tensor1");
    CHECK(name_of(tensors[2]) == "Tensor3");
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
