// Compiled with NDEBUG whatever the build mode: see SEES_LIBTORCH_INLINES_COPTS.
#include "virtual_gpu/values/random.h"

#include <ATen/Context.h>
#include <ATen/Functions.h>
#include <ATen/core/PhiloxRNGEngine.h>
#include <ATen/cuda/PhiloxCudaState.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <array>
#include <cmath>
#include <limits>
#include <mutex>
#include <type_traits>

#include "registry/libtorch/cuda_symbols.h"

namespace memledger::virtual_gpu {
namespace {

// at::CUDAGeneratorImpl::philox_cuda_state(), a member of a class that libraries without CUDA lack.
using PhiloxCudaState = at::PhiloxCudaState (*)(c10::GeneratorImpl* self, uint64_t increment);

PhiloxCudaState philox_cuda_state() {
  static const auto function = reinterpret_cast<PhiloxCudaState>(
      find_symbol_of_loaded_library("_ZN2at17CUDAGeneratorImpl17philox_cuda_stateEm"));
  return function;
}

std::optional<GeneratorState> state_of(at::Generator generator) {
  const PhiloxCudaState ask = philox_cuda_state();
  if (ask == nullptr || !generator.defined() ||
      generator.device().type() != c10::DeviceType::CUDA) {
    return {};
  }
  at::PhiloxCudaState state;
  {
    const std::lock_guard<std::mutex> lock(generator.mutex());
    state = ask(generator.unsafeGetGeneratorImpl(), 0);
  }
  GeneratorState result;
  result.generator = std::move(generator);
  result.is_captured = state.captured_;
  result.seed = state.seed_.val;
  result.offset = state.offset_.val;
  result.captured_offset = state.captured_ ? state.offset_intragraph_ : 0;
  return result;
}

using FourNumbers = std::array<uint32_t, 4>;

// What cuRAND's first call gives a thread.
FourNumbers first_four(const RandomNumbers& numbers, uint64_t thread) {
  constexpr uint64_t kAtOnce = 4;
  at::Philox4_32 engine(numbers.seed, thread, numbers.offset / kAtOnce);
  FourNumbers result{};
  for (uint32_t& number : result) number = engine();
  return result;
}

// cuRAND's distributions, as its documentation and headers say. A product and a sum are one
// operation on the device.

constexpr float kTwoToMinus32 = 0x1p-32F;
constexpr double kTwoToMinus53 = 0x1p-53;
constexpr double kPi = 3.14159265358979323846;

float uniform_float(uint32_t number) {
  return std::fma(static_cast<float>(number), kTwoToMinus32, kTwoToMinus32 / 2);
}

double uniform_double(uint32_t low, uint32_t high) {
  const uint64_t number = uint64_t{low} ^ (uint64_t{high} << 21);
  return std::fma(static_cast<double>(number), kTwoToMinus53, kTwoToMinus53 / 2);
}

// Box and Muller's, of which an element gets the first.
float normal_float(const FourNumbers& four) {
  constexpr float kTwoPi = 6.2831855F;
  constexpr float kStep = kTwoToMinus32 * kTwoPi;
  const float u = uniform_float(four[0]);
  const float v = std::fma(static_cast<float>(four[1]), kStep, kStep / 2);
  return std::sin(v) * std::sqrt(-2.0F * std::log(u));
}

double normal_double(const FourNumbers& four) {
  const double u = uniform_double(four[0], four[1]);
  const double v = 2 * uniform_double(four[2], four[3]);
  return std::sin(v * kPi) * std::sqrt(-2 * std::log(u));
}

template <typename T>
using Wide = std::conditional_t<std::is_same_v<T, double>, double, float>;

template <typename T>
Wide<T> uniform(const FourNumbers& four) {
  if constexpr (std::is_same_v<T, double>) {
    return uniform_double(four[0], four[1]);
  } else {
    return uniform_float(four[0]);
  }
}

uint64_t long_number(const FourNumbers& four) { return uint64_t{four[0]} << 32 | four[1]; }

template <typename T>
constexpr bool kIsFloating =
    std::is_floating_point_v<T> || std::is_same_v<T, c10::Half> || std::is_same_v<T, c10::BFloat16>;

template <typename T>
T any_integer(const FourNumbers& four) {
  constexpr bool kIsLong = std::is_same_v<T, int64_t> || std::is_same_v<T, double>;
  const uint64_t number = kIsLong ? long_number(four) : four[0];
  if constexpr (std::is_same_v<T, bool>) {
    return (number & 1) != 0;
  } else if constexpr (kIsFloating<T>) {
    return static_cast<T>(number % ((uint64_t{1} << std::numeric_limits<T>::digits) + 1));
  } else {
    return static_cast<T>(number % (static_cast<uint64_t>(std::numeric_limits<T>::max()) + 1));
  }
}

// Calls with the numbers of each element.
template <typename T, typename F>
void for_each_element(const at::Tensor& self, const RandomNumbers& numbers, const F& make) {
  T* const out = self.mutable_data_ptr<T>();
  for (int64_t i = 0; i < self.numel(); ++i)
    out[i] = make(first_four(numbers, static_cast<uint64_t>(i)));
}

template <typename T>
bool draw_uniform(const at::Tensor& self, c10::ArrayRef<c10::IValue> arguments,
                  const RandomNumbers& numbers) {
  const T from = static_cast<T>(arguments[1].toDouble());
  const T to = static_cast<T>(arguments[2].toDouble());
  const auto range = static_cast<Wide<T>>(static_cast<T>(to - from));
  for_each_element<T>(self, numbers, [&](const FourNumbers& four) {
    const T value = static_cast<T>(std::fma(uniform<T>(four), range, static_cast<Wide<T>>(from)));
    return value == to ? from : value;
  });
  return true;
}

template <typename T>
bool draw_normal(const at::Tensor& self, c10::ArrayRef<c10::IValue> arguments,
                 const RandomNumbers& numbers) {
  const auto mean = static_cast<Wide<T>>(arguments[1].toDouble());
  const auto deviation = static_cast<Wide<T>>(arguments[2].toDouble());
  for_each_element<T>(self, numbers, [&](const FourNumbers& four) {
    if constexpr (std::is_same_v<T, double>) {
      return std::fma(normal_double(four), deviation, mean);
    } else {
      return static_cast<T>(std::fma(normal_float(four), deviation, mean));
    }
  });
  return true;
}

template <typename T>
bool draw_integers_between(const at::Tensor& self, int64_t from, int64_t to,
                           const RandomNumbers& numbers) {
  if constexpr (kIsFloating<T>) {
    // Beyond, the bounds are rounded.
    constexpr int64_t kExact = int64_t{1} << std::numeric_limits<T>::digits;
    if (from < -kExact || to > kExact) return false;
  }
  const uint64_t range = static_cast<uint64_t>(to) - static_cast<uint64_t>(from);
  // From where on two numbers make one has changed between releases.
  constexpr uint64_t kOne = uint64_t{1} << 28, kTwo = uint64_t{1} << 32;
  const bool takes_two = range >= kTwo && std::is_same_v<T, int64_t>;
  if (range == 0 || (range >= kOne && !takes_two)) return false;
  for_each_element<T>(self, numbers, [&](const FourNumbers& four) {
    const uint64_t number = takes_two ? long_number(four) : four[0];
    return static_cast<T>(static_cast<int64_t>(number % range + static_cast<uint64_t>(from)));
  });
  return true;
}

template <typename T>
bool draw_integers(const at::Tensor& self, c10::ArrayRef<c10::IValue> arguments,
                   const RandomNumbers& numbers) {
  // The last argument is the generator.
  switch (arguments.size()) {
    case 2:
      for_each_element<T>(self, numbers, &any_integer<T>);
      return true;
    case 3:
      return draw_integers_between<T>(self, 0, arguments[1].toInt(), numbers);
    case 4:
      return arguments[2].isInt() &&
             draw_integers_between<T>(self, arguments[1].toInt(), arguments[2].toInt(), numbers);
    default:
      return false;
  }
}

template <typename T>
bool draw_bernoulli(const at::Tensor& self, c10::ArrayRef<c10::IValue> arguments,
                    const RandomNumbers& numbers) {
  const auto probability = static_cast<Wide<T>>(arguments[1].toDouble());
  for_each_element<T>(self, numbers, [&](const FourNumbers& four) {
    return static_cast<T>(uniform<T>(four) < probability);
  });
  return true;
}

// A thread makes four elements.
template <typename T>
bool draw_bernoulli_tensor(const at::Tensor& self, c10::ArrayRef<c10::IValue> arguments,
                           const RandomNumbers& numbers) {
  const at::Tensor probability = arguments[1]
                                     .toTensor()
                                     .to(std::is_same_v<T, double> ? at::kDouble : at::kFloat)
                                     .expand(self.sizes())
                                     .to(at::kDouble)
                                     .contiguous();
  const double* const at = probability.const_data_ptr<double>();
  T* const out = self.mutable_data_ptr<T>();
  FourNumbers four{};
  for (int64_t i = 0; i < self.numel(); ++i) {
    if (i % 4 == 0) four = first_four(numbers, static_cast<uint64_t>(i / 4));
    const double number = uniform_float(four[static_cast<size_t>(i % 4)]);
    out[i] = static_cast<T>(number <= at[i]);
  }
  return true;
}

template <typename T>
bool draw_typed(Distribution distribution, const at::Tensor& self,
                c10::ArrayRef<c10::IValue> arguments, const RandomNumbers& numbers) {
  switch (distribution) {
    case Distribution::kIntegers:
      return draw_integers<T>(self, arguments, numbers);
    case Distribution::kBernoulli:
      return draw_bernoulli<T>(self, arguments, numbers);
    case Distribution::kBernoulliTensor:
      return draw_bernoulli_tensor<T>(self, arguments, numbers);
    default:
      break;
  }
  if constexpr (kIsFloating<T>) {
    if (distribution == Distribution::kUniform) return draw_uniform<T>(self, arguments, numbers);
    if (distribution == Distribution::kNormal) return draw_normal<T>(self, arguments, numbers);
  }
  return false;
}

}  // namespace

std::optional<GeneratorState> GeneratorState::of(c10::ArrayRef<const c10::IValue> arguments,
                                                 c10::DeviceIndex device) {
  if (!arguments.empty() && arguments.back().isGenerator())
    return state_of(arguments.back().toGenerator());
  return state_of(at::globalContext().defaultGenerator(c10::Device(c10::DeviceType::CUDA, device)));
}

std::optional<GeneratorState> GeneratorState::now() const { return state_of(generator); }

bool GeneratorState::is_followed_by(const GeneratorState& other, uint64_t count) const {
  if (is_captured != other.is_captured || seed != other.seed) return false;
  return is_captured ? offset == other.offset && captured_offset + count == other.captured_offset
                     : offset + count == other.offset;
}

std::optional<uint64_t> numbers_taken(Distribution distribution, int64_t elements,
                                      const DrawnBy& launch) {
  const uint64_t threads = uint64_t{launch.blocks} * launch.threads;
  // Where each thread makes one element, or four at once; more than that are not followed.
  if (distribution == Distribution::kBernoulliTensor) {
    if (threads * 4 < static_cast<uint64_t>(elements)) return {};
    return 12;  // of which it uses four
  }
  constexpr unsigned kThreadsOfABlock = 256;
  if (launch.threads != kThreadsOfABlock || threads < static_cast<uint64_t>(elements)) return {};
  return 4;
}

at::Tensor draw(Distribution distribution, const at::Tensor& self,
                c10::ArrayRef<c10::IValue> arguments, const RandomNumbers& numbers) {
  if (numbers.offset % 4 != 0) return {};
  const at::Tensor result = at::empty(self.sizes(), self.options());
  const bool is_drawn = [&] {
    switch (self.scalar_type()) {
      case at::kDouble:
        return draw_typed<double>(distribution, result, arguments, numbers);
      case at::kFloat:
        return draw_typed<float>(distribution, result, arguments, numbers);
      case at::kHalf:
        return draw_typed<c10::Half>(distribution, result, arguments, numbers);
      case at::kBFloat16:
        return draw_typed<c10::BFloat16>(distribution, result, arguments, numbers);
      case at::kLong:
        return draw_typed<int64_t>(distribution, result, arguments, numbers);
      case at::kInt:
        return draw_typed<int32_t>(distribution, result, arguments, numbers);
      case at::kShort:
        return draw_typed<int16_t>(distribution, result, arguments, numbers);
      case at::kChar:
        return draw_typed<int8_t>(distribution, result, arguments, numbers);
      case at::kByte:
        return draw_typed<uint8_t>(distribution, result, arguments, numbers);
      case at::kBool:
        return draw_typed<bool>(distribution, result, arguments, numbers);
      default:
        return false;
    }
  }();
  return is_drawn ? result : at::Tensor();
}

}  // namespace memledger::virtual_gpu
