#pragma once

// What a module's parameters and the results of one forward pass take, layer by layer.
//
//   std::cout << memledger::modelsize(net, torch::randn({1, 3, 512, 512}));
//
//   Model Sequential : params: 80.097536M
//   Model Sequential : intermedite variables: 342.360064 M (without backward)
//   Model Sequential : intermedite variables: 684.720128 M (with backward)
//   Model Sequential : kept for backward: 405.798912 M (measured)
//   … and a table of layers
//
// The first three lines are those of Pytorch-Memory-Utils, spelling included, and by its rule: each
// layer's result once (one that works in place makes none), and twice that with backward. The
// fourth is what autograd really keeps after the forward pass: the input, the parameters and
// buffers, and the result itself are not in it.
//
// The module's own forward() runs once, with gradients on, in the mode that the module is in (or
// ModelSizeOptions::training). Afterwards all is as it was: tensors among the inputs are copied
// before, so they are untouched; training mode, buffers (running statistics) and random number
// generators are put back; nothing of the pass stays alive.
//
// Layers: a row for each module that owns a parameter which an operator consumed, and for each
// child of a Sequential; operators that consume no parameter stand by name under the last such row.
// What an operator makes belongs to the row it ran in, so the columns add up.
//
// A callable's parameters are the leaves that require grad, none of the inputs, which its operators
// consume; frozen ones cannot be told from constants.
//
// Units: bytes; MB (10^6) in the text, as in the Python tool. Errors: what forward() throws gets
// out, and all is put back before; c10::Error under c10::InferenceMode, for a type_size below 1,
// and where a buffer cannot be put back. Ownership: the result is a plain value. Thread-safety:
// nobody else may use the module meanwhile. Cost: one forward pass, a copy of inputs and buffers,
// about a microsecond per operator.

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <iosfwd>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace torch::nn {
template <typename Contained>
class ModuleHolder;
class AnyModule;
}  // namespace torch::nn

namespace memledger {

struct ModelSizeOptions {
  // Bytes of an element in the first three lines and the table's activations, whatever its type.
  // Nothing: each tensor's own. What is kept for backward is measured, and so in bytes that were
  // there.
  std::optional<int64_t> type_size;
  // Nothing: the mode the module is in.
  std::optional<bool> training;
};

struct LayerSize {
  std::string name;       // features.0; the operator's name for what is no module
  std::string type;       // Conv2d; empty for an operator
  bool is_module = true;  // false: operators of that name, under the last module above
  int64_t calls = 0;      // how often it began, or how many operators
  std::optional<std::vector<int64_t>> output_shape;  // of its last result
  int64_t parameters = 0;                            // elements, of its own
  int64_t activation_bytes =
      0;                    // results that it made, each storage once; by type_size, or their own
  int64_t saved_bytes = 0;  // what it made (results, indices, masks, statistics) and autograd keeps
};

struct ModelSize {
  std::string model;  // its type, without namespace and Impl
  // By type_size, or each tensor's own. Tied parameters count once.
  int64_t parameter_bytes = 0;
  int64_t intermediate_bytes = 0;  // without backward

  int64_t parameters = 0;         // elements
  int64_t activation_bytes = 0;   // Σ layers: intermediate_bytes
  int64_t saved_bytes = 0;        // kept for backward; Σ layers + other_saved_bytes
  int64_t other_saved_bytes = 0;  // made where no operator was seen: on other threads
  bool saved_is_complete =
      true;  // false: the graph has nodes that cannot be read, so saved_bytes is a lower bound
  std::vector<LayerSize> layers;  // in the order in which they ran first

  // One object with "schema" and "version", bytes as integers.
  std::string to_json() const;
};

// The lines, then the table.
std::ostream& operator<<(std::ostream& out, const ModelSize& size);

namespace model_size_internal {

// One measurement: all that does not depend on the types of module and inputs.
class Run {
 public:
  // `module` may be null (a callable): its parameters are the leaves that require grad which
  // operators consume.
  Run(torch::nn::Module* module, std::string name, const ModelSizeOptions& options);
  ~Run();
  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;

  at::Tensor copy(const at::Tensor& input);
  void begin();
  void note_output(const at::Tensor& output);
  ModelSize end();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

std::string callable_name();
std::string name_of(const torch::nn::Module& module);

// Tensors inside the usual containers are copied on the way in and found on the way out; other
// types pass as they are.
template <class T>
T copied(Run&, const T& value) {
  return value;
}
inline at::Tensor copied(Run& run, const at::Tensor& value) { return run.copy(value); }
template <class T>
std::vector<T> copied(Run& run, const std::vector<T>& values);
template <class T>
std::optional<T> copied(Run& run, const std::optional<T>& value);
template <class... T>
std::tuple<T...> copied(Run& run, const std::tuple<T...>& values);
template <class A, class B>
std::pair<A, B> copied(Run& run, const std::pair<A, B>& values);
template <class K, class T>
std::map<K, T> copied(Run& run, const std::map<K, T>& values);

template <class T>
std::vector<T> copied(Run& run, const std::vector<T>& values) {
  std::vector<T> result;
  for (const T& value : values) result.push_back(copied(run, value));
  return result;
}
template <class T>
std::optional<T> copied(Run& run, const std::optional<T>& value) {
  if (!value.has_value()) return std::nullopt;
  return copied(run, *value);
}
template <class... T>
std::tuple<T...> copied(Run& run, const std::tuple<T...>& values) {
  return std::apply([&](const auto&... value) { return std::tuple<T...>(copied(run, value)...); },
                    values);
}
template <class A, class B>
std::pair<A, B> copied(Run& run, const std::pair<A, B>& values) {
  return {copied(run, values.first), copied(run, values.second)};
}
template <class K, class T>
std::map<K, T> copied(Run& run, const std::map<K, T>& values) {
  std::map<K, T> result;
  for (const auto& [key, value] : values) result.emplace(key, copied(run, value));
  return result;
}

template <class T>
void find_outputs(Run&, const T&) {}
inline void find_outputs(Run& run, const at::Tensor& value) { run.note_output(value); }
template <class T>
void find_outputs(Run& run, const std::vector<T>& values);
template <class T>
void find_outputs(Run& run, const std::optional<T>& value);
template <class... T>
void find_outputs(Run& run, const std::tuple<T...>& values);
template <class A, class B>
void find_outputs(Run& run, const std::pair<A, B>& values);
template <class K, class T>
void find_outputs(Run& run, const std::map<K, T>& values);

template <class T>
void find_outputs(Run& run, const std::vector<T>& values) {
  for (const T& value : values) find_outputs(run, value);
}
template <class T>
void find_outputs(Run& run, const std::optional<T>& value) {
  if (value.has_value()) find_outputs(run, *value);
}
template <class... T>
void find_outputs(Run& run, const std::tuple<T...>& values) {
  std::apply([&](const auto&... value) { (find_outputs(run, value), ...); }, values);
}
template <class A, class B>
void find_outputs(Run& run, const std::pair<A, B>& values) {
  find_outputs(run, values.first);
  find_outputs(run, values.second);
}
template <class K, class T>
void find_outputs(Run& run, const std::map<K, T>& values) {
  for (const auto& entry : values) find_outputs(run, entry.second);
}

template <class... In>
struct IsTensorAndSize : std::false_type {};
template <class Size>
struct IsTensorAndSize<at::Tensor, Size>
    : std::bool_constant<std::is_integral_v<Size> && !std::is_same_v<Size, bool>> {};

template <class M>
struct IsHolder : std::false_type {};
template <class M>
struct IsHolder<std::shared_ptr<M>> : std::is_base_of<torch::nn::Module, M> {};
template <class M>
using HolderBase = decltype(std::declval<M&>().ptr());  // ModuleHolder and AnyModule have it
template <class M, class = void>
struct HasPtr : std::false_type {};
template <class M>
struct HasPtr<M, std::void_t<HolderBase<M>>> : std::true_type {};

template <class M>
torch::nn::Module* module_of(M& module) {
  if constexpr (std::is_base_of_v<torch::nn::Module, M>) {
    return &module;
  } else if constexpr (IsHolder<M>::value) {
    return module.get();
  } else if constexpr (HasPtr<M>::value) {
    return module.ptr().get();
  } else {
    return nullptr;
  }
}

template <class M, class... In>
auto call_forward(M& module, In&&... inputs) {
  if constexpr (std::is_base_of_v<torch::nn::Module, M>) {
    return module.forward(std::forward<In>(inputs)...);
  } else if constexpr (IsHolder<M>::value) {
    return module->forward(std::forward<In>(inputs)...);
  } else if constexpr (std::is_same_v<M, torch::nn::AnyModule>) {
    return module.forward(std::forward<In>(inputs)...);
  } else if constexpr (HasPtr<M>::value) {
    return module->forward(std::forward<In>(inputs)...);
  } else {
    return module(std::forward<In>(inputs)...);
  }
}

template <class M, class... In>
ModelSize measure(const ModelSizeOptions& options, M& module, In&&... inputs) {
  torch::nn::Module* const measured = module_of(module);
  Run run(measured, measured == nullptr ? callable_name() : name_of(*measured), options);
  auto copies = std::make_tuple(copied(run, inputs)...);
  run.begin();
  if constexpr (std::is_void_v<decltype(call_forward(module, copied(run, inputs)...))>) {
    std::apply([&](auto&... copy) { call_forward(module, std::move(copy)...); }, copies);
    return run.end();
  } else {
    const auto output =
        std::apply([&](auto&... copy) { return call_forward(module, copy...); }, copies);
    find_outputs(run, output);
    return run.end();
  }
}

}  // namespace model_size_internal

// `module`: a module, a ModuleHolder, a shared_ptr to a module, an AnyModule, or anything that can
// be called with the inputs.
template <class M, class... In>
ModelSize modelsize(const ModelSizeOptions& options, M&& module, In&&... inputs) {
  return model_size_internal::measure(options, module, std::forward<In>(inputs)...);
}

template <class M, class... In,
          std::enable_if_t<!std::is_same_v<std::decay_t<M>, ModelSizeOptions> &&
                               !model_size_internal::IsTensorAndSize<std::decay_t<In>...>::value,
                           int> = 0>
ModelSize modelsize(M&& module, In&&... inputs) {
  return model_size_internal::measure({}, module, std::forward<In>(inputs)...);
}

// As in Python: modelsize(net, input, 2). For a module whose forward() takes an integer beside a
// tensor, say modelsize(ModelSizeOptions{}, net, input, 2); a bool is forward()'s.
template <class M, class Size,
          std::enable_if_t<!std::is_same_v<std::decay_t<M>, ModelSizeOptions> &&
                               model_size_internal::IsTensorAndSize<at::Tensor, Size>::value,
                           int> = 0>
ModelSize modelsize(M&& module, const at::Tensor& input, Size type_size) {
  ModelSizeOptions options;
  options.type_size = static_cast<int64_t>(type_size);
  return model_size_internal::measure(options, module, input);
}

}  // namespace memledger
