#include "graph/saved_tensors.h"

#include <c10/core/TensorImpl.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <deque>
#include <tuple>
#include <utility>

#include "absl/types/span.h"
#include "graph/libtorch/libtorch_autograd.h"
#include "graph/registry_queries.h"
#include "graph/saved_tensors_data.h"
#include "registry/core/growing_map.h"
#include "registry/core/huge_pages.h"
#include "registry/libtorch/tensor_storages.h"

namespace memledger {
namespace graph_internal {
namespace {

using torch::autograd::Node;

constexpr int64_t kCudaBlockBytes = 512;

// Room that is not used yet takes addresses and no memory, while to grow copies everything and
// takes new pages for it. So what has become large gets room for a large graph at once.
template <typename T>
void make_room(core::LargeVector<T>& values, size_t count = 1) {
  constexpr size_t kLarge = 4096, kLargeGraph = 262144;
  if (values.capacity() - values.size() >= count) return;
  const size_t more = values.capacity() < kLarge ? 4 * values.capacity()
                                                 : std::max(kLargeGraph, 2 * values.capacity());
  values.reserve(std::max(more, values.size() + count + 64));
}

class Walk final : public NodeContents {
 public:
  explicit Walk(const SavedTensorOptions& options) : options_(options) {
    data_->rounding = options.rounding;
  }

  void add_owner(const at::Tensor& tensor, SavedRole role) {
    for_each_part(tensor, [&](const char*, const at::Tensor& part) {
      if (auto storage = storage_of(part))
        storages_on(storage->key.device).try_emplace(storage->key.address, Counted{kNone, role});
    });
  }

  void add_parameter(const std::string& name, const at::Tensor& parameter) {
    if (!parameter.defined()) return;
    parameters_.emplace(parameter.unsafeGetTensorImpl(),
                        static_cast<int32_t>(data_->parameters.size()));
    data_->parameters.push_back(name);
    add_owner(parameter, SavedRole::kParameter);
  }

  void run(const std::vector<NodePtr>& roots) {
    visited_.reserve(kUsualNodes);
    for (auto root = roots.rbegin(); root != roots.rend(); ++root) push(*root);
    // A graph is spread over memory, and most of the time would be spent waiting for it. So a node
    // is read kAhead nodes after it was opened; meanwhile what reading it needs is asked for, in
    // steps, each of which looks at what the one before has brought. For the next node's edges the
    // time that the oldest takes to be read is used.
    while (!stack_.empty() || opened_ != read_) {
      if (stack_.empty()) {
        read_oldest();
        continue;
      }
      const Opened& newest = open_next();
      if (opened_ - read_ > kAhead) read_oldest();
      follow(newest);
      __builtin_prefetch(edges_in_stack(0));
      __builtin_prefetch(edges_in_stack(kDeep / 2));
      look_ahead();
    }
    find_released();
    note_gradients();
    infer_torchscript();
  }

  bool found_something() const { return found_something_; }
  bool found_released() const { return found_released_; }
  std::shared_ptr<const SavedTensorsData> take_data() { return std::move(data_); }

  // NodeContents:
  void tensor(const char* slot, int index, const at::Tensor& tensor,
              bool in_place_modified) override {
    found_something_ = true;
    edge_ = static_cast<int16_t>(edge_of(**node_, tensor));
    const c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
    if (edge_ >= 0 && impl->layout() == c10::kStrided && !impl->is_nested() &&
        !impl->has_symbolic_sizes_strides()) {
      data_->edges[data_->nodes[place_].edges_begin + static_cast<uint32_t>(edge_)].bytes =
          impl->numel() * static_cast<int64_t>(impl->itemsize());
    }
    for_each_part(tensor, [&](const char* part, const at::Tensor& dense) {
      add_row(slot, index, part, dense, in_place_modified);
    });
    // What came in by an edge is reached by it.
    if (edge_ < 0 || is_view(tensor)) {
      for_each_node_held_by(tensor, [this](const NodePtr& node) { held_node(node); });
    }
  }

  const char* keep(std::string name) override {
    return data_->own_slots->insert(std::move(name)).first->c_str();
  }

  void leaf(const at::Tensor& leaf, const at::Tensor& gradient) override {
    const auto parameter = parameters_.find(leaf.unsafeGetTensorImpl());
    data_->nodes[place_].parameter =
        parameter == parameters_.end() ? CompactNode::kOtherLeaf : parameter->second;
    for_each_part(gradient, [&](const char*, const at::Tensor& part) {
      if (auto storage = storage_of(part)) gradients_.push_back(storage->key);
    });
  }

  void held_node(const NodePtr& node) override {
    if (visited_.contains(node.get())) return;
    for (const auto& edge : (*node_)->next_edges()) {
      if (edge.function == node) return;
    }
    kept_.push_back(node);
    push(kept_.back());
  }

  void calling_out() override {
    for (size_t i = read_; i != opened_; ++i) {
      opened(i).reading.lock = {};
      opened(i).tensor_count = 0;
    }
  }

  void packed(const char* slot, int index) override {
    found_something_ = true;
    if (!packed_slots_.empty()) packed_slots_ += ", ";
    packed_slots_ += slot;
    if (index >= 0) packed_slots_ += "#" + std::to_string(index);
  }

  void empty() override { empty_.push_back(node_); }

  void unknown_type(const char* why) override {
    found_something_ = true;
    note(UnreadReason::kUnknownType, why);
  }

  void torchscript() override {
    found_something_ = true;
    torchscript_nodes_.emplace_back(node_, place_);
  }

  void busy() override {
    found_something_ = true;
    note(UnreadReason::kBusy, "backward() is running on it");
  }

  void failed(const std::string& why) override {
    found_something_ = true;
    note(UnreadReason::kFailed, why);
  }

 private:
  struct Found {
    const NodePtr* node = nullptr;
    uint32_t place = 0;
  };
  struct Opened {
    NodeReader::Reading reading;
    uint32_t place = 0;
    size_t tensor_count = 0;  // of them, while the node is locked
    std::array<const at::Tensor*, 4> tensors;
  };
  // A storage that some row holds, or somebody else owns.
  struct Counted {
    uint32_t first_holder = kNone;
    SavedRole role = SavedRole::kActivation;
  };
  using Storages = core::GrowingMap<uintptr_t, Counted>;
  static constexpr uint32_t kNone = ~uint32_t{0};
  static constexpr size_t kAhead = 16;        // nodes; 8 and 32 gain nothing
  static constexpr size_t kDeep = 8;          // nodes in the stack
  static constexpr size_t kUsualNodes = 800;  // for which the tables need not grow

  Opened& opened(size_t number) { return ring_[number % ring_.size()]; }

  const Opened& open_next() {
    if (stack_.size() > kDeep) prefetch_edges(**stack_[stack_.size() - 1 - kDeep].node);
    Opened& next = opened(opened_++);
    next.place = stack_.back().place;
    next.tensor_count = 0;
    reader_.open(*stack_.back().node, next.reading);
    stack_.pop_back();
    const Node& node = **next.reading.node;
    const auto& edges = node.next_edges();
    for (size_t i = 0; i < std::min(edges.size(), kDeep); ++i) {
      if (!edges[i].function) continue;
      prefetch_edges(*edges[i].function);
      visited_.prefetch(edges[i].function.get());
    }
    prefetch_slots(node);
    return next;
  }

  // Of the node that lies so deep. (gcc 12 drops the call of a function that only prefetches.)
  const void* edges_in_stack(size_t depth) const {
    return stack_.size() > depth ? (*stack_[stack_.size() - 1 - depth].node)->next_edges().data()
                                 : nullptr;
  }

  void look_ahead() {
    if (Opened* const node = opened_before(kAhead / 4)) {
      node->tensor_count = reader_.peek(node->reading, absl::MakeSpan(node->tensors));
      for (size_t i = 0; i < node->tensor_count; ++i) prefetch_tensor(*node->tensors[i]);
    }
    if (const Opened* const node = opened_before(kAhead / 2)) {
      for (size_t i = 0; i < node->tensor_count; ++i) prefetch_storage(*node->tensors[i]);
    }
    if (const Opened* const node = opened_before(3 * kAhead / 4)) {
      for (size_t i = 0; i < node->tensor_count; ++i) {
        if (const auto storage = storage_of(*node->tensors[i]))
          storages_on(storage->key.device).prefetch(storage->key.address);
      }
    }
  }

  // So many nodes ago, if it has not been read yet.
  Opened* opened_before(size_t count) {
    return opened_ - read_ >= count ? &opened(opened_ - count) : nullptr;
  }

  void read_oldest() {
    Opened& oldest = opened(read_++);
    node_ = oldest.reading.node;
    place_ = oldest.place;
    packed_slots_.clear();
    reader_.read(oldest.reading, *this);
    oldest.reading.lock = {};
    if (!packed_slots_.empty()) note(UnreadReason::kPacked, packed_slots_);
    measure_edges();
  }

  // The place of a node, which is given to it when it is first heard of.
  uint32_t push(const NodePtr& node) {
    const auto [found, is_new] =
        visited_.try_emplace(node.get(), static_cast<uint32_t>(data_->nodes.size()));
    if (is_new) {
      make_room(data_->nodes);
      data_->nodes.emplace_back();
      stack_.push_back({&node, found->second});
    }
    return found->second;
  }

  void follow(const Opened& newest) {
    const Node& node = **newest.reading.node;
    const uint32_t name =
        NodeReader::number_of(*newest.reading.type);  // numbered when it was opened, just now
    if (name == data_->names.size()) data_->names.push_back(node.name());
    const auto& edges = node.next_edges();
    const auto begin = static_cast<uint32_t>(data_->edges.size());
    make_room(data_->edges, edges.size());
    data_->edges.resize(begin + edges.size());
    CompactNode& compact = data_->nodes[newest.place];
    compact.sequence_number = node.sequence_nr();
    compact.forward_thread = node.thread_id();
    compact.name = name;
    compact.edges_begin = begin;
    compact.edge_count = static_cast<uint32_t>(edges.size());
    for (size_t i = edges.size(); i-- > 0;) {
      if (!edges[i].function) continue;
      CompactEdge& edge = data_->edges[begin + i];
      const bool as_before =
          i + 1 < edges.size() && edges[i].function == edges[i + 1].function;  // x * x
      edge.node = as_before ? data_->edges[begin + i + 1].node : push(edges[i].function);
      edge.output_number = edges[i].input_nr;
      edge.bytes = CompactEdge::kNotMeasured;
    }
  }

  // Of the tensors that came in and were not saved, the producer knows the size.
  void measure_edges() {
    const CompactNode& node = data_->nodes[place_];
    const auto& edges = (*node_)->next_edges();
    for (uint32_t i = 0; i < node.edge_count; ++i) {
      CompactEdge& edge = data_->edges[node.edges_begin + i];
      if (edge.bytes == CompactEdge::kNotMeasured && edges[i].function)
        edge.bytes = bytes_along(edges[i]);
    }
  }

  // Asked at the end, for where nothing at all is left one answer will do.
  void find_released() {
    for (const NodePtr* node : empty_) {
      if (!reader_.is_released(*node)) continue;
      found_released_ = true;
      if (!found_something_) return;
      node_ = node;
      note(UnreadReason::kReleased, "backward has freed what it had saved");
    }
  }

  void note(UnreadReason reason, std::string detail) {
    const Node& node = **node_;
    data_->unread.push_back(
        {node.name(), node.sequence_nr(), node.thread_id(), reason, std::move(detail)});
  }

  // Of the leaves that the graph reaches: known only now.
  void note_gradients() {
    for (const StorageKey& key : gradients_) {
      const uint32_t first = first_holder_of(key);
      if (first == kNone) continue;
      if (data_->rows[first].role != SavedRole::kActivation) continue;
      add_bytes(SavedRole::kActivation, data_->rows[first].storage_bytes, 0);
      add_bytes(SavedRole::kGradient, 0, data_->rows[first].storage_bytes);
      for (CompactRow& row : data_->rows) {
        if (row.first_holder == first) row.role = SavedRole::kGradient;
      }
    }
  }

  // A TorchScript node is closed to us. What its method made in the forward pass and is still
  // alive, it has captured, or somebody else holds it.
  void infer_torchscript() {
    if (torchscript_nodes_.empty()) return;
    std::sort(
        torchscript_nodes_.begin(), torchscript_nodes_.end(), [this](const auto& a, const auto& b) {
          return data_->nodes[a.second].sequence_number < data_->nodes[b.second].sequence_number;
        });
    std::vector<uint64_t> made_before;  // the latest storage that each of them found there
    for (const auto& [node, place] : torchscript_nodes_)
      made_before.push_back(latest_storage_before(data_->nodes[place]));
    std::vector<size_t> counts(torchscript_nodes_.size());
    for (const StorageInfo& birth : alive_births_in_torchscript()) {
      const StorageKey key{birth.address, birth.device};
      if (storages_on(key.device).contains(key.address) || !wanted(birth.device)) continue;
      size_t owner = 0;
      for (size_t i = 1; i < torchscript_nodes_.size(); ++i) {
        if (made_before[i] < birth.id) owner = i;
      }
      std::tie(node_, place_) = torchscript_nodes_[owner];
      add_birth(key, birth, counts[owner]++);
    }
    for (size_t i = 0; i < torchscript_nodes_.size(); ++i) {
      std::tie(node_, place_) = torchscript_nodes_[i];
      if (counts[i] > 0) {
        note(UnreadReason::kTorchScript,
             "inferred from births in TorchScript methods: " + std::to_string(counts[i]));
        continue;
      }
      note(UnreadReason::kTorchScript,
           "no births seen in a TorchScript method, so what it holds is not known");
      CompactRow row;
      row.slot = "captures";
      row.node = place_;
      row.first_holder = static_cast<uint32_t>(data_->rows.size());
      ++data_->unknown_rows;
      data_->rows.push_back(row);
    }
  }

  uint64_t latest_storage_before(const CompactNode& node) const {
    uint64_t latest = 0;
    for (const CompactRow& row : data_->rows) {
      const CompactNode& other = data_->nodes[row.node];
      if (other.forward_thread == node.forward_thread &&
          other.sequence_number < node.sequence_number) {
        latest = std::max(latest, row.storage_id);
      }
    }
    return latest;
  }

  void add_birth(const StorageKey& key, const StorageInfo& birth, size_t index) {
    CompactRow row;
    row.slot = "inferred";
    row.slot_index = static_cast<int32_t>(index);
    row.node = place_;
    row.device = birth.device;
    row.address = birth.address;
    row.storage_id = birth.id;
    row.storage_bytes = birth.nbytes;
    row.inferred = row.counted = true;
    row.first_holder = static_cast<uint32_t>(data_->rows.size());
    if (birth.dtype) row.dtype = *birth.dtype;
    row.shape_begin = static_cast<uint32_t>(data_->shapes.size());
    if (birth.dtype) {
      data_->shapes.insert(data_->shapes.end(), birth.shape.begin(), birth.shape.end());
      row.rank = static_cast<int16_t>(birth.shape.size());
    }
    storages_on(key.device).try_emplace(key.address, Counted{row.first_holder, row.role});
    add_bytes(SavedRole::kActivation, 0, row.storage_bytes);
    data_->inferred_bytes += data_->rounded(row.storage_bytes);
    data_->rows.push_back(row);
  }

  bool wanted(c10::Device device) const {
    if (!options_.device.has_value()) return true;
    return options_.device->type() == device.type() &&
           (!options_.device->has_index() || !device.has_index() ||
            options_.device->index() == device.index());
  }

  void add_shape(const at::Tensor& tensor, CompactRow& row) {
    const c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
    row.shape_begin = static_cast<uint32_t>(data_->shapes.size());
    if (impl->is_nested()) return;
    try {
      if (impl->has_symbolic_sizes_strides()) {
        const auto sizes = tensor.sym_sizes();
        for (const c10::SymInt& size : sizes) {
          data_->shapes.push_back(size.maybe_as_int().value_or(-1));
        }
        row.rank = static_cast<int16_t>(sizes.size());
      } else {
        const c10::IntArrayRef sizes = impl->sizes();
        make_room(data_->shapes, sizes.size());
        for (const int64_t size : sizes) data_->shapes.push_back(size);
        row.rank = static_cast<int16_t>(sizes.size());
      }
    } catch (const c10::Error&) {
      data_->shapes.resize(row.shape_begin);
    }
  }

  void add_row(const char* slot, int index, const char* part, const at::Tensor& tensor,
               bool in_place_modified) {
    if (!tensor.defined()) return;
    const c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
    const c10::Device device = tensor_device(tensor);
    if (!wanted(device)) return;

    make_room(data_->rows);
    const auto place = static_cast<uint32_t>(data_->rows.size());
    static const CompactRow
        kEmpty;  // gcc 12 clears one by `rep stos`, which takes longer than to copy this
    CompactRow& row = data_->rows.emplace_back(kEmpty);
    __builtin_prefetch(&row + 8, 1);
    row.slot = slot;
    row.slot_index = index;
    row.part = part;
    row.node = place_;
    row.edge = edge_;
    row.device = device;
    row.dtype = c10::typeMetaToScalarType(impl->dtype());
    row.in_place_modified = in_place_modified;
    add_shape(tensor, row);
    row.first_holder = place;
    row.counted = true;
    if (const std::optional<StorageFacts> storage = storage_of(tensor)) {
      row.extent_bytes = extent_bytes_of(tensor).value_or(-1);
      if (row.extent_bytes >= 0)
        row.offset_bytes = impl->storage_offset() * static_cast<int64_t>(impl->itemsize());
      row.storage_bytes = storage->bytes.value_or(-1);
      row.address = storage->key.address;
      row.lent = storage->lent;
      row.tensor = reinterpret_cast<uintptr_t>(impl);
      row.view = row.extent_bytes >= 0 && row.extent_bytes < row.storage_bytes;
      count(storage->key, tensor, row);
    }
    if (row.storage_bytes < 0) {
      ++data_->unknown_rows;
      row.counted = false;
    }
  }

  Storages& storages_on(c10::Device device) {
    for (auto& [known, storages] : storages_) {
      if (known == device) return storages;
    }
    Storages& storages =
        storages_
            .emplace_back(std::piecewise_construct, std::forward_as_tuple(device), std::tuple<>())
            .second;
    storages.reserve(kUsualNodes);
    return storages;
  }

  uint32_t first_holder_of(const StorageKey& key) {
    const Storages& storages = storages_on(key.device);
    const auto found = storages.find(key.address);
    return found == storages.end() ? kNone : found->second.first_holder;
  }

  void count(const StorageKey& key, const at::Tensor& tensor, CompactRow& row) {
    Counted& counted = storages_on(key.device).try_emplace(key.address).first->second;
    if (counted.first_holder == kNone) {
      counted.first_holder = row.first_holder;
      row.role = counted.role;
      row.storage_id = storage_id_of(tensor);
      add_bytes(row.role, 0, row.storage_bytes);
      return;
    }
    CompactRow& first = data_->rows[counted.first_holder];
    row.counted = false;
    row.first_holder = counted.first_holder;
    row.role = first.role;
    row.storage_id = first.storage_id;
    if (row.storage_bytes > first.storage_bytes) {
      // Two storages over one address, as from_blob() makes them.
      add_bytes(first.role, first.storage_bytes, row.storage_bytes);
      first.storage_bytes = row.storage_bytes;
    }
  }

  void add_bytes(SavedRole role, int64_t before, int64_t now) {
    int64_t& total = data_->bytes[place_of(role)];
    if (before > 0) total -= data_->rounded(before);
    if (now > 0) total += data_->rounded(now);
  }

  const SavedTensorOptions& options_;
  std::shared_ptr<SavedTensorsData> data_ = std::make_shared<SavedTensorsData>();
  NodeReader reader_;
  std::deque<std::pair<c10::Device, Storages>> storages_;  // by address
  core::GrowingMap<const Node*, uint32_t> visited_;        // their places in data_->nodes
  core::GrowingMap<const c10::TensorImpl*, int32_t> parameters_;
  std::vector<StorageKey> gradients_;
  std::vector<Found> stack_;
  std::vector<std::pair<const NodePtr*, uint32_t>> torchscript_nodes_;
  std::deque<NodePtr> kept_;
  std::array<Opened, 2 * kAhead> ring_;
  size_t opened_ = 0, read_ = 0;  // how many nodes
  std::vector<const NodePtr*> empty_;

  const NodePtr* node_ = nullptr;  // the one being read
  uint32_t place_ = 0;             // its
  int16_t edge_ = -1;              // of it, that the tensor being read came in by
  std::string packed_slots_;
  bool found_something_ = false;
  bool found_released_ = false;
};

}  // namespace

SavedTensors walk_graph(const char* caller, at::ArrayRef<at::Tensor> roots,
                        const SavedTensorOptions& options, const Owned& owned) {
  TORCH_CHECK(!roots.empty(), caller,
              ": no root was given; pass the loss, or all tensors that "
              "backward() will start from");
  std::vector<NodePtr> nodes;
  for (size_t i = 0; i < roots.size(); ++i) {
    const at::Tensor& root = roots[i];
    TORCH_CHECK(root.defined(), caller, ": root ", i,
                " is undefined; pass the tensor that backward() starts from");
    nodes.push_back(grad_fn_of(root));
    TORCH_CHECK(nodes.back() || !root.requires_grad(), caller, ": root ", i,
                " is a leaf, which no operation computed, so it has no graph; "
                "pass the loss that was computed from it");
    TORCH_CHECK(nodes.back(), caller, ": root ", i,
                " has no graph: it was computed under NoGradGuard or from "
                "tensors that need no gradient, or was detached; pass a loss "
                "that backward() can be called on");
  }

  Walk walk(options);
  for (const auto& [name, tensor] : owned.parameters) walk.add_parameter(name, tensor);
  for (const auto& [name, tensor] : options.parameters) walk.add_parameter(name, tensor);
  for (const at::Tensor& tensor : owned.buffers) walk.add_owner(tensor, SavedRole::kBuffer);
  for (const at::Tensor& tensor : options.buffers) walk.add_owner(tensor, SavedRole::kBuffer);
  for (const at::Tensor& tensor : options.inputs) {
    walk.add_owner(tensor, SavedRole::kInput);
  }
  for (const auto* parameters : {&owned.parameters, &options.parameters}) {
    for (const auto& [name, tensor] : *parameters) {
      with_gradient_of(tensor, [&walk](const at::Tensor& gradient) {
        walk.add_owner(gradient, SavedRole::kGradient);
      });
    }
  }
  for (const at::Tensor& tensor : options.exclude) {
    walk.add_owner(tensor, SavedRole::kExcluded);
  }
  for (const at::Tensor& root : roots) {
    walk.add_owner(root, SavedRole::kRoot);
  }
  walk.run(nodes);
  TORCH_CHECK(walk.found_something() || !walk.found_released(), caller, ": the graph of root 0 (",
              nodes[0]->name(),
              ") has already been freed by backward(); call this between "
              "forward and backward(), or keep the graph with "
              "backward({}, /*retain_graph=*/true)");
  return SavedTensorsData::make(walk.take_data());
}

SavedTensors select_rows(const SavedTensors& saved, bool one_per_storage) {
  const SavedTensorsData& from = SavedTensorsData::of(saved);
  std::vector<uint32_t> best(from.rows.size());  // by first holder
  for (uint32_t i = 0; i < from.rows.size(); ++i) best[i] = i;
  if (one_per_storage) {
    for (uint32_t i = 0; i < from.rows.size(); ++i) {
      uint32_t& chosen = best[from.rows[i].first_holder];
      if (from.elements(from.rows[i]) > from.elements(from.rows[chosen])) {
        chosen = i;
      }
    }
  }
  auto data = std::make_shared<SavedTensorsData>(from);
  data->rows.clear();
  data->unknown_rows = 0;
  data->bytes[place_of(SavedRole::kParameter)] = 0;
  data->bytes[place_of(SavedRole::kBuffer)] = 0;
  std::vector<uint32_t> moved_to(from.rows.size());
  for (uint32_t i = 0; i < from.rows.size(); ++i) {
    CompactRow row = from.rows[i];
    if (row.role == SavedRole::kParameter || row.role == SavedRole::kBuffer) {
      continue;
    }
    const bool is_first = row.first_holder == i;
    if (one_per_storage) {
      if (!is_first) continue;
      row = from.rows[best[i]];
      row.counted = from.rows[i].counted;
    }
    moved_to[i] = static_cast<uint32_t>(data->rows.size());
    row.first_holder = is_first ? moved_to[i] : moved_to[row.first_holder];
    if (row.storage_bytes < 0) ++data->unknown_rows;
    data->rows.push_back(row);
  }
  return SavedTensorsData::make(std::move(data));
}

int64_t SavedTensorsData::rounded(int64_t bytes) const {
  if (rounding == Rounding::kRequested) return bytes;
  return (bytes + kCudaBlockBytes - 1) / kCudaBlockBytes * kCudaBlockBytes;
}

std::string SavedTensorsData::slot(const CompactRow& row) const {
  std::string text = row.slot;
  if (row.slot_index >= 0) text += "#" + std::to_string(row.slot_index);
  if (row.part[0] != '\0') text.append(".").append(row.part);
  return text;
}

const std::string& SavedTensorsData::node_name(const CompactRow& row) const {
  return names[nodes[row.node].name];
}

int64_t SavedTensorsData::elements(const CompactRow& row) const {
  int64_t product = row.rank < 0 ? 0 : 1;
  for (int16_t i = 0; i < row.rank; ++i) product *= shapes[row.shape_begin + i];
  return product;
}

SavedTensorRow SavedTensorsData::row(size_t index) const {
  const CompactRow& compact = rows[index];
  SavedTensorRow row;
  row.node = node_name(compact);
  row.sequence_number = nodes[compact.node].sequence_number;
  row.forward_thread = nodes[compact.node].forward_thread;
  row.slot = slot(compact);
  if (compact.rank >= 0) {
    const auto begin = shapes.begin() + static_cast<std::ptrdiff_t>(compact.shape_begin);
    row.shape.emplace(begin, begin + compact.rank);
  }
  row.dtype = compact.dtype;
  row.device = compact.device;
  row.storage_address = compact.address;
  row.storage_id = compact.storage_id;
  row.tensor = compact.tensor;
  if (compact.storage_bytes >= 0) row.storage_bytes = compact.storage_bytes;
  if (compact.extent_bytes >= 0) row.extent_bytes = compact.extent_bytes;
  row.storage_offset_bytes = compact.offset_bytes;
  row.view = compact.view;
  row.counted = compact.counted;
  if (compact.first_holder != index) row.shares_with = compact.first_holder;
  row.in_place_modified = compact.in_place_modified;
  row.lent = compact.lent;
  row.inferred = compact.inferred;
  row.role = compact.role;
  return row;
}

}  // namespace graph_internal

const char* to_string(SavedRole role) {
  switch (role) {
    case SavedRole::kParameter:
      return "parameter";
    case SavedRole::kBuffer:
      return "buffer";
    case SavedRole::kInput:
      return "input";
    case SavedRole::kGradient:
      return "gradient";
    case SavedRole::kExcluded:
      return "excluded";
    case SavedRole::kRoot:
      return "root";
    case SavedRole::kActivation:
      return "activation";
  }
  return "?";
}

const char* to_string(UnreadReason reason) {
  switch (reason) {
    case UnreadReason::kPacked:
      return "packed, not opened";
    case UnreadReason::kReleased:
      return "released";
    case UnreadReason::kUnknownType:
      return "unknown type";
    case UnreadReason::kTorchScript:
      return "TorchScript";
    case UnreadReason::kBusy:
      return "in use";
    case UnreadReason::kFailed:
      return "failed";
  }
  return "?";
}

SavedTensors::SavedTensors() : data_(std::make_shared<graph_internal::SavedTensorsData>()) {}

SavedTensors::SavedTensors(std::shared_ptr<const graph_internal::SavedTensorsData> data)
    : data_(std::move(data)) {}

std::vector<SavedTensorRow> SavedTensors::rows() const {
  std::vector<SavedTensorRow> rows;
  rows.reserve(data_->rows.size());
  for (size_t i = 0; i < data_->rows.size(); ++i) rows.push_back(data_->row(i));
  return rows;
}

size_t SavedTensors::row_count() const { return data_->rows.size(); }
size_t SavedTensors::node_count() const { return data_->nodes.size(); }

int64_t SavedTensors::total_bytes() const { return bytes(SavedRole::kActivation); }

int64_t SavedTensors::bytes(SavedRole role) const {
  return data_->bytes[graph_internal::place_of(role)];
}

int64_t SavedTensors::inferred_bytes() const { return data_->inferred_bytes; }

size_t SavedTensors::unknown_rows() const { return data_->unknown_rows; }

std::vector<UnreadNode> SavedTensors::unread_nodes() const { return data_->unread; }

bool SavedTensors::complete() const {
  return data_->unknown_rows == 0 &&
         std::all_of(data_->unread.begin(), data_->unread.end(),
                     [](const UnreadNode& node) { return node.reason == UnreadReason::kReleased; });
}

SavedTensors saved_for_backward(at::ArrayRef<at::Tensor> roots, const SavedTensorOptions& options) {
  return graph_internal::walk_graph("saved_for_backward", roots, options, {});
}

}  // namespace memledger
