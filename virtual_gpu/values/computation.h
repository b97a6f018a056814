#pragma once

#include <ATen/core/ivalue.h>
#include <c10/util/ArrayRef.h>
#include <c10/util/intrusive_ptr.h>

#include <optional>
#include <vector>

#include "virtual_gpu/values/operators.h"
#include "virtual_gpu/values/random.h"
#include "virtual_gpu/values/shadows.h"

namespace memledger::virtual_gpu {

// Whether what lies there is computed here. More elements than LibTorch computes on one thread are
// not: a program that forks does not expect it to have others.
bool may_compute(const Place& place);

// A tensor among an operator's arguments.
struct Operand {
  enum class Kind { kUndefined, kHost, kDevice, kOther };

  static Operand of(const at::Tensor& tensor);

  Kind kind = Kind::kOther;
  at::Tensor host;             // of kHost
  std::optional<Place> place;  // of kDevice; nothing where it is no plain tensor with memory
  caffe2::TypeMeta dtype;      // of kDevice
};

// An operator's arguments for later, when the graph that it was captured into is launched. Keeps no
// tensor of the program alive; scalars on the host are copied, as they are to the device.
class RecordedArguments {
 public:
  // Nothing where they cannot be kept.
  static std::optional<RecordedArguments> of(c10::ArrayRef<const c10::IValue> arguments);
  // Adds what Computation::written() will be.
  void add_written(const OperatorInfo& info, std::vector<Place>& places) const;

 private:
  friend class Computation;
  enum class Kind { kTensor, kTensors, kOptionalTensors, kOther };
  struct Argument {
    Kind kind = Kind::kOther;
    c10::IValue value;  // of kOther
    std::vector<Operand> operands;
  };

  bool add(Argument& argument, const at::Tensor& tensor);

  std::vector<Argument> arguments_;
  std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> owners_;
};

// An operator's arguments as they are known when it begins, to compute on the host what it does on
// the device. Holds no tensor of the device.
class Computation {
 public:
  // Nothing where its result could not be known.
  static std::optional<Computation> of(const OperatorInfo& info,
                                       c10::ArrayRef<const c10::IValue> arguments);
  static std::optional<Computation> of(const OperatorInfo& info,
                                       const RecordedArguments& arguments);

  // The tensors of the operator's returns, in order, and then those of written(); contiguous. May
  // throw. Needs a PlainCpu. `numbers` are those of a distribution.
  std::vector<Value> run(const RandomNumbers* numbers = nullptr);
  // Runs an operator that returns a bool and has no rule for what is partly known.
  bool answer();
  // What is written to and not returned. The storages are those of the arguments.
  const std::vector<Place>& written() const { return written_; }

 private:
  struct Argument {
    c10::IValue value;                // tensors are on the host
    std::vector<at::Tensor> unknown;  // for each tensor in it, undefined where all is known
    bool is_known() const;
  };

  explicit Computation(const OperatorInfo& info) : info_(&info) {}
  bool add(c10::IValue value, size_t index);
  bool add(const RecordedArguments::Argument& recorded, size_t index);
  bool is_worthwhile() const;
  std::optional<Value> look_at(const Operand& operand, size_t index);
  std::optional<Value> look_at_device(const Place& place, size_t index);
  bool writes_twice() const;
  bool is_unambiguous();
  bool is_safe_division() const;
  bool is_rounded_product() const;
  std::vector<at::Tensor> call(std::vector<c10::IValue> stack);
  std::vector<at::Tensor> call_widened(std::vector<c10::IValue> stack);
  at::Tensor moved_unknown(const at::Tensor& result);
  at::Tensor unknown_of(const at::Tensor& result);
  const at::Tensor& mask(size_t argument) const { return arguments_[argument].unknown[0]; }

  const OperatorInfo* info_;
  std::vector<Argument> arguments_;
  std::vector<Place> written_;
  std::optional<size_t> overwritten_;  // an argument, whatever was there
  bool any_known_ = false;
};

}  // namespace memledger::virtual_gpu
