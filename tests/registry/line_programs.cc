// Functions whose lines must be the same whatever the compiler makes of them. BUILD_NAME is the
// namespace.

#include "tests/registry/line_programs.h"

#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <utility>
#if defined(__cpp_impl_coroutine) || defined(__cpp_coroutines)
#include <coroutine>
#endif

namespace line_programs::BUILD_NAME {
namespace {

at::Tensor bytes_of(int64_t bytes) {
  return at::zeros({bytes}, at::kByte);  //
}

void keep(at::Tensor tensor) { kept().push_back(std::move(tensor)); }

void inlined_cat(int64_t n) {
  const at::Tensor a = at::ones({n}, at::kByte);
  keep(at::cat({a, a}));
}

void operators(int64_t n) {
  const at::Tensor a = at::ones({n}, at::kByte);
  const at::Tensor b = a + 1;
  const at::Tensor c = a * b;
  keep(b - c);
}

void branches(int64_t n) {
  const at::Tensor a = at::ones({n}, at::kByte);
  at::Tensor b;
  if (a.numel() > 3) {
    b = at::cat({a, a});
  } else {
    b = a * 4;
  }
  const at::Tensor c = b - 1;
  keep(at::relu(c));
}

void small_function(int64_t n) {
  const at::Tensor a = bytes_of(n);
  const at::Tensor b = bytes_of(2 * n);
  keep(a);
  keep(b);
}

void lambda(int64_t n) {
  const auto make = [n](int64_t factor) {
    return at::ones({n * factor}, at::kByte);  //
  };
  keep(make(1));
  keep(make(2));
}

void lambda_by_std_function(int64_t n) {
  const std::function<void(int64_t)> make = [](int64_t size) { keep(at::ones({size}, at::kByte)); };
  make(n);
}

void lambda_in_algorithm(int64_t n) {
  std::vector<int64_t> sizes(3);
  std::iota(sizes.begin(), sizes.end(), n);
  std::for_each(sizes.begin(), sizes.end(),
                [](int64_t size) { keep(at::zeros({size}, at::kByte)); });
}

template <typename T>
at::Tensor of_type(int64_t n) {
  const at::Tensor a = at::zeros({n}, c10::CppTypeToScalarType<T>::value);
  return a + 1;
}

void templates(int64_t n) {
  keep(of_type<int32_t>(n));
  keep(of_type<float>(n));
}

template <typename... Sizes>
void pack(Sizes... sizes) {
  (keep(at::ones({sizes}, at::kByte)), ...);
}

void variadic(int64_t n) { pack(n, n + 1, n + 2); }

void thrown(int64_t n) {
  try {
    const at::Tensor a = at::ones({n}, at::kByte);
    if (a.numel() == n) throw std::runtime_error("");
    keep(a);
  } catch (const std::runtime_error&) {
    const at::Tensor b = at::ones({n}, at::kByte);
    keep(b + 1);
  }
}

struct Guard {
  int64_t n;
  ~Guard() {
    keep(at::ones({n}, at::kByte));  //
  }
};

void destructor(int64_t n) {
  const Guard guard{n};
  keep(at::zeros({n}, at::kByte));
}

struct Layer {
  virtual ~Layer() = default;
  virtual at::Tensor forward(const at::Tensor& input) = 0;
};
struct Twice final : Layer {
  at::Tensor forward(const at::Tensor& input) override {
    const at::Tensor doubled = input * 2;
    return doubled + input;
  }
};

void virtual_call(int64_t n) {
  const std::unique_ptr<Layer> layer = std::make_unique<Twice>();
  const at::Tensor input = at::ones({n}, at::kByte);
  keep(layer->forward(input));
}

at::Tensor recursive(int64_t n, int depth) {
  at::Tensor a = at::zeros({n}, at::kByte);
  if (depth == 0) return a;
  const at::Tensor b = recursive(n, depth - 1);
  return a + b;
}

void recursion(int64_t n) { keep(recursive(n, 3)); }

void loop(int64_t n) {
  at::Tensor sum = at::zeros({n}, at::kByte);
  for (int i = 0; i < 3; ++i) {
    sum = sum + i;
    sum = sum * 2;
  }
  keep(sum);
}

void long_statement(int64_t n) {
  const at::Tensor a = at::ones({n}, at::kByte);
  keep(at::cat({a, a, a}));
}

void conditional(int64_t n) {
  const at::Tensor a = at::ones({n}, at::kByte);
  const at::Tensor b = n > 2 ? at::cat({a, a}) : a * 2;
  keep(b.clone());
}

void methods(int64_t n) {
  const at::Tensor a = at::ones({2, n}, at::kByte);
  keep(a.t().contiguous());
  keep(a.sum(0));
  keep(a.to(at::kFloat));
}

void in_place(int64_t n) {
  at::Tensor a = at::ones({n}, at::kByte);
  a.resize_({4 * n});
  a.add_(1);
  keep(a);
}

void optional_values(int64_t n) {
  std::optional<at::Tensor> a;
  a.emplace(at::ones({n}, at::kByte));
  std::vector<at::Tensor> list;
  list.push_back(a.value() + 1);
  list.emplace_back(at::zeros({n}, at::kByte));
  for (at::Tensor& one : list) keep(one);
}

at::Tensor tail(const at::Tensor& a) { return at::relu(a); }

void tail_call(int64_t n) {
  const at::Tensor a = at::ones({n}, at::kChar);
  keep(tail(a));
}

void threads_of_libtorch(int64_t n) {
  at::parallel_for(
      0, 1, 1, [n](int64_t begin, int64_t end) { keep(at::ones({n + end - begin}, at::kByte)); });
}

#if defined(__cpp_impl_coroutine) || defined(__cpp_coroutines)
struct Task {
  struct promise_type {
    Task get_return_object() { return {std::coroutine_handle<promise_type>::from_promise(*this)}; }
    std::suspend_always initial_suspend() { return {}; }
    std::suspend_always final_suspend() noexcept { return {}; }
    std::suspend_always yield_value(int) { return {}; }
    void return_void() {}
    void unhandled_exception() { throw; }
  };
  std::coroutine_handle<promise_type> handle;
};

Task steps(int64_t n) {
  keep(at::zeros({n}, at::kByte));
  co_yield 1;
  const at::Tensor a = at::ones({2 * n}, at::kByte);
  co_yield 2;
  keep(a + 1);
}

void coroutine(int64_t n) {
  Task task = steps(n);
  for (int i = 0; i < 3; ++i) task.handle.resume();
  task.handle.destroy();
}
#endif

}  // namespace

std::vector<Program> all() {
  return {
    {"inlined_cat", &inlined_cat}, {"operators", &operators}, {"branches", &branches},
        {"small_function", &small_function}, {"lambda", &lambda},
        {"lambda_by_std_function", &lambda_by_std_function},
        {"lambda_in_algorithm", &lambda_in_algorithm}, {"templates", &templates},
        {"variadic", &variadic}, {"thrown", &thrown}, {"destructor", &destructor},
        {"virtual_call", &virtual_call}, {"recursion", &recursion}, {"loop", &loop},
        {"long_statement", &long_statement}, {"conditional", &conditional}, {"methods", &methods},
        {"in_place", &in_place}, {"optional_values", &optional_values}, {"tail_call", &tail_call},
        {"threads_of_libtorch", &threads_of_libtorch},
#if defined(__cpp_impl_coroutine) || defined(__cpp_coroutines)
        {"coroutine", &coroutine},
#endif
  };
}

}  // namespace line_programs::BUILD_NAME
