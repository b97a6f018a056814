#include "virtual_gpu/workspace_model.h"

#include <algorithm>
#include <charconv>
#include <utility>

namespace memledger::virtual_gpu {
namespace {

size_t size_of(ElementType type) {
  switch (type) {
    case ElementType::kDouble:
      return 8;
    case ElementType::kHalf:
    case ElementType::kBfloat16:
      return 2;
    case ElementType::kOther:
      return 1;
    case ElementType::kFloat:
      break;
  }
  return 4;
}

uint64_t divide_up(uint64_t a, uint64_t b) { return (a + b - 1) / b; }
uint64_t round_up(uint64_t a, uint64_t b) { return divide_up(a, b) * b; }

// All extents but `skip` leading ones.
uint64_t volume(const std::vector<int64_t>& extents, size_t skip) {
  uint64_t n = 1;
  for (size_t i = skip; i < extents.size(); ++i) n *= extents[i];
  return n;
}

bool all_ones(const std::vector<int64_t>& values) {
  return std::all_of(values.begin(), values.end(), [](int64_t v) { return v == 1; });
}

// cuDNN adds a header to what it copies or transforms, of 16 to 512 bytes.
constexpr uint64_t kHeaderBytes = 16;

bool is_depthwise(const Convolution& c) { return c.groups() > 1 && c.w[1] == 1; }
bool is_pointwise(const Convolution& c) { return volume(c.w, 2) == 1; }

// Filters of 3x3 without stride: transformed to 5x5, in float, and one value for each channel that
// is written.
constexpr uint64_t kWinogradTile = 25;
constexpr int64_t kWinogradFewestChannels = 32;

bool winograd(const Convolution& c, const DeviceFacts& device) {
  return device.compute_capability < 90 && c.pass != ConvolutionPass::kBackwardFilter &&
         c.type == ElementType::kFloat && c.w.size() == 4 && c.w[2] == 3 && c.w[3] == 3 &&
         c.groups() == 1 && all_ones(c.strides) && all_ones(c.dilations) &&
         c.w[0] >= kWinogradFewestChannels && c.w[1] >= kWinogradFewestChannels;
}

struct Sizes {
  uint64_t x, y, w;
  uint64_t sum() const { return x + y + w; }
};

// In bytes, with channels rounded up to a multiple, but for those in groups.
Sizes sizes(const Convolution& c, uint64_t channel_unit) {
  const uint64_t element = size_of(c.type);
  const bool grouped = c.groups() > 1;
  const uint64_t in = grouped ? c.x[1] : round_up(c.x[1], channel_unit);
  const uint64_t out = grouped ? c.w[0] : round_up(c.w[0], channel_unit);
  return {c.x[0] * in * volume(c.x, 2) * element, c.y[0] * out * volume(c.y, 2) * element,
          out * (grouped ? c.w[1] : in) * volume(c.w, 2) * element};
}

// Without tensor cores, implicit products read the tensors where they lie. The channels that are
// last are put first for engines that want them so.
uint64_t plain_bytes(const Convolution& c, const DeviceFacts& device) {
  const bool wino = winograd(c, device);
  uint64_t bytes = 0;
  if (wino) {
    const uint64_t written_channels = c.pass == ConvolutionPass::kForward ? c.w[0] : c.w[1];
    bytes = (kWinogradTile * c.w[0] * c.w[1] + written_channels) * 4;
  }
  if (!c.channels_last || c.groups() > 1) return bytes;
  const int capability = device.compute_capability;
  bool copied = wino;
  if (c.type == ElementType::kFloat && c.pass == ConvolutionPass::kBackwardData)
    copied = copied || capability >= 80 || !is_pointwise(c);
  if (c.type == ElementType::kFloat && c.pass == ConvolutionPass::kForward)
    copied = copied || capability == 90;
  if (!copied) return bytes;
  const Sizes size = sizes(c, 1);
  return bytes + size.x + size.y + (is_pointwise(c) || wino ? 0 : size.w) + kHeaderBytes;
}

// A tile of a matrix product on tensor cores, and the most parts that its sum is split into.
constexpr uint64_t kTile = 128;
constexpr uint64_t kMostSplits = 8;

// Filter gradients have few outputs and long sums: the sum is split so that every multiprocessor
// has a tile, and each part has its own float result. From compute capability 9.0 on the parts meet
// inside a cluster.
uint64_t split_sum_bytes(const Convolution& c, const DeviceFacts& device) {
  if (device.compute_capability >= 90) return 0;
  const uint64_t groups = c.groups();
  const uint64_t per_filter = volume(c.w, 1);
  const uint64_t tiles = groups * divide_up(c.w[0] / groups, kTile) * divide_up(per_filter, kTile);
  const uint64_t splits = std::clamp<uint64_t>(device.multiprocessors / tiles, 1, kMostSplits);
  return splits > 1 ? splits * c.w[0] * per_filter * 4 : 0;
}

bool has_all_extents(const Convolution& c) {
  return c.x.size() >= 3 && c.w.size() == c.x.size() && c.y.size() == c.x.size();
}

// The filter's gradient of a depthwise convolution: x and y, this many times.
constexpr uint64_t kDepthwiseCopies = 4;

// The rest of what the upper bounds add, wherever they stand.
constexpr uint64_t kUpperBytes = 256 << 10;

uint64_t plain_upper_bytes(const Convolution& c) {
  const Sizes size = sizes(c, 1);
  return (size.sum() + size.w * kWinogradTile / 9) * 112 / 100 + kUpperBytes;
}

// Where a product has fewer tiles than the device has multiprocessors, its sum may be split. As
// many parts as were ever seen.
uint64_t most_partial_sums_bytes(const Convolution& c, const DeviceFacts& device) {
  const uint64_t groups = c.groups();
  const uint64_t filter = volume(c.w, 2);
  uint64_t rows = 0, columns = 0, terms = 0;
  switch (c.pass) {
    case ConvolutionPass::kForward:
      rows = c.y[0] * volume(c.y, 2), columns = c.w[0], terms = c.w[1] * filter;
      break;
    case ConvolutionPass::kBackwardData:
      rows = c.x[0] * volume(c.x, 2), columns = c.x[1], terms = c.w[0] / groups * filter;
      break;
    case ConvolutionPass::kBackwardFilter:
      rows = c.w[0], columns = c.w[1] * filter, terms = c.y[0] * volume(c.y, 2);
      break;
  }
  constexpr uint64_t kMostParts = 17;
  constexpr uint64_t kTilesPerMultiprocessor = 20;
  const uint64_t fewest_terms = c.pass == ConvolutionPass::kBackwardFilter ? 384 : 192;
  const uint64_t tiles = std::max<uint64_t>(1, divide_up(rows, kTile) * divide_up(columns, kTile));
  const uint64_t parts = std::min(
      {kMostParts, kTilesPerMultiprocessor * device.multiprocessors / tiles, terms / fewest_terms});
  const uint64_t result = rows * columns * 4;
  // A small result has more parts, of shorter sums, as long as they are few tiles for each
  // multiprocessor.
  constexpr uint64_t kMostPartsOfSmall = 32, kFewTiles = 5;
  const uint64_t few_tiles = kFewTiles * device.multiprocessors * kTile * kTile * 4;
  return std::max(parts * result, std::min(kMostPartsOfSmall * result, few_tiles));
}

}  // namespace

bool convolution_supported(const Convolution& c, const DeviceFacts& device) {
  return c.type != ElementType::kBfloat16 || device.compute_capability >= 80;
}

bool convolution_on_tensor_cores(const Convolution& c, const DeviceFacts& device) {
  switch (c.type) {
    case ElementType::kHalf:
      return device.compute_capability >= 70;
    case ElementType::kBfloat16:
    case ElementType::kFloat:
      return device.compute_capability >= 80;
    default:
      return false;
  }
}

uint64_t convolution_workspace_bytes(const Convolution& c, const DeviceFacts& device,
                                     bool tensor_cores) {
  if (!has_all_extents(c)) return 0;
  if (!tensor_cores) return plain_bytes(c, device);
  if (is_depthwise(c)) {
    if (c.pass != ConvolutionPass::kBackwardFilter) {
      if (c.type == ElementType::kFloat) return 0;
    } else if (device.compute_capability < 100 &&
               (c.channels_last || c.type == ElementType::kFloat)) {
      const Sizes size = sizes(c, 1);
      return kDepthwiseCopies * (size.x + size.y) + kHeaderBytes;
    }
  }

  // Tensor cores want channels last, and channels in units of 16 bytes: what is not so is copied
  // first.
  const uint64_t unit = 16 / size_of(c.type);
  const Sizes size = sizes(c, unit);
  const bool padded = c.groups() == 1 && c.x[1] % unit != 0;

  uint64_t bytes = 0;
  const bool ampere_float = c.type == ElementType::kFloat && device.compute_capability < 90;
  if (ampere_float && c.pass == ConvolutionPass::kForward) {
    bytes = size.x + size.w;
  } else if (!c.channels_last) {
    bytes = is_pointwise(c) ? size.x + size.y : size.sum();
  } else if (ampere_float) {
    bytes = c.pass == ConvolutionPass::kBackwardFilter ? size.x + size.y : size.y + size.w;
  } else if (padded) {
    bytes = size.x + size.w;
  }
  if (c.pass == ConvolutionPass::kBackwardFilter) bytes += split_sum_bytes(c, device);
  return bytes == 0 ? 0 : bytes + kHeaderBytes;
}

uint64_t convolution_workspace_upper_bytes(const Convolution& c, const DeviceFacts& device,
                                           bool tensor_cores) {
  if (!has_all_extents(c)) return 0;
  const uint64_t expected = convolution_workspace_bytes(c, device, tensor_cores);
  if (!tensor_cores) return std::max(expected, plain_upper_bytes(c));
  // How many times the copies of all three tensors, in hundredths.
  uint64_t times = c.pass == ConvolutionPass::kBackwardFilter ? 320 : 240;
  if (is_depthwise(c) && c.pass == ConvolutionPass::kBackwardFilter) times = 525;
  const uint64_t copies = sizes(c, 16 / size_of(c.type)).sum();
  return std::max(expected,
                  copies * times / 100 + most_partial_sums_bytes(c, device) + kUpperBytes);
}

uint64_t largest_convolution_workspace_bytes(const Convolution& c, const DeviceFacts& device,
                                             bool tensor_cores) {
  if (!has_all_extents(c)) return 0;
  const uint64_t first = convolution_workspace_bytes(c, device, tensor_cores);
  if (!tensor_cores) {
    const bool copied = c.channels_last || device.compute_capability >= 90;
    return std::max(first, copied ? sizes(c, 1).sum() + kHeaderBytes : 0);
  }
  if (is_depthwise(c)) return std::max(first, kDepthwiseCopies * sizes(c, 1).sum() + kHeaderBytes);
  const uint64_t padded = sizes(c, kTile).sum();
  return std::max(first, (c.type == ElementType::kFloat ? padded : padded * 5 / 4) + kHeaderBytes);
}

uint64_t largest_convolution_workspace_upper_bytes(const Convolution& c, const DeviceFacts& device,
                                                   bool tensor_cores) {
  if (!has_all_extents(c)) return 0;
  const uint64_t upper = convolution_workspace_upper_bytes(c, device, tensor_cores);
  if (!tensor_cores) return upper;
  const uint64_t times = c.pass == ConvolutionPass::kBackwardFilter ? 560 : 410;
  return std::max(upper, sizes(c, kTile).sum() * times / 100 + most_partial_sums_bytes(c, device) +
                             kUpperBytes);
}

uint64_t attention_workspace_bytes(const DeviceFacts& device) {
  return device.compute_capability == 90 ? 256 : 0;
}

uint64_t batch_norm_forward_workspace_bytes(const BatchNorm& norm) {
  if (!norm.persistent || !norm.channels_last) return 0;
  return norm.elements / (norm.type == ElementType::kFloat ? 8 : 20) + 1024;
}

uint64_t batch_norm_backward_workspace_bytes(const BatchNorm& norm) {
  if (!norm.persistent || !norm.channels_last) return 0;
  return norm.elements / 12 + 1024;
}

uint64_t ctc_workspace_bytes(int64_t steps, int64_t batch, int64_t classes, int64_t labels,
                             int64_t longest_label) {
  const int64_t states = 2 * longest_label + 1;  // blanks between the labels
  return 4 * (steps * batch * classes + 2 * states * steps * batch + states * batch + labels +
              4 * batch);
}

uint64_t ctc_v8_workspace_bytes(int64_t steps, int64_t batch, int64_t classes,
                                int64_t longest_label) {
  const int64_t states = 2 * longest_label + 1;
  return 4 * (steps * batch * classes + 2 * states * steps * batch + (states + 2) * batch);
}

uint64_t dropout_states_bytes(const DeviceFacts& device) {
  constexpr uint64_t kStateBytes =
      24;  // one random generator for each thread that can run at a time
  return kStateBytes * device.multiprocessors * device.threads_per_multiprocessor;
}

FftWork fft_work(const std::vector<int64_t>& signal, int64_t batch, bool is_real,
                 size_t complex_element_bytes) {
  // Lengths with larger prime factors than this go through a longer convolution (Bluestein).
  constexpr int64_t kLargestFactor = 127;
  // One dimension of up to this many points stays inside a multiprocessor.
  constexpr int64_t kInPlacePoints = 8192, kInPlacePointsOfPrimes = 2048;
  constexpr uint64_t kMostOfSmooth = 2, kMostOfPrimes = 8;
  uint64_t points = static_cast<uint64_t>(batch);
  bool has_large_prime = false;
  for (const int64_t length : signal) {
    int64_t rest = length;
    for (int64_t factor = 2; factor <= kLargestFactor && rest > 1; ++factor) {
      while (rest % factor == 0) rest /= factor;
    }
    has_large_prime = has_large_prime || rest > 1;
    points *= static_cast<uint64_t>(length);
  }
  const uint64_t bytes = points * complex_element_bytes;
  const bool is_small = signal.size() == 1 &&
                        signal[0] <= (has_large_prime ? kInPlacePointsOfPrimes : kInPlacePoints);
  // Some of several dimensions need nothing.
  const uint64_t least = is_small || signal.size() > 1 ? 0 : is_real ? bytes / 2 : bytes;
  return {least, bytes * (has_large_prime ? kMostOfPrimes : kMostOfSmooth)};
}

uint64_t least_workspace_bytes(const Convolution& convolution, uint64_t bytes) {
  return is_pointwise(convolution) ? 0 : bytes / 10 * 9;
}

uint64_t largest_workspace_on_device_bytes(const Convolution& convolution, uint64_t bytes) {
  constexpr uint64_t kPartialSums = 16;
  if (is_pointwise(convolution) && convolution.pass == ConvolutionPass::kBackwardFilter) {
    bytes = std::max(bytes, kPartialSums * volume(convolution.w, 0) * sizeof(float));
  }
  return bytes + bytes / 10 * 3;
}

std::optional<WorkspaceChoice> parse_workspace_choice(std::string_view text) {
  WorkspaceChoice choice;
  if (text.empty() || text == "model") return choice;
  using Kind = WorkspaceChoice::Kind;
  for (const auto& [word, kind] : {std::pair("none", Kind::kNone), std::pair("least", Kind::kLeast),
                                   std::pair("upper", Kind::kUpper)}) {
    if (text != word) continue;
    choice.kind = kind;
    return choice;
  }
  const auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), choice.fixed_bytes);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  choice.kind = WorkspaceChoice::Kind::kFixed;
  return choice;
}

}  // namespace memledger::virtual_gpu
