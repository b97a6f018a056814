#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/record_function.h>

#include <atomic>
#include <optional>
#include <string>
#include <vector>

namespace memledger::virtual_gpu {

// How an operator's result depends on inputs of which only some is known.
enum class Partly {
  kNo,         // not computed then
  kPointwise,  // each element from the elements at its place
  kAnd,        // and so that 0, or false, decides alone
  kOr,
  kMul,
  kLogicalAnd,
  kLogicalOr,
  kWhere,
  kMaskedFill,
  kMoved,  // each element is one of an input's, or a constant
  kAll,    // a known false decides
  kAny,
};

// Where the values of an operator's first result come from, to count how many can differ.
enum class Distinct {
  kUnknown,
  kPointwise,  // each is made of an element of each tensor
  kMoved,      // each is an element of certain arguments, or one constant
  kMovedInto,  // likewise, and what is in the first argument may stay
};

// What an operator says of elements that nobody knows: see likely.h.
enum class Tells {
  kNothing,
  kFinite,      // whether they are finite
  kNotFinite,   // whether they are not
  kComparison,  // a truth of each
  kSelection,   // its result is some of them, as where all are true
  kSum,
  kUnscaling,  // of gradients: whether one is not finite
};

// The distributions whose numbers are computed: see random.h.
enum class Distribution { kNone, kUniform, kNormal, kIntegers, kBernoulli, kBernoulliTensor };

// What the observer has to know of an operator, looked up once.
struct OperatorInfo {
  explicit OperatorInfo(const c10::OperatorHandle& operator_handle);

  const c10::OperatorHandle handle;
  const std::string name;         // aten::add_
  const std::string overload;     // Tensor
  bool is_ours = false;           // LibTorch's own: what its schema says is true
  bool is_collective = false;     // c10d's: what it writes comes by copies, maybe of other threads
  bool writes = false;            // to an argument
  bool is_computed = false;       // here, where its inputs are known
  bool has_kernel = false;        // one for CUDA, rather than being made of other operators
  bool is_equal = false;          // aten::equal, which reads its result back
  bool is_view = false;           // it reads and writes no content
  bool overwrites = false;        // its first argument, whatever was there
  bool is_division = false;       // which may be asked to round
  bool depends_on_ties = false;   // which of two equal elements comes first
  bool depends_on_order = false;  // which of two writes to one element comes last
  bool is_product = false;        // of matrices or vectors
  Partly partly = Partly::kNo;
  Tells tells = Tells::kNothing;
  Distinct distinct = Distinct::kUnknown;
  uint32_t moved_arguments = 0;  // a bit for each
  Distribution distribution = Distribution::kNone;
  // Where the first step of an optimizer overwrites its buffers: the arguments that say so, and
  // that hold them.
  std::optional<size_t> is_first_step;
  size_t momentum_buffers = 0;
  std::vector<bool> is_written;       // for each argument
  std::vector<bool> is_out;           // written and not read
  std::vector<bool> is_returned;      // what is written there
  std::vector<int> written_argument;  // for each return: the argument that it is; -1: new tensors
  std::atomic<int> failures{0};

  static constexpr int kMostFailures = 8;
};

// nullptr for a range that is no operator. The name's address is enough where it was seen before.
OperatorInfo* operator_info(const at::RecordFunction& fn);

}  // namespace memledger::virtual_gpu
