#include "registry/hooks/python_stack.h"

#include <dlfcn.h>
#include <torch/csrc/profiler/combined_traceback.h>

#include <atomic>
#include <deque>
#include <string>
#include <string_view>
#include <unordered_map>

#include "registry/core/lock.h"
#include "registry/state.h"

namespace memledger {
namespace {

// No address of user space has the highest bit.
constexpr uintptr_t kMark = uintptr_t{1} << 63;
constexpr size_t kMostFrames = size_t{1} << 20;

std::atomic<bool> stopped{false};

struct Frames {
  core::Lock lock;
  std::deque<StackFrame> all;                              // guarded by it
  std::unordered_map<std::string, uintptr_t> by_position;  // and this
};

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

// A thread that Python does not know has no Python stack, and must not wait for Python's lock: who
// has that may wait for it.
bool is_known_to_python() {
  static std::atomic<void*> known{nullptr};  // Python may come later
  void* function = known.load(std::memory_order_relaxed);
  if (function == nullptr) {
    function = dlsym(RTLD_DEFAULT, "PyGILState_GetThisThreadState");
    known.store(function, std::memory_order_relaxed);
  }
  return function != nullptr && reinterpret_cast<void* (*)()>(function)() != nullptr;
}

bool has(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

}  // namespace

std::vector<void*> PythonStack::take() noexcept {
  std::vector<void*> addresses;
  if (stopped.load(std::memory_order_relaxed) || !is_known_to_python()) return addresses;
  core::calling_out();
  try {
    const auto taken = torch::CapturedTraceback::gather(true, false, false);
    if (taken == nullptr) return addresses;
    const torch::SymbolizedTracebacks symbolized = torch::symbolize({taken.get()});
    if (symbolized.tracebacks.empty()) return addresses;
    addresses.reserve(symbolized.tracebacks.front().size());
    for (const uint64_t index : symbolized.tracebacks.front()) {
      if (void* const address = intern(symbolized.all_frames.at(index)))
        addresses.push_back(address);
    }
  } catch (...) {
    RegistryState::get().swallowed_exceptions.fetch_add(1, std::memory_order_relaxed);
    addresses.clear();
  }
  return addresses;
}

void PythonStack::stop() noexcept { stopped.store(true); }

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
