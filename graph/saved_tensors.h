#pragma once

// What the autograd graph holds for the backward pass, to the byte.
//
//   const int64_t bytes = memledger::memory_for_backward(*model, loss, {{input}});
//   const memledger::SavedTensors saved = memledger::saved_for_backward(*model, loss);
//   std::cout << bytes << '\n' << saved;
//
// Counts each storage once and whole, in bytes as the program asked for them. Reading a graph runs
// no hook, computes nothing and keeps no tensor. docs/what_backward_keeps.md is the tutorial.

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>
#include <c10/util/ArrayRef.h>
#include <c10/util/DimVector.h>

#include <cstddef>
#include <cstdint>
#include <iosfwd>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace torch::nn {
class Module;
template <typename Contained>
class ModuleHolder;
}  // namespace torch::nn

namespace memledger {

// How totals count the bytes of a storage.
enum class Rounding : uint8_t {
  kRequested,   // as the program asked for them
  kCudaBlocks,  // up to the next multiple of 512, as CUDA's caching allocator does
};

// A call keeps no tensor; the options keep those you put in.
struct SavedTensorOptions {
  // Tensors whose storages are not activations, such as the input. A view excludes all of its
  // storage.
  std::vector<at::Tensor> exclude = {};
  // Reads only tensors on this device; a device without an index means all devices of its type.
  std::optional<c10::Device> device = std::nullopt;
  Rounding rounding = Rounding::kRequested;
  // What the program feeds the network with: excluded, too, with a role of its own.
  std::vector<at::Tensor> inputs = {};
  // Parameters besides those of the given module, such as those of a second one. by_layer() groups
  // by their names: `encoder.weight`.
  std::vector<std::pair<std::string, at::Tensor>> parameters = {};
  // Buffers besides those of the given module.
  std::vector<at::Tensor> buffers = {};
  // Promises what a ScopedTrainingPaused does (registry/training_paused.h), during the call: else,
  // while there are other threads, gradients that were set by hand are not known as such.
  bool training_paused = false;
};

// Whom a storage belongs to: the first that fits.
enum class SavedRole : uint8_t {
  kParameter,   // of the given module or options
  kBuffer,      // of the given module or options
  kInput,       // SavedTensorOptions::inputs
  kGradient,    // of a parameter, or of a leaf that the graph reaches
  kExcluded,    // SavedTensorOptions::exclude
  kRoot,        // the storage of a root itself
  kActivation,  // held by the graph, whoever else holds it
};

// Returns "parameter", "buffer", "input", "gradient", "excluded", "root" or "activation": the
// spelling of text, JSON and CSV.
const char* to_string(SavedRole role);

// One saved tensor. A sparse or nested tensor has a row for each of its parts, named behind a dot:
// `self.indices`, `self.values`.
struct SavedTensorRow {
  std::string node;              // `MulBackward0`
  uint64_t sequence_number = 0;  // autograd's: unique together with forward_thread
  uint64_t forward_thread = 0;   // autograd's number of the thread that ran the forward pass
  // `self`, `weight`, `result1`, `indices#0`; of a custom Function `saved#0`, `saved#1`, …
  std::string slot;
  std::optional<c10::DimVector> shape;  // none: unknown; a size of -1: symbolic
  std::optional<c10::ScalarType> dtype;
  std::optional<c10::Device> device;  // none: a TorchScript node of which nothing is known

  // The address of the storage's data, or of its StorageImpl where it has no data (meta, zero
  // bytes); 0 where no storage can be seen.
  uintptr_t storage_address = 0;
  uint64_t storage_id = 0;  // the registry's; 0: unknown
  // Identifies the tensor object while the graph lives; 0: unknown.
  uintptr_t tensor = 0;
  std::optional<int64_t> storage_bytes;         // as requested, never rounded; none: unknown
  std::optional<int64_t> extent_bytes;          // from the tensor's first to its last element
  std::optional<int64_t> storage_offset_bytes;  // from the storage's begin to the first element
  bool view = false;                            // the tensor shows only a part of its storage
  bool lent = false;  // Courtesy has taken the storage's data away for a while

  bool counted = false;               // the first row of its storage, whose bytes are in a total
  std::optional<size_t> shares_with;  // for later rows: the index of the first one in rows()
  bool in_place_modified = false;     // after saving: backward() would throw
  // Made in the TorchScript method of a node that cannot be read, which probably holds it.
  bool inferred = false;
  SavedRole role = SavedRole::kActivation;
};

// Why a node is in unread_nodes().
enum class UnreadReason : uint8_t {
  kPacked,       // held by saved-variable hooks other than CountedHooks; no hook is run
  kReleased,     // backward() has freed what the node had saved
  kUnknownType,  // a Function written in Python, or a node class of another library
  kTorchScript,  // what the node holds is inferred, or not known
  kBusy,         // backward() is running on the node, in another thread or further up the stack
  kFailed,       // a custom Function that could not be read to its end
  kHooks,        // register_hook(): the program's functions may hold tensors; all else was read
};

// Returns words for people: "packed, not opened", "released", "unknown type", "TorchScript",
// "in use", "failed" or "hooks".
const char* to_string(UnreadReason reason);
// Returns the reason as JSON spells it: "packed", "released", "unknown_type", "torchscript",
// "in_use", "failed" or "hooks".
std::string_view machine_name(UnreadReason reason);
std::ostream& operator<<(std::ostream& out, SavedRole role);
std::ostream& operator<<(std::ostream& out, UnreadReason reason);

// A node, all or some of whose saved tensors are in no row.
struct UnreadNode {
  std::string node;
  uint64_t sequence_number = 0;
  uint64_t forward_thread = 0;
  UnreadReason reason = UnreadReason::kUnknownType;
  std::string detail;  // the slots, or what went wrong
};

// Writes one line, without its end.
std::ostream& operator<<(std::ostream& out, const SavedTensorRow& row);
std::ostream& operator<<(std::ostream& out, const UnreadNode& node);

namespace graph_internal {
struct SavedTensorsData;
}

// The account of a graph: an immutable value that holds no tensor and no node. Cheap to copy; any
// number of threads may read it.
class SavedTensors {
 public:
  SavedTensors();

  // Returns the rows in the order of the walk from the roots, which is always the same.
  std::vector<SavedTensorRow> rows() const;
  // Returns how many rows there are, without making them.
  size_t row_count() const;
  // Returns how many nodes the graph has, those that save nothing included.
  size_t node_count() const;

  // Returns the bytes of the activations, each storage once, rounded as the options say.
  int64_t total_bytes() const;
  // Returns the bytes of one role; total_bytes() for kActivation.
  int64_t bytes(SavedRole role) const;
  // Returns how many of the activations' bytes were attributed to TorchScript nodes from births.
  // The program may hold some of them, not the graph: the total less these is what it holds at
  // least.
  int64_t inferred_bytes() const;
  // Returns how many rows have unknown bytes. They are in no total.
  size_t unknown_rows() const;

  // Returns the nodes that could not be read, or not to their end. What they hold is in no total.
  std::vector<UnreadNode> unread_nodes() const;
  // Returns true if every node was read or has been freed by backward(), and every row's bytes are
  // known. Then the totals are all that the graph's nodes still hold, except leaves that no node
  // has saved, which the graph keeps alive as well. Otherwise they are lower bounds, but for
  // inferred_bytes().
  bool complete() const;

  // Returns one JSON object, schema memledger.saved_tensors/2 (docs/formats.md). Bytes are exact
  // integers; null: unknown.
  std::string to_json() const;

  // Returns a header and a line per row (docs/formats.md). Bytes are exact; empty: unknown.
  std::string to_csv() const;

  // Returns a drawing for Graphviz: a box per node with the bytes that it is the first to hold, and
  // on the edges the bytes of the tensor that went from one operator to the next. Throws c10::Error
  // if the graph has more than `max_nodes`.
  std::string to_dot(size_t max_nodes = 500) const;

  // Prints totals, the 50 rows that matter most, largest activations first, and the unread nodes.
  friend std::ostream& operator<<(std::ostream& out, const SavedTensors& saved);

 private:
  friend struct graph_internal::SavedTensorsData;
  explicit SavedTensors(std::shared_ptr<const graph_internal::SavedTensorsData> data);

  std::shared_ptr<const graph_internal::SavedTensorsData> data_;
};

// Returns everything that the graphs of the roots hold, as one union. A storage counts as an
// activation unless an earlier SavedRole fits: in exp().sum() the result of exp() counts; where
// exp() is the root, its result is kRoot.
//
// Throws c10::Error if there is no root, a root is undefined or has no graph, or backward() has
// freed all that the graph had saved. For a graph that is freed in part, returns what is left; the
// freed nodes are in unread_nodes().
//
// Other threads may meanwhile build and run other graphs, over the same parameters, too. They must
// not set or clear gradients otherwise than by backward(), nor change a tensor of this graph in
// place. A node that backward() is running on is listed as in use; the account is then of no single
// instant, and backward() may wait while up to 16 nodes are read.
//
// Takes less than a microsecond per node while the graph fits into the cache, and some 200 bytes of
// host memory per node and row. Does not recurse, so the graph may be as deep as memory allows.
SavedTensors saved_for_backward(at::ArrayRef<at::Tensor> roots,
                                const SavedTensorOptions& options = {});

// Does the same, and sets the module's parameters and buffers apart. by_layer() and
// if_checkpointed() need the module's names.
SavedTensors saved_for_backward(const torch::nn::Module& net, at::ArrayRef<at::Tensor> roots,
                                const SavedTensorOptions& options = {});

// Returns the bytes of activations: saved_for_backward(net, loss, options).total_bytes(). The input
// counts unless `inputs` or `exclude` names it; parameters, buffers, gradients and the loss do not.
// A lower bound where nodes are unread, but for what is inferred of TorchScript's nodes.
int64_t memory_for_backward(const torch::nn::Module& net, const at::Tensor& loss,
                            const SavedTensorOptions& options = {});

// Returns what the Python function of that name does: one row per storage, that of the saved tensor
// with the most elements, or with `duplicate` false one row per slot. (As in Python, `duplicate`
// means "remove duplicates".) Leaves out the rows of the module's parameters and buffers by
// storage, so the transposed view of a Linear's weight is not taken for an activation.
SavedTensors get_tensors_saved_for_backward(const torch::nn::Module& net, const at::Tensor& output,
                                            bool duplicate = true);

// The same for a module holder: `net` instead of `*net`.
template <typename M>
SavedTensors saved_for_backward(const torch::nn::ModuleHolder<M>& net,
                                at::ArrayRef<at::Tensor> roots,
                                const SavedTensorOptions& options = {}) {
  return saved_for_backward(*net, roots, options);
}
template <typename M>
int64_t memory_for_backward(const torch::nn::ModuleHolder<M>& net, const at::Tensor& loss,
                            const SavedTensorOptions& options = {}) {
  return memory_for_backward(*net, loss, options);
}
template <typename M>
SavedTensors get_tensors_saved_for_backward(const torch::nn::ModuleHolder<M>& net,
                                            const at::Tensor& output, bool duplicate = true) {
  return get_tensors_saved_for_backward(*net, output, duplicate);
}

}  // namespace memledger
