// The model of workspaces. Figures marked "cuDNN" are its own answers: 9.19 was asked without a
// device, as docs/virtual_gpu_workspaces.md says, so they hold the model to something that is not
// itself.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "virtual_gpu/workspace_model.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <string>
#include <vector>

#include "virtual_gpu/workspaces.h"

namespace memledger::virtual_gpu {
namespace {

constexpr DeviceFacts kH200{90, 132, 2048};
constexpr DeviceFacts kA100{80, 108, 2048};
constexpr DeviceFacts kT4{75, 40, 1024};

struct Layer {
  int64_t batch, in, size, out, filter, padding, stride, groups = 1, dilation = 1;
};

Convolution convolution(ConvolutionPass pass, ElementType type, bool channels_last,
                        const Layer& l) {
  const int64_t out_size =
      (l.size + 2 * l.padding - l.dilation * (l.filter - 1) - 1) / l.stride + 1;
  Convolution c;
  c.pass = pass;
  c.type = type;
  c.channels_last = channels_last;
  c.x = {l.batch, l.in, l.size, l.size};
  c.w = {l.out, l.in / l.groups, l.filter, l.filter};
  c.y = {l.batch, l.out, out_size, out_size};
  c.strides = {l.stride, l.stride};
  c.dilations = {l.dilation, l.dilation};
  return c;
}

uint64_t bytes(const Convolution& c, const DeviceFacts& device) {
  return convolution_workspace_bytes(c, device, convolution_on_tensor_cores(c, device));
}

constexpr auto kForward = ConvolutionPass::kForward;
constexpr auto kBackwardData = ConvolutionPass::kBackwardData;
constexpr auto kBackwardFilter = ConvolutionPass::kBackwardFilter;

// cuDNN adds headers of up to 512 bytes to the copies.
void check_near(uint64_t model, uint64_t cudnn) {
  CAPTURE(cudnn);
  CHECK(model <= cudnn);
  CHECK(cudnn - model <= 512);
}

TEST_CASE("tensor cores: what is not channels last is copied, by hand") {
  const Layer middle{16, 64, 56, 64, 3, 1, 1};
  const uint64_t x = 16 * 64 * 56 * 56 * 4, w = 64 * 64 * 9 * 4, header = 16;
  CHECK(bytes(convolution(kForward, ElementType::kFloat, false, middle), kH200) ==
        2 * x + w + header);
  CHECK(bytes(convolution(kForward, ElementType::kFloat, true, middle), kH200) == 0);
  CHECK(bytes(convolution(kForward, ElementType::kHalf, false, middle), kH200) ==
        (2 * x + w) / 2 + header);
  // A filter of one element is the same in both layouts.
  const Layer pointwise{16, 64, 56, 64, 1, 0, 1};
  CHECK(bytes(convolution(kForward, ElementType::kHalf, false, pointwise), kH200) == x + header);
  // Three channels become four of float, eight of half.
  const Layer first{16, 3, 224, 64, 7, 3, 2};
  CHECK(bytes(convolution(kForward, ElementType::kHalf, true, first), kA100) ==
        16 * 8 * 224 * 224 * 2 + 64 * 8 * 49 * 2 + header);
}

TEST_CASE("convolutions as cuDNN answers") {
  const Layer middle{16, 64, 56, 64, 3, 1, 1};
  check_near(bytes(convolution(kBackwardData, ElementType::kFloat, false, middle), kH200),
             25837584);
  const Layer first{16, 3, 224, 64, 7, 3, 2};
  check_near(bytes(convolution(kForward, ElementType::kHalf, true, first), kH200), 12895248);
  const Layer wide{1, 512, 64, 512, 3, 1, 1};
  check_near(bytes(convolution(kForward, ElementType::kFloat, false, wide), kT4), 26216448);
  check_near(bytes(convolution(kBackwardData, ElementType::kFloat, false, wide), kT4), 26216448);
  CHECK(bytes(convolution(kForward, ElementType::kFloat, false, {1, 64, 256, 128, 3, 1, 1}), kT4) ==
        819712);
  CHECK(bytes(convolution(kBackwardData, ElementType::kFloat, false, {1, 64, 256, 128, 3, 1, 1}),
              kT4) == 819456);
  check_near(bytes(convolution(kForward, ElementType::kFloat, true, wide), kT4),
             26216448 + 8388608 * 2 + 16);
  check_near(bytes(convolution(kForward, ElementType::kFloat, true, middle), kA100), 12992528);
}

// Measured on a 3090 Ti with cuDNN 9.20 and a PRO 5000 (Blackwell) with 9.10, by FakeGPU.
TEST_CASE("a forward convolution takes the block that it takes on real devices") {
  const auto block = [](ElementType type, const DeviceFacts& device) {
    return (bytes(convolution(kForward, type, false, {2, 64, 128, 64, 3, 1, 1}), device) + 511) /
           512 * 512;
  };
  constexpr DeviceFacts k3090Ti{86, 84, 1536}, kPro5000{120, 110, 1536};
  CHECK(block(ElementType::kFloat, k3090Ti) == 8536576);
  CHECK(block(ElementType::kBfloat16, k3090Ti) == 8462848);
  CHECK(block(ElementType::kFloat, kPro5000) == 16925184);
  CHECK(block(ElementType::kBfloat16, kPro5000) == 8462848);
}

TEST_CASE("without tensor cores, cuDNN copies what is channels last for engines that want it not") {
  const auto plain = [](ConvolutionPass pass, const Layer& layer, const DeviceFacts& device) {
    return convolution_workspace_bytes(convolution(pass, ElementType::kFloat, true, layer), device,
                                       /*tensor_cores=*/false);
  };
  const Layer pointwise{32, 256, 56, 128, 1, 0, 1};
  CHECK(plain(kBackwardData, pointwise, kH200) == 154140688);
  CHECK(plain(kBackwardData, pointwise, kA100) == 154140688);
  CHECK(plain(kForward, pointwise, kH200) == 154140688);
  CHECK(plain(kForward, pointwise, kA100) == 0);
  // Winograd's filters are for devices before 9.0.
  CHECK(plain(kForward, {4, 512, 32, 512, 3, 1, 1}, kA100) ==
        25 * 512 * 512 * 4 + 512 * 4 + 2 * 4 * 512 * 32 * 32 * 4 + 16);
}

struct Asked {
  ConvolutionPass pass;
  ElementType type;
  bool channels_last;
  Layer layer;
  DeviceFacts device;
  uint64_t first, largest;
};

TEST_CASE("the upper bounds hold what cuDNN answers where the model says too little") {
  constexpr DeviceFacts kL4{89, 58, 1536};
  constexpr auto kFloat = ElementType::kFloat, kHalf = ElementType::kHalf;
  const Asked asked[] = {
      {kForward, kHalf, false, {4, 1024, 16, 1024, 3, 1, 1}, kL4, 94376623, 94376623},
      {kForward, kFloat, false, {64, 256, 8, 512, 4, 1, 2}, kA100, 29361455, 29361455},
      {kBackwardData, kFloat, false, {4, 1024, 16, 1024, 3, 1, 1}, kL4, 71305135, 71305135},
      {kBackwardFilter, kFloat, false, {32, 96, 56, 96, 7, 3, 1, 96}, kH200, 318219895, 318219895},
      {kBackwardFilter, kHalf, true, {32, 96, 56, 96, 7, 3, 1, 96}, kA100, 178382911, 178382911},
      // Where sums are split in more parts; what else there is was not asked.
      {kBackwardData, kFloat, false, {48, 192, 13, 384, 3, 1, 1}, kA100, 130403503, 130403503},
      {kBackwardFilter, kFloat, false, {16, 64, 13, 256, 3, 1, 1}, kL4, 30593168, 30593168},
      {kBackwardFilter, kFloat, false, {8, 256, 14, 512, 1, 0, 2}, kL4, 14467216, 14467216},
      {kForward, kHalf, false, {8, 384, 14, 768, 2, 0, 2}, kL4, 19308655, 19308655},
      {kForward, kHalf, false, {8, 416, 28, 128, 1, 0, 1}, kA100, 38945375, 38945375},
      {kForward, kHalf, true, {128, 3, 32, 16, 3, 1, 1}, kT4, 0, 136333743},
      {kBackwardData, kHalf, false, {32, 3, 224, 96, 4, 0, 4}, kL4, 0, 1689452847},
      {kBackwardFilter, kHalf, false, {16, 128, 14, 32, 3, 1, 1}, kA100, 0, 11694615},
  };
  for (const Asked& a : asked) {
    const Convolution c = convolution(a.pass, a.type, a.channels_last, a.layer);
    CAPTURE(a.first);
    CAPTURE(a.largest);
    const uint64_t upper = convolution_workspace_upper_bytes(c, a.device, true);
    CHECK(upper >= a.first);
    CHECK(upper >= convolution_workspace_bytes(c, a.device, true));
    const uint64_t largest = largest_convolution_workspace_upper_bytes(c, a.device, true);
    CHECK(largest >= a.largest);
    CHECK(largest >= upper);
    // A bound, but no guess at random.
    CHECK(largest <= 8 * std::max(a.largest, upper));
    CHECK(largest_convolution_workspace_bytes(c, a.device, true) <= largest);
  }
}

TEST_CASE("attention asks for 256 bytes on 9.0 only, forward and backward") {
  CHECK(attention_workspace_bytes(kH200) == 256);
  CHECK(attention_workspace_bytes({100, 148, 2048}) == 0);
  CHECK(attention_workspace_bytes(kA100) == 0);
}

TEST_CASE("without tensor cores: nothing, except for 3x3 filters without stride and dilation") {
  const auto plain = [](const Layer& layer, ConvolutionPass pass = kForward) {
    return bytes(convolution(pass, ElementType::kFloat, false, layer), kT4);
  };
  CHECK(plain({16, 256, 56, 128, 1, 0, 1}) == 0);
  CHECK(plain({16, 128, 56, 128, 3, 1, 2}) == 0);
  CHECK(plain({8, 64, 64, 64, 3, 2, 1, 1, 2}) == 0);
  CHECK(plain({32, 256, 56, 256, 3, 1, 1, 32}) == 0);
  CHECK(plain({1, 3, 512, 64, 3, 1, 1}) == 0);
  CHECK(plain({1, 512, 64, 512, 3, 1, 1}, kBackwardFilter) == 0);
  CHECK(plain({16, 64, 56, 64, 3, 1, 1}) == (25 * 64 * 64 + 64) * 4);
}

TEST_CASE(
    "filter gradients: partial sums until 9.0, no more of them than multiprocessors can take") {
  const Layer middle{16, 64, 56, 64, 3, 1, 1};
  const uint64_t w = 64 * 64 * 9 * 4;
  CHECK(bytes(convolution(kBackwardFilter, ElementType::kHalf, true, middle), kH200) == 0);
  CHECK(bytes(convolution(kBackwardFilter, ElementType::kHalf, true, middle), kA100) == 8 * w + 16);
  // 2 x 18 tiles: three parts for 108 multiprocessors.
  CHECK(bytes(convolution(kBackwardFilter, ElementType::kHalf, true, {16, 256, 14, 256, 3, 1, 1}),
              kA100) == 3 * 256 * 256 * 9 * 4 + 16);
  // 4 x 36 tiles are more than 108 multiprocessors.
  CHECK(bytes(convolution(kBackwardFilter, ElementType::kHalf, true, {16, 512, 7, 512, 3, 1, 1}),
              kA100) == 0);
}

TEST_CASE("elements that a device has no engine for") {
  const Layer layer{2, 16, 16, 16, 3, 1, 1};
  CHECK_FALSE(
      convolution_supported(convolution(kForward, ElementType::kBfloat16, false, layer), kT4));
  CHECK(convolution_supported(convolution(kForward, ElementType::kBfloat16, false, layer), kA100));
  CHECK(convolution_on_tensor_cores(convolution(kForward, ElementType::kHalf, false, layer), kT4));
  CHECK_FALSE(
      convolution_on_tensor_cores(convolution(kForward, ElementType::kFloat, false, layer), kT4));
  CHECK_FALSE(convolution_on_tensor_cores(convolution(kForward, ElementType::kDouble, false, layer),
                                          kH200));
}

TEST_CASE("one and three dimensions; malformed shapes are no convolution") {
  Convolution c = convolution(kForward, ElementType::kHalf, false, {2, 16, 8, 16, 3, 1, 1});
  c.x = {2, 16, 8, 8, 8};
  c.w = {16, 16, 3, 3, 3};
  c.y = {2, 16, 8, 8, 8};
  CHECK(bytes(c, kH200) == 2 * 2 * 16 * 512 * 2 + 16 * 16 * 27 * 2 + 16);
  c.w = {16, 16};
  CHECK(bytes(c, kH200) == 0);
  CHECK(bytes(Convolution(), kH200) == 0);
}

TEST_CASE("CTC loss is what cuDNN answers") {
  CHECK(ctc_workspace_bytes(50, 16, 20, 160, 10) == 200640);
  CHECK(ctc_workspace_bytes(20, 4, 100, 20, 5) == 39360);
  CHECK(ctc_workspace_bytes(255, 32, 28, 1280, 40) == 6217600);
  CHECK(ctc_v8_workspace_bytes(50, 16, 20, 255) == 3367232);
  CHECK(ctc_v8_workspace_bytes(20, 4, 100, 255) == 367248);
  CHECK(ctc_v8_workspace_bytes(255, 32, 28, 255) == 34337664);
}

TEST_CASE("dropout states are what cuDNN answers") {
  CHECK(dropout_states_bytes(kH200) == 6488064);
  CHECK(dropout_states_bytes(kT4) == 983040);
}

TEST_CASE("batch norm: only persistent and channels last, within 2 % and 4 KiB of cuDNN") {
  const auto check = [](uint64_t model, uint64_t cudnn) {
    CAPTURE(cudnn);
    CHECK(static_cast<double>(model) == doctest::Approx(cudnn).epsilon(0.02 + 4096.0 / cudnn));
  };
  BatchNorm norm{ElementType::kFloat, int64_t{16} * 64 * 112 * 112, true, true};
  check(batch_norm_forward_workspace_bytes(norm), 1619252);
  check(batch_norm_backward_workspace_bytes(norm), 1071652);
  norm.type = ElementType::kHalf;
  check(batch_norm_forward_workspace_bytes(norm), 648656);
  norm.elements = int64_t{256} * 512 * 14 * 14;
  check(batch_norm_forward_workspace_bytes(norm), 1297296);
  check(batch_norm_backward_workspace_bytes(norm), 2143296);
  norm.channels_last = false;
  CHECK(batch_norm_forward_workspace_bytes(norm) == 0);
  norm = {ElementType::kFloat, 1 << 20, true, false};
  CHECK(batch_norm_backward_workspace_bytes(norm) == 0);
}

TEST_CASE(
    "Fourier transforms: none inside a multiprocessor, else a copy, longer for large prime "
    "factors") {
  // What an H200 took, of complex signals of floats.
  const struct {
    std::vector<int64_t> signal;
    int64_t batch;
    bool is_real;
    uint64_t bytes;
  } seen[] = {
      {{1000}, 1, false, 0},
      {{8192}, 1, false, 0},
      {{65536}, 1, false, 524288},
      {{1 << 20}, 1, false, 8388608},
      {{67108864}, 1, false, 536870912},
      {{1009}, 1, false, 0},
      {{4099}, 1, false, 139264},
      {{1000003}, 1, false, 32401408},
      {{1 << 24}, 1, true, 67108864},
      {{1024, 1024}, 64, true, 0},
  };
  for (const auto& plan : seen) {
    const FftWork work = fft_work(plan.signal, plan.batch, plan.is_real, 8);
    CAPTURE(plan.signal[0]);
    CHECK(work.least_bytes <= plan.bytes);
    CHECK(work.most_bytes >= plan.bytes);
  }
  CHECK(fft_work({65536}, 3, false, 8).least_bytes == 3 * 524288);
  CHECK(fft_work({65536}, 3, false, 8).most_bytes == 2 * 3 * 524288);
}

TEST_CASE("the choice for convolutions") {
  CHECK(parse_workspace_choice("")->kind == WorkspaceChoice::Kind::kModel);
  CHECK(parse_workspace_choice("model")->apply(7) == 7);
  CHECK(parse_workspace_choice("upper")->kind == WorkspaceChoice::Kind::kUpper);
  CHECK(parse_workspace_choice("upper")->apply(7) == 7);
  CHECK(parse_workspace_choice("none")->apply(7) == 0);
  CHECK(parse_workspace_choice("1048576")->apply(7) == 1048576);
  for (const char* const wrong : {"modell", "uppe", "-1", "1 MiB", "99999999999999999999999"}) {
    CAPTURE(wrong);
    CHECK_FALSE(parse_workspace_choice(wrong).has_value());
  }
}

TEST_CASE("what was asked for is reported by name, the largest of each") {
  std::array<memledger_virtual_gpu_workspace, 32> rows;
  CHECK(memledger_virtual_gpu_workspaces(rows.data(), rows.size()) == 0);
  note_workspace_asked(WorkspaceKind::kConvolutionForward, 100);
  note_workspace_asked(WorkspaceKind::kConvolutionForward, 300);
  note_workspace_asked(WorkspaceKind::kConvolutionForward, 200);
  note_workspace_used(WorkspaceKind::kConvolutionForward);
  note_workspace_asked(WorkspaceKind::kCtcLoss, 0);
  REQUIRE(memledger_virtual_gpu_workspaces(rows.data(), rows.size()) == 2);
  CHECK(std::string(rows[0].name) == "cuDNN convolution forward");
  CHECK(rows[0].largest_bytes == 300);
  CHECK(rows[0].asked == 3);
  CHECK(rows[0].used == 1);
  CHECK(std::string(rows[1].name) == "cuDNN CTC loss");
  // Room for fewer: the number says how many there are.
  rows[1].name = nullptr;
  CHECK(memledger_virtual_gpu_workspaces(rows.data(), 1) == 2);
  CHECK(rows[1].name == nullptr);
  CHECK(memledger_virtual_gpu_workspaces(nullptr, 0) == 2);
}

}  // namespace
}  // namespace memledger::virtual_gpu
