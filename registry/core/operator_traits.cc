#include "registry/core/operator_traits.h"

#include <algorithm>
#include <iterator>

namespace memledger::core {
namespace {

// In-place operators that give a tensor its first or a copied value; optimizers do not step with
// these.
constexpr std::string_view kInitializers[] = {
    "aten::copy_",    "aten::fill_",      "aten::zero_",   "aten::normal_",
    "aten::uniform_", "aten::bernoulli_", "aten::random_", "aten::requires_grad_",
    "aten::set_",     "aten::detach_",    "aten::resize_", "aten::trunc_normal_"};

// What optimizers read parameters with, out of place: to make their state, weight decay, trust
// ratios, flat views.
constexpr std::string_view kReaders[] = {
    "aten::zeros_like", "aten::ones_like", "aten::empty_like", "aten::full_like", "aten::new_zeros",
    "aten::new_empty",  "aten::add",       "aten::sub",        "aten::mul",       "aten::div",
    "aten::neg",        "aten::sign",      "aten::abs",        "aten::norm",      "aten::dot",
    "aten::view",       "aten::to",        "aten::detach",     "aten::alias",     "aten::clone",
    "aten::reshape",    "aten::cat"};

template <size_t kCount>
bool is_one_of(const std::string_view (&names)[kCount], std::string_view name) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

// Backward of what is compiled; what DataParallel copies to its devices and adds up from there.
constexpr std::string_view kReadersOfAllLayers[] = {"CompiledFunction", "Broadcast",
                                                    "ReduceAddCoalesced"};

constexpr std::string_view kMakersOfExternals[] = {"aten::set_", "aten::from_file",
                                                   "aten::pin_memory", "aten::_pin_memory"};

constexpr std::string_view kCustomNode = "torch::autograd::CppNode<";

}  // namespace

std::string_view function_of_node(std::string_view node) noexcept {
  if (node.compare(0, kCustomNode.size(), kCustomNode) != 0 || node.back() != '>') return {};
  std::string_view type = node.substr(kCustomNode.size());
  type.remove_suffix(1);
  size_t begin = 0, end = type.size();
  int depth = 0;
  for (size_t i = 0; i < type.size(); ++i) {
    const char c = type[i];
    if (depth == 0 && c == ':') {
      begin = i + 1;
      end = type.size();
    }
    if (depth == 0 && c == '<') end = i;
    depth += (c == '<' || c == '(') - (c == '>' || c == ')');
  }
  return type.substr(begin, end - begin);
}

OperatorKind kind_of_operator(std::string_view name) noexcept {
  if (name.size() < 7 || name.compare(0, 6, "aten::") != 0) return OperatorKind::kOther;
  if (name.compare(6, 7, "_fused_") == 0) return OperatorKind::kStep;
  if (name.back() == '_')
    return is_one_of(kInitializers, name) ? OperatorKind::kOther : OperatorKind::kStep;
  return name.compare(6, 9, "_foreach_") == 0 || is_one_of(kReaders, name) ? OperatorKind::kNeutral
                                                                           : OperatorKind::kOther;
}

OperatorTraits traits_of_operator(std::string_view name) noexcept {
  OperatorTraits traits = {};
  traits.kind = kind_of_operator(name);
  traits.reads_all_layers = is_one_of(kReadersOfAllLayers, name);
  traits.may_make_external = is_one_of(kMakersOfExternals, name);
  traits.looks_up = name.find("embedding") != std::string_view::npos;
  traits.is_function =
      name.find("::") == std::string_view::npos && !name.empty() && !traits.reads_all_layers;
  traits.is_custom_node = name.compare(0, kCustomNode.size(), kCustomNode) == 0;
  return traits;
}

OperatorTraits TraitsById::classify(NameId id, std::string_view name) noexcept {
  const OperatorTraits traits = traits_of_operator(name);
  if (id < known_.size()) known_[id].store(traits.packed(), std::memory_order_relaxed);
  return traits;
}

}  // namespace memledger::core
