// What the autograd graph holds for the backward pass, to the byte.
//
//   torch::Tensor loss = net->forward(input).sum();
//   int64_t bytes = memledger::memory_for_backward(*net, loss, {{input}});
//   std::cout << memledger::saved_for_backward(loss);      // who holds what
//
// Units    Bytes, as the program asked for them; a storage is counted once, however many slots,
// views and lazy copies
//          share it, and whole, however little of it a saved view shows: that is what stays in
//          memory.
// Harmless The graph is read where it stands. No unpack hook runs, nothing is recomputed, no tensor
// is kept, use counts are
//          as before after return.
// Complete All of LibTorch's own nodes with their lists and optional slots; custom Functions (saved
// variables, tensors in
//          saved_data however deep in lists, tuples, dictionaries and objects); in-place operations
//          on views. What cannot be read is listed by unread_nodes(): Python's Functions, node
//          classes of others, what saved-variable hooks packed (graph/counted_hooks.h: those that
//          say what they hold are counted). It is not in the totals. TorchScript's nodes are
//          closed, too: what their methods made in the forward pass and still lives is taken for
//          theirs, and marked `inferred`, if the registry was active then; else there is a row of
//          `?`.
// Errors   c10::Error: no root given, an undefined root, a root without a graph, a graph that
// backward() has freed. A graph
//          freed in part gives what is left, and names the freed nodes in unread_nodes().
// Threads  Values may be read by any number of threads. A graph may be read while other threads
// build or run other graphs,
//          also over the same parameters, but not while they set or clear gradients otherwise than
//          by backward(). If backward() runs on the graph itself, nodes it is at are listed as in
//          use and those it has freed as released: nothing is torn, but the account is of no one
//          instant; it waits for at most some 16 nodes to be read. Not detected: an in-place
//          operation, in another thread, on a tensor of the graph.
// Cost     See tests/bench/saved_tensors_cost.cc: well under a microsecond per node while the graph
// fits into the cache, some
//          200 bytes of host memory per node and row, and for a graph of thousands of nodes 40 MB
//          of addresses in which nothing lies yet; no recursion, so a graph may be as deep as
//          memory allows.

#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>
#include <c10/util/ArrayRef.h>

#include <cstddef>
#include <cstdint>
#include <iosfwd>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace torch::nn {
class Module;
template <typename Contained>
class ModuleHolder;
}  // namespace torch::nn

namespace memledger {

// How a storage's bytes are counted.
enum class Rounding {
  kRequested,   // as asked of the allocator
  kCudaBlocks,  // each storage up to the next multiple of 512, as CUDA's does
};

struct SavedTensorOptions {
  // Tensors whose storages are not activations: the input, say. Any view of a
  // storage excludes all of it. Kept only during the call.
  std::vector<at::Tensor> exclude = {};
  // Only what lies here; a device without an index means all of its type.
  std::optional<c10::Device> device = std::nullopt;
  Rounding rounding = Rounding::kRequested;
  // As `exclude`, and told apart: what the program feeds the network with.
  std::vector<at::Tensor> inputs = {};
  // Besides those of the module that is given, if one is: of several modules, or of one that is no
  // torch::nn::Module. Names as `encoder.weight`; layers are made of them.
  std::vector<std::pair<std::string, at::Tensor>> parameters = {};
  std::vector<at::Tensor> buffers = {};
};

// Whom a storage belongs to: the first that fits.
enum class SavedRole {
  kParameter,   // of the module that was given
  kBuffer,      // of the module that was given
  kInput,       // given by the options as one
  kGradient,    // of the module's parameters, or of a leaf that the graph reaches
  kExcluded,    // by the options
  kRoot,        // the storage of a root itself
  kActivation,  // held by the graph, whoever else may hold it
};

// "parameter", "buffer", "input", "gradient", "excluded", "root", "activation".
const char* to_string(SavedRole role);

// One saved tensor; for sparse and nested ones one row per part, the part's
// name behind a dot: `self.indices`, `self.values`.
struct SavedTensorRow {
  std::string node;              // `MulBackward0`
  uint64_t sequence_number = 0;  // per thread: unique with forward_thread
  uint64_t forward_thread = 0;
  std::string slot;                           // `self`, `weight`, `result1`, `indices#0`; a custom
                                              // Function's tensors are `saved#0`, `saved#1`, …
  std::optional<std::vector<int64_t>> shape;  // -1: a symbolic size
  c10::ScalarType dtype = c10::ScalarType::Undefined;
  c10::Device device = c10::Device(c10::kCPU);

  // Where the storage's data begins, or where it has none (meta, zero bytes)
  // the address of its StorageImpl; 0 where there is no storage to be seen.
  uintptr_t storage_address = 0;
  uint64_t storage_id = 0;               // the registry's; 0 = unknown
  uintptr_t tensor = 0;                  // identity of the tensor object, while the graph lives
  std::optional<int64_t> storage_bytes;  // as asked for; none = unknown
  std::optional<int64_t> extent_bytes;   // first to last element of the tensor
  int64_t storage_offset_bytes = 0;      // where the tensor begins in its storage
  bool view = false;                     // the tensor shows part of its storage
  bool lent = false;                     // Courtesy has taken the storage's data away for a while

  bool counted = false;               // the first holder of its storage
  std::optional<size_t> shares_with;  // else the first holder's place in rows()
  bool in_place_modified = false;     // after saving: backward() would throw
  bool inferred =
      false;  // born in the TorchScript method of a node that cannot be read: probably held by it
  SavedRole role = SavedRole::kActivation;
};

enum class UnreadReason {
  kPacked,       // held by saved-variable hooks, which were not run
  kReleased,     // backward has freed what the node had saved
  kUnknownType,  // a node whose type is closed to us
  kTorchScript,  // what it holds is inferred, or not known
  kBusy,         // backward() is running on it, in another thread or further up
  kFailed,       // a custom Function that could not be read to its end
};

// "packed, not opened", "released", "unknown type", "TorchScript", "in use", "failed".
const char* to_string(UnreadReason reason);
std::ostream& operator<<(std::ostream& out, SavedRole role);
std::ostream& operator<<(std::ostream& out, UnreadReason reason);

struct UnreadNode {
  std::string node;
  uint64_t sequence_number = 0;
  uint64_t forward_thread = 0;
  UnreadReason reason = UnreadReason::kUnknownType;
  std::string detail;  // the slots, or what went wrong
};

// One line each, without its end.
std::ostream& operator<<(std::ostream& out, const SavedTensorRow& row);
std::ostream& operator<<(std::ostream& out, const UnreadNode& node);

namespace graph_internal {
struct SavedTensorsData;
}

// An immutable value; holds no tensor and no node. Copies are cheap.
class SavedTensors {
 public:
  SavedTensors();

  // In the order of the walk from the roots, which is the same every time.
  std::vector<SavedTensorRow> rows() const;
  size_t row_count() const;
  size_t node_count() const;  // of the graph, those that save nothing included

  // The activations, each storage once, rounded as the options say.
  int64_t total_bytes() const;
  int64_t bytes(SavedRole role) const;  // kActivation: total_bytes()
  int64_t inferred_bytes() const;       // of the activations
  // Rows whose bytes are not known: they are in no total.
  size_t unknown_rows() const;

  std::vector<UnreadNode> unread_nodes() const;
  // True where the totals are all that the graph still holds: no node closed to
  // us, packed or failed, and no row of unknown bytes.
  bool complete() const;

  // {"schema":"memledger.saved_tensors/1","total_bytes":…,"rows":[…],…}. Bytes
  // are exact integers, null where unknown.
  std::string to_json() const;

  // A line per row under a fixed header, exact bytes; empty where unknown. Quoted as RFC 4180 says.
  std::string to_csv() const;

  // The graph as a drawing for Graphviz: a box per node with the bytes it is the first to hold, on
  // the edges the bytes of the tensor that flowed from one operator into the next. c10::Error for
  // more than `max_nodes`, which nobody could read.
  std::string to_dot(size_t max_nodes = 500) const;

  // A table, biggest first, 50 rows at most; sizes in powers of 1024.
  friend std::ostream& operator<<(std::ostream& out, const SavedTensors& saved);

 private:
  friend struct graph_internal::SavedTensorsData;
  explicit SavedTensors(std::shared_ptr<const graph_internal::SavedTensorsData> data);

  std::shared_ptr<const graph_internal::SavedTensorsData> data_;
};

// Everything the graph under the roots holds; several roots are one union. All
// of it is activation but what the options exclude and the roots' own storages:
// the result of exp() counts in exp().sum(), and is apart where it is the root.
SavedTensors saved_for_backward(at::ArrayRef<at::Tensor> roots,
                                const SavedTensorOptions& options = {});

// The gist's function of that name. `duplicate` means "remove duplicates", as
// there: true gives one row per storage, that of the saved tensor with the most
// elements; false gives the raw rows, one per slot. Rows of the net's
// parameters and buffers are left out, by storage: where the gist took the
// transposed view of a Linear's weight for an activation, this does not.
SavedTensors get_tensors_saved_for_backward(const torch::nn::Module& net, const at::Tensor& output,
                                            bool duplicate = true);

// What the graph holds, whoever else holds it too, less the storages of the
// net's parameters and buffers, of the loss and of what the options exclude.
// The input is in, unless excluded. Where saved_for_backward() would list
// unread nodes the figure is a lower bound.
int64_t memory_for_backward(const torch::nn::Module& net, const at::Tensor& loss,
                            const SavedTensorOptions& options = {});

// The rows behind memory_for_backward().
SavedTensors saved_for_backward(const torch::nn::Module& net, at::ArrayRef<at::Tensor> roots,
                                const SavedTensorOptions& options = {});

// The same for a module holder, so that `net` will do for `*net`.
template <typename M>
SavedTensors get_tensors_saved_for_backward(const torch::nn::ModuleHolder<M>& net,
                                            const at::Tensor& output, bool duplicate = true) {
  return get_tensors_saved_for_backward(*net, output, duplicate);
}
template <typename M>
int64_t memory_for_backward(const torch::nn::ModuleHolder<M>& net, const at::Tensor& loss,
                            const SavedTensorOptions& options = {}) {
  return memory_for_backward(*net, loss, options);
}
template <typename M>
SavedTensors saved_for_backward(const torch::nn::ModuleHolder<M>& net,
                                at::ArrayRef<at::Tensor> roots,
                                const SavedTensorOptions& options = {}) {
  return saved_for_backward(*net, roots, options);
}

}  // namespace memledger
