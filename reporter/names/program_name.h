#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "reporter/role.h"

namespace memledger {

// The label under which a model that AOTInductor compiled runs, and the type before its names.
inline constexpr char kCompiledModel[] = "AOTInductor model";

// The label under which LibTorch's data set is read, and what stands before its tensors' names.
inline constexpr char kMnist[] = "MNIST";

// Stands before the optimizer's type in the label under which it steps, as in Python's scopes.
inline constexpr std::string_view kOptimizerStep = "Optimizer.step#";

// Returns AdamW of …/Optimizer.step#AdamW.step; empty of a label that names no optimizer.
inline std::string_view optimizer_of(std::string_view label) {
  const size_t step = label.rfind(kOptimizerStep);
  if (step == std::string_view::npos) return {};
  label.remove_prefix(step + kOptimizerStep.size());
  return label.substr(0, label.find('.'));
}

// An embedding that has the same weight as a module of another type, the head of a language model
// say. What is made of rows that were looked up is the embedding's, all else the other module's.
struct TiedEmbedding {
  std::string other_module;    // empty: there is none
  bool is_named_first = true;  // the parameter's module is the embedding, else the other one

  bool is_of_other(bool looked_up) const {
    return !other_module.empty() && looked_up != is_named_first;
  }
};

// A name that a program gives to a tensor by the way it uses it.
struct ProgramName {
  std::string name;  // encoder.0.weight, AdamW.encoder.0.weight.exp_avg
  Role role = Role::kTensor;
  std::string module;  // see NamedTensor::module
  TiedEmbedding tied;  // of a parameter
  // Inside another tensor (DTensor), or a copy, of which that one knows whether it requires grad.
  bool is_part = false;
  // Whether a parameter did when its module ended; nothing until then.
  std::optional<bool> requires_grad;
};

struct LivingName : ProgramName {
  at::Tensor tensor;  // a strong reference: drop it soon, and with no lock held
};

struct KeptName : ProgramName {
  uint64_t storage_id = 0;
};

}  // namespace memledger
