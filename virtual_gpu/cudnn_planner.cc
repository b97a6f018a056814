// A program of its own that asks the user's cuDNN which engines it would choose for a device that
// is only described to it, and what workspaces their plans need. The answers library starts it
// without the stand-ins (cudnn_planner_client.h) and talks to it over descriptor 3, in the lines of
// cudnn_planner_client.h. It ends when the other side does.
#include <dirent.h>
#include <dlfcn.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <climits>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

namespace {

constexpr int kSocket = 3;
// The first that knows described devices: 9.8.
constexpr size_t kFirstVersion = 90800;
// A request holds a graph of some dozen descriptors.
constexpr uint32_t kMostRequestBytes = 64U << 20;

// cudnnBackendDescriptorType_t, cudnnBackendAttributeName_t and cudnnBackendAttributeType_t, as
// far as they are set or read here.
constexpr int kEngine = 2;
constexpr int kEngineConfig = 3;
constexpr int kHeuristics = 4;
constexpr int kPlan = 5;
constexpr int kDeviceProperties = 38;
constexpr int kHeuristicsMode = 200;
constexpr int kHeuristicsGraph = 201;
constexpr int kHeuristicsResults = 202;
constexpr int kHeuristicsDevice = 204;
constexpr int kConfigEngine = 300;
constexpr int kConfigWorkspaceSize = 303;
constexpr int kPlanConfig = 401;
constexpr int kPlanWorkspaceSize = 402;
constexpr int kPlanDevice = 407;
constexpr int kEngineIndex = 1301;
constexpr int kEngineNumericalNotes = 1303;
constexpr int kEngineBehaviorNotes = 1305;
constexpr int kDeviceJson = 2702;
constexpr int kInt64 = 3;
constexpr int kHeuristicMode = 8;
constexpr int kNumericalNote = 11;
constexpr int kDescriptorType = 15;
constexpr int kBehaviorNote = 19;
constexpr int kChar = 24;

// cudnnBackendBehaviorNote_t.
constexpr int kNoteRuntimeCompilation = 0;

constexpr int kMostConfigs = 256;
constexpr int kMostNotes = 64;

struct Cudnn {
  size_t (*version)() = nullptr;
  int (*create)(int, void**) = nullptr;
  int (*destroy)(void*) = nullptr;
  int (*set)(void*, int, int, int64_t, const void*) = nullptr;
  int (*get)(const void*, int, int, int64_t, int64_t*, void*) = nullptr;
  int (*finalize)(void*) = nullptr;
};

template <typename Function>
bool find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  return function != nullptr;
}

// cuDNN compiles some engines at run time, and asks the driver for it: here one without a device,
// which is found by its name once it is loaded.
void load_driver() {
  std::array<char, PATH_MAX> path{};
  const ssize_t length = readlink("/proc/self/exe", path.data(), path.size() - 1);
  if (length <= 0) return;
  const std::string self(path.data(), static_cast<size_t>(length));
  const std::string driver =
      self.substr(0, self.rfind('/') + 1) + "libmemledger_cudnn_planner_driver.so";
  dlopen(driver.c_str(), RTLD_NOW | RTLD_LOCAL);
}

// What is wrong with the library, or its version.
std::string load(const char* path, Cudnn& cudnn) {
  void* const library = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
  if (library == nullptr) return dlerror();
  const bool complete = find(library, "cudnnGetVersion", cudnn.version) &&
                        find(library, "cudnnBackendCreateDescriptor", cudnn.create) &&
                        find(library, "cudnnBackendDestroyDescriptor", cudnn.destroy) &&
                        find(library, "cudnnBackendSetAttribute", cudnn.set) &&
                        find(library, "cudnnBackendGetAttribute", cudnn.get) &&
                        find(library, "cudnnBackendFinalize", cudnn.finalize);
  if (!complete) return "it lacks the graph interface";
  if (cudnn.version() < kFirstVersion)
    return "version " + std::to_string(cudnn.version()) + " does not plan without a device";
  return "";
}

class Descriptor {
 public:
  Descriptor(const Cudnn& cudnn, int type) : cudnn_(cudnn) {
    if (cudnn_.create(type, &pointer_) != 0) pointer_ = nullptr;
  }
  ~Descriptor() {
    if (pointer_ != nullptr) cudnn_.destroy(pointer_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;

  void* get() const { return pointer_; }
  bool set(int name, int type, int64_t count, const void* values) {
    return pointer_ != nullptr && cudnn_.set(pointer_, name, type, count, values) == 0;
  }
  bool set(int name, const Descriptor& other) {
    void* const pointer = other.get();
    return set(name, kDescriptorType, 1, &pointer);
  }
  bool finalize() { return pointer_ != nullptr && cudnn_.finalize(pointer_) == 0; }
  int64_t integer(int name, int64_t otherwise) const {
    int64_t value = otherwise, count = 0;
    if (cudnn_.get(pointer_, name, kInt64, 1, &count, &value) != 0 || count < 1) return otherwise;
    return value;
  }
  std::vector<int> notes(int name, int type) const {
    std::array<int, kMostNotes> values{};
    int64_t count = 0;
    if (cudnn_.get(pointer_, name, type, kMostNotes, &count, values.data()) != 0) return {};
    return {values.begin(),
            values.begin() + std::min<int64_t>(std::max<int64_t>(count, 0), kMostNotes)};
  }

 private:
  const Cudnn& cudnn_;
  void* pointer_ = nullptr;
};

using Descriptors = std::vector<std::unique_ptr<Descriptor>>;

bool read_hex(const std::string& text, std::vector<unsigned char>& bytes) {
  if (text.size() % 2 != 0) return false;
  const auto digit = [](char c) {
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
  };
  for (size_t i = 0; i < text.size(); i += 2) {
    const int high = digit(text[i]), low = digit(text[i + 1]);
    if (high < 0 || low < 0) return false;
    bytes.push_back(static_cast<unsigned char>(high * 16 + low));
  }
  return true;
}

void write_notes(std::ostringstream& out, const std::vector<int>& notes) {
  out << ' ' << notes.size();
  for (const int note : notes) out << ' ' << note;
}

void write_config(std::ostringstream& out, const Descriptor& engine, int64_t workspace_bytes,
                  const std::vector<int>& behavior_notes) {
  out << "config " << engine.integer(kEngineIndex, -1) << ' ' << workspace_bytes;
  write_notes(out, engine.notes(kEngineNumericalNotes, kNumericalNote));
  write_notes(out, behavior_notes);
  out << '\n';
}

// The plans that one heuristic gives, each with the workspace that its plan says it needs, or -1
// where cuDNN does not make it.
void write_mode(const Cudnn& cudnn, const Descriptor& device, const Descriptor& graph, int mode,
                std::ostringstream& out) {
  Descriptor heuristics(cudnn, kHeuristics);
  Descriptors configs;
  int64_t count = 0;
  if (heuristics.set(kHeuristicsGraph, graph) &&
      heuristics.set(kHeuristicsMode, kHeuristicMode, 1, &mode) &&
      heuristics.set(kHeuristicsDevice, device) && heuristics.finalize()) {
    std::vector<void*> pointers;
    for (int i = 0; i < kMostConfigs; ++i) {
      configs.push_back(std::make_unique<Descriptor>(cudnn, kEngineConfig));
      pointers.push_back(configs.back()->get());
    }
    if (cudnn.get(heuristics.get(), kHeuristicsResults, kDescriptorType, kMostConfigs, &count,
                  pointers.data()) != 0)
      count = 0;
  }
  out << "mode " << mode << '\n';
  for (int64_t i = 0; i < count; ++i) {
    Descriptor engine(cudnn, kEngine);
    void* pointer = engine.get();
    int64_t engines = 0;
    if (cudnn.get(configs[i]->get(), kConfigEngine, kDescriptorType, 1, &engines, &pointer) != 0)
      continue;
    const std::vector<int> behavior = engine.notes(kEngineBehaviorNotes, kBehaviorNote);
    // Plans cost nothing but for what is compiled, which takes seconds; the configuration knows the
    // size, too.
    if (std::find(behavior.begin(), behavior.end(), kNoteRuntimeCompilation) != behavior.end()) {
      const int64_t bytes = configs[i]->integer(kConfigWorkspaceSize, -1);
      if (bytes >= 0) {
        write_config(out, engine, bytes, behavior);
        continue;
      }
    }
    Descriptor plan(cudnn, kPlan);
    const bool made =
        plan.set(kPlanDevice, device) && plan.set(kPlanConfig, *configs[i]) && plan.finalize();
    write_config(out, engine, made ? plan.integer(kPlanWorkspaceSize, -1) : -1, behavior);
  }
}

std::string answer(const Cudnn& cudnn, const std::string& request) {
  std::istringstream lines(request);
  std::string line;
  std::vector<int> modes;
  Descriptors nodes;
  Descriptor device(cudnn, kDeviceProperties);
  bool device_known = false, complete = true;
  while (complete && std::getline(lines, line)) {
    std::istringstream words(line);
    std::string word;
    words >> word;
    if (word == "device") {
      const std::string json =
          "{\"schemaVersion\":\"9.8.0\",\"cudnnVersion\":" + std::to_string(cudnn.version()) + "," +
          line.substr(word.size() + 1) + "}";
      device_known =
          device.set(kDeviceJson, kChar, static_cast<int64_t>(json.size()), json.data()) &&
          device.finalize();
    } else if (word == "mode") {
      int mode = 0;
      if (words >> mode) modes.push_back(mode);
    } else if (word == "node") {
      int type = 0;
      words >> type;
      if (!nodes.empty()) complete = nodes.back()->finalize();
      nodes.push_back(std::make_unique<Descriptor>(cudnn, type));
    } else if (word == "set") {
      int name = 0, type = 0;
      int64_t count = 0;
      std::string hex;
      std::vector<unsigned char> bytes;
      words >> name >> type >> count >> hex;
      complete = !nodes.empty() && read_hex(hex, bytes) &&
                 nodes.back()->set(name, type, count, bytes.data());
    } else if (word == "refer") {
      int name = 0;
      size_t index = 0;
      std::vector<void*> pointers;
      words >> name;
      while (words >> index) {
        if (index + 1 >= nodes.size()) complete = false;
        if (complete) pointers.push_back(nodes[index]->get());
      }
      complete = complete && !nodes.empty() &&
                 nodes.back()->set(name, kDescriptorType, static_cast<int64_t>(pointers.size()),
                                   pointers.data());
    }
  }
  std::ostringstream out;
  out << "version " << cudnn.version() << '\n';
  if (complete && device_known && !nodes.empty() && nodes.back()->finalize()) {
    for (const int mode : modes) write_mode(cudnn, device, *nodes.back(), mode, out);
    out << "done\n";
  } else {
    out << "refused\n";
  }
  // What depends on another descriptor goes first.
  while (!nodes.empty()) nodes.pop_back();
  return out.str();
}

bool read_all(char* to, size_t bytes) {
  while (bytes > 0) {
    const ssize_t n = read(kSocket, to, bytes);
    if (n <= 0) return false;
    to += n;
    bytes -= n;
  }
  return true;
}

bool write_all(const char* from, size_t bytes) {
  while (bytes > 0) {
    const ssize_t n = send(kSocket, from, bytes, MSG_NOSIGNAL);
    if (n <= 0) return false;
    from += n;
    bytes -= n;
  }
  return true;
}

bool write_text(const std::string& text) {
  const auto length = static_cast<uint32_t>(text.size());
  return write_all(reinterpret_cast<const char*>(&length), sizeof(length)) &&
         write_all(text.data(), text.size());
}

// The program that asks may have left its own open to its children, such as the end of a pipe.
void close_what_is_not_ours() {
  DIR* const list = opendir("/proc/self/fd");
  if (list == nullptr) return;
  std::vector<int> others;
  while (const dirent* const entry = readdir(list)) {
    const int file = static_cast<int>(std::strtol(entry->d_name, nullptr, 10));
    if (file > kSocket && file != dirfd(list)) others.push_back(file);
  }
  closedir(list);
  for (const int file : others) close(file);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(
        stderr, "usage: memledger_cudnn_planner LIBCUDNN SECONDS, with a socket as descriptor 3\n");
    return 2;
  }
  // The program that asks must not meet a child that it did not start.
  const pid_t child = fork();
  if (child != 0) _exit(child > 0 ? 0 : 1);
  setsid();
  close_what_is_not_ours();
  const auto seconds = static_cast<unsigned>(std::strtoul(argv[2], nullptr, 10));
  alarm(seconds);  // Nobody waits for longer.
  load_driver();
  Cudnn cudnn;
  const std::string error = load(argv[1], cudnn);
  if (!error.empty() || cudnn.version == nullptr) {
    write_text(error);
    return 1;
  }
  if (!write_text("version " + std::to_string(cudnn.version()))) return 0;
  for (;;) {
    alarm(0);
    uint32_t bytes = 0;
    if (!read_all(reinterpret_cast<char*>(&bytes), sizeof(bytes)) || bytes > kMostRequestBytes)
      return 0;
    std::string request(bytes, '\0');
    if (!read_all(request.data(), bytes)) return 0;
    alarm(seconds);
    if (!write_text(answer(cudnn, request))) return 0;
  }
}
