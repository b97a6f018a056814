#include "registry/hooks/python_stack.h"

#include <dlfcn.h>
#include <link.h>
#include <torch/csrc/profiler/combined_traceback.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "registry/core/loaded_libraries.h"
#include "registry/core/lock.h"
#include "registry/state.h"

namespace memledger {
namespace {

// No address of user space has the highest bit.
constexpr uintptr_t kMark = uintptr_t{1} << 63;
constexpr size_t kMostFrames = size_t{1} << 20;

std::atomic<bool> stopped{false};

using Traceback = torch::CapturedTraceback;
using PyFrame = Traceback::PyFrame;

// LibTorch keeps a traceback's frames to itself: code objects and places in them. An explicit
// instantiation may name a private member.
const std::vector<PyFrame>& frames_of(const Traceback& traceback);
template <std::vector<PyFrame> Traceback::*kFrames>
struct FramesOfTraceback {
  friend const std::vector<PyFrame>& frames_of(const Traceback& traceback) {
    return traceback.*kFrames;
  }
};
template struct FramesOfTraceback<&Traceback::frames_>;

struct HashOfFrame {
  size_t operator()(const PyFrame& frame) const noexcept {
    const auto code = reinterpret_cast<uintptr_t>(frame.code);
    return (code >> 4 ^ static_cast<uint32_t>(frame.lasti)) * 0x9E3779B97F4A7C15ull >> 16;
  }
};
struct IsSameFrame {
  bool operator()(const PyFrame& a, const PyFrame& b) const noexcept {
    return a.code == b.code && a.lasti == b.lasti;
  }
};

struct Frames {
  core::Lock lock;
  std::deque<StackFrame> all;                              // guarded by it
  std::unordered_map<std::string, uintptr_t> by_position;  // and this
  // And these: addresses of frames that were looked up before, at a tenth of a look-up's cost; and
  // tracebacks with references to their code objects, whose addresses are so not used again.
  std::unordered_map<PyFrame, void*, HashOfFrame, IsSameFrame> by_place;
  std::vector<std::shared_ptr<Traceback>> kept;
};
// A program that makes code without end is looked up each time from then on.
constexpr size_t kMostPlaces = size_t{1} << 15;

Frames& frames() {
  static auto* const frames = new Frames;
  return *frames;
}

void* intern(const torch::unwind::Frame& frame) {
  const std::string position =
      frame.filename + '\n' + std::to_string(frame.lineno) + '\n' + frame.funcname;
  Frames& known = frames();
  const core::LockHolder hold(known.lock);
  const auto found = known.by_position.find(position);
  if (found != known.by_position.end()) return reinterpret_cast<void*>(kMark | found->second);
  if (known.all.size() == kMostFrames) return nullptr;
  const uintptr_t index = known.all.size();
  known.all.push_back({frame.funcname, frame.filename, static_cast<int64_t>(frame.lineno)});
  known.by_position.emplace(position, index);
  return reinterpret_cast<void*>(kMark | index);
}

// Returns the addresses of a traceback all of whose frames are known; nothing for another.
std::vector<void*> known_addresses(const std::vector<PyFrame>& places) {
  std::vector<void*> addresses;
  addresses.reserve(places.size());
  Frames& known = frames();
  const core::LockHolder hold(known.lock);
  for (const PyFrame& place : places) {
    const auto found = known.by_place.find(place);
    if (found == known.by_place.end()) return {};
    addresses.push_back(found->second);
  }
  return addresses;
}

// Remembers a traceback that was looked up, frame by frame.
void remember(const std::shared_ptr<Traceback>& taken, const std::vector<void*>& addresses) {
  const std::vector<PyFrame>& places = frames_of(*taken);
  if (places.size() != addresses.size()) return;
  Frames& known = frames();
  const core::LockHolder hold(known.lock);
  if (known.by_place.size() + places.size() > kMostPlaces) return;
  known.kept.push_back(taken);
  for (size_t i = 0; i < places.size(); ++i) known.by_place.emplace(places[i], addresses[i]);
}

// Returns …/torch/, where PyTorch's own Python files are; empty if unknown.
const std::string& folder_of_torch() {
  static const auto* const folder = [] {
    auto* const found = new std::string;
    Dl_info info;
    if (dladdr(reinterpret_cast<void*>(&torch::CapturedTraceback::gather), &info) == 0)
      return found;
    const std::string_view path = info.dli_fname == nullptr ? "" : info.dli_fname;
    const size_t end = path.rfind("/lib/");
    if (end != std::string_view::npos) *found = std::string(path.substr(0, end + 1));
    return found;
  }();
  return *folder;
}

uint64_t libraries_loaded_so_far() {
  uint64_t count = 0;
  const auto read = [](dl_phdr_info* library, size_t /*size*/, void* result) {
    *static_cast<uint64_t*>(result) = library->dlpi_adds;
    return 1;
  };
  core::for_each_loaded_library(read, &count);
  return count;
}

// A function of Python's, which may come later. Without it, looking through all libraries would be
// most of what a stack costs: they are looked through again when there are more.
class LateFunction {
 public:
  explicit LateFunction(const char* name) : name_(name) {}

  void* find() {
    void* function = found_.load(std::memory_order_relaxed);
    if (function != nullptr) return function;
    const uint64_t loaded = libraries_loaded_so_far();
    if (looked_among_.load(std::memory_order_relaxed) == loaded) return nullptr;
    function = dlsym(RTLD_DEFAULT, name_);
    found_.store(function, std::memory_order_relaxed);
    looked_among_.store(loaded, std::memory_order_relaxed);
    return function;
  }

 private:
  const char* const name_;
  std::atomic<void*> found_{nullptr};
  std::atomic<uint64_t> looked_among_{0};
};

// A thread that Python does not know has no Python stack, and must not wait for Python's lock: who
// has that may wait for it.
bool is_known_to_python() {
  static LateFunction known("PyGILState_GetThisThreadState");
  void* const function = known.find();
  return function != nullptr && reinterpret_cast<void* (*)()>(function)() != nullptr;
}

bool has(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

template <typename F>
bool find(const char* name, F*& function) {
  function = reinterpret_cast<F*>(dlsym(RTLD_DEFAULT, name));
  return function != nullptr;
}

// The interpreter's functions; memledger is not linked with Python.
struct Interpreter {
  using Object = void;  // PyObject, or PyCodeObject

  int (*ensure_gil)();
  void (*release_gil)(int);
  Object* (*error)();
  void (*clear_error)();
  Object* (*modules)();
  Object* (*item)(Object*, const char*);
  Object* (*attribute)(Object*, const char*);
  const char* (*text)(Object*);
  void (*drop)(Object*);
  int (*line)(Object*, int);
  bool is_there = false;

  Interpreter()
      : is_there(find("PyGILState_Ensure", ensure_gil) && find("PyGILState_Release", release_gil) &&
                 find("PyErr_Occurred", error) && find("PyErr_Clear", clear_error) &&
                 find("PyImport_GetModuleDict", modules) && find("PyDict_GetItemString", item) &&
                 find("PyObject_GetAttrString", attribute) && find("PyUnicode_AsUTF8", text) &&
                 find("Py_DecRef", drop) && find("PyCode_Addr2Line", line)) {}

  std::string text_of(Object* object, const char* name) const {
    Object* const value = attribute(object, name);
    const char* const found = value == nullptr ? nullptr : text(value);
    std::string result = found == nullptr ? "" : found;
    if (found == nullptr) clear_error();
    if (value != nullptr) drop(value);
    return result;
  }
};

class GilHolder {
 public:
  explicit GilHolder(const Interpreter& python) : python_(python), state_(python.ensure_gil()) {}
  ~GilHolder() { python_.release_gil(state_); }
  GilHolder(const GilHolder&) = delete;
  GilHolder& operator=(const GilHolder&) = delete;

 private:
  const Interpreter& python_;
  const int state_;
};

// Looks frames up in their code objects. Returns nothing where LibTorch has to: it also knows the
// lines behind Inductor's code, but imports torch._inductor for that, with a folder for its cache
// and 100 MB, into programs that never compile.
std::vector<torch::unwind::Frame> look_up(const std::vector<PyFrame>& places) {
  static const Interpreter python;
  std::vector<torch::unwind::Frame> frames;
  if (!python.is_there) return frames;
  frames.reserve(places.size());
  const GilHolder gil(python);
  if (python.error() != nullptr ||
      python.item(python.modules(), "torch._inductor.codecache") != nullptr)
    return frames;
  for (const PyFrame& place : places) {
    frames.push_back({python.text_of(place.code, "co_filename"),
                      python.text_of(place.code, "co_name"),
                      static_cast<uint64_t>(python.line(place.code, place.lasti))});
  }
  return frames;
}

std::vector<torch::unwind::Frame> look_up_by_libtorch(Traceback& taken) {
  std::vector<torch::unwind::Frame> frames;
  const torch::SymbolizedTracebacks symbolized = torch::symbolize({&taken});
  if (symbolized.tracebacks.empty()) return frames;
  frames.reserve(symbolized.tracebacks.front().size());
  for (const uint64_t index : symbolized.tracebacks.front())
    frames.push_back(symbolized.all_frames.at(index));
  return frames;
}

}  // namespace

std::vector<void*> PythonStack::take() noexcept {
  std::vector<void*> addresses;
  if (stopped.load(std::memory_order_relaxed) || !is_known_to_python()) return addresses;
  core::calling_out();
  try {
    const auto taken = torch::CapturedTraceback::gather(true, false, false);
    if (taken == nullptr || frames_of(*taken).empty()) return addresses;
    addresses = known_addresses(frames_of(*taken));
    if (!addresses.empty()) return addresses;
    std::vector<torch::unwind::Frame> looked_up = look_up(frames_of(*taken));
    if (looked_up.empty()) looked_up = look_up_by_libtorch(*taken);
    addresses.reserve(looked_up.size());
    for (const torch::unwind::Frame& frame : looked_up) {
      if (void* const address = intern(frame)) addresses.push_back(address);
    }
    remember(taken, addresses);
  } catch (...) {
    RegistryState::get().swallowed_exceptions.fetch_add(1, std::memory_order_relaxed);
    addresses.clear();
  }
  return addresses;
}

void PythonStack::stop() noexcept { stopped.store(true); }

bool PythonStack::is_in_process() noexcept {
  if (stopped.load(std::memory_order_relaxed)) return true;
  static LateFunction known("Py_IsInitialized");
  void* const function = known.find();
  return function != nullptr && reinterpret_cast<int (*)()>(function)() != 0;
}

bool PythonStack::has(const void* address) noexcept {
  return (reinterpret_cast<uintptr_t>(address) & kMark) != 0;
}

StackFrame PythonStack::frame_at(const void* address) {
  const uintptr_t index = reinterpret_cast<uintptr_t>(address) & ~kMark;
  Frames& known = frames();
  const core::LockHolder hold(known.lock);
  return index < known.all.size() ? known.all[index] : StackFrame();
}

bool PythonStack::is_foreign(const StackFrame& frame) {
  const std::string_view file = frame.file;
  // Frozen modules, code made at run time, memledger's own.
  if (file.empty() || file.front() == '<') return true;
  const std::string& torch = folder_of_torch();
  if (!torch.empty() && file.substr(0, torch.size()) == torch) return true;
  if (memledger::has(file, "/torchinductor_")) return true;
  return memledger::has(file, "/lib/python3.") && !memledger::has(file, "-packages/");
}

void PythonStack::lock_for_fork() { frames().lock.lock(); }
void PythonStack::unlock_after_fork() { frames().lock.unlock(); }

}  // namespace memledger
