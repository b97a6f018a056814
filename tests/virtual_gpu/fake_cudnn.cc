// A libcudnn with known answers, for cudnn_planner_test: what it says depends on the graph and on
// the described device, so that both must have arrived. The first extent of x makes it misbehave.
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#define FAKE extern "C" __attribute__((visibility("default")))

namespace {

constexpr int kTensor = 17, kEngine = 2, kConfig = 3, kHeuristics = 4, kPlan = 5, kDevice = 38;
constexpr int64_t kDies = 666, kHangs = 777, kRefuses = 888;

struct Node {
  int type = 0;
  bool finalized = false;
  std::map<int, std::vector<unsigned char>> values;
  std::map<int, std::vector<Node*>> nodes;
  int64_t engine = 0, workspace = 0;
  int note = -1;
};

int64_t integer(const Node* node, int name) {
  int64_t value = -1;
  const auto found = node->values.find(name);
  if (found != node->values.end() && found->second.size() >= sizeof(value))
    std::memcpy(&value, found->second.data(), sizeof(value));
  return value;
}

Node* reached(const Node* node, std::initializer_list<int> names) {
  for (const int name : names) {
    const auto found = node->nodes.find(name);
    if (found == node->nodes.end() || found->second.empty()) return nullptr;
    node = found->second.front();
  }
  return const_cast<Node*>(node);
}

int64_t batch(const Node* graph) {
  const Node* const x = reached(graph, {801, 704});
  return x == nullptr ? -1 : integer(x, 902);
}

int64_t multiprocessors(const Node* device) {
  const auto& json = device->values.at(2702);
  const std::string text(json.begin(), json.end());
  const std::string member = "\"multiProcessorCount\":";
  const size_t at = text.find(member);
  return at == std::string::npos ? -1
                                 : std::strtoll(text.c_str() + at + member.size(), nullptr, 10);
}

}  // namespace

FAKE size_t cudnnGetVersion() {
  const char* const version = std::getenv("FAKE_CUDNN_VERSION");
  return version == nullptr ? 91900 : std::strtoul(version, nullptr, 10);
}
FAKE int cudnnBackendCreateDescriptor(int type, Node** out) {
  *out = new Node;
  (*out)->type = type;
  return 0;
}
FAKE int cudnnBackendDestroyDescriptor(Node* node) {
  delete node;
  return 0;
}
FAKE int cudnnBackendSetAttribute(Node* node, int name, int type, int64_t count,
                                  const void* values) {
  if (node->finalized) return 2000;
  if (type == 15) {
    auto* const* const nodes = static_cast<Node* const*>(values);
    for (int64_t i = 0; i < count; ++i) {
      if (!nodes[i]->finalized) return 2000;
    }
    node->nodes[name].assign(nodes, nodes + count);
    return 0;
  }
  const size_t size = type == 24 ? 1 : type == 3 || type == 5 ? 8 : 4;
  const auto* const bytes = static_cast<const unsigned char*>(values);
  node->values[name].assign(bytes, bytes + count * size);
  return 0;
}
FAKE int cudnnBackendFinalize(Node* node) {
  if (node->type == kTensor && (integer(node, 902) < 0 || integer(node, 903) < 0)) return 2000;
  // Described devices only: there is no other.
  if (node->type == kHeuristics && reached(node, {204}) == nullptr) return 2000;
  if (node->type == kDevice && multiprocessors(node) < 0) return 2000;
  if (node->type == kPlan) {
    const Node* const config = reached(node, {401});
    if (reached(node, {407}) == nullptr || config->workspace < 0) return 3000;
    node->workspace = config->workspace;
  }
  node->finalized = true;
  return 0;
}
FAKE int cudnnBackendGetAttribute(const Node* node, int name, int, int64_t asked, int64_t* count,
                                  void* out) {
  *count = 0;
  if (node->type == kHeuristics && name == 202) {
    const Node* const graph = reached(node, {201});
    const int64_t n = batch(graph);
    if (n == kDies) _exit(9);
    if (n == kHangs) sleep(1000);
    if (n == kRefuses) return 3000;
    const bool fallback = node->values.at(200).front() == 2;
    const int64_t sm = multiprocessors(reached(node, {204}));
    auto* const* const configs = static_cast<Node**>(out);
    *count = fallback ? 1 : 3;
    if (asked < *count) return 2000;
    for (int64_t i = 0; i < *count; ++i) {
      configs[i]->engine = fallback ? 99 : 10 + i;
      configs[i]->workspace = fallback ? 5 : i == 1 ? -1 : 1000000 * sm + 1000 * n + (i << 21);
      configs[i]->note = !fallback && i == 0 ? 0 : -1;
      configs[i]->finalized = true;
    }
    return 0;
  }
  if (node->type == kConfig && name == 300) {
    Node* const engine = *static_cast<Node**>(out);
    engine->engine = node->engine;
    engine->note = node->note;
    *count = 1;
    return 0;
  }
  if (node->type == kEngine && name == 1303) {
    if (node->note < 0) return 0;
    *static_cast<int*>(out) = node->note;
    *count = 1;
    return 0;
  }
  if ((node->type == kEngine && name == 1301) || (node->type == kPlan && name == 402)) {
    const int64_t value = node->type == kEngine ? node->engine : node->workspace;
    std::memcpy(out, &value, sizeof(value));
    *count = 1;
    return 0;
  }
  return node->type == kEngine ? 0 : 2000;
}
