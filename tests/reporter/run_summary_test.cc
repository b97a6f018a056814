#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "reporter/formats/run_summary.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "reporter/formats/run_causes.h"

namespace memledger {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

// A training of twelve layers and a head, at its peak, all by hand.
class Training {
 public:
  Training() : peak_(on(c10::Device(c10::kCUDA, 0))) {
    for (int layer = 0; layer < 12; ++layer) {
      const std::string name = "h." + std::to_string(layer);
      named(name + ".weight", Role::kParameter, name, 4 * kMiB);
      ReportRow& activation = anonymous("aten::linear", Phase::kForward, 8 * kMiB);
      activation.module = name;
      activation.is_output = true;
    }
    named("head.weight", Role::kParameter, "head", 16 * kMiB);
    anonymous("aten::linear", Phase::kForward, 3 * kMiB).module = "head";
    anonymous("aten::randint", Phase::kForward, 5 * kMiB);
    for (int state = 0; state < 26; ++state) {
      ReportRow& row = anonymous("aten::zeros_like", Phase::kOptimizer, 4 * kMiB);
      row.label = "Optimizer.step#AdamW.step";
      states_.push_back(row);
    }
    anonymous("aten::_foreach_sqrt", Phase::kOptimizer, 2 * kMiB);
    ReportRow& workspace = anonymous("aten::mm", Phase::kBackward, 32 * kMiB);
    workspace.storage_kind = StorageKind::kScratch;
    workspace.shape.reset();
    workspace.dtype.reset();
    anonymous("aten::to", Phase::kOther, kMiB).where = "train.py:8 main";
  }

  ReportRow& anonymous(std::string_view op, Phase phase, int64_t bytes) {
    ReportRow row;
    row.anonymous = true;
    row.op = op;
    row.phase = phase;
    return add(row, bytes);
  }
  ReportRow& named(const std::string& name, Role role, const std::string& module, int64_t bytes) {
    ReportRow row;
    row.name = name;
    row.role = role;
    row.module = module;
    return add(row, bytes);
  }

  ReportRow& peak_row(uint64_t id) { return peak_.rows[id - 1]; }

  RunReport run() const {
    RunReport run;
    run.title = "train.py ended (0) after 12.3 s";
    run.steps = 5;
    run.baseline_step = 2;
    RunOfDevice device;
    device.peak = peak_;
    device.figures = {"h100", 400 * kMiB, 500 * kMiB, 80 * 1024 * kMiB};
    device.peak_step = 2;
    device.last = device.baseline = on(peak_.device);
    for (const ReportRow& row : states_) put(*device.last, row);
    device.baseline->rows.assign(states_.begin(), states_.end() - 1);
    device.baseline->total_bytes = 25 * 4 * kMiB;
    device.end = on(peak_.device);
    run.devices.push_back(device);
    return run;
  }

 private:
  static DeviceReport on(c10::Device device) {
    DeviceReport report;
    report.device = device;
    report.bytes_by_role.resize(static_cast<size_t>(Role::kTensor) + 1);
    return report;
  }
  static void put(DeviceReport& device, const ReportRow& row) {
    device.rows.push_back(row);
    device.total_bytes += row.nbytes.value_or(0);
  }
  ReportRow& add(ReportRow row, int64_t bytes) {
    row.storage_id = ++ids_;
    row.nbytes = bytes;
    row.dtype = c10::ScalarType::BFloat16;
    row.shape = c10::DimVector{bytes / 2};
    put(peak_, row);
    return peak_.rows.back();
  }

  DeviceReport peak_;
  std::vector<ReportRow> states_;
  uint64_t ids_ = 0;
};

size_t count_lines(const std::string& text) {
  return static_cast<size_t>(std::count(text.begin(), text.end(), '\n'));
}

bool contains(const std::string& text, std::string_view part) {
  const bool found = text.find(part) != std::string::npos;
  if (!found) MESSAGE("in:\n" << text);
  return found;
}

bool is_in(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

std::string on_one_line(std::string text) {
  for (size_t end = text.find("\n    "); end != std::string::npos; end = text.find("\n    "))
    text.replace(end, 5, " ");
  return text;
}

TEST_CASE("the first lines tell the peak, its moment and its parts, which add up") {
  const RunReport run = Training().run();
  const std::string text = run_summary(run, 40);
  CHECK(contains(text,
                 "memledger: train.py ended (0) after 12.3 s\n"
                 "cuda:0 (h100)  peak allocated 400.00M, reserved 500.00M of 80.00G, at step 2"));
  CHECK(contains(text, "parameters 64.00M bfloat16, "));
  CHECK(contains(text, "optimizer state 104.00M bfloat16 (inferred)"));
  CHECK(contains(text, "optimizer's temporaries 2.00M"));
  CHECK(contains(text, "activations 99.00M (h.0 … 11: 8.00M each, head 3.00M)"));
  CHECK(contains(text, "inputs 6.00M"));
  CHECK(contains(text, "workspaces 32.00M"));
  int64_t sum = 0;
  for (const PartBytes& part : composition_of(run.devices[0].peak, run.devices[0]))
    sum += part.bytes;
  CHECK(sum == run.devices[0].peak.total_bytes);
}

TEST_CASE("frozen and trainable parameters are two figures, adapters a third") {
  Training training;
  const auto matrix = [&](const std::string& module, int64_t rows, int64_t columns, bool trains,
                          int64_t mebibytes) {
    ReportRow& row = training.named(module + ".weight", Role::kParameter, module, mebibytes * kMiB);
    row.shape = c10::DimVector{rows, columns};
    row.requires_grad = trains;
  };
  CHECK(!is_in(run_summary(training.run(), 40), "frozen"));
  matrix("blocks.0.q.base", 512, 256, false, 20);
  matrix("blocks.0.q.a.default", 8, 256, true, 1);
  matrix("blocks.0.q.b.default", 512, 8, true, 2);
  CHECK(contains(on_one_line(run_summary(training.run(), 40)),
                 "parameters 87.00M bfloat16 (frozen 20.00M, trainable 3.00M: low-rank adapters, "
                 "not known 64.00M), "));
  // A head that trains next to a frozen layer is none, nor are layers with a bias, nor what no
  // frozen matrix has the shape of.
  matrix("tail.base", 512, 256, false, 20);
  matrix("tail.a", 8, 256, true, 1);
  matrix("tail.b", 512, 8, true, 2);
  training.named("tail.b.bias", Role::kParameter, "tail.b", kMiB).requires_grad = true;
  matrix("last.base", 512, 128, false, 20);
  matrix("last.a", 8, 256, true, 1);
  matrix("last.b", 512, 8, true, 2);
  matrix("first.one", 512, 256, false, 20);
  matrix("first.two", 512, 256, false, 20);
  matrix("first.a", 8, 256, true, 1);
  matrix("first.b", 512, 8, true, 2);
  const RunReport run = training.run();
  CHECK(contains(on_one_line(run_summary(run, 40)),
                 "(frozen 100.00M, trainable 13.00M, of it low-rank adapters 3.00M, "));
  const PartBytes parameters = composition_of(run.devices[0].peak, run.devices[0]).front();
  CHECK(parameters.frozen_bytes == 100 * kMiB);
  CHECK(parameters.trainable_bytes == 13 * kMiB);
  CHECK(parameters.adapter_bytes == 3 * kMiB);
}

TEST_CASE("what checkpointing holds is an activation, and so is a layer's result that is a leaf") {
  Training training;
  ReportRow& held = training.anonymous("aten::add", Phase::kOther, 6 * kMiB);
  held.role = Role::kInput;
  held.module = "h.0";
  held.checkpointed = true;
  ReportRow& embedded = training.anonymous("aten::embedding", Phase::kForward, 3 * kMiB);
  embedded.role = Role::kParameter;
  embedded.module = "embedding";
  ReportRow& data = training.anonymous("aten::randn", Phase::kOther, 2 * kMiB);
  data.checkpointed = true;  // stays an input
  const std::string text = run_summary(training.run(), 40);
  CHECK(contains(on_one_line(text),
                 "inputs 8.00M, activations 108.00M, of it inputs of checkpoints 6.00M ("));
  CHECK(contains(text, "aten::add [input of h.0], a checkpoint's input\n"));
  CHECK(!is_in(text, "leaves"));
}

TEST_CASE("caches of keys and values are named where the program calls them so") {
  Training training;
  training.named("layers.0.attention.k_cache", Role::kBuffer, "layers.0.attention", 6 * kMiB);
  ReportRow held = training.anonymous("aten::cat", Phase::kOther, 3 * kMiB);
  training.named("mask_cache", Role::kBuffer, "layers.0.attention", 7 * kMiB);
  ReportRow saved = training.anonymous("aten::cat", Phase::kForward, 2 * kMiB);
  RunReport run = training.run();
  CHECK(contains(on_one_line(run_summary(run, 40)), "buffers 7.00M, KV caches 6.00M, "));
  // The holders of what is known of the end.
  held.held_by = "past_key_values[0][1]";
  saved.held_by = "Saved.self in the graph of past_key_values[0]";
  run.devices[0].end->rows = {held, saved};
  CHECK(contains(on_one_line(run_summary(run, 40)), "buffers 7.00M, KV caches 9.00M, "));
}

TEST_CASE("names that differ look different when they are cut") {
  Training training;
  const std::string begin = "encoder." + std::string(60, 'x');
  const std::string end = std::string(60, 'y') + ".weight";
  for (const char* const middle : {".left.", ".right."})
    training.named(begin + middle + end, Role::kParameter, "m", 64 * kMiB);
  const std::string text = run_summary(training.run(), 40);
  CHECK(contains(text, ".left."));
  CHECK(contains(text, ".right."));
}

TEST_CASE("beside a library's line the user's own is shown") {
  Training training;
  ReportRow& row = training.anonymous("aten::embedding", Phase::kForward, 64 * kMiB);
  row.where = "utils.py:3236 training_step";
  row.called_from = "train.py:88 main";
  CHECK(contains(run_summary(training.run(), 40),
                 "aten::embedding [forward] at utils.py:3236, from train.py:88\n"));
  row.op = "aten::mm";
  RunReport run = training.run();
  run.devices[0].peak.peak_maker = row.storage_id;
  CHECK(contains(run_summary(run, 40), " at utils.py:3236 training_step, from train.py:88 main\n"));
}

TEST_CASE("rows whose lines were not sampled are of the only line of their kind") {
  const auto with_lines = [](std::vector<const char*> lines) {
    Training training;
    for (const char* const line : lines)
      training.anonymous("aten::gelu", Phase::kForward, 64 * kMiB).where = line;
    return run_summary(training.run(), 40);
  };
  const std::string one = with_lines({"", "model.cc:20 forward", "", "model.cc:20 forward"});
  CHECK(contains(one, "256.00M  4 x 64.00M "));
  CHECK(contains(one, "aten::gelu [forward] at model.cc:20 forward\n"));
  const std::string two = with_lines({"", "model.cc:20 forward", "", "model.cc:30 forward"});
  CHECK(contains(two, "128.00M  2 x 64.00M "));
  CHECK(contains(two, "aten::gelu [forward]\n"));
}

TEST_CASE("named rows are one line wherever they were made, with the place that all agree on") {
  const auto with_lines = [](const char* second, const char* third) {
    Training training;
    int number = 0;
    for (const char* const line : {"", "model.cc:20 main", second, third}) {
      const std::string name = fmt::format("m.{}.weight", number++);
      training.named(name, Role::kParameter, "m", 64 * kMiB).where = line;
    }
    return run_summary(training.run(), 40);
  };
  const std::string agreed = with_lines("", "model.cc:20 main");
  CHECK(contains(agreed, "256.00M  4 x 64.00M "));
  CHECK(contains(agreed, ".weight at model.cc:20 main\n"));
  const std::string differ = with_lines("model.cc:30 main", "model.cc:20 main");
  CHECK(contains(differ, "256.00M  4 x 64.00M "));
  CHECK(contains(differ, "m.0…3.weight\n"));
}

TEST_CASE("many layers are told by the module that they are in, one that differs by itself") {
  Training training;
  const auto activation = [&](const std::string& layer, int64_t mebibytes) {
    training.anonymous("aten::conv2d", Phase::kForward, mebibytes * kMiB).module = layer;
  };
  const auto add_stage = [&](int stage) {
    for (int block = 0; block < 3; ++block)
      activation(fmt::format("back.layer{}.{}.conv1", stage, block), 10 * stage + block);
  };
  for (const int stage : {1, 2, 3}) add_stage(stage);
  activation("back.layer2.3.conv1", 200);
  CHECK(contains(on_one_line(run_summary(training.run(), 40)),
                 "activations 488.00M (back.layer2.3 200.00M, h.0 … 11: 8.00M each, "
                 "back.layer3.* 93.00M (3 layers, 30.00M to 32.00M each), back.layer2.* 63.00M "
                 "(3 layers, 20.00M to 22.00M each), back.layer1.* 33.00M (3 layers, 10.00M to "
                 "12.00M each), head 3.00M)"));
  add_stage(4);
  CHECK(contains(on_one_line(run_summary(training.run(), 40)),
                 "activations 611.00M (back.* 312.00M (4 modules, 33.00M to 123.00M each), "
                 "back.layer2.3 200.00M, h.0 … 11: 8.00M each, head 3.00M)"));
  for (const char* const layer : {"a", "b", "c"}) activation(layer, 1);
  CHECK(contains(on_one_line(run_summary(training.run(), 40)), ", 1 more 1.00M)"));
}

TEST_CASE("inputs come from outside, what is computed of them without a layer does not") {
  Training training;
  training.anonymous("aten::matmul", Phase::kForward, 8 * kMiB);
  training.anonymous("aten::matmul", Phase::kOther, kMiB);
  for (const char* const op :
       {"aten::new_zeros", "aten::ones_like", "aten::normal_", "aten::_to_copy"})
    training.anonymous(op, Phase::kForward, kMiB);
  ReportRow& leaf = training.anonymous("aten::randn", Phase::kForward, 7 * kMiB);
  leaf.role = Role::kParameter;
  ReportRow& bucket = training.anonymous("aten::empty", Phase::kForward, 9 * kMiB);
  bucket.module = "DistributedDataParallel";
  const std::string text = run_summary(training.run(), 40);
  CHECK(contains(text, "inputs 10.00M, other leaves that require grad 7.00M"));
  CHECK(contains(text, ", results outside layers 9.00M, "));
  CHECK(contains(text, "DDP's buckets 9.00M, "));
  CHECK(contains(text, "parameters 64.00M bfloat16, "));
}

TEST_CASE("the moment is that of the row that made the peak; none where that is not known") {
  Training training;
  ReportRow& row = training.anonymous("aten::conv2d", Phase::kBackward, kMiB);
  row.module = "conv";
  const uint64_t maker = row.storage_id;
  training.anonymous("aten::fill_", Phase::kForward, kMiB);
  RunReport run = training.run();
  CHECK(contains(run_summary(run, 40), "of 80.00G, at step 2\n"));
  run.devices[0].peak.peak_maker = maker;
  CHECK(contains(run_summary(run, 40), "at step 2, backward of conv, by aten::conv2d\n"));
  run.devices[0].peak.peak_maker = maker + 100;  // its row was lost
  CHECK(contains(run_summary(run, 40), "of 80.00G, at step 2\n"));
}

TEST_CASE("rows that are one thing are one line, with dtype and place") {
  const std::string text = run_summary(Training().run(), 40);
  CHECK(contains(text, "104.00M  26 x 4.00M"));
  CHECK(contains(text, "AdamW state\n"));
  CHECK(contains(text, "48.00M  12 x 4.00M   (2097152,) bfloat16        h.0…11.weight\n"));
  CHECK(contains(text, "workspace"));
  CHECK(contains(text, "aten::to at train.py:8 main\n"));
}

TEST_CASE("NVIDIA's own libraries are named, within the lines") {
  RunReport run = Training().run();
  CHECK_FALSE(contains(run_summary(run, 40), "NVIDIA's own libraries"));
  run.libraries = "cuBLAS 13.1.0";
  CHECK(contains(run_summary(run, 40), "\nNVIDIA's own libraries: cuBLAS 13.1.0\n"));
  const std::string few = run_summary(run, 8);
  CHECK(contains(few, "\nNVIDIA's own libraries: cuBLAS 13.1.0\n"));
  CHECK(std::count(few.begin(), few.end(), '\n') <= 8);
}

TEST_CASE("rows of layers that differ in a number are one line, those of another line are not") {
  Training training;
  for (int layer = 0; layer < 24; ++layer) {
    ReportRow& row = training.anonymous("aten::gelu", Phase::kForward, 64 * kMiB);
    row.module = "h." + std::to_string(layer);
    row.is_output = true;
    row.where = layer < 16 ? "model.py:20 forward" : "model.py:30 forward";
  }
  const std::string text = run_summary(training.run(), 40);
  CHECK(contains(text, "1.00G  16 x 64.00M "));
  CHECK(contains(text, "[output of h.0…15, forward] at model.py:20 forward\n"));
  CHECK(contains(text, "512.00M  8 x 64.00M "));
  CHECK(contains(text, "[output of h.16…23, forward] at model.py:30 forward\n"));
}

TEST_CASE("models of one type beside each other are one line") {
  Training training;
  for (int model = 2; model < 9; ++model) {
    const std::string name = "Block#" + std::to_string(model);
    training.named(name + ".weight", Role::kParameter, name, 64 * kMiB);
    ReportRow& row = training.anonymous("aten::gelu", Phase::kForward, 32 * kMiB);
    row.module = name;
    row.is_output = true;
  }
  const std::string text = run_summary(training.run(), 40);
  CHECK(contains(text, "448.00M  7 x 64.00M "));
  CHECK(contains(text, "Block#2…8.weight\n"));
  CHECK(contains(text, "(Block#2 … 8: 32.00M each, "));
  CHECK(contains(text, "aten::gelu [output of Block#2…8, forward]\n"));
}

TEST_CASE("where a line is too long, it is the function's name that goes, not the layer's") {
  Training training;
  ReportRow& row = training.anonymous("aten::linear", Phase::kForward, 64 * kMiB);
  row.module = "h.11.mlp.c_fc";
  row.is_output = true;
  row.where = "model.cc:20 Block::forward";
  const std::string text = run_summary(training.run(), 40);
  CHECK(contains(text, "aten::linear [output of h.11.mlp.c_fc, forward] at model.cc:20\n"));
}

TEST_CASE("what shrank between steps is told beside what grew") {
  RunReport run = Training().run();
  DeviceReport& baseline = *run.devices[0].baseline;
  DeviceReport& last = *run.devices[0].last;
  baseline.rows.clear();
  last.rows.clear();
  const auto put = [](DeviceReport& device, uint64_t id, const char* op, int64_t mebibytes) {
    ReportRow row;
    row.anonymous = true;
    row.op = op;
    row.storage_id = id;
    row.nbytes = mebibytes * kMiB;
    device.rows.push_back(row);
    device.total_bytes += mebibytes * kMiB;
  };
  baseline.total_bytes = last.total_bytes = 0;
  put(baseline, 1, "aten::stays", 64);
  put(last, 1, "aten::stays", 64);
  put(baseline, 2, "aten::goes", 35);
  put(baseline, 3, "aten::again", 5);
  put(last, 4, "aten::again", 5);
  put(last, 5, "aten::comes", 12);
  CHECK(contains(run_summary(run, 40),
                 "    since step 2: -23.00M, namely -35.00M (?) aten::goes, "
                 "+12.00M (?) aten::comes\n"));
  for (uint64_t id = 6; id < 10; ++id)
    put(baseline, id, std::vector{"aten::a", "aten::b", "aten::c", "aten::d"}[id - 6], 20);
  CHECK(contains(run_summary(run, 40), "since step 2: -103.00M, namely -35.00M (?) aten::goes, "));
  CHECK(contains(on_one_line(run_summary(run, 40)), ", +12.00M (?) aten::comes, 2 more -40.00M\n"));
}

TEST_CASE("what grew between steps, and what is left") {
  const std::string text = run_summary(Training().run(), 40);
  CHECK(contains(
      text, "  after the last step (5): 104.00M: optimizer state 104.00M bfloat16 (inferred)\n"));
  CHECK(contains(text, "since step 2: +4.00M, namely +4.00M various bfloat16 AdamW state\n"));
  CHECK(contains(text, "  not freed at the end: nothing\n"));
  // A row that has got a name is no growth.
  RunReport renamed = Training().run();
  renamed.devices[0].baseline = renamed.devices[0].last;
  ReportRow& row = renamed.devices[0].baseline->rows.back();
  row.anonymous = false;
  row.name = "weight";
  row.role = Role::kParameter;
  CHECK(contains(run_summary(renamed, 40), "    nothing has grown since step 2\n"));
  RunReport with_checkpoint = Training().run();
  with_checkpoint.devices[0].end->external_bytes = 8 * kMiB;
  with_checkpoint.devices[0].end->mapped_bytes = 6 * kMiB;
  CHECK(contains(run_summary(with_checkpoint, 40),
                 "  external memory, not counted: 8.00M, of it mapped files 6.00M\n"));
  RunReport on_demand = Training().run();
  on_demand.goes_on = true;
  CHECK(contains(run_summary(on_demand, 40), "  alive now: nothing\n"));
}

// A peak to which each of `rounds` adds a kept result, and a second one every other operator.
Training rounds_of_operators(size_t rounds, bool awaits_backward) {
  Training training;
  for (size_t i = 0; i < rounds; ++i) {
    ReportRow& row = training.anonymous("Gate", Phase::kForward, 40 * kMiB);
    row.where = "serve.py:11 forward";
    row.thread = 1;
    row.operator_run = static_cast<uint32_t>(10 + 4 * i);
    row.awaits_backward = awaits_backward;
  }
  return training;
}

TEST_CASE("a graph that nobody ran backward is told with its first line and the remedy") {
  Training training = rounds_of_operators(3, /*awaits_backward=*/true);
  ReportRow& scratch = training.anonymous("Gate", Phase::kForward, kMiB);
  scratch.storage_kind = StorageKind::kScratch;
  scratch.awaits_backward = true;
  RunReport run = training.run();
  CHECK(contains(run_summary(run, 40),
                 "  120.00M that autograd recorded was never run backward, first at serve.py:11 "
                 "forward: if it need not be,\n    put torch::NoGradGuard there\n"));
  run.is_python = true;
  CHECK(contains(run_summary(run, 40), "put torch.no_grad() there"));
  for (ReportRow& row : run.devices[0].peak.rows) {
    if (row.where.empty()) continue;
    row.where = "/lib/nn.h:5 at::Tensor nn::run<float>(int)";
    row.called_from = "/home/me/serve.cc:11 int serve<int>(int)";
  }
  CHECK(contains(on_one_line(run_summary(run, 40)),
                 "first at nn.h:5 nn::run, from serve.cc:11 serve: if it need not be, put "
                 "torch.no_grad() at serve.cc:11 serve "));
  // A signal may have come just before the pass.
  run.is_partial = run.ran_backward = true;
  CHECK(!is_in(run_summary(run, 40), "run backward"));
  run.ran_backward = false;
  CHECK(
      contains(run_summary(run, 40), "  120.00M that autograd recorded was not run backward yet"));
  const RunReport used = rounds_of_operators(3, /*awaits_backward=*/false).run();
  CHECK(!is_in(run_summary(used, 40), "run backward"));
  RunReport little = Training().run();
  little.devices[0].peak.rows.front().awaits_backward = true;
  CHECK(!is_in(run_summary(little, 40), "run backward"));
}

TEST_CASE("rounds of the same operators tell what each has left") {
  const auto with_end = [](const Training& training) {
    RunReport run = training.run();
    run.baseline_step = 0;
    run.devices[0].baseline.reset();
    run.devices[0].end = run.devices[0].peak;
    return run;
  };
  const std::string_view told =
      "  each of 9 rounds of 4 operators left 40.00M: (20971520,) bfloat16 Gate [forward] at "
      "serve.py:11 forward\n";
  CHECK(contains(run_summary(with_end(rounds_of_operators(9, false)), 40), told));
  CHECK(!is_in(run_summary(with_end(rounds_of_operators(7, false)), 40), "rounds"));
  // Two of a kind in each round, and a number that has wrapped.
  Training two = rounds_of_operators(0, false);
  for (size_t i = 0; i < 20; ++i) {
    ReportRow& row = two.anonymous("Gate", Phase::kForward, 10 * kMiB);
    row.thread = 1;
    row.operator_run = static_cast<uint32_t>(i / 2 * 7 + i % 2 * 3) - 8;
  }
  CHECK(contains(run_summary(with_end(two), 40), "each of 10 rounds of 7 operators left 20.00M"));
  // Operators at odd distances, as of layers that differ.
  Training odd = rounds_of_operators(0, false);
  for (size_t i = 0; i < 20; ++i) {
    ReportRow& row = odd.anonymous("Gate", Phase::kForward, 10 * kMiB);
    row.thread = 1;
    row.operator_run = static_cast<uint32_t>(i * i + 1);
  }
  CHECK(!is_in(run_summary(with_end(odd), 40), "rounds"));
  CHECK(!is_in(run_summary(with_end(odd), 40), "throughout"));
  // At odd distances, of other sizes, but all the time.
  Training recurring = rounds_of_operators(0, false);
  for (size_t i = 0; i < 20; ++i) {
    ReportRow& row = recurring.anonymous("Gate", Phase::kForward, (10 + (i % 3)) * kMiB);
    row.thread = 1;
    row.operator_run = static_cast<uint32_t>(i * i + 1);
    for (int other = 0; other < 2; ++other) recurring.anonymous("aten::mm", Phase::kOther, 1);
  }
  RunReport recurred = with_end(recurring);
  CHECK(!is_in(run_summary(recurred, 40), "throughout"));  // not known how many were born
  recurred.newest_storage = recurred.devices[0].end->rows.back().storage_id;
  CHECK(contains(on_one_line(run_summary(recurred, 40)),
                 "  20 tensors of one kind stayed alive, 10.00M to 12.00M each, 219.00M in all, "
                 "made throughout the run: (5767168,) bfloat16 Gate [forward]"));
  // It hides no rounds of the peak.
  recurred.devices[0].peak = rounds_of_operators(9, true).run().devices[0].peak;
  CHECK(contains(run_summary(recurred, 40), "  at the peak each of 9 rounds of 4 operators left"));
  CHECK(is_in(run_summary(recurred, 40), "throughout"));
  // Among a model's weights the newest is far older than the newest storage.
  recurred.newest_storage *= 2;
  CHECK(!is_in(run_summary(recurred, 40), "throughout"));
  // Two of ten distances are others.
  Training irregular = rounds_of_operators(11, false);
  for (const uint32_t run : {60, 70}) {
    ReportRow& row = irregular.anonymous("Gate", Phase::kForward, 40 * kMiB);
    row.where = "serve.py:11 forward";
    row.thread = 1;
    row.operator_run = run;
  }
  CHECK(contains(on_one_line(run_summary(with_end(irregular), 40)),
                 "  13 times 40.00M stayed, 520.00M in all, mostly (10 of 12) 4 operators apart: "
                 "(20971520,) bfloat16 Gate"));
  // At a peak only what waits for a backward pass counts: the rest may be one pass of layers.
  RunReport peak = with_end(rounds_of_operators(9, true));
  peak.devices[0].end.reset();
  CHECK(contains(run_summary(peak, 40), "  at the peak each of 9 rounds of 4 operators left"));
  peak = with_end(rounds_of_operators(9, false));
  peak.devices[0].end.reset();
  CHECK(!is_in(run_summary(peak, 40), "rounds"));
}

TEST_CASE("what of the peak is held at the end is told by the holder, and its line") {
  Training training;
  ReportRow held = training.anonymous("aten::mul", Phase::kForward, 128 * kMiB);
  training.peak_row(held.storage_id).where = "/home/me/train.cc:7 at::Tensor Net::run<float>(int)";
  const auto text_of = [&](const char* holder) {
    RunReport run = training.run();
    held.held_by = holder;
    run.devices[0].end->rows = {held};
    run.devices[0].end->total_bytes = *held.nbytes;
    return on_one_line(run_summary(run, 40));
  };
  const std::string_view made =
      "  of the peak 128.00M, made at train.cc:7 Net::run, is held at the end ";
  CHECK(contains(text_of("kept[3]"), std::string(made) + "by kept[…] "));
  CHECK(contains(text_of("MulBackward0.self in the graph of running"),
                 std::string(made) + "by the graph of running "));
  CHECK(contains(text_of("MulBackward0.self in a cycle of aten::mul"),
                 std::string(made) + "by a cycle of aten::mul "));
}

TEST_CASE("what libraries keep is named, and no row is left of it") {
  Training training;
  for (const char* const name :
       {"cuBLAS workspace (stream 0)", "cuBLAS workspace (stream 0, handle 2)"}) {
    ReportRow& row = training.anonymous("aten::mm", Phase::kForward, 32 * kMiB);
    row.name = name;
    row.storage_kind = StorageKind::kLibraryWorkspace;
    row.shape.reset();
    row.dtype.reset();
  }
  RunReport run = training.run();
  run.devices[0].end->items = {
      {ReportItemKind::kLibraryWorkspace, "cuBLAS workspace (stream 0)", 32 * kMiB, 1},
      {ReportItemKind::kLibraryWorkspace, "cuBLAS workspace (stream 0, handle 2)", 32 * kMiB, 1},
      {ReportItemKind::kLibraryWorkspace, "cuBLASLt workspace (stream 0)", kMiB, 1},
      {ReportItemKind::kRounding, "", 512, 1}};
  const std::string text = run_summary(run, 40);
  CHECK(contains(text,
                 "     64.00M  2 x 32.00M   workspace                  cuBLAS workspace, one for "
                 "each thread and stream\n"));
  CHECK(contains(text,
                 "  not freed at the end: nothing, and LibTorch keeps 65.00M of workspaces (2 x "
                 "cuBLAS 64.00M, cuBLASLt 1.00M)\n"));
}

TEST_CASE("what the cache had when most was reserved is told by what gives it back") {
  RunReport run = Training().run();
  run.devices[0].cache =
      CacheAtPeak{480 * kMiB, 280 * kMiB, 120 * kMiB, 2, 80 * kMiB, 5, 30 * kMiB, 0, {}};
  CHECK(contains(run_summary(run, 40),
                 "  at 480.00M reserved, LibTorch's cache had 200.00M free, 120.00M in 2 whole "
                 "segments that emptyCache() gives back,\n    80.00M in 5 pieces beside living "
                 "tensors (largest 30.00M),\n    of which memledger dry-run measures what "
                 "expandable_segments and max_split_size_mb save\n"));
  run.devices[0].figures.reserved_peak = 600 * kMiB;  // there was more later
  CHECK(!is_in(run_summary(run, 40), "cache had"));
  run.devices[0].figures.reserved_peak = 500 * kMiB;
  run.devices[0].cache->whole_bytes = run.devices[0].cache->piece_bytes = 50 * kMiB;
  CHECK(!is_in(run_summary(run, 40), "cache had"));
}

TEST_CASE("of the cache it is told for which stream it is, and what lies in private pools") {
  RunReport run = Training().run();
  CacheAtPeak cache{480 * kMiB, 280 * kMiB, 120 * kMiB, 2, 0, 0, 0, 0, {}};
  cache.private_bytes = 80 * kMiB;
  cache.streams = {{0, {0, 0}, 120 * kMiB}, {0x55, {0, 1}, 80 * kMiB}};
  run.devices[0].cache = cache;
  const std::string text = on_one_line(run_summary(run, 40));
  CHECK(contains(text,
                 "had 200.00M free, 120.00M in 2 whole segments that emptyCache() gives "
                 "back, 80.00M in private pools (CUDA graphs, torch.cuda.MemPool), of the free "
                 "120.00M for the default stream, 80.00M for stream 0x55 in private pool 0.1 "));
  run.devices[0].cache->more_streams = 4;
  run.devices[0].cache->more_stream_bytes = 256 * kMiB;
  CHECK(contains(on_one_line(run_summary(run, 40)), " in private pool 0.1, 4 more 256.00M "));
}

TEST_CASE("pinned memory is told with what rounding adds") {
  RunReport run = Training().run();
  run.pinned = PinnedOfRun{1024 * kMiB, 1024 * kMiB, 518 * kMiB, 1024 * kMiB, 4, {}};
  CHECK(contains(run_summary(run, 40),
                 "pinned host memory  peak 1.00G, 518.00M in 4 tensors; LibTorch rounds each up to "
                 "a power of two, 1.00G\n"));
  DeviceReport cpu;
  for (const int64_t mebibytes : {6, 6, 40}) {
    ReportRow row;
    row.kind = RowKind::kExternal;
    row.external = ExternalMemory::kPinned;
    row.external_bytes = mebibytes * kMiB;
    row.anonymous = true;
    row.op = mebibytes == 40 ? "aten::_to_copy" : "aten::_pin_memory";
    row.where = "load.py:7 next";
    cpu.rows.push_back(row);
  }
  run.pinned = PinnedOfRun{128 * kMiB, 128 * kMiB, 0, 0, 0, {}};
  add_pinned_rows(*run.pinned, cpu);
  CHECK(contains(on_one_line(run_summary(run, 40)),
                 "52.00M in 3 tensors; LibTorch rounds each up to a power of two, 80.00M; of it "
                 "40.00M aten::_to_copy at load.py:7 next, 12.00M in 2 aten::_pin_memory at "
                 "load.py:7 next\n"));
  run.pinned = PinnedOfRun{4, 4, 4, 4, 1, {}};
  CHECK(!is_in(run_summary(run, 40), "pinned"));
  run.pinned = PinnedOfRun{1024 * kMiB, 512 * kMiB, 0, 0, 0, {}};
  CHECK(contains(run_summary(run, 40), "pinned host memory  peak 1.00G, now 512.00M\n"));
}

TEST_CASE("lines break at commas, but not within a shape") {
  std::vector<std::string> lines;
  add_wrapped(lines, std::string(110, 'x') + ", +12.00M (16, 2048, 128) bfloat16 aten::cat, more");
  REQUIRE(lines.size() == 2);
  CHECK(lines[1] == "    +12.00M (16, 2048, 128) bfloat16 aten::cat, more");
}

TEST_CASE("however many devices, the lines are not more than asked for") {
  RunReport run = Training().run();
  for (const size_t devices : {1, 2, 4, 8, 64}) {
    run.devices.resize(devices, run.devices.front());
    for (size_t device = 0; device < devices; ++device)
      run.devices[device].peak.device = c10::Device(c10::kCUDA, static_cast<int8_t>(device));
    const std::string text = run_summary(run, 40);
    CAPTURE(devices);
    CHECK(count_lines(text) <= 40);
    CHECK(contains(text, "cuda:0 (h100)"));
    if (devices <= 8) CHECK(contains(text, "cuda:" + std::to_string(devices - 1)));
  }
}

TEST_CASE("a slice that was seen is not the whole storage") {
  Training training;
  ReportRow& row = training.anonymous("aten::empty", Phase::kOther, 512 * kMiB);
  row.shape = c10::DimVector{3, 224, 224};
  CHECK(contains(run_summary(training.run(), 40), "a part: (3, 224, 224) bfloat16"));
}

TEST_CASE("what compiled code takes for itself is told by its graph") {
  Training training;
  ReportRow& row = training.anonymous("", Phase::kForward, 512 * kMiB);
  row.module = "compiled graph 0/1";
  row.shape.reset();
  row.dtype.reset();
  const std::string text = run_summary(training.run(), 40);
  CHECK(contains(text, "compiled code's buffers 512.00M"));
  CHECK(contains(text, "buffers of compiled graph 0/1 [forward]"));
  CHECK(contains(text, "workspaces 32.00M"));
}

}  // namespace
}  // namespace memledger
