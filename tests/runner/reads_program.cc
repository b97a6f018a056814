// Programs that read what only the device has, for dry_run_reads_test.sh:
//
//   reads_program MODE [STEPS]
//
// A value that they read decides what they allocate, unless MODE says that it does not.
#include <ATen/ATen.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace {

at::TensorOptions on_cuda(at::ScalarType type = at::kFloat) {
  return at::TensorOptions(at::kCUDA).dtype(type);
}

// Too large to be known.
at::Tensor random(int64_t count) { return at::randn({count}, on_cuda()); }

at::Tensor gibibytes(int64_t count) { return at::empty({count << 30}, on_cuda(at::kByte)); }

// Trains; `is_good` decides whether a loss is stepped with. The first step takes 8 GiB for good.
void train(int steps, const std::function<bool(const at::Tensor& loss)>& is_good) {
  torch::nn::Linear net(1024, 1024);
  net->to(at::kCUDA);
  torch::optim::Adam adam(net->parameters());
  at::Tensor held;
  for (int i = 0; i < steps; ++i) {
    adam.zero_grad();
    const at::Tensor loss = net->forward(at::ones({256, 1024}, on_cuda())).square().mean();
    if (!is_good(loss)) continue;
    loss.backward();
    adam.step();
    if (!held.defined()) held = gibibytes(8);
  }
}

void is_finite(int steps) {
  train(steps, [](const at::Tensor& loss) { return at::isfinite(loss).item<bool>(); });
}

void is_no_nan(int steps) {
  train(steps, [](const at::Tensor& loss) { return !at::isnan(loss).any().item<bool>(); });
}

// Looks for infinite gradients by the operator that a scaler of gradients uses.
void scaler(int steps) {
  train(steps, [](const at::Tensor& loss) {
    const at::Tensor gradient = loss.detach().expand({64, 64}).contiguous();
    const at::Tensor scale = at::ones({}, on_cuda());
    at::Tensor found = at::zeros({}, on_cuda());
    at::_amp_foreach_non_finite_check_and_unscale_({gradient}, found, scale);
    return found.to(at::kFloat).item<float>() == 0;
  });
}

void prints(int steps) {
  train(steps, [](const at::Tensor& loss) {
    std::printf("loss %f\n", loss.item<float>());
    return true;
  });
}

void truth(int) {
  if ((random(200'000) > 0).any().item<bool>()) gibibytes(8);
}
void fraction(int) { gibibytes(std::lround(random(200'000).mean().item<float>() * 8)); }
// `max` is padded to a least bucket.
void bucket(int) {
  const at::Tensor x = at::randint(1'000'000, {200'000}, on_cuda(at::kLong));
  at::empty({std::max<int64_t>(x.max().item<int64_t>(), 1024) * 10'000}, on_cuda(at::kByte));
}
void bounded(int) {
  const int64_t count = at::randint(100, {200'000}, on_cuda(at::kLong)).max().item<int64_t>();
  gibibytes(std::min<int64_t>(count, 8));
}
// A mask goes to the host, and what it keeps comes back.
void host_mask(int) {
  const at::Tensor rows = at::ones({1 << 20});
  const at::Tensor keep = (random(1 << 20) > 0.4).cpu();
  at::empty({rows.index({keep}).size(0) << 13}, on_cuda(at::kByte));
}
void host_fractions(int) {
  const at::Tensor count = (random(1 << 20).cpu() > 0.4).sum();
  at::empty({count.item<int64_t>() << 13}, on_cuda(at::kByte));
}
// Ends for no program that reads a large number.
void endless(int) {
  const int64_t count = at::randint(9, {200'000}, on_cuda(at::kLong)).max().item<int64_t>();
  for (int64_t i = 0; i < count; ++i) {
    const volatile double work = std::sqrt(static_cast<double>(i));
    static_cast<void>(work);
  }
}
// An index of the host's, which a large number is none of.
void index(int) {
  const std::vector<int> table(8);
  const auto token =
      static_cast<size_t>(at::randint(8, {200'000}, on_cuda(at::kLong)).max().item<int64_t>());
  [[maybe_unused]] const auto& row = table.at(token);
}

int64_t token() {
  const at::Tensor x = at::randint(8, {200'000}, on_cuda(at::kLong));
  const int64_t token = x.max().item<int64_t>();
  if (token > std::numeric_limits<uint32_t>::max()) std::exit(EXIT_FAILURE);  // as tokenizers do
  return token;
}
// What it allocates depends on whether a token is the first one.
void refused_token(int) {
  if (token() != 0) at::empty({1 << 20}, on_cuda(at::kByte));
  gibibytes(8);
}
// It depends on the token itself, below the peak.
void refused_size(int) {
  at::empty({token()}, on_cuda(at::kByte));
  gibibytes(8);
}
// Expects that something is found.
void no_box(int) {
  if (at::nonzero(random(200'000) > 0.4).size(0) == 0) std::exit(EXIT_FAILURE);
}

// A loop over as many labels as there may be. A round takes some 100 us.
void label_loop(int) {
  const at::Tensor x = at::randint(1'000'000, {10'000'000}, on_cuda(at::kLong));
  const at::Tensor labels = std::get<0>(at::_unique2(x));
  const at::Tensor images = random(200'000);
  for (int64_t i = 0; i < labels.numel(); ++i) at::nonzero(images > static_cast<double>(i));
  gibibytes(8);
}
// Each box has one of 50 classes, so that the loop has 50 rounds at most.
void class_loop(int) {
  const at::Tensor scores = random(2'000'000).view({-1, 50});
  const at::Tensor classes = at::arange(50, on_cuda(at::kLong)).expand_as(scores).reshape({-1});
  const at::Tensor found = classes.index({scores.view({-1}) > 0.5});
  const at::Tensor labels = std::get<0>(at::_unique2(found));
  for (int64_t i = 0; i < labels.numel(); ++i) at::nonzero(found == labels[i]);
  gibibytes(8);
}
// A large size is read before the program's own loop, which it does not drive.
void batches(int) {
  at::_unique2(at::randint(1'000'000, {100'000'000}, on_cuda(at::kLong)));
  const at::Tensor images = random(200'000);
  for (int i = 0; i < 2000; ++i) at::nonzero(images > 0);
  gibibytes(8);
}
// A check for infinite numbers lies next to a number that becomes a size.
void beside(int) {
  const at::Tensor both = at::zeros({2}, on_cuda());
  const at::Tensor x = random(200'000);
  both[1].copy_(x.max() * 2);
  both[0].copy_(at::isfinite(x).all());
  if (both[0].item<float>() == 0) return;
  gibibytes(std::lround(both[1].item<float>()));
}
// A buffer that a check was in has something else later.
void reused(int) {
  const at::Tensor x = random(200'000);
  at::Tensor buffer = at::isfinite(x).all().to(at::kFloat);
  if (buffer.item<float>() == 0) return;
  at::max_out(buffer, x);
  gibibytes(std::lround(buffer.item<float>()));
}

// Trains on as long as a value falls, and keeps something of each round.
void early_stopping(int) {
  std::vector<at::Tensor> held;
  float best = 0;
  for (int i = 0, bad = 0; i < 100 && bad < 2; ++i) {
    const float value = random(200'000).square().mean().item<float>();
    bad = i == 0 || value < best ? 0 : bad + 1;
    if (bad == 0) best = value;
    held.push_back(gibibytes(1));
  }
}

const std::map<std::string, void (*)(int)> kModes = {
    {"is_finite", &is_finite},
    {"is_no_nan", &is_no_nan},
    {"scaler", &scaler},
    {"prints", &prints},
    {"truth", &truth},
    {"fraction", &fraction},
    {"bucket", &bucket},
    {"bounded", &bounded},
    {"host_mask", &host_mask},
    {"host_fractions", &host_fractions},
    {"endless", &endless},
    {"index", &index},
    {"early", &early_stopping},
    {"beside", &beside},
    {"reused", &reused},
    {"batches", &batches},
    {"label_loop", &label_loop},
    {"class_loop", &class_loop},
    {"no_box", &no_box},
    {"refused_token", &refused_token},
    {"refused_size", &refused_size},
};

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) return EXIT_FAILURE;
  kModes.at(argv[1])(argc > 2 ? static_cast<int>(std::strtol(argv[2], nullptr, 10)) : 50);
}
