// What Python programs of torch do, for C++ programs that stand for them: their tensors in the same
// order and with the same lifetimes. What a Python variable keeps, a C++ variable keeps.

#ifndef MEMLEDGER_TESTS_GPU_AS_PYTHON_H_
#define MEMLEDGER_TESTS_GPU_AS_PYTHON_H_

#include <ATen/ATen.h>
#include <c10/cuda/CUDACachingAllocator.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <vector>

namespace memledger::as_python {

inline const c10::Device kDevice(c10::kCUDA, 0);

int64_t current(const c10::CachingAllocator::StatArray& statistic);
int64_t peak(const c10::CachingAllocator::StatArray& statistic);
c10::CachingDeviceAllocator::DeviceStats statistics();

// A line of two words: the figure's name and its bytes.
void print(const char* figure, int64_t bytes);

// torch.nn.functional.linear with a bias, as releases before 2.9 do it: each call takes cuBLASLt's
// workspace and gives it back, where later ones keep one (github.com/pytorch/pytorch/pull/156495).
// LibTorch's own use of cuBLASLt must be off, see without_cublaslt().
at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias);

// Before the first product.
void without_cublaslt();

// torch.optim.Adam and AdamW as Python has them: by default they work on all parameters at once
// (foreach), which LibTorch's C++ Adam does not.
class PythonAdam {
 public:
  struct Options {
    double learning_rate = 1e-3;
    double weight_decay = 0;  // decoupled
    bool fused = false;
  };

  PythonAdam(std::vector<at::Tensor> parameters, Options options);

  void zero_grad();
  void step();

 private:
  std::vector<at::Tensor> parameters_, averages_, squares_, steps_;
  Options options_;
  int count_ = 0;
};

// The tensors of a network in the order in which `module.to()` visits them. Made on the host, as
// networks are in Python; the values do not matter here.
class Tensors {
 public:
  // Returns its index.
  size_t parameter(at::IntArrayRef sizes) { return add(at::empty(sizes).set_requires_grad(true)); }
  size_t buffer(at::IntArrayRef sizes) { return add(at::empty(sizes)); }
  // One whole number, 0 at first.
  size_t counter() { return add(at::zeros({}, at::kLong)); }

  const at::Tensor& operator[](size_t index) const { return all_[index]; }

  // Moves one after the other, as torch.nn.Module.to() does, and frees each old one at once.
  template <class To>
  void to(To to) {
    const at::NoGradGuard no_grad;
    for (at::Tensor& tensor : all_) {
      const bool is_parameter = tensor.requires_grad();
      tensor = tensor.to(to).detach();
      tensor.set_requires_grad(is_parameter);
    }
  }

  std::vector<at::Tensor> parameters() const;

 private:
  size_t add(at::Tensor tensor) {
    all_.push_back(std::move(tensor));
    return all_.size() - 1;
  }

  std::vector<at::Tensor> all_;
};

}  // namespace memledger::as_python

#endif  // MEMLEDGER_TESTS_GPU_AS_PYTHON_H_
