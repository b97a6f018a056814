#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

namespace memledger::virtual_gpu {

// What an operator reads back from the device while it runs.
struct ReadPlan {
  // A copy of exactly this many bytes gets the value, in whole parts of at most `part_bytes`.
  struct Read {
    uint32_t bytes = 0;
    uint32_t part_bytes = 0;
    uint64_t value = 0;
    // Whether the value decides the sizes of allocations, and is not a check that passes.
    bool is_size = false;
  };
  enum class Source : uint8_t { kKnown, kAssumed, kUnbounded };

  std::array<Read, 3> reads;
  uint32_t count = 0;
  Source source = Source::kKnown;
  // How many true elements the masks inside must have, as the shapes next to them say; assumed
  // where several masks have to agree.
  std::optional<uint64_t> mask_count;
  bool mask_count_is_assumed = false;
  // For an assumed number of true elements: the shape of the mask, of which the first ones are
  // taken to be true. Fewer than 0 dimensions: there is none.
  int dims = -1;
  std::array<int64_t, 8> sizes{};

  void add(Read read) { reads.at(count++) = read; }
};

// A share of so few counts as all: they cost little, and among them are the lists of what the large
// ones are done for, such as the experts that were chosen.
inline constexpr uint64_t kSmallSize = 1024;

// What a rule may ask.
struct ReadContext {
  // The values of a tensor, on the CPU, where they are known.
  std::optional<at::Tensor> (*known)(const at::Tensor& tensor) = nullptr;
  // At most how many different values a tensor has.
  uint64_t (*max_distinct)(const at::Tensor& tensor) = nullptr;
  // The share of unknown sizes, see assumed_size(); up to how many count whole.
  uint32_t millionths = 0;
  uint64_t whole_up_to = kSmallSize;
  // One more than how many elements of the mask were true when it was last asked; 0: it was not.
  // nullptr: nobody keeps it. A mask that comes back, as in backward, has as many as before.
  uint64_t* last_count = nullptr;
  // What the operators around demand.
  std::optional<uint64_t> mask_count;
  bool mask_count_is_assumed = false;

  uint64_t assumed(uint64_t most) const;
  // The same of what differs among some, which is one at least.
  uint64_t assumed_different(uint64_t most) const;
  std::optional<uint64_t> remembered() const;
  void remember(uint64_t count) const;
};

// So many of at most `most`, rounded up.
uint64_t assumed_size(uint64_t most, uint32_t millionths, uint64_t whole_up_to = kSmallSize);

using ReadRule = ReadPlan (*)(c10::ArrayRef<const c10::IValue> inputs, const ReadContext& context);

// The coordinates that nonzero() returns then, on the CPU.
at::Tensor first_coordinates(const ReadPlan& plan, int64_t count);

// The rule of an operator, `aten::nonzero`; nullptr for nearly all.
ReadRule find_read_rule(std::string_view op);

}  // namespace memledger::virtual_gpu
