// Compiled with NDEBUG whatever the build mode: see SEES_LIBTORCH_INLINES_COPTS.
#include "virtual_gpu/values/operators.h"

#include <ATen/core/enum_tag.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string_view>
#include <utility>

namespace memledger::virtual_gpu {
namespace {

using Names = std::initializer_list<std::string_view>;

bool is_one_of(std::string_view name, Names names) {
  for (const std::string_view candidate : names) {
    if (candidate == name) return true;
  }
  return false;
}

// The name without aten:: and the underscore of an operator in place.
std::string_view base_name(std::string_view name) {
  name.remove_prefix(std::min(name.size(), std::string_view("aten::").size()));
  if (!name.empty() && name.back() == '_') name.remove_suffix(1);
  return name;
}

Partly partly_of(std::string_view base, bool is_pointwise) {
  static constexpr std::pair<std::string_view, Partly> kRules[] = {
      {"bitwise_and", Partly::kAnd},
      {"bitwise_or", Partly::kOr},
      {"mul", Partly::kMul},
      {"logical_and", Partly::kLogicalAnd},
      {"logical_or", Partly::kLogicalOr},
      {"where", Partly::kWhere},
      {"masked_fill", Partly::kMaskedFill},
      {"all", Partly::kAll},
      {"any", Partly::kAny},
      {"cat", Partly::kMoved},
      {"copy", Partly::kMoved},
      {"_index_put_impl", Partly::kMoved},
      {"index", Partly::kMoved},
      {"index_select", Partly::kMoved},
      {"gather", Partly::kMoved},
      {"flip", Partly::kMoved},
      {"roll", Partly::kMoved},
      {"tril", Partly::kMoved},
      {"triu", Partly::kMoved},
  };
  for (const auto& [name, rule] : kRules) {
    if (name == base) return rule;
  }
  return is_pointwise ? Partly::kPointwise : Partly::kNo;
}

struct MovedArguments {
  std::string_view name;
  Distinct distinct;
  uint32_t arguments;  // a bit for each; none: a constant
};

constexpr MovedArguments kMovedArguments[] = {
    {"cat", Distinct::kMoved, 1},
    {"copy", Distinct::kMoved, 1 << 1},
    {"fill", Distinct::kMoved, 1 << 1},
    {"flip", Distinct::kMoved, 1},
    {"gather", Distinct::kMoved, 1},
    {"index", Distinct::kMoved, 1},
    {"index_select", Distinct::kMoved, 1},
    {"masked_select", Distinct::kMoved, 1},
    {"roll", Distinct::kMoved, 1},
    {"sort", Distinct::kMoved, 1},
    {"take", Distinct::kMoved, 1},
    {"topk", Distinct::kMoved, 1},
    {"where", Distinct::kMoved, 1 << 1 | 1 << 2},
    {"zero", Distinct::kMoved, 0},
    {"_index_put_impl", Distinct::kMovedInto, 1 << 2},
    {"index_copy", Distinct::kMovedInto, 1 << 3},
    {"index_fill", Distinct::kMovedInto, 1 << 3},
    {"masked_fill", Distinct::kMovedInto, 1 << 2},
    {"masked_scatter", Distinct::kMovedInto, 1 << 2},
    {"scatter", Distinct::kMovedInto, 1 << 3},
};

const MovedArguments* moved_arguments_of(std::string_view base, std::string_view overload) {
  // Those that reduce make other values.
  if (base == "scatter" && !is_one_of(overload, {"src", "src_out", "value", "value_out"}))
    return nullptr;
  for (const MovedArguments& moved : kMovedArguments) {
    if (moved.name == base) return &moved;
  }
  return nullptr;
}

Tells tells_of(std::string_view base) {
  if (base == "isfinite") return Tells::kFinite;
  if (is_one_of(base, {"isnan", "isinf", "isposinf", "isneginf"})) return Tells::kNotFinite;
  if (base == "_amp_foreach_non_finite_check_and_unscale") return Tells::kUnscaling;
  if (is_one_of(base, {"eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or",
                       "logical_not", "logical_xor"}))
    return Tells::kComparison;
  if (is_one_of(base, {"sum", "count_nonzero"})) return Tells::kSum;
  if (is_one_of(base, {"all", "any", "max", "min", "amax", "amin", "mean", "clone", "contiguous",
                       "to", "_to_copy", "copy", "stack", "cat", "index", "index_select", "gather",
                       "masked_select"}))
    return Tells::kSelection;
  return Tells::kNothing;
}

// Their kernels for the CPU do what those for CUDA do.
bool is_private_and_good(std::string_view base) {
  return base.rfind("_foreach_", 0) == 0 || base.rfind("_fused_adam", 0) == 0 ||
         is_one_of(base, {"_index_put_impl", "_fused_sgd", "_softmax", "_log_softmax",
                          "_softmax_backward_data", "_log_softmax_backward_data", "_unique2",
                          "_amp_foreach_non_finite_check_and_unscale", "_amp_update_scale"});
}

Distribution distribution_of(std::string_view name, std::string_view overload) {
  if (name == "aten::uniform_") return Distribution::kUniform;
  if (name == "aten::normal_") return Distribution::kNormal;
  if (name == "aten::random_") return Distribution::kIntegers;
  if (name != "aten::bernoulli_") return Distribution::kNone;
  return overload == "Tensor" ? Distribution::kBernoulliTensor : Distribution::kBernoulli;
}

bool holds_tensors(const c10::TypePtr& type) {
  switch (type->kind()) {
    case c10::TypeKind::TensorType:
      return true;
    case c10::TypeKind::ListType:
    case c10::TypeKind::OptionalType:
      return holds_tensors(type->containedType(0));
    default:
      return false;
  }
}

bool is_of_kind(const c10::TypePtr& type, c10::TypeKind kind) {
  if (type->kind() == kind) return true;
  return type->kind() == c10::TypeKind::OptionalType && is_of_kind(type->containedType(0), kind);
}

// The argument that is returned, by the sets of their annotations.
int returned_argument(const c10::FunctionSchema& schema, const c10::Argument& result) {
  if (result.alias_info() == nullptr || !result.alias_info()->isWrite()) return -1;
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    const c10::AliasInfo* const alias = schema.arguments()[i].alias_info();
    if (alias != nullptr && alias->isWrite() &&
        alias->beforeSets() == result.alias_info()->beforeSets()) {
      return static_cast<int>(i);
    }
  }
  return -1;
}

}  // namespace

OperatorInfo::OperatorInfo(const c10::OperatorHandle& operator_handle)
    : handle(operator_handle),
      name(handle.schema().name()),
      overload(handle.schema().overload_name()) {
  const c10::FunctionSchema& schema = handle.schema();
  is_ours = name.rfind("aten::", 0) == 0;
  is_collective = name.rfind("c10d::", 0) == 0;
  const std::string_view base = base_name(name);
  bool has_generator = schema.is_vararg() || schema.is_varret();
  const bool is_shape = handle.hasTag(at::Tag::inplace_view);
  const bool is_mark = name == "aten::record_stream";
  bool has_statistics = false;
  for (const c10::Argument& argument : schema.arguments()) {
    const c10::AliasInfo* const alias = argument.alias_info();
    // Batch normalization writes to these, and its schema does not say so.
    const bool is_statistic = argument.name() == "running_mean" || argument.name() == "running_var";
    has_statistics |= is_statistic;
    if (argument.name() == "is_first_step") is_first_step = is_written.size();
    if (argument.name() == "momentum_buffer_list") momentum_buffers = is_written.size();
    const bool is_write = is_statistic || (alias != nullptr && alias->isWrite());
    // Sizes, the storage itself, or when it may be freed, are no content.
    is_written.push_back(is_write && !is_shape && !is_mark && holds_tensors(argument.type()));
    is_out.push_back(is_written.back() && argument.kwarg_only() && !is_statistic);
    writes |= is_written.back();
    is_view |= alias != nullptr && !is_write;
    for (const c10::TypeKind kind :
         {c10::TypeKind::GeneratorType, c10::TypeKind::StorageType, c10::TypeKind::StreamObjType}) {
      has_generator |= is_of_kind(argument.type(), kind);
    }
  }
  is_returned.resize(is_written.size());
  bool returns_tensors = true;
  for (const c10::Argument& result : schema.returns()) {
    returns_tensors &= holds_tensors(result.type());
    const int argument = returned_argument(schema, result);
    written_argument.push_back(argument);
    if (argument >= 0) is_returned[static_cast<size_t>(argument)] = true;
  }
  has_kernel = handle.hasKernelForDispatchKey(c10::DispatchKey::CUDA);
  is_equal = name == "aten::equal";
  distribution = distribution_of(name, overload);
  const bool is_random = distribution != Distribution::kNone;
  overwrites = is_random || is_one_of(name, {"aten::fill_", "aten::zero_", "aten::copy_"});
  is_product = is_one_of(base, {"mm", "bmm", "mv", "dot", "vdot", "addmm", "addmv", "addbmm",
                                "baddbmm", "addr", "linear"});
  is_division = is_one_of(base, {"div", "divide"});
  depends_on_ties =
      is_one_of(base, {"sort", "topk", "kthvalue", "median", "nanmedian", "mode", "msort"});
  depends_on_order = is_one_of(base, {"_index_put_impl", "scatter", "index_copy"});
  // The masks of lists are not followed.
  const bool is_list = base.rfind("_foreach_", 0) == 0;
  partly = is_list || is_random ? Partly::kNo : partly_of(base, handle.hasTag(at::Tag::pointwise));
  tells = tells_of(base);
  if (is_ours && !is_view && !is_shape && !handle.hasTag(at::Tag::nondeterministic_seeded)) {
    if (const MovedArguments* const moved = moved_arguments_of(base, overload)) {
      distinct = moved->distinct;
      moved_arguments = moved->arguments;
    } else if (handle.hasTag(at::Tag::pointwise)) {
      distinct = Distinct::kPointwise;
    }
  }
  const bool is_refused =
      base.rfind("empty", 0) == 0 || base.rfind('_', 0) == 0 ||
      is_one_of(base, {"resize", "resize_as", "set", "new_empty", "record_stream", "put"});
  is_computed = is_equal || is_random ||
                (is_ours && (has_kernel || name == "aten::copy_") && !is_view && !has_generator &&
                 !has_statistics && returns_tensors && (!is_refused || is_private_and_good(base)) &&
                 !is_shape && (writes || !written_argument.empty()) &&
                 !handle.hasTag(at::Tag::nondeterministic_seeded));
}

namespace {

// Schemas are rarely taken away, and then the names are compared.
struct Cached {
  const char* name = nullptr;
  OperatorInfo* info = nullptr;
};
constexpr size_t kCached = 1024;
thread_local std::array<Cached, kCached> cache;

OperatorInfo* look_up(const at::RecordFunction& fn) {
  const std::optional<c10::OperatorName> name = fn.operator_name();
  if (!name) return nullptr;
  const std::optional<c10::OperatorHandle> handle = c10::Dispatcher::singleton().findSchema(*name);
  if (!handle) return nullptr;
  static auto* const mutex = new std::mutex;
  static auto* const infos = new std::map<std::pair<std::string, std::string>, OperatorInfo*>;
  const std::pair<std::string, std::string> key(name->name, name->overload_name);
  {
    std::lock_guard<std::mutex> lock(*mutex);
    if (const auto found = infos->find(key); found != infos->end()) return found->second;
  }
  auto made = std::make_unique<OperatorInfo>(*handle);
  std::lock_guard<std::mutex> lock(*mutex);
  return infos->emplace(key, made.release()).first->second;
}

}  // namespace

OperatorInfo* operator_info(const at::RecordFunction& fn) {
  const char* const name = fn.name();
  const auto number = reinterpret_cast<uintptr_t>(name);
  Cached& cached = cache[(number >> 4 ^ number >> 14) % kCached];
  if (cached.name == name && cached.info->name == name &&
      cached.info->overload == fn.overload_name()) {
    return cached.info;
  }
  OperatorInfo* const info = look_up(fn);
  if (info != nullptr) cached = {name, info};
  return info;
}

}  // namespace memledger::virtual_gpu
