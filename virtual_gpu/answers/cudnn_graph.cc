// cuDNN: the graph interface. A descriptor keeps what is set and gives it back. Finalizing one
// computes what cuDNN would compute itself: the engines for an operation graph, their notes, and
// the workspace of a plan.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <vector>

#include "virtual_gpu/answers/cudart.h"
#include "virtual_gpu/answers/cudnn.h"
#include "virtual_gpu/cudnn_planner_client.h"
#include "virtual_gpu/library_sizes.h"
#include "virtual_gpu/machine.h"
#include "virtual_gpu/missing_cudnn.h"

namespace memledger::virtual_gpu::cudnn {
namespace {

// cudnnBackendDescriptorType_t.
constexpr int kEngine = 2;
constexpr int kEngineConfig = 3;
constexpr int kHeuristics = 4;
constexpr int kPlan = 5;
constexpr int kForwardOperation = 10;
constexpr int kBackwardFilterOperation = 11;
constexpr int kBackwardDataOperation = 12;
constexpr int kMatmulOperation = 19;
constexpr int kOperationGraph = 15;
constexpr int kAttentionForwardOperation = 41;
constexpr int kAttentionBackwardOperation = 43;

// cudnnBackendAttributeName_t.
constexpr int kConvolutionDilations = 102;
constexpr int kConvolutionStrides = 103;
constexpr int kHeuristicsMode = 200;
constexpr int kHeuristicsGraph = 201;
constexpr int kHeuristicsResults = 202;
constexpr int kConfigEngine = 300;
constexpr int kConfigWorkspaceSize = 303;
constexpr int kConfigSharedMemory = 304;
constexpr int kPlanConfig = 401;
constexpr int kPlanWorkspaceSize = 402;
constexpr int kPlanJson = 405;
constexpr int kGraphOperations = 801;
constexpr int kGraphEngineCount = 802;
constexpr int kTensorType = 901;
constexpr int kTensorExtents = 902;
constexpr int kTensorStrides = 903;
constexpr int kEngineGraph = 1300;
constexpr int kEngineIndex = 1301;
constexpr int kEngineNumericalNotes = 1303;
constexpr int kEngineBehaviorNotes = 1305;

// cudnnBackendAttributeType_t.
constexpr int kHandleType = 0;
constexpr int kPointerType = 6;
constexpr int kNumericalNoteType = 11;
constexpr int kDescriptorType = 15;
constexpr int kBehaviorNoteType = 19;

// cudnnBackendHeurMode_t.
constexpr int kModeInstant = 0;
constexpr int kModeFallback = 2;

// cudnnBackendNumericalNote_t.
constexpr int kNoteTensorCore = 0;

// The engines that a graph is said to have where cuDNN is not asked. A program that names one
// itself gets the plan of this model, too.
constexpr int64_t kTensorCoreEngine = 0;
constexpr int64_t kPlainEngine = 1;
constexpr int64_t kEngines = 2;

struct Node;
using NodePointer = std::shared_ptr<const Node>;

// What heuristics said of an engine.
struct EngineFacts {
  CudnnPlan plan;
  int64_t rank = 0;  // 0 is the fastest
  // A program that tries all plans runs each twice, once to time it.
  mutable std::atomic<int> runs{0};
};

struct Value {
  int type = 0;
  int64_t count = 0;
  std::vector<unsigned char> bytes;
  std::vector<NodePointer> nodes;  // where the type is kDescriptorType
};

// Not changed any more once it is finalized, so that others can hold it.
struct Node {
  int type = 0;
  bool finalized = false;
  std::map<int, Value> values;
  std::vector<int> order;                    // of `values`, as they were first set
  std::vector<NodePointer> results;          // of heuristics
  std::shared_ptr<const EngineFacts> facts;  // of an engine and its configuration, once known
  int64_t workspace_bytes = 0;               // of a plan
  WorkspaceKind kind = WorkspaceKind::kOtherGraph;

  const Value* find(int name) const {
    const auto found = values.find(name);
    return found == values.end() ? nullptr : &found->second;
  }
  const Node* node(int name) const {
    const Value* const value = find(name);
    return value == nullptr || value->nodes.empty() ? nullptr : value->nodes.front().get();
  }
  std::vector<int64_t> integers(int name) const {
    const Value* const value = find(name);
    if (value == nullptr) return {};
    std::vector<int64_t> result(value->bytes.size() / sizeof(int64_t));
    std::memcpy(result.data(), value->bytes.data(), result.size() * sizeof(int64_t));
    return result;
  }
  std::optional<int> enumerator(int name) const {
    const Value* const value = find(name);
    if (value == nullptr || value->bytes.size() < sizeof(int)) return std::nullopt;
    int result = 0;
    std::memcpy(&result, value->bytes.data(), sizeof(int));
    return result;
  }
};

size_t attribute_size(int type) {
  switch (type) {
    case kHandleType:
    case 3:  // int64
    case 5:  // double
    case kPointerType:
    case kDescriptorType:
      return 8;
    case 26:  // fraction, of two integers
      return 16;
    case 2:   // bool
    case 24:  // char
      return 1;
    default:  // enumerators, float, int32
      return 4;
  }
}

Value integer_value(int64_t integer) {
  Value value;
  value.type = 3;
  value.count = 1;
  value.bytes.resize(sizeof(integer));
  std::memcpy(value.bytes.data(), &integer, sizeof(integer));
  return value;
}

Value node_value(NodePointer node) {
  Value value;
  value.type = kDescriptorType;
  value.count = 1;
  value.nodes.push_back(std::move(node));
  return value;
}

// Which attributes of a convolution's operation hold its tensors.
struct ConvolutionAttributes {
  ConvolutionPass pass;
  int description, w, x, y;
};

std::optional<ConvolutionAttributes> convolution_attributes(int operation) {
  switch (operation) {
    case kForwardOperation:
      return ConvolutionAttributes{ConvolutionPass::kForward, 702, 703, 704, 705};
    case kBackwardDataOperation:
      return ConvolutionAttributes{ConvolutionPass::kBackwardData, 708, 709, 710, 711};
    case kBackwardFilterOperation:
      return ConvolutionAttributes{ConvolutionPass::kBackwardFilter, 714, 715, 716, 717};
    default:
      return std::nullopt;
  }
}

// The convolution of a graph, alone or with pointwise operations fused to it.
std::optional<Convolution> find_convolution(const Node& graph) {
  const Value* const operations = graph.find(kGraphOperations);
  if (operations == nullptr) return std::nullopt;
  for (const NodePointer& operation : operations->nodes) {
    const auto attributes = convolution_attributes(operation->type);
    if (!attributes.has_value()) continue;
    const Node* const description = operation->node(attributes->description);
    const Node* const w = operation->node(attributes->w);
    const Node* const x = operation->node(attributes->x);
    const Node* const y = operation->node(attributes->y);
    if (description == nullptr || w == nullptr || x == nullptr || y == nullptr) return std::nullopt;
    Convolution result;
    result.pass = attributes->pass;
    result.type = element_type(w->enumerator(kTensorType).value_or(kFloat));
    result.x = x->integers(kTensorExtents);
    result.w = w->integers(kTensorExtents);
    result.y = y->integers(kTensorExtents);
    result.strides = description->integers(kConvolutionStrides);
    result.dilations = description->integers(kConvolutionDilations);
    result.channels_last = is_channels_last(result.x, x->integers(kTensorStrides));
    return result;
  }
  return std::nullopt;
}

WorkspaceKind kind_of(const Node& graph) {
  const Value* const operations = graph.find(kGraphOperations);
  if (operations == nullptr) return WorkspaceKind::kOtherGraph;
  int products = 0;
  for (const NodePointer& operation : operations->nodes) {
    if (operation->type == kAttentionForwardOperation ||
        operation->type == kAttentionBackwardOperation)
      return WorkspaceKind::kAttention;
    products += operation->type == kMatmulOperation ? 1 : 0;
  }
  return products >= 2 ? WorkspaceKind::kAttention : WorkspaceKind::kOtherGraph;
}

void append_hex(const std::vector<unsigned char>& bytes, std::string& text) {
  constexpr char kDigits[] = "0123456789abcdef";
  for (const unsigned char byte : bytes) {
    text += kDigits[byte / 16];
    text += kDigits[byte % 16];
  }
}

// Appends the lines of a descriptor, after those of the descriptors it refers to, and gives its
// index; nothing where it holds what means nothing in another process.
std::optional<size_t> describe(const Node& node, std::map<const Node*, size_t>& described,
                               std::string& text) {
  if (const auto found = described.find(&node); found != described.end()) return found->second;
  std::string lines = "node " + std::to_string(node.type) + "\n";
  for (const int name : node.order) {
    const Value& value = node.values.at(name);
    if (value.type == kHandleType) continue;
    if (value.type == kPointerType) return std::nullopt;
    if (value.type == kDescriptorType) {
      lines += "refer " + std::to_string(name);
      for (const NodePointer& other : value.nodes) {
        const std::optional<size_t> index = describe(*other, described, text);
        if (!index.has_value()) return std::nullopt;
        lines += ' ' + std::to_string(*index);
      }
    } else {
      lines += "set " + std::to_string(name) + ' ' + std::to_string(value.type) + ' ' +
               std::to_string(value.count) + ' ';
      append_hex(value.bytes, lines);
    }
    lines += '\n';
  }
  text += lines;
  const size_t index = described.size();
  described.emplace(&node, index);
  return index;
}

NodePointer make_config(const NodePointer& graph, const CudnnPlan& plan, int64_t rank) {
  auto facts = std::make_shared<EngineFacts>();
  facts->plan = plan;
  facts->rank = rank;
  auto engine = std::make_shared<Node>();
  engine->type = kEngine;
  engine->finalized = true;
  engine->values[kEngineGraph] = node_value(graph);
  engine->values[kEngineIndex] = integer_value(plan.engine);
  engine->facts = facts;
  auto config = std::make_shared<Node>();
  config->type = kEngineConfig;
  config->finalized = true;
  config->values[kConfigEngine] = node_value(std::move(engine));
  config->facts = std::move(facts);
  return config;
}

CudnnPlan modelled_plan(int64_t engine, uint64_t workspace_bytes, bool tensor_cores) {
  CudnnPlan plan;
  plan.engine = engine;
  plan.workspace_bytes = static_cast<int64_t>(workspace_bytes);
  if (tensor_cores) plan.numerical_notes.push_back(kNoteTensorCore);
  return plan;
}

// Best first. The engine without tensor cores is there for programs that forbid TF32: LibTorch
// drops the other one by its note. The last two are for programs that try all of them.
std::vector<CudnnPlan> modelled_plans(const Node& graph, int mode) {
  const auto convolution = find_convolution(graph);
  if (!convolution.has_value())
    return {modelled_plan(kPlainEngine, attention_bytes(kind_of(graph)), false)};
  const DeviceFacts device = device_facts();
  if (!convolution_supported(*convolution, device)) return {};
  const bool tensor_cores = convolution_on_tensor_cores(*convolution, device);
  std::vector<CudnnPlan> plans;
  if (mode != kModeFallback) {
    if (tensor_cores) {
      plans.push_back(
          modelled_plan(kTensorCoreEngine, modelled_convolution_bytes(*convolution, true), true));
    }
    plans.push_back(
        modelled_plan(kPlainEngine, modelled_convolution_bytes(*convolution, false), false));
    if (tensor_cores) {
      plans.push_back(modelled_plan(kEngines, modelled_largest_bytes(*convolution, true), true));
    }
    plans.push_back(
        modelled_plan(kEngines + 1, modelled_largest_bytes(*convolution, false), false));
  } else {
    plans.push_back(modelled_plan(kPlainEngine, 0, false));
  }
  return plans;
}

// The one plan that the real device's cuDNN was seen with, or the largest of those that the program
// tried there.
std::optional<std::vector<CudnnPlan>> calibrated_plans(const Node& graph, int mode) {
  const auto convolution = find_convolution(graph);
  if (!convolution.has_value() || mode == kModeFallback) return std::nullopt;
  const std::optional<uint64_t> bytes = calibrated_convolution_bytes(*convolution);
  if (!bytes.has_value()) return std::nullopt;
  return std::vector<CudnnPlan>{modelled_plan(kPlainEngine, *bytes, false)};
}

// What comes first is the fastest, as far as can be known: a device's own clock decides. The upper
// bound takes the one with the largest workspace.
std::vector<int64_t> ranks(const std::vector<CudnnPlan>& plans, int mode) {
  std::vector<int64_t> result(plans.size());
  for (size_t i = 0; i < plans.size(); ++i) {
    int64_t rank = static_cast<int64_t>(i) + (mode == kModeFallback ? 1000 : 0);
    if (convolution_choice().kind == WorkspaceChoice::Kind::kUpper) {
      constexpr int64_t kLargest = int64_t{1} << 20;  // MiB
      rank = std::max<int64_t>(0, kLargest - (plans[i].workspace_bytes >> 20));
    }
    result[i] = rank;
  }
  return result;
}

// cuDNN answers for a device that is only described to it. On the device itself it chooses other
// plans: both ends of what was measured there (workspace_model.h).
void widen(const Convolution& convolution, std::vector<CudnnPlan>& plans) {
  const WorkspaceChoice::Kind choice = convolution_choice().kind;
  if (choice != WorkspaceChoice::Kind::kLeast && choice != WorkspaceChoice::Kind::kUpper) return;
  int64_t largest = 0;
  for (const CudnnPlan& plan : plans) largest = std::max(largest, plan.workspace_bytes);
  for (CudnnPlan& plan : plans) {
    if (plan.workspace_bytes < 0) continue;
    plan.workspace_bytes = static_cast<int64_t>(
        choice == WorkspaceChoice::Kind::kUpper
            ? largest_workspace_on_device_bytes(convolution, static_cast<uint64_t>(largest))
            : least_workspace_bytes(convolution, static_cast<uint64_t>(plan.workspace_bytes)));
  }
}

// Since the process began.
std::atomic<bool> has_modelled_convolution{false};

std::vector<NodePointer> find_configs(const Node& heuristics) {
  const Value* const graph_value = heuristics.find(kHeuristicsGraph);
  if (graph_value == nullptr || graph_value->nodes.empty()) return {};
  const NodePointer& graph = graph_value->nodes.front();
  const int mode = heuristics.enumerator(kHeuristicsMode).value_or(kModeInstant);
  std::optional<std::vector<CudnnPlan>> plans = calibrated_plans(*graph, mode);
  const bool is_calibrated = plans.has_value();
  std::map<const Node*, size_t> described;
  std::string text;
  if (!plans.has_value() && describe(*graph, described, text).has_value())
    plans = ask_cudnn(Machine::get().profile(current_device()), text, mode);
  if (const auto convolution = find_convolution(*graph);
      plans.has_value() && !is_calibrated && convolution.has_value())
    widen(*convolution, *plans);
  // No plan at all: what cuDNN compiles at run time may lack its compiler here.
  if (!plans.has_value() || plans->empty()) {
    plans = modelled_plans(*graph, mode);
    if (find_convolution(*graph).has_value())
      has_modelled_convolution = true;
    else if (kind_of(*graph) == WorkspaceKind::kOtherGraph)
      note_library_size(LibrarySize::kOtherGraph);
  }
  const std::vector<int64_t> order = ranks(*plans, mode);
  std::vector<NodePointer> configs;
  for (size_t i = 0; i < plans->size(); ++i)
    configs.push_back(make_config(graph, (*plans)[i], order[i]));
  return configs;
}

int finalize_plan(Node& plan) {
  const Node* const config = plan.node(kPlanConfig);
  const Node* const engine = config == nullptr ? nullptr : config->node(kConfigEngine);
  const Node* const graph = engine == nullptr ? nullptr : engine->node(kEngineGraph);
  if (graph == nullptr)
    return fail(kBadParam,
                "memledger virtual GPU: an execution plan needs an engine of an operation graph");
  plan.facts = engine->facts;
  const auto convolution = find_convolution(*graph);
  plan.kind = convolution.has_value() ? workspace_kind(convolution->pass) : kind_of(*graph);
  if (plan.facts != nullptr) {
    if (plan.facts->plan.workspace_bytes < 0)
      return fail(kNotSupported, "memledger virtual GPU: cuDNN makes no plan of this engine");
    plan.workspace_bytes = plan.facts->plan.workspace_bytes;
  } else if (convolution.has_value()) {
    const std::vector<int64_t> index = engine->integers(kEngineIndex);
    const bool tensor_cores = !index.empty() && index.front() == kTensorCoreEngine;
    plan.workspace_bytes =
        static_cast<int64_t>(modelled_convolution_bytes(*convolution, tensor_cores));
  } else {
    plan.workspace_bytes = static_cast<int64_t>(attention_bytes(plan.kind));
  }
  if (convolution.has_value())
    plan.workspace_bytes = static_cast<int64_t>(convolution_choice().apply(plan.workspace_bytes));
  note_workspace_asked(plan.kind, plan.workspace_bytes);
  return kSuccess;
}

}  // namespace

struct Descriptor {
  std::shared_ptr<Node> node = std::make_shared<Node>();
};

namespace {

int give(const Value& value, int64_t asked, int64_t* count, void* out) {
  if (count != nullptr) *count = value.count;
  if (out == nullptr || asked <= 0) return kSuccess;
  const int64_t given = std::min(asked, value.count);
  if (given == 0) return kSuccess;
  if (value.type == kDescriptorType) {
    // The caller makes the descriptors that are filled in.
    auto* const descriptors = static_cast<Descriptor**>(out);
    for (int64_t i = 0; i < given; ++i) {
      if (descriptors[i] == nullptr) return kNullPointer;
      descriptors[i]->node = std::const_pointer_cast<Node>(value.nodes[i]);
    }
  } else {
    std::memcpy(out, value.bytes.data(), given * attribute_size(value.type));
  }
  if (count != nullptr && given < value.count) *count = given;
  return kSuccess;
}

Value notes_value(int type, const std::vector<int>& notes) {
  Value value;
  value.type = type;
  value.count = static_cast<int64_t>(notes.size());
  value.bytes.resize(notes.size() * sizeof(int));
  if (!notes.empty()) std::memcpy(value.bytes.data(), notes.data(), value.bytes.size());
  return value;
}

// What cuDNN knows of itself.
std::optional<Value> computed(const Node& node, int name) {
  switch (node.type) {
    case kHeuristics:
      if (name == kHeuristicsResults) {
        Value value;
        value.type = kDescriptorType;
        value.nodes = node.results;
        value.count = static_cast<int64_t>(node.results.size());
        return value;
      }
      break;
    case kOperationGraph:
      if (name == kGraphEngineCount) return integer_value(kEngines);
      break;
    case kEngine:
      if (name == kEngineNumericalNotes && node.facts != nullptr)
        return notes_value(kNumericalNoteType, node.facts->plan.numerical_notes);
      if (name == kEngineBehaviorNotes && node.facts != nullptr)
        return notes_value(kBehaviorNoteType, node.facts->plan.behavior_notes);
      if (name == kEngineNumericalNotes) {
        const std::vector<int64_t> index = node.integers(kEngineIndex);
        const bool tensor_cores = !index.empty() && index.front() == kTensorCoreEngine;
        return notes_value(kNumericalNoteType,
                           tensor_cores ? std::vector<int>{kNoteTensorCore} : std::vector<int>{});
      }
      break;
    case kEngineConfig:
      if (name == kConfigWorkspaceSize && node.facts != nullptr)
        return integer_value(std::max<int64_t>(node.facts->plan.workspace_bytes, 0));
      if (name == kConfigWorkspaceSize || name == kConfigSharedMemory) return integer_value(0);
      break;
    case kPlan:
      if (name == kPlanWorkspaceSize) return integer_value(node.workspace_bytes);
      break;
    default:
      break;
  }
  return std::nullopt;
}

}  // namespace
}  // namespace memledger::virtual_gpu::cudnn

using namespace memledger::virtual_gpu;
using namespace memledger::virtual_gpu::cudnn;

MEMLEDGER_ANSWER int cudnnBackendCreateDescriptor(int type, Descriptor** out) {
  const int status = make_object(out, kNullPointer, kNoHostMemory);
  if (status == kSuccess) (*out)->node->type = type;
  return status;
}
MEMLEDGER_ANSWER int cudnnBackendInitialize(Descriptor* descriptor) {
  return descriptor == nullptr ? kNullPointer : kSuccess;
}
MEMLEDGER_ANSWER int cudnnBackendDestroyDescriptor(Descriptor* descriptor) {
  return drop_object(descriptor);
}

MEMLEDGER_ANSWER int cudnnBackendSetAttribute(Descriptor* descriptor, int name, int type,
                                              int64_t count, const void* elements) {
  if (descriptor == nullptr || (elements == nullptr && count > 0) || count < 0) {
    return fail(kNullPointer,
                "memledger virtual GPU: an attribute without a descriptor or a value");
  }
  Node& node = *descriptor->node;
  if (node.finalized)
    return fail(kBadParam, "memledger virtual GPU: the descriptor is already finalized");
  Value value;
  value.type = type;
  value.count = count;
  if (type == kDescriptorType) {
    const auto* const descriptors = static_cast<Descriptor* const*>(elements);
    for (int64_t i = 0; i < count; ++i) {
      if (descriptors[i] == nullptr)
        return fail(kNullPointer, "memledger virtual GPU: a null descriptor as an attribute");
      if (!descriptors[i]->node->finalized)
        return fail(kNotFinalized,
                    "memledger virtual GPU: a descriptor as an attribute is not finalized");
      value.nodes.push_back(descriptors[i]->node);
    }
  } else {
    const auto* const begin = static_cast<const unsigned char*>(elements);
    value.bytes.assign(begin, begin + count * attribute_size(type));
  }
  if (node.find(name) == nullptr) node.order.push_back(name);
  node.values[name] = std::move(value);
  return kSuccess;
}

MEMLEDGER_ANSWER int cudnnBackendFinalize(Descriptor* descriptor) {
  if (descriptor == nullptr) return kNullPointer;
  Node& node = *descriptor->node;
  if (node.finalized) return kSuccess;
  if (node.type == kHeuristics) {
    node.results = find_configs(node);
  } else if (node.type == kPlan) {
    const int status = finalize_plan(node);
    if (status != kSuccess) return status;
  }
  node.finalized = true;
  return kSuccess;
}

MEMLEDGER_ANSWER int cudnnBackendGetAttribute(const Descriptor* descriptor, int name, int,
                                              int64_t asked, int64_t* count, void* elements) {
  if (descriptor == nullptr) return kNullPointer;
  const Node& node = *descriptor->node;
  if (node.type == kPlan && name == kPlanJson) {
    MEMLEDGER_SAY_REFUSED("execution plans cannot be serialized.");
    return fail(kNotSupported, "memledger virtual GPU: execution plans cannot be serialized");
  }
  const auto value = computed(node, name);
  if (value.has_value()) return give(*value, asked, count, elements);
  if (const Value* const set = node.find(name); set != nullptr)
    return give(*set, asked, count, elements);
  if (count != nullptr) *count = 0;
  return kSuccess;
}

MEMLEDGER_ANSWER int cudnnBackendExecute(Handle* handle, const Descriptor* plan,
                                         const Descriptor* pack) {
  if (handle == nullptr || plan == nullptr || pack == nullptr) return kNullPointer;
  if (!plan->node->finalized)
    return fail(kNotFinalized, "memledger virtual GPU: the execution plan is not finalized");
  note_workspace_used(plan->node->kind);
  note_library_work();
  // LibTorch, if set to benchmark, runs every plan twice and keeps the fastest by the time between
  // two events. The host's time would make it a matter of luck.
  constexpr int kRunsOfBenchmark = 2;
  constexpr int64_t kNanosecondsPerRank = 1000000000;
  const EngineFacts* const facts = plan->node->facts.get();
  if (facts != nullptr && facts->rank > 0 && facts->runs.fetch_add(1) < kRunsOfBenchmark)
    add_device_time(facts->rank * kNanosecondsPerRank);
  return kSuccess;
}

const char* memledger_virtual_gpu_missing_cudnn() {
  static const std::string requirement = cudnn_requirement();
  return has_modelled_convolution && lacks_cudnn() ? requirement.c_str() : nullptr;
}
