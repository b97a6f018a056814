// What is known of values on the virtual GPU, against LibTorch's own CPU kernels.
#define DOCTEST_CONFIG_IMPLEMENT
#include "tests/support/doctest_beside_torch.h"

#include <ATen/ATen.h>
#include <ATen/cuda/CUDAContext.h>
#include <ATen/cuda/CUDAGeneratorImpl.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/util/Exception.h>
#include <dlfcn.h>
#include <malloc.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <iterator>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace memledger {
namespace {

const c10::Device kCuda0(c10::kCUDA, 0);

using KnownValues = std::optional<at::Tensor> (*)(const at::Tensor&);

// In the library that the runner brought in.
KnownValues find_known_values() {
  void* const library = dlopen("libmemledger.so", RTLD_NOW | RTLD_NOLOAD);
  if (library == nullptr) return nullptr;
  return reinterpret_cast<KnownValues>(
      dlsym(library, "_ZN9memledger11virtual_gpu12known_valuesERKN2at6TensorE"));
}

std::optional<at::Tensor> known(const at::Tensor& tensor) {
  static const KnownValues ask = find_known_values();
  REQUIRE((ask != nullptr));
  return ask(tensor);
}

bool is_known(const at::Tensor& tensor) { return known(tensor).has_value(); }

bool is_known_as(const at::Tensor& tensor, const at::Tensor& expected) {
  const std::optional<at::Tensor> values = known(tensor);
  return values.has_value() && values->dtype() == expected.dtype() &&
         at::equal(*values, expected) && at::equal(tensor.cpu(), expected);
}

at::Tensor host(const std::vector<int64_t>& values) {
  return at::tensor(values, at::TensorOptions().dtype(at::kLong));
}

at::TensorOptions on_device(at::ScalarType type = at::kLong) {
  return at::TensorOptions(kCuda0).dtype(type);
}

at::Tensor unknown(at::IntArrayRef sizes, at::ScalarType type = at::kLong) {
  return at::empty(sizes, on_device(type));
}

template <typename Function>
Function cuda_function(const char* name) {
  auto* const function = reinterpret_cast<Function>(dlsym(RTLD_DEFAULT, name));
  REQUIRE((function != nullptr));
  return function;
}

TEST_CASE("factories and copies from the host") {
  CHECK(is_known_as(host({1, 2, 3}).to(kCuda0), host({1, 2, 3})));
  CHECK(is_known_as(at::arange(5, on_device()), host({0, 1, 2, 3, 4})));
  CHECK(is_known_as(at::zeros({2, 2}, on_device()), at::zeros({2, 2}, at::kLong)));
  CHECK(is_known_as(at::full({3}, true, on_device(at::kBool)), at::ones({3}, at::kBool)));
  CHECK(is_known_as(at::eye(3, on_device()), at::eye(3, at::kLong)));
  CHECK(is_known_as(at::ones({2}, on_device(at::kFloat)), at::ones({2})));
  CHECK_FALSE(is_known(at::empty({3}, on_device())));
  CHECK_FALSE(is_known(at::randperm(5, on_device())));
  CHECK_FALSE(is_known(at::zeros({2}, on_device(at::kFloat)).exponential_()));
}

TEST_CASE("what is too large is not known") {
  CHECK(is_known(at::zeros({1 << 15}, on_device())));
  CHECK_FALSE(is_known(at::zeros({(1 << 15) + 1}, on_device())));
  CHECK(is_known(at::zeros({1 << 15}, at::kLong).to(kCuda0)));
  CHECK(is_known(at::zeros({1024}, on_device(at::kFloat))));
  CHECK_FALSE(is_known(at::zeros({1025}, on_device(at::kFloat))));
  // A small tensor expanded to a large one: nothing is made of it here, and nothing is claimed.
  const at::Tensor one = at::ones({1}, on_device());
  CHECK_FALSE(is_known(one.expand({1 << 20}).clone()));
}

TEST_CASE("arithmetic, and what the program reads") {
  const at::Tensor x = host({1, 2, 3}).to(kCuda0);
  CHECK(is_known_as(x * 2 + 1, host({3, 5, 7})));
  CHECK((x.sum().item<int64_t>() == 6));
  CHECK(x.eq(x).all().item<bool>());
  CHECK(at::equal(x, x.clone()));
  CHECK_FALSE(at::equal(x, x + 1));
  CHECK(is_known_as(at::cat({x, x.flip(0)}), host({1, 2, 3, 3, 2, 1})));
  CHECK(is_known_as(x.to(at::kInt).cumsum(0), host({1, 3, 6})));
  CHECK((x.to(at::kFloat).mean().item<float>() == 2.0F));
  CHECK(is_known_as(std::get<1>(at::sort(host({3, 1, 2}).to(kCuda0))), host({1, 2, 0})));
  // Equal elements may come in any order on a device.
  CHECK_FALSE(is_known(std::get<1>(at::sort(host({3, 1, 3}).to(kCuda0)))));
  at::Tensor out = unknown({3});
  at::add_out(out, x, x);
  CHECK(is_known_as(out, host({2, 4, 6})));
  at::add_out(out, x, unknown({3}));
  CHECK_FALSE(is_known(out));
}

TEST_CASE("views, and what is written through them") {
  const at::Tensor x = at::zeros({2, 3}, on_device());
  x.select(0, 1).fill_(7);
  CHECK(is_known_as(x, host({0, 0, 0, 7, 7, 7}).view({2, 3})));
  CHECK(is_known_as(x.t(), host({0, 7, 0, 7, 0, 7}).view({3, 2})));
  x.slice(1, 0, 1).copy_(unknown({2, 1}));
  CHECK_FALSE(is_known(x));
  CHECK(is_known_as(x.slice(1, 1), host({0, 0, 7, 7}).view({2, 2})));
  CHECK_FALSE(is_known(x.slice(1, 0, 2)));
  x.t().select(0, 0).copy_(host({4, 5}));
  CHECK(is_known_as(x, host({4, 0, 0, 5, 7, 7}).view({2, 3})));
  x.add_(unknown({}));
  CHECK_FALSE(is_known(x));
}

TEST_CASE("in place, through a snapshot") {
  const at::Tensor x = at::zeros({3}, on_device());
  const std::optional<at::Tensor> before = known(x);
  x.add_(1);
  REQUIRE(before.has_value());
  CHECK(at::equal(*before, host({0, 0, 0})));
  CHECK(is_known_as(x, host({1, 1, 1})));
}

TEST_CASE("an input that decides alone") {
  const at::Tensor u = unknown({2});
  const at::Tensor ub = unknown({2}, at::kBool);
  const at::Tensor yes = at::ones({2}, on_device(at::kBool));
  const at::Tensor no = at::zeros({2}, on_device(at::kBool));
  CHECK(is_known_as(u.bitwise_and(0), host({0, 0})));
  CHECK(is_known_as(u.mul(at::zeros({2}, on_device())), host({0, 0})));
  CHECK(is_known_as(u.bitwise_or(-1), host({-1, -1})));
  CHECK(is_known_as(ub.bitwise_or(yes), at::ones({2}, at::kBool)));
  CHECK(is_known_as(no.bitwise_and(ub), at::zeros({2}, at::kBool)));
  CHECK(is_known_as(at::logical_and(u, no), at::zeros({2}, at::kBool)));
  CHECK(is_known_as(at::logical_or(yes, u), at::ones({2}, at::kBool)));
  CHECK_FALSE(is_known(ub.bitwise_and(yes)));
  CHECK_FALSE(is_known(ub.bitwise_or(no)));
  CHECK_FALSE(is_known(u.mul(at::ones({2}, on_device()))));
  // Infinity times zero is no number.
  CHECK_FALSE(is_known(unknown({2}, at::kFloat).mul(at::zeros({2}, on_device(at::kFloat)))));
  at::Tensor u2 = u.clone();
  u2.mul_(0);
  CHECK(is_known_as(u2, host({0, 0})));
  const at::Tensor half = host({1, 0}).to(at::kBool).to(kCuda0);
  const at::Tensor chosen = at::where(half, host({5, 6}).to(kCuda0), u);
  CHECK_FALSE(is_known(chosen));
  CHECK(is_known_as(chosen.slice(0, 0, 1), host({5})));
  CHECK_FALSE(is_known(chosen.slice(0, 1)));
  CHECK(is_known_as(u.masked_fill(yes, 3), host({3, 3})));
  CHECK_FALSE(is_known(u.masked_fill(half, 3)));
  const at::Tensor part = at::cat({host({4}).to(kCuda0), u});
  CHECK(is_known_as(part.slice(0, 0, 1), host({4})));
  CHECK_FALSE(is_known(part.slice(0, 1)));
  CHECK(is_known_as(at::cat({no, ub}).all(), at::zeros({}, at::kBool)));
  CHECK_FALSE(is_known(at::cat({yes, ub}).all()));
  CHECK(is_known_as(at::cat({yes, ub}).any(), at::ones({}, at::kBool)));
  CHECK_FALSE(is_known(at::cat({no, ub}).any()));
}

TEST_CASE("what LibTorch's CPU kernels must not be asked") {
  const int64_t least = std::numeric_limits<int64_t>::min();
  const at::Tensor x = host({least, 6}).to(kCuda0);
  CHECK_NOTHROW(at::div(x, host({-1, 2}).to(kCuda0), "trunc"));  // the CPU traps
  CHECK_NOTHROW(at::div(x, at::Scalar(-1), "trunc"));
  CHECK(is_known_as(at::div(x, host({1, 4}).to(kCuda0), "trunc"), host({least, 1})));
  CHECK(is_known_as(at::div(x, at::Scalar(2), "floor"), host({least / 2, 3})));
}

TEST_CASE("what is written through tensors that are no plain views") {
  const at::Tensor x = at::ones({2}, on_device(at::kComplexFloat));
  at::imag(x.conj()).add_(1);
  CHECK_FALSE(is_known(x));
  const at::Tensor y = at::ones({2}, on_device(at::kComplexFloat));
  y.conj().mul_(2);
  CHECK_FALSE(is_known(y));
}

TEST_CASE("what batch normalization writes, and its schema does not say") {
  const at::Tensor mean = at::zeros({3}, on_device(at::kFloat));
  const at::Tensor variance = at::ones({3}, on_device(at::kFloat));
  REQUIRE(is_known(mean));
  at::batch_norm(unknown({4, 3}, at::kFloat), {}, {}, mean, variance, /*training=*/true, 0.1, 1e-5,
                 /*cudnn_enabled=*/false);
  CHECK_FALSE(is_known(mean));
  CHECK_FALSE(is_known(variance));
}

TEST_CASE("work behind a host function that has not run") {
  const auto launch = cuda_function<int (*)(void*, void (*)(void*), void*)>("cudaLaunchHostFunc");
  const at::Tensor x = host({5, 5}).to(kCuda0);
  std::mutex held;
  std::unique_lock<std::mutex> lock(held);
  const auto wait = [](void* mutex) {
    const std::lock_guard<std::mutex> until_released(*static_cast<std::mutex*>(mutex));
  };
  REQUIRE((launch(nullptr, wait, &held) == 0));
  x.add_(1);
  CHECK_FALSE(is_known(x));
  lock.unlock();
  c10::cuda::device_synchronize();
  x.zero_();
  CHECK((x.sum().item<int64_t>() == 0));
}

TEST_CASE("an address that is used again") {
  const void* first = nullptr;
  {
    const at::Tensor x = host({1, 2, 3}).to(kCuda0);
    first = x.const_data_ptr();
  }
  const at::Tensor y = unknown({3});
  REQUIRE(y.const_data_ptr() == first);
  CHECK_FALSE(is_known(y));
  CHECK(at::equal(y.cpu(), host({0, 0, 0})));
}

TEST_CASE("what writes without an operator") {
  using Copy = int (*)(void*, const void*, size_t, int);
  using Fill = int (*)(void*, int, size_t);
  const auto copy = cuda_function<Copy>("cudaMemcpy");
  const auto fill = cuda_function<Fill>("cudaMemset");
  const at::Tensor x = host({1, 2, 3}).to(kCuda0);
  const at::Tensor y = host({7, 8, 9});
  REQUIRE(copy(x.mutable_data_ptr(), y.const_data_ptr(), 16, 1) == 0);
  CHECK(is_known_as(x, host({7, 8, 3})));
  REQUIRE(fill(static_cast<char*>(x.mutable_data_ptr()) + 8, 0, 8) == 0);
  CHECK(is_known_as(x, host({7, 0, 3})));
  const at::Tensor u = unknown({3});
  REQUIRE(copy(x.mutable_data_ptr(), u.const_data_ptr(), 8, 3) == 0);
  CHECK_FALSE(is_known(x));
  CHECK(is_known_as(x.slice(0, 1), host({0, 3})));
  int64_t read[3] = {-1, -1, -1};
  REQUIRE(copy(read, x.const_data_ptr(), 24, 2) == 0);
  CHECK((read[0] == 0 && read[1] == 0 && read[2] == 3));
}

TEST_CASE("another storage on the same memory") {
  const at::Tensor x = host({1, 2, 3}).to(kCuda0);
  const at::Tensor alias = at::from_blob(
      static_cast<int64_t*>(x.mutable_data_ptr()) + 1, {1}, [](void*) {}, on_device());
  alias.copy_(unknown({1}));
  CHECK_FALSE(is_known(x.slice(0, 1, 2)));
  const at::Tensor y = host({1, 2, 3}).to(kCuda0);
  const at::Tensor all = at::from_blob(
      y.mutable_data_ptr(), {3}, [](void*) {}, on_device());
  all.fill_(5);
  CHECK_FALSE((is_known(y) && !is_known_as(y, host({5, 5, 5}))));
}

TEST_CASE("a storage that moves") {
  at::Tensor x = host({1, 2, 3}).to(kCuda0);
  x.resize_({100000});
  CHECK_FALSE(is_known(x));
  at::Tensor y = host({1, 2, 3}).to(kCuda0);
  y.set_(unknown({3}));
  CHECK_FALSE(is_known(y));
}

TEST_CASE("modes of the program change nothing") {
  {
    const c10::InferenceMode inference;
    const at::Tensor x = host({1, 2, 3}).to(kCuda0);
    CHECK(is_known_as(x + x, host({2, 4, 6})));
  }
  const at::Tensor x = at::ones({3}, on_device(at::kFloat)).requires_grad_();
  const at::Tensor y = x * 2;
  CHECK(is_known_as(y.detach(), at::full({3}, 2.0F)));
  y.sum().backward();
  CHECK(is_known_as(x.grad(), at::full({3}, 2.0F)));
}

// Copies from the host to `tensor` on another thread, as Gloo's collectives do.
void write_elsewhere(const at::Tensor& tensor) {
  std::thread([&] {
    tensor.copy_(at::arange(tensor.numel(), tensor.options().device(at::kCPU)));
  }).join();
}

// LibTorch's collectives end when their threads may have written already; what a program's own
// operator writes is not known.
TORCH_LIBRARY_FRAGMENT(c10d, library) {
  library.def("memledger_test_write_(Tensor(a!) tensor) -> ()", &write_elsewhere);
}
TORCH_LIBRARY(memledger_test, library) {
  library.def("write_(Tensor(a!) tensor) -> ()", &write_elsewhere);
}

TEST_CASE("what another thread of a collective has copied is known when its operator ends") {
  const auto written_by = [](const char* name) {
    const at::Tensor tensor = at::zeros({3}, at::device(kCuda0).dtype(at::kInt));
    c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<void(const at::Tensor&)>().call(
        tensor);
    return tensor;
  };
  CHECK(is_known_as(written_by("c10d::memledger_test_write_"), at::arange(3, at::kInt)));
  CHECK_FALSE(is_known(written_by("memledger_test::write_")));
}

TEST_CASE("products of a library") {
  const at::Tensor x = host({1, 2, 3, 4}).view({2, 2}).to(at::kFloat).to(kCuda0);
  const at::Tensor product = host({7, 10, 15, 22}).view({2, 2}).to(at::kFloat);
  CHECK(is_known_as(x.mm(x), product));
  CHECK(is_known_as(x.to(at::kHalf).mm(x.to(at::kHalf)), product.to(at::kHalf)));
  CHECK_FALSE(is_known(x.mm(unknown({2, 2}, at::kFloat))));
  // Here the factors are rounded.
  at::globalContext().setAllowTF32CuBLAS(true);
  CHECK_FALSE(is_known(x.mm(x)));
  at::globalContext().setAllowTF32CuBLAS(false);
}

TEST_CASE("operators on lists") {
  const auto list = [](const std::vector<int64_t>& a, const std::vector<int64_t>& b) {
    return std::vector<at::Tensor>{host(a).to(at::kFloat).to(kCuda0),
                                   host(b).to(at::kFloat).to(kCuda0)};
  };
  const std::vector<at::Tensor> x = list({1, 2}, {3, 4, 5});
  at::_foreach_add_(x, 1);
  CHECK(is_known_as(x[0], host({2, 3}).to(at::kFloat)));
  CHECK(is_known_as(x[1], host({4, 5, 6}).to(at::kFloat)));
  CHECK(is_known_as(at::_foreach_mul(x, 2)[1], host({8, 10, 12}).to(at::kFloat)));
  const std::vector<at::Tensor> part = {x[0], unknown({3}, at::kFloat)};
  at::_foreach_add_(x, part);
  CHECK_FALSE(is_known(x[1]));
  // The device's second write does not see the first.
  const at::Tensor twice = at::ones({2}, on_device(at::kFloat));
  at::_foreach_add_(std::vector<at::Tensor>{twice, twice}, 1);
  CHECK_FALSE((is_known(twice) && !is_known_as(twice, at::full({2}, 3.0F))));
  const std::vector<at::Tensor> parameters = list({1, 2}, {3}), gradients = list({8, 4}, {4}),
                                momenta = {unknown({2}, at::kFloat), unknown({1}, at::kFloat)};
  at::_fused_sgd_(parameters, gradients, momenta, 0, 0.5, 0.25, 0, false, false,
                  /*is_first_step=*/true);
  CHECK(is_known_as(parameters[0], host({-1, 1}).to(at::kFloat)));
  CHECK(is_known_as(momenta[0], host({8, 4}).to(at::kFloat)));
  at::_fused_sgd_(parameters, gradients, {unknown({2}, at::kFloat), momenta[1]}, 0, 0.5, 0.25, 0,
                  false, false, /*is_first_step=*/false);
  CHECK_FALSE(is_known(parameters[0]));
}

TEST_CASE("other calls that write nothing") {
  const at::Tensor x = host({1, 2}).to(kCuda0);
  x.record_stream(c10::cuda::getStreamFromPool().unwrap());
  CHECK(is_known_as(x, host({1, 2})));
  const at::Tensor y = host({1, 2}).to(at::kFloat).to(kCuda0);
  y.index_put_({y.eq(2)}, at::full({}, 7.0F));
  CHECK(is_known_as(y, host({1, 7}).to(at::kFloat)));
}

// Philox4x32-10 as its authors describe it (Salmon et al., Parallel random numbers: as easy as
// 1, 2, 3).
std::array<uint32_t, 4> philox(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53} * counter[0], b = uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<uint32_t>(b >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(b),
               static_cast<uint32_t>(a >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(a)};
    key = {key[0] + 0x9E3779B9, key[1] + 0xBB67AE85};
  }
  return counter;
}

// The numbers of the thread of a kernel.
std::array<uint32_t, 4> numbers_of(uint64_t seed, uint64_t offset, uint32_t thread) {
  return philox({static_cast<uint32_t>(offset / 4), static_cast<uint32_t>(offset >> 34), thread, 0},
                {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
}

float uniform_of(uint32_t number) { return static_cast<float>(number) * 0x1p-32F + 0x1p-33F; }

bool is_printed_as(const at::Tensor& tensor, const std::vector<double>& printed) {
  const std::optional<at::Tensor> values = known(tensor.detach().flatten());
  if (!values) return false;
  const at::Tensor wide = values->to(at::kDouble).contiguous();
  for (size_t i = 0; i < printed.size(); ++i) {
    if (!(std::abs(wide.const_data_ptr<double>()[i] - printed[i]) <= 0.5001e-4)) return false;
  }
  return true;
}

TEST_CASE("random numbers are those that were published of real devices") {
  const auto rand = [](at::IntArrayRef sizes) { return at::rand(sizes, on_device(at::kFloat)); };
  const auto randn = [](at::IntArrayRef sizes) { return at::randn(sizes, on_device(at::kFloat)); };
  at::manual_seed(0);
  CHECK(is_printed_as(rand({5}), {0.3990, 0.5167, 0.0249, 0.9401, 0.9459}));
  at::manual_seed(0);
  CHECK(is_printed_as(randn({6}), {-0.9247, -0.4253, -2.6438, 0.1452, -0.1209, -0.5797}));
  // github.com/pytorch/pytorch/issues/79496
  at::manual_seed(10);
  CHECK(is_printed_as(randn({3}), {-0.1029, 1.6810, -0.2708}));
  // github.com/pytorch/pytorch/issues/158398
  at::manual_seed(42);
  CHECK(is_printed_as(randn({3}), {0.1940, 2.1614, -0.1721}));
  // github.com/mrdbourke/pytorch-deep-learning/issues/759: weight and bias of a Linear(1, 1).
  at::manual_seed(42);
  at::Tensor weight = unknown({1, 1}, at::kFloat), bias = unknown({1}, at::kFloat);
  weight.uniform_(-1, 1);
  bias.uniform_(-1, 1);
  CHECK(is_printed_as(weight, {0.2259}));
  CHECK(is_printed_as(bias, {0.9754}));
  // The exercises of the same course, with this seed, two tensors one after the other.
  at::manual_seed(1234);
  CHECK(is_printed_as(rand({2, 3}), {0.1272, 0.8167, 0.5440, 0.6601, 0.2721, 0.9737}));
  CHECK(is_printed_as(rand({2, 3}), {0.6208, 0.0276, 0.3255, 0.1114, 0.6812, 0.3608}));
}

TEST_CASE("random numbers of other kinds") {
  // The authors' test vector.
  REQUIRE(philox({0, 0, 0, 0}, {0, 0}) ==
          std::array<uint32_t, 4>{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  constexpr int64_t kCount = 700;
  constexpr uint64_t kSeed = 0x123456789abcULL;
  const auto expect = [&](uint64_t offset, at::ScalarType type, const auto& make) {
    const at::Tensor values = at::empty({kCount}, at::kDouble);
    for (int64_t i = 0; i < kCount; ++i)
      values.data_ptr<double>()[i] =
          make(numbers_of(kSeed, offset, static_cast<uint32_t>(i)), static_cast<size_t>(i));
    return values.to(type);
  };
  at::manual_seed(kSeed);
  const at::Tensor small = at::randint(-3, 7, {kCount}, on_device());
  const at::Tensor bits = unknown({kCount}, at::kBool).random_();
  const at::Tensor coins = unknown({kCount}, at::kFloat).bernoulli_(0.25);
  const at::Tensor chances = at::linspace(0, 1, kCount);
  const at::Tensor masks = at::bernoulli(chances.to(kCuda0));
  const at::Tensor after = at::rand({kCount}, on_device(at::kFloat));
  using Four = std::array<uint32_t, 4>;
  CHECK(is_known_as(small, expect(0, at::kLong, [](const Four& four, size_t) {
                      return static_cast<double>(four[0] % 10) - 3;
                    })));
  CHECK(is_known_as(bits, expect(4, at::kBool, [](const Four& four, size_t) {
                      return static_cast<double>(four[0] & 1);
                    })));
  CHECK(is_known_as(coins, expect(8, at::kFloat, [](const Four& four, size_t) {
                      return uniform_of(four[0]) < 0.25F ? 1.0 : 0.0;
                    })));
  CHECK(is_known_as(masks, expect(0, at::kFloat, [&](const Four&, size_t i) {
                      const auto four = numbers_of(kSeed, 12, static_cast<uint32_t>(i / 4));
                      return uniform_of(four[i % 4]) <= chances.data_ptr<float>()[i] ? 1.0 : 0.0;
                    })));
  CHECK(is_known_as(after, expect(24, at::kFloat, [](const Four& four, size_t) {
                      return static_cast<double>(uniform_of(four[0]));
                    })));
  // Where the order of the elements is another, and where the generator is not asked.
  CHECK_FALSE(is_known(unknown({8, 8}, at::kFloat).t().slice(0, 0, 4).uniform_()));
  CHECK_FALSE(is_known(unknown({4}).random_(0, int64_t{1} << 30)));
}

// Captures `work` into a graph on a stream of its own.
template <typename Work>
void capture(at::cuda::CUDAGraph& graph, const Work& work) {
  const c10::cuda::CUDAStreamGuard guard(c10::cuda::getStreamFromPool());
  graph.capture_begin();
  work();
  graph.capture_end();
}

TEST_CASE("a graph") {
  const at::Tensor x = host({1, 2, 3}).to(kCuda0);
  const at::Tensor other = host({9}).to(kCuda0);
  at::Tensor made;
  at::cuda::CUDAGraph graph;
  capture(graph, [&] {
    made = at::ones({3}, on_device());
    x.add_((made + 1) * 2 - made);
  });
  // What the capture made has no content before the graph is launched.
  CHECK_FALSE(is_known(made));
  CHECK(is_known_as(x, host({1, 2, 3})));
  CHECK(is_known_as(other, host({9})));
  graph.replay();
  CHECK(is_known_as(made, host({1, 1, 1})));
  CHECK(is_known_as(x, host({4, 5, 6})));
  graph.replay();
  CHECK(is_known_as(x, host({7, 8, 9})));
  x.copy_(unknown({3}));
  graph.replay();
  CHECK_FALSE(is_known(x));
  x.fill_(5);
  graph.replay();
  CHECK(is_known_as(x, host({8, 8, 8})));
  CHECK(is_known_as(other, host({9})));
  graph.reset();
  CHECK(is_known_as(x, host({8, 8, 8})));
}

TEST_CASE("graphs that follow each other, and share temporaries' memory") {
  const at::Tensor x = host({1, 2}).to(kCuda0);
  at::Tensor between, result;
  at::cuda::CUDAGraph first, second;
  capture(first, [&] { between = (x + 1) * 3; });
  {
    const c10::cuda::CUDAStreamGuard guard(c10::cuda::getStreamFromPool());
    second.capture_begin(first.pool());
    result = (between + 1) * 2;
    second.capture_end();
  }
  second.replay();
  CHECK_FALSE(is_known(result));
  first.replay();
  second.replay();
  CHECK(is_known_as(result, host({14, 20})));
  // A tensor that has ended, at memory that a graph still writes to.
  between.reset();
  x.add_(1);
  first.replay();
  second.replay();
  CHECK(is_known_as(result, host({20, 26})));
}

TEST_CASE("random numbers in a graph are those without one") {
  at::manual_seed(3);
  const at::Tensor plain = at::rand({300}, on_device(at::kFloat));
  const at::Tensor next = at::rand({300}, on_device(at::kFloat)),
                   last = at::rand({300}, on_device(at::kFloat));
  at::Tensor a, b;
  at::cuda::CUDAGraph graph;
  capture(graph, [&] {
    a = at::rand({300}, on_device(at::kFloat));
    b = at::rand({300}, on_device(at::kFloat));
  });
  at::manual_seed(3);
  graph.replay();
  CHECK(is_known_as(a, *known(plain)));
  CHECK(is_known_as(b, *known(next)));
  CHECK_FALSE(at::equal(*known(a), *known(b)));
  graph.replay();
  CHECK(is_known_as(a, *known(last)));
}

TEST_CASE("what a graph writes without a node that is seen") {
  const at::Tensor x = at::ones({2, 2}, on_device(at::kFloat));
  const at::Tensor out = at::zeros({2, 2}, on_device(at::kFloat));
  at::Tensor sum;
  at::cuda::CUDAGraph graph, trailing;
  capture(graph, [&] {
    out.fill_(1);
    at::mm_out(const_cast<at::Tensor&>(out), x, x);
    sum = out + 1;
  });
  graph.replay();
  CHECK_FALSE((is_known(out) && !is_known_as(out, at::full({2, 2}, 2.0F))));
  CHECK_FALSE((is_known(sum) && !is_known_as(sum, at::full({2, 2}, 3.0F))));
  const at::Tensor end = at::zeros({2, 2}, on_device(at::kFloat));
  capture(trailing, [&] {
    end.fill_(1);
    at::mm_out(const_cast<at::Tensor&>(end), x, x);
  });
  trailing.replay();
  CHECK_FALSE((is_known(end) && !is_known_as(end, at::full({2, 2}, 2.0F))));
}

TEST_CASE("what a library captures has no content before the graph is launched") {
  const at::Tensor x = at::ones({2, 2}, on_device(at::kFloat));
  const at::Tensor y = at::full({2, 2}, 3, on_device(at::kFloat));
  const at::Tensor product = at::zeros({2, 2}, on_device(at::kFloat));
  const at::Tensor sum = at::zeros({2, 2}, on_device(at::kFloat));
  const at::Tensor solved = at::zeros({2, 2}, on_device(at::kFloat));
  const at::Tensor matrix = at::eye(2, on_device(at::kFloat));
  const c10::cuda::CUDAStream stream = c10::cuda::getStreamFromPool();
  const c10::cuda::CUDAStreamGuard guard(stream);
  at::cuda::CUDAGraph graph;
  graph.capture_begin();
  at::Tensor out = product, out_of_solver = solved, info = at::zeros({}, on_device(at::kInt));
  at::mm_out(out, x, y);
  sum.addmm_(x, y);
  at::linalg_cholesky_ex_out(out_of_solver, info, matrix);
  graph.capture_end();
  const at::Tensor zeros = at::zeros({2, 2});
  for (const at::Tensor& result : {product, sum, solved})
    CHECK_FALSE((is_known(result) && !is_known_as(result, zeros)));
  graph.replay();
  CHECK_FALSE((is_known(product) && !is_known_as(product, at::full({2, 2}, 6.0F))));
  CHECK_FALSE((is_known(sum) && !is_known_as(sum, at::full({2, 2}, 6.0F))));
  CHECK_FALSE((is_known(solved) && !is_known_as(solved, at::eye(2))));
}

TEST_CASE("libraries that the program calls itself write to what they like") {
  void* cublas = nullptr;
  void* cusparse = nullptr;
  void* cusolver = nullptr;
  REQUIRE((cuda_function<int (*)(void**)>("cublasCreate_v2")(&cublas) == 0));
  REQUIRE((cuda_function<int (*)(void**)>("cusparseCreate")(&cusparse) == 0));
  REQUIRE((cuda_function<int (*)(void**)>("cusolverDnCreate")(&cusolver) == 0));
  const at::Tensor x = at::ones({2}, on_device(at::kFloat));
  const at::Tensor y = at::ones({2}, on_device(at::kFloat));
  auto* const from = static_cast<float*>(x.mutable_data_ptr());
  auto* const to = static_cast<float*>(y.mutable_data_ptr());
  const float two = 2;
  REQUIRE(is_known(y));
  SUBCASE("cuBLAS") {
    using Axpy = int (*)(void*, int, const float*, const float*, int, float*, int);
    CHECK(cuda_function<Axpy>("cublasSaxpy_v2")(cublas, 2, &two, from, 1, to, 1) == 0);
  }
  SUBCASE("cuBLAS, a scalar on the device") {
    using Norm = int (*)(void*, int, const float*, int, float*);
    CHECK(cuda_function<int (*)(void*, int)>("cublasSetPointerMode_v2")(cublas, 1) == 0);
    CHECK(cuda_function<Norm>("cublasSnrm2_v2")(cublas, 2, from, 1, to) == 0);
  }
  SUBCASE("cuSOLVER") {
    using Factor = int (*)(void*, int, int, float*, int, float*, int*, int*);
    CHECK(cuda_function<Factor>("cusolverDnSgetrf")(cusolver, 1, 1, to, 1, from, nullptr,
                                                    nullptr) == 0);
  }
  SUBCASE("cuSPARSE") { CHECK(cuda_function<int (*)()>("cusparseSpMV")() == 0); }
  SUBCASE("cuDNN") { CHECK(cuda_function<int (*)()>("cudnnPoolingForward")() == 0); }
  SUBCASE("NCCL") {
    constexpr int kFloatOfNccl = 7, kSum = 0;
    void* communicator = nullptr;
    const auto make = cuda_function<int (*)(void**, int, const int*)>("ncclCommInitAll");
    REQUIRE(make(&communicator, 1, nullptr) == 0);
    SUBCASE("in place") {
      using Reduce = int (*)(const void*, void*, size_t, int, int, void*, void*);
      CHECK(cuda_function<Reduce>("ncclAllReduce")(to, to, 2, kFloatOfNccl, kSum, communicator,
                                                   nullptr) == 0);
    }
    SUBCASE("received") {
      using Receive = int (*)(void*, size_t, int, int, void*, void*);
      CHECK(cuda_function<Receive>("ncclRecv")(to, 2, kFloatOfNccl, 0, communicator, nullptr) == 0);
    }
    CHECK(cuda_function<int (*)(void*)>("ncclCommDestroy")(communicator) == 0);
  }
  SUBCASE("cuFFT") { CHECK(cuda_function<int (*)(int)>("cufftXtExec")(1) == 0); }
  CHECK_FALSE(is_known(y));
  y.fill_(4);
  CHECK(is_known_as(y, at::full({2}, 4.0F)));
}

TEST_CASE("threads that end leave nothing behind") {
  const auto run = [](int threads) {
    for (int i = 0; i < threads; ++i)
      std::thread([] { at::zeros({1}, on_device()).add_(1); }).join();
  };
  run(64);
  const size_t before = mallinfo2().uordblks;
  run(1024);
  const size_t after = mallinfo2().uordblks;
  CHECK(after < before + 1024 * size_t{64});
}

// Alone, on devices that processes share.
TEST_CASE("what other processes may write is not known" * doctest::skip()) {
  struct Handle {
    char bytes[64];
  } handle;
  using Export = int (*)(Handle*, void*);
  void* block = nullptr;
  REQUIRE((cuda_function<int (*)(void**, size_t)>("cudaMalloc")(&block, 4096) == 0));
  const at::Tensor x = at::from_blob(
      block, {3}, [](void*) {}, on_device());
  const at::Tensor other = at::zeros({3}, on_device());
  x.fill_(7);
  REQUIRE(is_known_as(x, host({7, 7, 7})));
  REQUIRE((cuda_function<Export>("cudaIpcGetMemHandle")(&handle, block) == 0));
  CHECK_FALSE(is_known(x));
  // The other may write later than this one.
  x.fill_(8);
  CHECK_FALSE(is_known(x));
  CHECK_FALSE(is_known(x.slice(0, 1)));
  const at::Tensor y = host({1, 2, 3});
  REQUIRE((cuda_function<int (*)(void*, const void*, size_t, int)>("cudaMemcpy")(
               block, y.const_data_ptr(), 24, 1) == 0));
  CHECK_FALSE(is_known(x));
  CHECK(is_known_as(other, host({0, 0, 0})));
  CHECK(is_known_as(other + 1, host({1, 1, 1})));
  // Once it is freed, the address is like any other.
  REQUIRE((cuda_function<int (*)(void*)>("cudaFree")(block) == 0));
  REQUIRE((cuda_function<int (*)(void**, size_t)>("cudaMalloc")(&block, 4096) == 0));
  REQUIRE(block == x.const_data_ptr());
  const at::Tensor again = at::from_blob(
      block, {3}, [](void*) {}, on_device());
  again.fill_(9);
  CHECK(is_known_as(again, host({9, 9, 9})));
}

// A random program on the device, and the same on the host, where what the device does not know is
// a random number.
class Storm {
 public:
  explicit Storm(uint32_t seed, bool has_graphs = false)
      : random_(seed), may_draw_(has_graphs), has_graphs_(has_graphs) {}

  void run(int steps) {
    for (int i = 0; i < steps; ++i) {
      step();
      check();
    }
  }
  int64_t known_elements() const { return known_elements_; }
  int64_t elements() const { return elements_; }
  int64_t wrong() const { return wrong_; }
  int64_t launches() const { return launches_; }
  std::string first_wrong() const { return first_wrong_; }

 private:
  struct Pair {
    at::Tensor device;
    at::Tensor host;
  };

  int number(int below) { return static_cast<int>(random_() % static_cast<uint32_t>(below)); }
  bool chance(int percent) { return number(100) < percent; }

  at::ScalarType type() {
    constexpr at::ScalarType kTypes[] = {at::kLong, at::kLong, at::kBool,
                                         at::kInt,  at::kByte, at::kFloat};
    return kTypes[number(6)];
  }

  at::Tensor random_host(at::IntArrayRef sizes, at::ScalarType type) {
    at::Tensor result = at::empty(sizes, at::kLong);
    for (int64_t i = 0; i < result.numel(); ++i) result.data_ptr<int64_t>()[i] = number(4);
    return result.to(type);
  }

  Pair fresh() {
    // 2-D of 1 to 4, so that many fit together.
    const std::vector<int64_t> sizes = {1 + number(2), 1 + number(3)};
    const at::ScalarType t = type();
    const auto both = [&](const auto& make) {
      return Pair{make(on_device(t)), make(at::TensorOptions(at::kCPU).dtype(t))};
    };
    switch (number(may_draw_ ? 7 : 6)) {
      case 6:
        return drawn(sizes);
      case 0:
        return both([&](const at::TensorOptions& o) { return at::zeros(sizes, o); });
      case 1:
        return both([&](const at::TensorOptions& o) { return at::ones(sizes, o); });
      case 2: {
        const at::Tensor values = random_host(sizes, t);
        return {values.to(kCuda0, /*non_blocking=*/chance(50)), values};
      }
      case 3: {
        const int value = number(3);
        return both([&](const at::TensorOptions& o) { return at::full(sizes, value, o); });
      }
      default:
        return {at::empty(sizes, on_device(t)), random_host(sizes, t)};
    }
  }

  // Nobody else may draw from the generator.
  Pair drawn(at::IntArrayRef sizes) {
    last_ = "drawn";
    const at::Generator& generator = at::cuda::detail::getDefaultCUDAGenerator(0);
    if (chance(20)) at::manual_seed(random_());
    const uint64_t seed = generator.current_seed(), offset = generator.get_offset();
    Pair made;
    if (chance(50)) {
      made.device = at::randint(5, sizes, on_device());
      made.host = drawn_on_host(sizes, seed, offset);
    } else {
      made.device = at::rand(sizes, on_device(at::kFloat)).lt(0.5);
      made.host = at::empty(sizes, at::kBool);
      for (int64_t i = 0; i < made.host.numel(); ++i) {
        made.host.data_ptr<bool>()[i] =
            uniform_of(numbers_of(seed, offset, static_cast<uint32_t>(i))[0]) < 0.5F;
      }
    }
    return made;
  }

  static at::Tensor drawn_on_host(at::IntArrayRef sizes, uint64_t seed, uint64_t offset) {
    at::Tensor result = at::empty(sizes, at::kLong);
    for (int64_t i = 0; i < result.numel(); ++i) {
      result.data_ptr<int64_t>()[i] = numbers_of(seed, offset, static_cast<uint32_t>(i))[0] % 5;
    }
    return result;
  }

  // What a graph does at each launch, on the host.
  struct Captured {
    at::cuda::CUDAGraph graph;
    std::vector<std::function<void(uint64_t seed, uint64_t offset)>> steps;
    uint64_t drawn = 0;
  };

  // Tensors of a graph live as long as it, as a program has to see to it.
  void capture_graph() {
    last_ = "capture";
    auto made = std::make_unique<Captured>();
    std::vector<Pair> pairs = {any(), any(), any()};
    const c10::cuda::CUDAStreamGuard guard(c10::cuda::getStreamFromPool());
    made->graph.capture_begin();
    at::zeros({1}, on_device());  // LibTorch warns of an empty graph
    const int count = 1 + number(5);
    for (int i = 0; i < count; ++i) {
      const Pair a = pairs[static_cast<size_t>(number(static_cast<int>(pairs.size())))];
      const Pair b = pairs[static_cast<size_t>(number(static_cast<int>(pairs.size())))];
      capture_step(*made, pairs, a, b);
    }
    made->graph.capture_end();
    for (size_t i = 3; i < pairs.size(); ++i) pool_.push_back(pairs[i]);
    if (graphs_.size() > 3) graphs_.erase(graphs_.begin());
    graphs_.push_back(std::move(made));
  }

  void capture_step(Captured& captured, std::vector<Pair>& pairs, const Pair& a, const Pair& b) {
    const int k = number(3);
    const int which = number(may_draw_ ? 8 : 7);
    if (which == 7) {
      const std::vector<int64_t> sizes = {2, 2};
      Pair made{at::randint(5, sizes, on_device()), random_host(sizes, at::kLong)};
      const uint64_t before = captured.drawn;
      captured.drawn += 4;
      captured.steps.emplace_back([host = made.host, before](uint64_t seed, uint64_t offset) {
        host.copy_(drawn_on_host(host.sizes(), seed, offset + before));
      });
      pairs.push_back(std::move(made));
      return;
    }
    const auto f = [which, k](const at::Tensor& x, const at::Tensor& y) -> at::Tensor {
      switch (which) {
        case 0:
          return x + y;
        case 1:
          return (x * k + 1) * 2 - x;
        case 2:
          return at::where(x.ne(k), x, at::full({}, k, x.options()));
        case 3:
          return x.sum(0, true).to(at::kLong).remainder(k + 1);
        case 4:
          x.add_(k);
          return {};
        case 5:
          x.copy_(y);
          return {};
        default:
          x.select(0, 0).fill_(k);
          return {};
      }
    };
    if (which >= 4 && (has_repeated_elements(a.host) || a.host.is_alias_of(b.host))) return;
    at::Tensor tried;
    try {
      tried = f(a.host.clone(), b.host);
    } catch (const c10::Error&) {
      return;
    }
    if (tried.defined() && tried.numel() > 64) return;
    const at::Tensor device = f(a.device, b.device);
    if (!tried.defined()) {
      captured.steps.emplace_back([f, a, b](uint64_t, uint64_t) { f(a.host, b.host); });
      return;
    }
    // Memory that nothing was written to yet.
    const Pair made{device, random_host(tried.sizes(), at::kLong).to(tried.scalar_type())};
    captured.steps.emplace_back(
        [f, a, b, host = made.host](uint64_t, uint64_t) { host.copy_(f(a.host, b.host)); });
    if (tried.dim() == 2) pairs.push_back(made);
  }

  void launch_graph() {
    last_ = "launch";
    Captured& captured = *graphs_[static_cast<size_t>(number(static_cast<int>(graphs_.size())))];
    const at::Generator& generator = at::cuda::detail::getDefaultCUDAGenerator(0);
    const uint64_t seed = may_draw_ ? generator.current_seed() : 0,
                   offset = may_draw_ ? generator.get_offset() : 0;
    captured.graph.replay();
    for (const auto& step : captured.steps) step(seed, offset);
    ++launches_;
  }

  Pair& any() { return pool_[static_cast<size_t>(number(static_cast<int>(pool_.size())))]; }

  using Unary = std::function<at::Tensor(const at::Tensor&)>;
  using Binary = std::function<at::Tensor(const at::Tensor&, const at::Tensor&)>;

  // Whether the host's operator worked: only then the device's is called.
  template <typename F>
  void both(const std::string& name, const F& f) {
    last_ = name;
    Pair made;
    try {
      made.host = f(false);
    } catch (const c10::Error&) {
      return;
    }
    made.device = f(true);
    if (!made.host.defined() || made.host.numel() > 64) return;
    if (pool_.size() < 24) {
      pool_.push_back(std::move(made));
    } else {
      any() = std::move(made);
    }
  }

  void unary(const Pair& a) {
    const int64_t dim = number(2);
    const int k = number(3) - 1;
    const at::ScalarType t = type();
    const std::pair<const char*, Unary> kOperators[] = {
        {"add", [&](const at::Tensor& x) { return x + k; }},
        {"mul", [&](const at::Tensor& x) { return x * k; }},
        {"to", [&](const at::Tensor& x) { return x.to(t); }},
        {"clone", [&](const at::Tensor& x) { return x.clone(); }},
        {"t", [&](const at::Tensor& x) { return x.t(); }},
        {"contiguous", [&](const at::Tensor& x) { return x.t().contiguous(); }},
        {"slice", [&](const at::Tensor& x) { return x.slice(dim, 0, 1); }},
        {"slice end", [&](const at::Tensor& x) { return x.slice(dim, x.size(dim) - 1); }},
        {"eq", [&](const at::Tensor& x) { return x.eq(k); }},
        {"lt", [&](const at::Tensor& x) { return x.lt(k); }},
        {"ge", [&](const at::Tensor& x) { return x.ge(1); }},
        {"sum", [&](const at::Tensor& x) { return x.sum(dim, true); }},
        {"all", [&](const at::Tensor& x) { return x.all(dim, true); }},
        {"any", [&](const at::Tensor& x) { return x.any(dim, true); }},
        {"all of it",
         [&](const at::Tensor& x) {
           return x.all().view({1, 1});
         }},
        {"any of it",
         [&](const at::Tensor& x) {
           return x.any().view({1, 1});
         }},
        {"amax", [&](const at::Tensor& x) { return x.amax(dim, true); }},
        {"argmax", [&](const at::Tensor& x) { return x.argmax(dim, true); }},
        {"cumsum", [&](const at::Tensor& x) { return x.cumsum(dim); }},
        {"flip", [&](const at::Tensor& x) { return x.flip(dim); }},
        {"roll", [&](const at::Tensor& x) { return x.roll(1, dim); }},
        {"tril", [&](const at::Tensor& x) { return x.tril(k); }},
        {"triu", [&](const at::Tensor& x) { return x.triu(k); }},
        {"logical_not", [&](const at::Tensor& x) { return x.logical_not(); }},
        {"bitwise_not", [&](const at::Tensor& x) { return x.bitwise_not(); }},
        {"neg", [&](const at::Tensor& x) { return -x; }},
        {"abs", [&](const at::Tensor& x) { return x.abs(); }},
        {"clamp", [&](const at::Tensor& x) { return x.clamp(0, 1); }},
        {"repeat",
         [&](const at::Tensor& x) {
           return x.repeat({1, 2});
         }},
        {"expand",
         [&](const at::Tensor& x) {
           return x.slice(0, 0, 1).expand({2, -1});
         }},
        {"sort", [&](const at::Tensor& x) { return std::get<0>(x.sort(true, dim, false)); }},
        {"sort indices",
         [&](const at::Tensor& x) { return std::get<1>(x.sort(true, dim, false)); }},
        {"max",
         [&](const at::Tensor& x) {
           return x.max().view({1, 1});
         }},
        {"nonzero count",
         [&](const at::Tensor& x) {
           return at::count_nonzero(x).view({1, 1});
         }},
        {"pad",
         [&](const at::Tensor& x) {
           return at::constant_pad_nd(x, {1, 0}, k);
         }},
        {"bitwise_and", [&](const at::Tensor& x) { return x.bitwise_and(k); }},
        {"bitwise_or", [&](const at::Tensor& x) { return x.bitwise_or(k); }},
        {"reshape",
         [&](const at::Tensor& x) {
           return x.reshape({1, -1});
         }},
        {"pow", [&](const at::Tensor& x) { return x.pow(2); }},
        {"zeros_like", [&](const at::Tensor& x) { return at::zeros_like(x); }},
        {"new_full", [&](const at::Tensor& x) { return x.new_full({1, 2}, k); }},
        {"dropout", [&](const at::Tensor& x) { return at::dropout(x, 0.5, false); }},
        {"to the host and back",
         [&](const at::Tensor& x) { return x.is_cuda() ? x.cpu().to(kCuda0) : x; }},
    };
    const auto& [name, f] = kOperators[static_cast<size_t>(
        number(static_cast<int>(std::size(kOperators)) - 1))];  // not the last: zeros are zeros
    both(name, [&, &f = f](bool device) { return f(device ? a.device : a.host); });
  }

  void binary(const Pair& a, const Pair& b) {
    const int64_t dim = number(2);
    const std::pair<const char*, Binary> kOperators[] = {
        {"add", [](const at::Tensor& x, const at::Tensor& y) { return x + y; }},
        {"sub", [](const at::Tensor& x, const at::Tensor& y) { return x - y; }},
        {"mul", [](const at::Tensor& x, const at::Tensor& y) { return x * y; }},
        {"div", [](const at::Tensor& x, const at::Tensor& y) { return x / (y + 1); }},
        {"floor_divide",
         [](const at::Tensor& x, const at::Tensor& y) { return x.floor_divide(y.abs() + 1); }},
        {"remainder",
         [](const at::Tensor& x, const at::Tensor& y) { return x.remainder(y.abs() + 1); }},
        {"and", [](const at::Tensor& x, const at::Tensor& y) { return x.bitwise_and(y); }},
        {"or", [](const at::Tensor& x, const at::Tensor& y) { return x.bitwise_or(y); }},
        {"xor", [](const at::Tensor& x, const at::Tensor& y) { return x.bitwise_xor(y); }},
        {"logical_and", [](const at::Tensor& x, const at::Tensor& y) { return x.logical_and(y); }},
        {"logical_or", [](const at::Tensor& x, const at::Tensor& y) { return x.logical_or(y); }},
        {"eq", [](const at::Tensor& x, const at::Tensor& y) { return x.eq(y); }},
        {"gt", [](const at::Tensor& x, const at::Tensor& y) { return x.gt(y); }},
        {"maximum", [](const at::Tensor& x, const at::Tensor& y) { return at::maximum(x, y); }},
        {"cat", [&](const at::Tensor& x, const at::Tensor& y) { return at::cat({x, y}, dim); }},
        {"where", [](const at::Tensor& x, const at::Tensor& y) {
           return at::where(x.ne(0), y, x.to(y.scalar_type()));
         }},
        {"masked_fill",
         [](const at::Tensor& x, const at::Tensor& y) { return x.masked_fill(y.ne(0), 2); }},
        {"index_select", [&](const at::Tensor& x, const at::Tensor& y) {
           const at::Tensor index = y.to(at::kLong).abs().remainder(x.size(dim));
           return x.index_select(dim, index.reshape({-1}));
         }},
        {"gather", [&](const at::Tensor& x, const at::Tensor& y) {
           const at::Tensor index = y.to(at::kLong).abs().remainder(x.size(1));
           return x.gather(1, index.slice(0, 0, std::min(x.size(0), y.size(0))));
         }},
        {"index", [](const at::Tensor& x, const at::Tensor& y) {
           const at::Tensor index = y.to(at::kLong).abs().remainder(x.size(0));
           return x.index({index.select(0, 0)});
         }},
        {"isin", [](const at::Tensor& x, const at::Tensor& y) {
           return x.unsqueeze(-1).eq(y.select(0, 0)).any(-1);
         }},
        {"add_out", [](const at::Tensor& x, const at::Tensor& y) {
           at::Tensor out = at::empty({0}, x.options().dtype(at::result_type(x, y)));
           return at::add_out(out, x, y);
         }},
    };
    const auto& [name, f] =
        kOperators[static_cast<size_t>(number(static_cast<int>(std::size(kOperators))))];
    both(name,
         [&, &f = f](bool device) { return device ? f(a.device, b.device) : f(a.host, b.host); });
  }

  static bool has_repeated_elements(const at::Tensor& tensor) {
    for (int64_t dim = 0; dim < tensor.dim(); ++dim) {
      if (tensor.stride(dim) == 0 && tensor.size(dim) > 1) return true;
    }
    return false;
  }

  void in_place(Pair& a, const Pair& b) {
    const int64_t dim = number(2);
    const int k = number(3);
    const int which = number(14);
    const bool overlaps = a.host.is_alias_of(b.host);
    last_ = "in place " + std::to_string(which);
    if ((which >= 4 && overlaps) || has_repeated_elements(a.host)) return;
    const auto f = [&](const at::Tensor& x, const at::Tensor& y) {
      switch (which) {
        case 0:
          x.add_(k);
          break;
        case 1:
          x.select(dim, 0).fill_(k);
          break;
        case 2:
          x.zero_();
          break;
        case 3:
          x.slice(1, 0, 1).mul_(k);
          break;
        case 4:
          x.copy_(y);
          break;
        case 5:
          x.select(dim, 0).copy_(y.select(dim, 0));
          break;
        case 6:
          x.bitwise_and_(y);
          break;
        case 7:
          x.bitwise_or_(y);
          break;
        case 8:
          x.mul_(y);
          break;
        case 9:
          x.masked_fill_(y.ne(0), k);
          break;
        case 10:
          x.index_fill_(dim, at::zeros({1}, x.options().dtype(at::kLong)), k);
          break;
        case 11:
          x.index_put_({y.select(0, 0).to(at::kLong).abs().remainder(x.size(0))},
                       at::full({}, k, x.options()));
          break;
        case 12:
          x.scatter_(1, y.slice(0, 0, 1).to(at::kLong).abs().remainder(x.size(1)), k);
          break;
        default:
          x.logical_or_(y);
      }
    };
    const at::Tensor saved = a.host.clone();
    try {
      f(a.host, b.host);
    } catch (const c10::Error&) {
      a.host.copy_(saved);
      return;
    }
    f(a.device, b.device);
  }

  void raw(Pair& a) {
    using Copy = int (*)(void*, const void*, size_t, int);
    using Fill = int (*)(void*, int, size_t);
    static const auto copy = cuda_function<Copy>("cudaMemcpy");
    static const auto fill = cuda_function<Fill>("cudaMemset");
    last_ = "raw";
    if (!a.device.is_contiguous() || !a.host.is_contiguous()) return;
    const size_t item = a.host.element_size();
    if (chance(50)) {
      fill(a.device.mutable_data_ptr(), 0, item);
      std::memset(a.host.mutable_data_ptr(), 0, item);
    } else {
      const at::Tensor one = random_host({1}, a.host.scalar_type());
      copy(a.device.mutable_data_ptr(), one.const_data_ptr(), item, 1);
      std::memcpy(a.host.mutable_data_ptr(), one.const_data_ptr(), item);
    }
  }

  void step() {
    if (pool_.size() < 4) return pool_.push_back(fresh());
    if (has_graphs_ && chance(8)) return capture_graph();
    if (!graphs_.empty() && chance(25)) return launch_graph();
    const int what = number(100);
    if (what < 12) {
      any() = fresh();
    } else if (what < 45) {
      unary(any());
    } else if (what < 78) {
      binary(any(), any());
    } else if (what < 93) {
      in_place(any(), any());
    } else if (what < 96) {
      raw(any());
    } else {
      std::swap(any(), pool_.back());
      pool_.pop_back();
    }
  }

  void check() {
    if (pool_.empty()) return;
    for (const size_t i :
         {pool_.size() - 1, static_cast<size_t>(number(static_cast<int>(pool_.size())))}) {
      const Pair& pair = pool_[i];
      if (pair.host.sizes() != pair.device.sizes() || pair.host.dtype() != pair.device.dtype())
        return note_wrong("other sizes");
      const at::Tensor read = pair.device.cpu();
      for (int64_t row = 0; row < pair.host.size(0); ++row) {
        for (int64_t column = 0; column < pair.host.size(1); ++column) {
          const auto element = [&](const at::Tensor& tensor) {
            return tensor.select(0, row).select(0, column);
          };
          ++elements_;
          const std::optional<at::Tensor> values = known(element(pair.device));
          if (!values) continue;
          ++known_elements_;
          if (!same(*values, element(pair.host)) || !same(element(read), element(pair.host)))
            note_wrong("claimed");
        }
      }
    }
  }

  static bool same(const at::Tensor& a, const at::Tensor& b) {
    return at::equal(a, b) ||
           (a.is_floating_point() && a.isnan().item<bool>() && b.isnan().item<bool>());
  }

  void note_wrong(const std::string& what) {
    ++wrong_;
    if (first_wrong_.empty()) first_wrong_ = what + ", after " + last_;
  }

  std::mt19937 random_;
  const bool may_draw_, has_graphs_;
  std::vector<Pair> pool_;
  std::vector<std::unique_ptr<Captured>> graphs_;
  std::string last_, first_wrong_;
  int64_t elements_ = 0, known_elements_ = 0, wrong_ = 0, launches_ = 0;
};

TEST_CASE("random programs: what is claimed is what the host computes") {
  int64_t elements = 0, known_elements = 0;
  for (uint32_t seed = 1; seed <= 25; ++seed) {
    Storm storm(seed);
    storm.run(300);
    INFO("seed " << seed << ": " << storm.first_wrong());
    CHECK(storm.wrong() == 0);
    elements += storm.elements();
    known_elements += storm.known_elements();
  }
  MESSAGE(known_elements << " of " << elements << " elements were known");
  CHECK(known_elements * 3 > elements);
  CHECK(known_elements * 10 < elements * 9);
}

TEST_CASE("random programs with random numbers and graphs") {
  int64_t elements = 0, known_elements = 0, launches = 0;
  for (uint32_t seed = 1; seed <= 25; ++seed) {
    Storm storm(seed, /*has_graphs=*/true);
    storm.run(300);
    INFO("seed " << seed << ": " << storm.first_wrong());
    CHECK(storm.wrong() == 0);
    elements += storm.elements();
    known_elements += storm.known_elements();
    launches += storm.launches();
  }
  MESSAGE(known_elements << " of " << elements << " elements were known, after " << launches
                         << " launches of graphs");
  CHECK(launches > 500);
  // LibTorch 2.11 leaves 33.8 % known of the same programs, 2.12 32.7 and 2.13 32.5.
  constexpr bool kFewer = LIBTORCH_MINOR == 12 || LIBTORCH_MINOR == 13;
  CHECK(known_elements * (kFewer ? 50 : 3) > elements * (kFewer ? 16 : 1));
  CHECK(known_elements * 10 < elements * 9);
}

TEST_CASE("random programs of several threads") {
  constexpr int kThreads = 4;
  std::vector<std::thread> threads;
  std::atomic<int64_t> wrong{0}, known_elements{0};
  known(at::zeros({1}, on_device()));
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      for (uint32_t seed = 0; seed < 3; ++seed) {
        Storm storm(1000 + 10 * i + seed);
        storm.run(200);
        wrong += storm.wrong();
        known_elements += storm.known_elements();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == 0);
  CHECK(known_elements > 0);
}

}  // namespace
}  // namespace memledger

int main(int argc, char** argv) {
  mallopt(M_ARENA_MAX, 1);  // mallinfo2() counts one
  return doctest::Context(argc, argv).run();
}
