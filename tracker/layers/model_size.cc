#include "tracker/model_size.h"

#include <ATen/Context.h>
#include <ATen/core/Generator.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/equal.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/Exception.h>
#include <c10/util/intrusive_ptr.h>

#include <algorithm>
#include <exception>
#include <mutex>
#include <set>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "graph/saved_tensors.h"
#include "registry/libtorch/storage_impl.h"
#include "tracker/layers/layer_observer.h"
#include "tracker/layers/sequential_probe.h"

namespace memledger::model_size_internal {
namespace {

// What forward() may change besides memory, and how it is put back.
class Before {
 public:
  Before(torch::nn::Module* module, const std::vector<torch::nn::Module*>& modules) {
    std::set<c10::DeviceIndex> cuda;
    if (module != nullptr) {
      for (torch::nn::Module* child : modules) modes_.emplace_back(child, child->is_training());
      for (const at::Tensor& buffer : module->buffers()) {
        if (!buffer.defined()) continue;
        buffers_.push_back({buffer, buffer.detach().clone(), version_of(buffer)});
      }
      for (const at::Tensor& parameter : module->parameters()) {
        if (parameter.defined() && parameter.is_cuda()) cuda.insert(parameter.device().index());
      }
    }
    remember(at::globalContext().defaultGenerator(c10::Device(c10::kCPU)));
    for (const c10::DeviceIndex index : cuda) note_device(c10::Device(c10::kCUDA, index));
  }

  void note_device(c10::Device device) {
    if (!device.is_cuda()) return;
    remember(at::globalContext().defaultGenerator(device));
  }

  // Puts back as much as possible, and then throws the first failure.
  void put_back() {
    const at::NoGradGuard no_grad;
    for (auto& [generator, state] : generators_) {
      const std::lock_guard<std::mutex> hold(generator.mutex());
      generator.set_state(state);
    }
    for (const auto& [module, training] : modes_) {
      if (module->is_training() != training) module->train(training);
    }
    std::exception_ptr failure;
    for (Buffer& buffer : buffers_) {
      try {
        if (!buffer.has_changed()) continue;
        if (buffer.is_strided() && buffer.now.sizes() != buffer.before.sizes())
          buffer.now.resize_(buffer.before.sizes());
        buffer.now.copy_(buffer.before);
      } catch (...) {
        if (failure == nullptr) failure = std::current_exception();
      }
    }
    if (failure != nullptr) std::rethrow_exception(failure);
  }

 private:
  static int64_t version_of(const at::Tensor& tensor) {
    return tensor.is_inference() ? 0 : tensor._version();
  }

  struct Buffer {
    at::Tensor now, before;
    int64_t version;

    bool is_strided() const {
      return now.layout() == at::kStrided && before.layout() == at::kStrided && !now.is_nested();
    }
    bool has_changed() const {
      if (version_of(now) != version) return true;
      if (!is_strided()) return false;
      try {
        // Batch normalization writes its statistics without counting a version.
        return !at::equal(now, before);
      } catch (...) {
        return true;  // a dtype that cannot be compared, or is another now
      }
    }
  };

  void remember(at::Generator generator) {
    for (const auto& known : generators_) {
      if (known.first == generator) return;
    }
    const std::lock_guard<std::mutex> hold(generator.mutex());
    at::Tensor state = generator.get_state();
    generators_.emplace_back(std::move(generator), std::move(state));
  }

  std::vector<std::pair<torch::nn::Module*, bool>> modes_;
  std::vector<Buffer> buffers_;
  std::vector<std::pair<at::Generator, at::Tensor>> generators_;
};

// Collects the rows as layers run, and notes which row made which storage.
class Rows final : public layers::OperatorListener {
 public:
  Rows(const layers::ModuleTree* tree, std::optional<int64_t> type_size)
      : tree_(tree), type_size_(type_size) {}

  // Notes a tensor that no layer makes.
  void note_known(const at::Tensor& tensor) {
    if (c10::StorageImpl* const storage = storage_impl_of(tensor))
      known_.emplace(storage, Made{weak(storage), kNobody});
  }

  void child_begins(torch::nn::Module& module) {
    const size_t row = row_of(tree_->index_of(module));
    ++layers_[row].calls;
    enter(row);
    inside_.push_back(row);
  }
  void child_ends(const at::Tensor* result) {
    if (inside_.empty()) return;
    if (result != nullptr && result->defined()) note_shape(layers_[inside_.back()], *result);
    inside_.pop_back();
    begun_ = kNobody;
  }

  void on_operator(const char* name, std::optional<size_t> layer) override {
    if (layer.has_value()) {
      const size_t row = row_of(*layer);
      // A child of a Sequential that is itself the owner has begun already.
      if (row != last_ || begun_ != row) {
        if (std::find(inside_.begin(), inside_.end(), row) == inside_.end()) ++layers_[row].calls;
      }
      last_ = begun_ = row;
      running_ = row;
      return;
    }
    // A child without layers of its own has all its operators.
    if (begun_ != kNobody && begun_ == last_ && !inside_.empty() && inside_.back() == last_) {
      running_ = last_;
      return;
    }
    begun_ = kNobody;
    const auto [row, is_new] = operators_.try_emplace({last_, name}, layers_.size());
    if (is_new) {
      LayerSize& made = layers_.emplace_back();
      made.name = name;
      made.is_module = false;
      under_.push_back(last_);
    }
    running_ = row->second;
    ++layers_[running_].calls;
  }

  void on_leaf(const at::Tensor& leaf) override {
    c10::StorageImpl* const storage = storage_impl_of(leaf);
    if (storage != nullptr && known_.count(storage) > 0) return;  // an input, or seen before
    note_known(leaf);
    leaves_.push_back(leaf);
  }
  // Returns what a callable consumed.
  const std::vector<at::Tensor>& leaves() const { return leaves_; }

  void on_result(const at::Tensor& tensor, bool outermost) override {
    if (running_ == kNobody) return;
    LayerSize& layer = layers_[running_];
    c10::StorageImpl* const storage = storage_impl_of(tensor);
    if (storage != nullptr) {
      const bool is_new = known_.try_emplace(storage, Made{weak(storage), running_}).second;
      if (is_new) fresh_.insert(storage);
      if (outermost && fresh_.erase(storage) > 0) {
        auto bytes = static_cast<int64_t>(storage->nbytes());
        if (type_size_) bytes = bytes / static_cast<int64_t>(tensor.itemsize()) * *type_size_;
        layer.activation_bytes += bytes;
        intermediate_bytes_ += bytes;
      }
    }
    if (outermost) note_shape(layer, tensor);
  }

  // Returns the rows that made the storages still alive, by address.
  std::unordered_map<uintptr_t, size_t> makers() const {
    std::unordered_map<uintptr_t, size_t> result;
    for (const auto& [storage, made] : known_) {
      if (made.row == kNobody) continue;
      if (const auto alive = made.storage.lock()) {
        result.emplace(reinterpret_cast<uintptr_t>(alive->_mutable_data_ptr_no_checks().get()),
                       made.row);
      }
    }
    return result;
  }

  std::vector<LayerSize>& layers() { return layers_; }
  int64_t intermediate_bytes() const { return intermediate_bytes_; }

  // Returns the rows with operators under their module.
  std::vector<LayerSize> ordered() const {
    std::vector<LayerSize> result;
    for (size_t i = 0; i < layers_.size(); ++i) {
      if (under_[i] != kNobody) continue;
      result.push_back(layers_[i]);
      for (size_t k = 0; k < layers_.size(); ++k) {
        if (!layers_[k].is_module && under_[k] == i) result.push_back(layers_[k]);
      }
    }
    return result;
  }

 private:
  static constexpr size_t kNobody = ~size_t{0};
  using Weak = c10::weak_intrusive_ptr<c10::StorageImpl>;
  struct Made {
    Weak storage;  // so that no other StorageImpl gets the address; holds no data
    size_t row;
  };

  static Weak weak(c10::StorageImpl* storage) {
    return Weak(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(storage));
  }

  static void note_shape(LayerSize& layer, const at::Tensor& tensor) {
    const c10::TensorImpl* const impl = tensor.unsafeGetTensorImpl();
    if (impl->is_nested() || impl->has_symbolic_sizes_strides()) {
      layer.output_shape.reset();
    } else {
      layer.output_shape = tensor.sizes().vec();
    }
  }

  size_t row_of(size_t index) {
    const auto [row, is_new] = modules_.try_emplace(index, layers_.size());
    if (is_new) {
      const layers::ModuleLayer& module = tree_->layers()[index];
      LayerSize& made = layers_.emplace_back();
      made.name = module.name;
      made.type = module.type;
      made.parameters = module.parameters;
      under_.push_back(kNobody);
    }
    return row->second;
  }

  void enter(size_t row) { last_ = begun_ = row; }

  const layers::ModuleTree* const tree_;
  const std::optional<int64_t> type_size_;
  std::vector<LayerSize> layers_;
  std::vector<size_t> under_;  // for an operator's row, the row of the module above
  std::unordered_map<size_t, size_t> modules_;
  std::map<std::pair<size_t, std::string>, size_t> operators_;
  std::unordered_map<c10::StorageImpl*, Made> known_;
  std::vector<at::Tensor> leaves_;
  std::unordered_set<c10::StorageImpl*> fresh_;  // returned by inner operators only so far
  std::vector<size_t> inside_;                   // children of Sequentials that run
  size_t last_ = kNobody;                        // row of the last module
  size_t begun_ = kNobody;  // the same, as long as nothing else has run since it began
  size_t running_ = kNobody;
  int64_t intermediate_bytes_ = 0;
};

}  // namespace

struct Run::State {
  State(torch::nn::Module* module, const ModelSizeOptions& options)
      : module(module),
        options(options),
        tree(module == nullptr ? nullptr : std::make_unique<layers::ModuleTree>(*module)),
        before(module, tree == nullptr ? std::vector<torch::nn::Module*>() : tree->modules()),
        rows(tree.get(), options.type_size) {
    size.model = module == nullptr ? "callable" : layers::plain_type_name(module->name());
  }

  void note_parameter(const at::Tensor& parameter) {
    size.parameters += parameter.numel();
    size.parameter_bytes +=
        parameter.numel() * options.type_size.value_or(static_cast<int64_t>(parameter.itemsize()));
  }

  SavedTensors saved_tensors(const std::vector<at::Tensor>& roots) const {
    SavedTensorOptions saved_options;
    saved_options.exclude = inputs;
    for (const at::Tensor& leaf : rows.leaves()) saved_options.parameters.emplace_back("", leaf);
    return module == nullptr ? saved_for_backward(roots, saved_options)
                             : saved_for_backward(*module, roots, saved_options);
  }

  void measure_saved() {
    std::vector<at::Tensor> roots;
    for (const at::Tensor& output : outputs) {
      if (output.grad_fn() != nullptr) roots.push_back(output);
    }
    if (roots.empty()) return;
    const SavedTensors saved = saved_tensors(roots);
    const std::unordered_map<uintptr_t, size_t> makers = rows.makers();
    for (const SavedTensorRow& row : saved.rows()) {
      if (!row.counted || row.role != SavedRole::kActivation || !row.storage_bytes.has_value())
        continue;
      const auto maker = makers.find(row.storage_address);
      (maker == makers.end() ? size.other_saved_bytes : rows.layers()[maker->second].saved_bytes) +=
          *row.storage_bytes;
    }
    size.saved_bytes = saved.total_bytes();
    size.saved_is_complete = saved.complete();
  }

  // The listeners go first: putting back runs operators.
  void finish() {
    operators.reset();
    probes.reset();
    grad.reset();
    if (std::exchange(begun, false)) before.put_back();
  }

  torch::nn::Module* const module;
  const ModelSizeOptions options;
  const std::unique_ptr<layers::ModuleTree> tree;
  Before before;
  Rows rows;
  ModelSize size;
  std::vector<at::Tensor> inputs;
  std::vector<at::Tensor> outputs;
  bool begun = false;
  std::optional<at::AutoGradMode> grad;
  std::optional<layers::SequentialProbes> probes;
  std::optional<layers::ScopedOperators> operators;
};

Run::Run(torch::nn::Module* module, const ModelSizeOptions& options) {
  TORCH_CHECK(!c10::InferenceMode::is_enabled(),
              "memledger: modelsize() was called under c10::InferenceMode, where autograd keeps "
              "nothing for backward. Call it outside.");
  TORCH_CHECK(options.type_size.value_or(1) > 0, "memledger: type_size is ", *options.type_size,
              "; it is the bytes of an element, 1 or more");
  state_ = std::make_unique<State>(module, options);
}

Run::~Run() {
  try {
    state_->finish();
  } catch (...) {
    // forward()'s exception is on its way.
  }
}

at::Tensor Run::copy(const at::Tensor& input) {
  if (!input.defined()) return input;
  const at::NoGradGuard no_grad;
  at::Tensor copy = input.detach().clone();
  if (input.requires_grad()) copy.set_requires_grad(true);
  note_input(copy);
  return copy;
}

void Run::note_input(const at::Tensor& input) {
  if (!input.defined()) return;
  state_->before.note_device(input.device());
  state_->inputs.push_back(input);
}

void Run::begin() {
  State& state = *state_;
  const auto note = [&](const at::Tensor& tensor) {
    if (tensor.defined()) state.rows.note_known(tensor);
  };
  for (const at::Tensor& input : state.inputs) note(input);
  if (state.module != nullptr) {
    std::unordered_set<const c10::TensorImpl*> seen;
    for (const at::Tensor& parameter : state.module->parameters()) {
      note(parameter);
      if (!parameter.defined() || !seen.insert(parameter.unsafeGetTensorImpl()).second) continue;
      state.note_parameter(parameter);
    }
    for (const at::Tensor& buffer : state.module->buffers()) note(buffer);
  }
  state.begun = true;
  if (state.module != nullptr && state.options.training)
    state.module->train(*state.options.training);
  state.grad.emplace(true);
  if (state.tree != nullptr) {
    state.probes.emplace(
        state.tree->modules(),
        layers::SequentialProbes::Listener{
            [&rows = state.rows](torch::nn::Module& child) { rows.child_begins(child); },
            [&rows = state.rows](torch::nn::Module&, const at::Tensor* result) {
              rows.child_ends(result);
            }});
  }
  state.operators.emplace(state.tree.get(), state.rows);
}

void Run::note_output(const at::Tensor& output) {
  if (output.defined()) state_->outputs.push_back(output);
}

ModelSize Run::end() {
  State& state = *state_;
  state.operators.reset();
  for (const at::Tensor& leaf : state.rows.leaves()) state.note_parameter(leaf);
  state.measure_saved();
  state.size.layers = state.rows.ordered();
  state.size.intermediate_bytes = state.rows.intermediate_bytes();
  for (const LayerSize& layer : state.size.layers)
    state.size.activation_bytes += layer.activation_bytes;
  state.finish();
  return std::move(state.size);
}

}  // namespace memledger::model_size_internal
