#include "tests/gpu/as_python.h"

#include <torch/csrc/autograd/grad_mode.h>
#include <torch/csrc/autograd/variable.h>

#include <cmath>
#include <cstdlib>
#include <iostream>
#include <utility>

namespace memledger::as_python {

using at::Tensor;

int64_t current(const c10::CachingAllocator::StatArray& statistic) {
  return statistic[static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE)].current;
}

int64_t peak(const c10::CachingAllocator::StatArray& statistic) {
  return statistic[static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE)].peak;
}

c10::CachingDeviceAllocator::DeviceStats statistics() {
  return c10::cuda::CUDACachingAllocator::getDeviceStats(kDevice.index());
}

void print(const char* figure, int64_t bytes) { std::cout << figure << ' ' << bytes << '\n'; }

Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  constexpr int64_t kWorkspaceBytes = 1 << 20;
  Tensor y = at::linear(x, weight, bias);
  at::empty({kWorkspaceBytes}, at::device(kDevice).dtype(at::kByte));
  return y;
}

void without_cublaslt() { setenv("DISABLE_ADDMM_CUDA_LT", "1", /*overwrite=*/1); }

namespace {
constexpr double kBeta1 = 0.9, kBeta2 = 0.999, kEpsilon = 1e-8;
}

PythonAdam::PythonAdam(std::vector<Tensor> parameters, Options options)
    : parameters_(std::move(parameters)), options_(options) {}

void PythonAdam::zero_grad() {
  for (Tensor& parameter : parameters_) parameter.mutable_grad().reset();
}

void PythonAdam::step() {
  const at::NoGradGuard no_grad;
  std::vector<Tensor> gradients;
  for (const Tensor& parameter : parameters_) {
    gradients.push_back(parameter.grad());
    if (averages_.size() >= gradients.size()) continue;
    if (options_.fused) steps_.push_back(at::zeros({}, at::device(kDevice).dtype(at::kFloat)));
    averages_.push_back(at::zeros_like(parameter));
    squares_.push_back(at::zeros_like(parameter));
  }
  ++count_;
  if (options_.fused) {
    at::_foreach_add_(steps_, 1);
    at::_fused_adamw_(parameters_, gradients, averages_, squares_, {}, steps_,
                      options_.learning_rate, kBeta1, kBeta2, options_.weight_decay, kEpsilon,
                      /*amsgrad=*/false, /*maximize=*/false);
    return;
  }
  if (options_.weight_decay != 0)
    at::_foreach_mul_(parameters_, 1 - options_.learning_rate * options_.weight_decay);
  at::_foreach_lerp_(averages_, gradients, 1 - kBeta1);
  at::_foreach_mul_(squares_, kBeta2);
  at::_foreach_addcmul_(squares_, gradients, gradients, 1 - kBeta2);
  gradients.clear();
  const double step_size = -options_.learning_rate / (1 - std::pow(kBeta1, count_));
  const double correction = std::sqrt(1 - std::pow(kBeta2, count_));
  std::vector<Tensor> roots = at::_foreach_sqrt(squares_);
  at::_foreach_div_(roots, correction);
  at::_foreach_add_(roots, kEpsilon);
  at::_foreach_addcdiv_(parameters_, averages_, roots, step_size);
}

std::vector<Tensor> Tensors::parameters() const {
  std::vector<Tensor> parameters;
  std::copy_if(all_.begin(), all_.end(), std::back_inserter(parameters),
               [](const Tensor& tensor) { return tensor.requires_grad(); });
  return parameters;
}

}  // namespace memledger::as_python
