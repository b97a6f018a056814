#pragma once

// How modelsize() (tracker/model_size.h) calls a module of any type with inputs of any types. Not
// part of the interface.

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <map>
#include <memory>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace torch::nn {
class AnyModule;
}  // namespace torch::nn

namespace memledger {

struct ModelSize;
struct ModelSizeOptions;

namespace model_size_internal {

// One measurement: what does not depend on the types of module and inputs.
class Run {
 public:
  // A null module is a callable: the leaves that require grad and that its operators consume count
  // as its parameters.
  Run(torch::nn::Module* module, const ModelSizeOptions& options);
  ~Run();
  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;

  at::Tensor copy(const at::Tensor& input);
  // For a caller that has copied its input himself.
  void note_input(const at::Tensor& input);
  void begin();
  void note_output(const at::Tensor& output);
  // Measures what the outputs keep, and puts everything back.
  ModelSize end();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Copy the tensors in an input, and note those in an output, inside the usual containers; other
// types pass as they are. Declared before they are defined, as containers nest.
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

// Calls forward() with copies of the inputs, and notes what it returns.
template <class M, class... In>
void call_once(Run& run, M& module, In&&... inputs) {
  auto copies = std::make_tuple(copied(run, inputs)...);
  run.begin();
  if constexpr (std::is_void_v<decltype(call_forward(module, copied(run, inputs)...))>) {
    std::apply([&](auto&... copy) { call_forward(module, std::move(copy)...); }, copies);
  } else {
    find_outputs(run,
                 std::apply([&](auto&... copy) { return call_forward(module, copy...); }, copies));
  }
}

}  // namespace model_size_internal

}  // namespace memledger
