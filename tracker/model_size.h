#pragma once

// Measures what a module's parameters and the results of one forward pass take, layer by layer.
// See docs/what_backward_keeps.md.
//
//   const memledger::ModelSize size = memledger::modelsize(model, input);
//   std::cout << size;
//   const int64_t kept = size.saved_bytes;  // what autograd keeps for backward
//   const memledger::ModelSize half = memledger::modelsize(model, input, /*type_size=*/2);

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <iosfwd>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "tracker/layers/model_size_run.h"

namespace memledger {

struct ModelSizeOptions {
  // Bytes of one element, instead of each tensor's own, for parameter_bytes, intermediate_bytes
  // and activation_bytes; 1 or more. saved_bytes is measured whatever this is.
  std::optional<int64_t> type_size;
  // Mode for the pass; nothing: the one that the module is in.
  std::optional<bool> training;
};

// A module that owns a parameter which an operator consumed, or a child of a Sequential; or the
// operators of one name that consumed no parameter after it.
struct LayerSize {
  std::string name;       // path, features.0, empty for the module itself; or the operator's name
  std::string type;       // Conv2d; empty for an operator
  bool is_module = true;  // false: operators, listed under the module that ran before them
  int64_t calls = 0;      // times that it ran; for operators how many there were
  // Shape of its last result; nothing: none, or not known.
  std::optional<std::vector<int64_t>> output_shape;
  int64_t parameters = 0;  // elements of its own; a tied parameter counts at its first owner
  // Bytes of its results, each storage once; nothing for one that works in place.
  int64_t activation_bytes = 0;
  // Bytes it made (results, indices, masks, statistics) that autograd keeps.
  int64_t saved_bytes = 0;
};

struct ModelSize {
  std::string model;  // type without namespace and Impl; "callable" for a callable
  // Bytes of the parameters, tied ones once.
  int64_t parameter_bytes = 0;
  // Bytes of the layers' results, each storage once, by the rule of Pytorch-Memory-Utils; the text
  // shows twice that as "with backward".
  int64_t intermediate_bytes = 0;

  // Elements of the parameters, tied ones once.
  int64_t parameters = 0;
  // Sum over `layers`; equals intermediate_bytes.
  int64_t activation_bytes = 0;
  // Bytes that autograd keeps after the pass, without the input, parameters, buffers and the
  // result: the sum over `layers` and other_saved_bytes.
  int64_t saved_bytes = 0;
  // The part of saved_bytes made where no operator was seen: on other threads.
  int64_t other_saved_bytes = 0;
  // False: the graph has nodes that cannot be read, so saved_bytes is a lower bound.
  bool saved_is_complete = true;
  // In the order in which they first ran.
  std::vector<LayerSize> layers;

  // Returns one JSON object, memledger.model_size/2 in docs/formats.md.
  std::string to_json() const;
};

// Prints the three lines of Pytorch-Memory-Utils, spelling included, what is kept for backward, and
// a table of the layers. In MB (10^6 bytes).
std::ostream& operator<<(std::ostream& out, const ModelSize& size);

// Calls forward() of `module` once with the inputs, gradients on, and measures. `module` is a
// module, a ModuleHolder, a shared_ptr to a module, an AnyModule, or anything that can be called
// with the inputs. A callable's parameters are the leaves that its operators read and that require
// grad, without the inputs.
//
// Afterwards everything is as before: inputs are copied first; training mode, buffers and random
// number generators are put back; nothing of the pass stays alive. Nobody else may use the module
// meanwhile. Throws what forward() throws; c10::Error under c10::InferenceMode, for a type_size
// below 1, and for a buffer that cannot be put back. Cost: one forward pass, a copy of inputs and
// buffers, about a microsecond per operator.
template <class M, class... In>
ModelSize modelsize(const ModelSizeOptions& options, M&& module, In&&... inputs) {
  model_size_internal::Run run(model_size_internal::module_of(module), options);
  model_size_internal::call_once(run, module, std::forward<In>(inputs)...);
  return run.end();
}

template <class M, class... In,
          std::enable_if_t<!std::is_same_v<std::decay_t<M>, ModelSizeOptions> &&
                               !model_size_internal::IsTensorAndSize<std::decay_t<In>...>::value,
                           int> = 0>
ModelSize modelsize(M&& module, In&&... inputs) {
  return modelsize(ModelSizeOptions{}, module, std::forward<In>(inputs)...);
}

// Takes type_size behind the input, as the Python tool does. For a module whose forward() takes an
// integer after a tensor write modelsize(ModelSizeOptions{}, module, input, 2); a bool is
// forward()'s.
template <class M, class Size,
          std::enable_if_t<!std::is_same_v<std::decay_t<M>, ModelSizeOptions> &&
                               model_size_internal::IsTensorAndSize<at::Tensor, Size>::value,
                           int> = 0>
ModelSize modelsize(M&& module, const at::Tensor& input, Size type_size) {
  ModelSizeOptions options;
  options.type_size = static_cast<int64_t>(type_size);
  return modelsize(options, module, input);
}

}  // namespace memledger
