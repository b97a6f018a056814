// The operators of LibTorch that read a size back from a CUDA device, and what they read.
#include "virtual_gpu/values/read_rules.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <limits>
#include <vector>

namespace memledger::virtual_gpu {
namespace {

constexpr uint64_t kMillion = 1000000;

using Inputs = c10::ArrayRef<const c10::IValue>;
using Source = ReadPlan::Source;

bool is_on_cuda(const c10::IValue& value) { return value.isTensor() && value.toTensor().is_cuda(); }

// The size of `dim`, whichever way it is counted.
int64_t size_at(const at::Tensor& tensor, int64_t dim) {
  return tensor.dim() == 0 ? 1 : tensor.size(dim);
}

ReadPlan plan_of_size(uint64_t size, Source source) {
  ReadPlan plan;
  plan.source = source;
  plan.add({sizeof(int64_t), sizeof(int64_t), size, true});
  plan.add({sizeof(int), sizeof(int), size, true});
  return plan;
}

// Counts in chunks of 2^30 elements where an int would not do.
ReadPlan nonzero(Inputs inputs, const ReadContext& context) {
  if (inputs.empty() || !is_on_cuda(inputs[0])) return {};
  const at::Tensor& self = inputs[0].toTensor();
  const auto elements = static_cast<uint64_t>(self.numel());
  constexpr auto kMostInOne = static_cast<uint64_t>(std::numeric_limits<int>::max());
  constexpr uint64_t kChunk = uint64_t{1} << 30;
  const uint64_t chunks = elements < kMostInOne ? 1 : (elements + kChunk - 1) / kChunk;

  ReadPlan plan;
  ReadPlan::Read read;
  read.is_size = true;
  read.part_bytes = sizeof(int);
  read.bytes = static_cast<uint32_t>(sizeof(int) * chunks);
  const std::optional<at::Tensor> known = elements > 0 ? context.known(self) : std::nullopt;
  if (known) {
    read.value = static_cast<uint64_t>(at::count_nonzero(*known).item<int64_t>());
  } else if (context.mask_count && !context.mask_count_is_assumed) {
    read.value = std::min(*context.mask_count, elements);
  } else if (const std::optional<uint64_t> count = context.remembered()) {
    read.value = std::min(*count, elements);
    plan.source = Source::kAssumed;
  } else if (context.mask_count) {
    read.value = std::min(*context.mask_count, elements);
    plan.source = Source::kAssumed;
  } else {
    read.value = context.assumed(elements);
    if (elements > 0) plan.source = Source::kAssumed;
  }
  context.remember(read.value);
  plan.add(read);
  if (plan.source == Source::kAssumed && self.dim() <= static_cast<int64_t>(plan.sizes.size())) {
    plan.dims = static_cast<int>(self.dim());
    std::copy(self.sizes().begin(), self.sizes().end(), plan.sizes.begin());
  }
  return plan;
}

// _unique(self, …), _unique2(self, …). For bools the number of true ones is read.
ReadPlan unique(Inputs inputs, const ReadContext& context) {
  if (inputs.empty() || !is_on_cuda(inputs[0])) return {};
  const at::Tensor& self = inputs[0].toTensor();
  const auto elements = static_cast<uint64_t>(self.numel());
  if (elements == 0) return {};
  const std::optional<at::Tensor> known = context.known(self);
  if (self.scalar_type() == at::kBool) {
    ReadPlan plan;
    uint64_t trues;
    if (known) {
      trues = static_cast<uint64_t>(at::count_nonzero(*known).item<int64_t>());
    } else {
      const uint64_t different = context.assumed(std::min<uint64_t>(elements, 2));
      trues = different == 2 ? 1 : 0;
      plan.source = Source::kAssumed;
    }
    plan.add({sizeof(int), sizeof(int), trues, true});
    return plan;
  }
  if (known) {
    const auto size = std::get<0>(at::_unique2(*known)).numel();
    return plan_of_size(static_cast<uint64_t>(size), Source::kKnown);
  }
  return plan_of_size(context.assumed_different(context.max_distinct(self)), Source::kAssumed);
}

// Returns the maximum number of different rows that can be made of `distinct` values.
uint64_t max_different_rows(uint64_t rows, uint64_t elements_of_row, uint64_t distinct) {
  if (distinct <= 1) return std::min<uint64_t>(rows, 1);
  uint64_t count = 1;
  for (uint64_t i = 0; i < elements_of_row && count < rows; ++i)
    count = count > rows / distinct ? rows : count * distinct;
  return std::min(count, rows);
}

ReadPlan plan_of_different(const at::Tensor& self, const ReadContext& context,
                           std::optional<int64_t> dim, bool consecutive) {
  const auto most = static_cast<uint64_t>(dim ? size_at(self, *dim) : self.numel());
  if (most == 0) return {};
  if (const std::optional<at::Tensor> known = context.known(self)) {
    const at::Tensor different =
        consecutive ? std::get<0>(at::unique_consecutive(*known, false, false, dim))
                    : std::get<0>(at::unique_dim(*known, dim.value()));
    return plan_of_size(static_cast<uint64_t>(dim ? size_at(different, *dim) : different.numel()),
                        Source::kKnown);
  }
  const uint64_t elements_of_row = static_cast<uint64_t>(self.numel()) / most;
  const uint64_t different =
      consecutive ? most : max_different_rows(most, elements_of_row, context.max_distinct(self));
  return plan_of_size(context.assumed_different(different), Source::kAssumed);
}

// unique_dim(self, dim, …)
ReadPlan unique_dim(Inputs inputs, const ReadContext& context) {
  if (inputs.size() < 2 || !is_on_cuda(inputs[0]) || !inputs[1].isInt()) return {};
  return plan_of_different(inputs[0].toTensor(), context, inputs[1].toInt(), false);
}

// unique_dim_consecutive(self, dim, …)
ReadPlan unique_dim_consecutive(Inputs inputs, const ReadContext& context) {
  if (inputs.size() < 2 || !is_on_cuda(inputs[0]) || !inputs[1].isInt()) return {};
  return plan_of_different(inputs[0].toTensor(), context, inputs[1].toInt(), true);
}

// unique_consecutive(self, return_inverse, return_counts, dim)
ReadPlan unique_consecutive(Inputs inputs, const ReadContext& context) {
  if (inputs.empty() || !is_on_cuda(inputs[0])) return {};
  std::optional<int64_t> dim;
  if (inputs.size() > 3 && inputs[3].isInt()) dim = inputs[3].toInt();
  return plan_of_different(inputs[0].toTensor(), context, dim, true);
}

// repeat_interleave(repeats, output_size): whether none is negative, then their sum.
ReadPlan repeat_interleave(Inputs inputs, const ReadContext& context) {
  if (inputs.size() != 2 || !is_on_cuda(inputs[0])) return {};
  const at::Tensor& repeats = inputs[0].toTensor();
  if (repeats.numel() == 0 || !inputs[1].isNone()) return {};
  ReadPlan plan;
  if (const std::optional<at::Tensor> known = context.known(repeats)) {
    plan.add({1, 1, known->min().item<int64_t>() >= 0, false});
    plan.add({sizeof(int64_t), sizeof(int64_t), static_cast<uint64_t>(known->sum().item<int64_t>()),
              true});
    return plan;
  }
  plan.source = Source::kUnbounded;
  plan.add({1, 1, 1, false});
  plan.add({sizeof(int64_t), sizeof(int64_t),
            context.assumed(static_cast<uint64_t>(repeats.numel())), true});
  return plan;
}

// bincount(self, weights, minlength): the smallest value, which must not be negative, and the
// largest, in the type of the values.
ReadPlan bincount(Inputs inputs, const ReadContext& context) {
  if (inputs.size() < 3 || !is_on_cuda(inputs[0])) return {};
  const at::Tensor& self = inputs[0].toTensor();
  if (self.numel() == 0) return {};
  const auto bytes = static_cast<uint32_t>(self.element_size());
  const std::optional<at::Tensor> known = context.known(self);
  // The smallest value is read with the same size: where both are valid the largest does for both.
  if (known && known->min().item<int64_t>() >= 0) {
    ReadPlan plan;
    plan.add({bytes, bytes, static_cast<uint64_t>(known->max().item<int64_t>()), true});
    return plan;
  }
  ReadPlan plan;
  if (!known) plan.source = Source::kUnbounded;
  plan.add({bytes, bytes, 0, true});
  return plan;
}

// one_hot(self, num_classes): the largest class, where the program does not say how many there are.
ReadPlan one_hot(Inputs inputs, const ReadContext& context) {
  if (inputs.size() < 2 || !is_on_cuda(inputs[0]) || !inputs[1].isInt()) return {};
  if (inputs[1].toInt() != -1) return {};
  const at::Tensor& self = inputs[0].toTensor();
  if (self.numel() == 0) return {};
  const auto bytes = static_cast<uint32_t>(self.element_size());
  ReadPlan plan;
  const std::optional<at::Tensor> known = context.known(self);
  if (!known) plan.source = Source::kUnbounded;
  plan.add({bytes, bytes,
            known ? static_cast<uint64_t>(std::max<int64_t>(known->max().item<int64_t>(), 0)) : 0,
            true});
  return plan;
}

// _coalesce(self) of a sparse tensor: how many indices differ.
ReadPlan coalesce(Inputs inputs, const ReadContext& context) {
  if (inputs.empty() || !is_on_cuda(inputs[0]) || !inputs[0].toTensor().is_sparse()) return {};
  const auto most = static_cast<uint64_t>(inputs[0].toTensor()._nnz());
  if (most < 2) return {};
  return plan_of_size(context.assumed_different(most), Source::kAssumed);
}

bool is_mask(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kBool || tensor.scalar_type() == at::kByte;
}

// How many elements of the masks among the indices must be true for the shapes to fit.
void demand_mask_count(const at::Tensor& self, const c10::IValue& indices, const at::Tensor* values,
                       const ReadContext& context, ReadPlan& plan) {
  if (!self.is_cuda() || !indices.isList()) return;
  const auto list = indices.toListRef();
  const at::Tensor* mask = nullptr;
  int64_t at = 0;  // the dimension of the result that the mask makes
  int64_t masks = 0;
  uint64_t least = std::numeric_limits<uint64_t>::max();
  bool has_others = false;
  std::optional<uint64_t> beside;
  for (const c10::IValue& element : list) {
    if (!element.isTensor() || !element.toTensor().defined()) {
      if (mask == nullptr) ++at;
      continue;
    }
    const at::Tensor& index = element.toTensor();
    if (is_mask(index)) {
      ++masks;
      mask = &index;
      least = std::min(least, static_cast<uint64_t>(index.numel()));
      continue;
    }
    has_others = true;
    if (index.dim() > 0 && index.size(-1) != 1) beside = static_cast<uint64_t>(index.size(-1));
  }
  if (mask == nullptr) return;
  if (values != nullptr && masks == 1 && !has_others) {
    // Shapes are matched from the last dimension.
    const int64_t result_dims = self.dim() - mask->dim() + 1;
    const int64_t dim = values->dim() - result_dims + at;
    if (dim >= 0 && dim < values->dim() && values->size(dim) != 1)
      plan.mask_count = static_cast<uint64_t>(values->size(dim));
  } else if (beside) {
    plan.mask_count = beside;
  } else if (masks > 1) {
    plan.mask_count = context.assumed(least);
    plan.mask_count_is_assumed = true;
  }
}

// index(self, indices)
ReadPlan index(Inputs inputs, const ReadContext& context) {
  if (inputs.size() < 2 || !is_on_cuda(inputs[0])) return {};
  ReadPlan plan;
  demand_mask_count(inputs[0].toTensor(), inputs[1], nullptr, context, plan);
  return plan;
}

// index_put(self, indices, values, …)
ReadPlan index_put(Inputs inputs, const ReadContext& context) {
  if (inputs.size() < 3 || !is_on_cuda(inputs[0]) || !inputs[2].isTensor()) return {};
  ReadPlan plan;
  demand_mask_count(inputs[0].toTensor(), inputs[1], &inputs[2].toTensor(), context, plan);
  return plan;
}

struct NamedRule {
  std::string_view op;
  ReadRule rule;
};

constexpr NamedRule kRules[] = {
    {"aten::nonzero", &nonzero},
    {"aten::_unique", &unique},
    {"aten::_unique2", &unique},
    {"aten::unique_dim", &unique_dim},
    {"aten::unique_dim_consecutive", &unique_dim_consecutive},
    {"aten::unique_consecutive", &unique_consecutive},
    {"aten::repeat_interleave", &repeat_interleave},
    {"aten::bincount", &bincount},
    {"aten::one_hot", &one_hot},
    {"aten::_coalesce", &coalesce},
    {"aten::index", &index},
    {"aten::_unsafe_index", &index},
    {"aten::index_put", &index_put},
    {"aten::index_put_", &index_put},
    {"aten::_unsafe_index_put", &index_put},
    {"aten::_index_put_impl_", &index_put},
};

constexpr size_t kPrefix = std::string_view("aten::").size();

// Most names are told apart by their length and two letters.
constexpr uint32_t sieve_bit(std::string_view op) {
  return (static_cast<uint32_t>(op.size()) * 7 + static_cast<unsigned char>(op[kPrefix]) * 3 +
          static_cast<unsigned char>(op.back())) %
         256;
}

struct Sieve {
  std::array<bool, 256> may_be{};
};

constexpr Sieve make_sieve() {
  Sieve sieve;
  for (const NamedRule& named : kRules) sieve.may_be[sieve_bit(named.op)] = true;
  return sieve;
}

constexpr Sieve kSieve = make_sieve();

}  // namespace

std::optional<uint64_t> ReadContext::remembered() const {
  if (last_count == nullptr || *last_count == 0) return {};
  return *last_count - 1;
}

void ReadContext::remember(uint64_t count) const {
  if (last_count != nullptr) *last_count = count + 1;
}

uint64_t ReadContext::assumed_different(uint64_t most) const {
  return std::max<uint64_t>(assumed(most), 1);
}

uint64_t ReadContext::assumed(uint64_t most) const {
  return assumed_size(most, millionths, whole_up_to);
}

uint64_t assumed_size(uint64_t most, uint32_t millionths, uint64_t whole_up_to) {
  if (millionths == 0) return 0;
  if (most <= whole_up_to || millionths >= kMillion) return most;
  // Rounded up; the whole and the rest apart, so that nothing overflows.
  const uint64_t rest = most % kMillion;
  return most / kMillion * millionths + (rest * millionths + kMillion - 1) / kMillion;
}

at::Tensor first_coordinates(const ReadPlan& plan, int64_t count) {
  at::Tensor result = at::empty({count, plan.dims}, at::kLong);
  int64_t* at = result.mutable_data_ptr<int64_t>();
  std::array<int64_t, 8> coordinate{};
  for (int64_t i = 0; i < count; ++i) {
    for (int dim = 0; dim < plan.dims; ++dim) *at++ = coordinate[static_cast<size_t>(dim)];
    for (int dim = plan.dims; dim-- > 0;) {
      const auto d = static_cast<size_t>(dim);
      if (++coordinate[d] < plan.sizes[d]) break;
      coordinate[d] = 0;
    }
  }
  return result;
}

ReadRule find_read_rule(std::string_view op) {
  if (op.size() <= kPrefix || !kSieve.may_be[sieve_bit(op)]) return nullptr;
  for (const NamedRule& named : kRules) {
    if (named.op == op) return named.rule;
  }
  return nullptr;
}

}  // namespace memledger::virtual_gpu
