#include "registry/hooks/stack_sampler.h"

#include <link.h>
#include <torch/csrc/profiler/unwind/unwind.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <map>
#include <string_view>

#include "registry/core/foreign_libraries.h"
#include "registry/core/loaded_libraries.h"
#include "registry/core/lock.h"
#include "registry/hooks/inlined_calls.h"
#include "registry/hooks/python_stack.h"
#include "registry/second_copy/copies.h"
#include "registry/state.h"
#include "text/names.h"

namespace memledger {
namespace {

using Policy = StackOptions::Policy;

std::atomic<Policy> policy{Policy::kNone};
std::atomic<int64_t> policy_bytes{0};
std::atomic<Policy> default_policy{Policy::kNone};
std::atomic<int64_t> default_bytes{0};
std::atomic<bool> follows_nodes{false};

// xorshift64*: good enough for sampling.
double uniform(uint64_t& state) {
  state ^= state >> 12;
  state ^= state << 25;
  state ^= state >> 27;
  // In (0, 1].
  return static_cast<double>((state * 0x2545f4914f6cdd1dull >> 11) + 1) * 0x1p-53;
}

double distance_to_next(core::ThreadContext& thread, int64_t mean) {
  return -std::log(uniform(thread.sampling_state)) * static_cast<double>(mean);
}

bool is_sampled(core::ThreadContext& thread, int64_t nbytes, int64_t mean) {
  if (thread.sampling_mean != mean) {
    thread.sampling_mean = mean;
    thread.sampling_state = 0x9e3779b97f4a7c15ull * (thread.thread + 1);
    thread.bytes_to_sample = distance_to_next(thread, mean);
  }
  thread.bytes_to_sample -= static_cast<double>(nbytes);
  if (thread.bytes_to_sample > 0) return false;
  // Exponential distances have no memory: how far this storage reaches beyond does not matter.
  thread.bytes_to_sample = distance_to_next(thread, mean);
  return true;
}

bool starts_with(std::string_view text, std::string_view start) {
  return text.substr(0, start.size()) == start;
}

bool is_of_memledger(const StackFrame& frame) {
  // A function that the linker kept under another name is not recognized, and shown.
  return frame.function.find("memledger::") != std::string::npos &&
         (frame.function.find("memledger::Tracking") != std::string::npos ||
          frame.function.find("memledger::StackSampler") != std::string::npos ||
          starts_with(frame.function, "memledger::(anonymous") ||
          frame.function.find("memledger::note_") != std::string::npos ||
          frame.function.find("memledger::allocate_") != std::string::npos);
}

// A header of LibTorch's, of the C++ library's or of the system's.
bool is_foreign_source(const std::string& file) {
  for (const char* const part :
       {"/ATen/", "/c10/", "/include/torch/", "/torch/csrc/", "/torch/include/",
        "/libtorch/include/", "/include/c++/", "/usr/include/", "/lib/gcc/"}) {
    if (file.find(part) != std::string::npos) return true;
  }
  return false;
}

// The addresses that are not in such libraries. LibTorch's symbolizer would read these whole:
// seconds, where their half a gigabyte is not in the page cache.
struct OwnAddresses {
  std::vector<void*> addresses;

  static int remove_of(dl_phdr_info* library, size_t /*size*/, void* own) {
    if (library->dlpi_name == nullptr || !core::is_foreign_library(library->dlpi_name)) return 0;
    std::vector<void*>& addresses = static_cast<OwnAddresses*>(own)->addresses;
    for (int i = 0; i < library->dlpi_phnum; ++i) {
      const auto& segment = library->dlpi_phdr[i];
      const uintptr_t begin = library->dlpi_addr + segment.p_vaddr;
      if (segment.p_type != PT_LOAD) continue;
      const auto is_in = [&](void* address) {
        return reinterpret_cast<uintptr_t>(address) - begin < segment.p_memsz;
      };
      addresses.erase(std::remove_if(addresses.begin(), addresses.end(), is_in), addresses.end());
    }
    return 0;
  }
};

// For frames that LibTorch has looked up: the line may be one of a function that was inlined.
bool is_of_program(const StackFrame& frame) {
  if (core::is_foreign_library(frame.file)) return false;
  if (frame.function.empty()) return frame.line > 0 && !is_foreign_source(frame.file);
  for (const std::string_view space :
       {"at::", "c10::", "torch::", "std::", "__gnu_cxx::", "memledger::Tracking",
        "memledger::layers::", "memledger::virtual_gpu::"}) {
    // A template's name begins with its result type: for `std::vector<int> Net::parts<int>()` the
    // caller is shown.
    if (starts_with(frame.function, space)) return false;
  }
  return true;
}

// A program or library, not a source file.
bool is_compiled(const std::string& path) {
  if (path.find(".so") != std::string::npos) return true;
  static auto* const known = new std::map<std::string, bool>;  // under the symbols' lock
  const auto [answer, is_new] = known->try_emplace(path, false);
  if (!is_new) return answer->second;
  char begin[4] = {};
  std::ifstream(path, std::ios::binary).read(begin, sizeof begin);
  answer->second = std::string_view(begin, sizeof begin) ==
                   "\x7f"
                   "ELF";
  return answer->second;
}

// The frames of one return address, innermost first: calls that were inlined, then the function
// that has the frame on the stack. `exact`: each has its own line.
struct FramesOfAddress {
  std::vector<StackFrame> frames;
  bool exact = false;
};

// Frames by address. LibTorch is asked without the lock.
struct Symbols {
  core::Lock lock;
  std::map<void*, FramesOfAddress> known;
  std::map<uint32_t, StackFrame> of_program;  // by stack
};

Symbols& symbols() {
  static auto* const symbols = new Symbols;
  return *symbols;
}

// LibTorch keeps what it found in a function's static object, made by the first call and destroyed
// at exit before all that was made or registered earlier. Called at load, for nothing (9 µs), it
// outlives the program's static objects and exit handlers. A report may come later still, where
// memledger is linked into the program: it does without.
std::atomic<bool> symbolizer_has_ended{false};
__attribute__((constructor(101))) void make_symbolizer() {
  try {
    torch::unwind::symbolize({}, torch::unwind::Mode::fast);
    // Called before the object is destroyed, as it is registered later.
    if (std::atexit([] { symbolizer_has_ended.store(true); }) != 0)
      symbolizer_has_ended.store(true);
  } catch (...) {  // cannot symbolize here
  }
}

// Only at the inner end, as a program may have functions with such names.
void remove_memledger(std::vector<FramesOfAddress>& stack) {
  const auto first = std::find_if_not(stack.begin(), stack.end(), [](const FramesOfAddress& at) {
    const StackFrame& function = at.frames.back();
    return is_of_memledger(function) ||
           function.function.find("torch::unwind::") != std::string::npos;
  });
  stack.erase(stack.begin(), first);
}

// The innermost frame that is neither PyTorch's nor Python's, else the innermost of all.
StackFrame program_frame_of_python(const std::vector<void*>& addresses) {
  for (void* const address : addresses) {
    StackFrame frame = PythonStack::frame_at(address);
    if (!PythonStack::is_foreign(frame)) return frame;
  }
  return PythonStack::frame_at(addresses.front());
}

// Returns each address's frames, at least one.
std::vector<FramesOfAddress> look_up(const std::vector<void*>& addresses);

// Returns null where none of them is the program's own.
const StackFrame* own_frame(const std::vector<StackFrame>& exact_frames) {
  const auto own =
      std::find_if(exact_frames.begin(), exact_frames.end(), [](const StackFrame& frame) {
        return frame.line > 0 && !is_foreign_source(frame.file) && !is_of_memledger(frame);
      });
  return own == exact_frames.end() ? nullptr : &*own;
}

StackFrame find_program_frame(uint32_t stack) {
  OwnAddresses own{stack_addresses(stack)};
  if (!own.addresses.empty() && PythonStack::has(own.addresses.front()))
    return program_frame_of_python(own.addresses);
  core::for_each_loaded_library(&OwnAddresses::remove_of, &own);
  std::vector<FramesOfAddress> found = look_up(own.addresses);
  remove_memledger(found);
  for (const FramesOfAddress& at : found) {
    if (at.exact) {
      if (const StackFrame* const frame = own_frame(at.frames)) return *frame;
      continue;
    }
    StackFrame frame = at.frames.back();
    if (!is_of_program(frame)) continue;
    if (is_foreign_source(frame.file)) {
      // The line is in a header whose function was inlined here.
      frame.file.clear();
      frame.line = 0;
    }
    return frame;
  }
  return {};
}

}  // namespace

std::atomic<bool> StackSampler::takes_some_{false};

void StackSampler::set(StackOptions options) noexcept {
  const bool needs_bytes = options.policy == Policy::kSampled;
  policy_bytes.store(options.bytes, std::memory_order_relaxed);
  policy.store(needs_bytes && options.bytes <= 0 ? Policy::kAll : options.policy,
               std::memory_order_relaxed);
  note_whether_some_are_taken();
}

void StackSampler::set_default(StackOptions options) noexcept {
  default_bytes.store(options.bytes, std::memory_order_relaxed);
  default_policy.store(options.policy, std::memory_order_relaxed);
  note_whether_some_are_taken();
}

bool StackSampler::samples() noexcept {
  const Policy wanted = policy.load(std::memory_order_relaxed);
  return (wanted == Policy::kNone ? default_policy.load(std::memory_order_relaxed) : wanted) ==
         Policy::kSampled;
}

// By whom sets both policies: one thread at a time, or one at load.
void StackSampler::note_whether_some_are_taken() noexcept {
  takes_some_.store(policy.load(std::memory_order_relaxed) != Policy::kNone ||
                        default_policy.load(std::memory_order_relaxed) != Policy::kNone,
                    std::memory_order_relaxed);
}

StackSampler::Taken StackSampler::take(core::ThreadContext& thread, int64_t nbytes) noexcept {
  int64_t bytes = policy_bytes.load(std::memory_order_relaxed);
  Policy wanted = policy.load(std::memory_order_relaxed);
  const bool is_default = wanted == Policy::kNone;
  if (is_default) {
    wanted = default_policy.load(std::memory_order_relaxed);
    bytes = default_bytes.load(std::memory_order_relaxed);
  }
  Taken taken;
  switch (wanted) {
    case Policy::kNone:
      return taken;
    case Policy::kFrom:
      if (nbytes < bytes) return taken;
      break;
    case Policy::kSampled:
      if (nbytes <= 0 || !is_sampled(thread, nbytes, bytes)) return taken;
      break;
    case Policy::kAll:
      break;
  }
  taken.stack = is_default ? take_default() : take_program_now();
  if (thread.forward_stack != 0) taken.stack = joined(taken.stack, thread.forward_stack);
  if (taken.stack == 0) return taken;
  taken.weight = 1;
  if (wanted == Policy::kSampled) {
    taken.weight = static_cast<float>(
        -1 / std::expm1(-static_cast<double>(nbytes) / static_cast<double>(bytes)));
  }
  return taken;
}

void StackSampler::follow_nodes() noexcept { follows_nodes.store(true, std::memory_order_relaxed); }

core::StackId StackSampler::take_of_operator() noexcept {
  if (!follows_nodes.load(std::memory_order_relaxed)) return 0;
  const bool is_default = default_policy.load(std::memory_order_relaxed) != Policy::kNone;
  return is_default ? take_default() : take_program_now();
}

core::StackId StackSampler::take_with_operator(const core::ThreadContext& thread) noexcept {
  const core::StackId own = take_program_now();
  return thread.forward_stack == 0 ? own : joined(own, thread.forward_stack);
}

// A Python program's own frames of C++ add nothing to the operator's frames of Python.
core::StackId StackSampler::joined(core::StackId own, core::StackId of_operator) noexcept {
  try {
    std::vector<void*> frames = table().frames(own);
    const std::vector<void*> behind = table().frames(of_operator);
    const auto is_python = [](const std::vector<void*>& stack) {
      return !stack.empty() && PythonStack::has(stack.front());
    };
    if (is_python(frames) != is_python(behind)) return of_operator;
    frames.insert(frames.end(), behind.begin(), behind.end());
    return table().intern(std::move(frames));
  } catch (...) {  // no memory
    return own;
  }
}

core::StackId StackSampler::take_python() noexcept { return table().intern(PythonStack::take()); }

// In a Python process a thread without frames of Python's has none of the program's.
core::StackId StackSampler::take_default() noexcept {
  const core::StackId of_python = take_python();
  return of_python != 0 || PythonStack::is_in_process() ? of_python : take_now();
}

core::StackId StackSampler::take_program_now() noexcept {
  const core::StackId of_python = take_python();
  return of_python != 0 ? of_python : take_now();
}

namespace {

// LibTorch's unwinder keeps a reference into a map of addresses while it waits for its own lock,
// and another thread's new address moves what is in that map: one at a time. Taken inside
// UsesLoadedLibraries, so that nobody holds it at a fork.
core::Lock& unwinder_lock() {
  static auto* const lock = new core::Lock;
  return *lock;
}

std::vector<void*> unwind_alone() {
  const core::LockHolder hold(unwinder_lock());
  return torch::unwind::unwind();
}

// What libraries there are, it finds out under a shared lock: do it before the symbolizer asks.
void find_libraries_of(const std::vector<void*>& addresses) {
  const core::LockHolder hold(unwinder_lock());
  for (void* const address : addresses) torch::unwind::libraryFor(address);
}

}  // namespace

core::StackId StackSampler::take_now() noexcept {
  try {
    const core::UsesLoadedLibraries uses;
    return table().intern(unwind_alone());
  } catch (...) {
    RegistryState::get().swallowed_exceptions.fetch_add(1, std::memory_order_relaxed);
    return 0;
  }
}

core::StackTable& StackSampler::table() noexcept {
  static auto* const table = new core::StackTable;
  return *table;
}

void StackSampler::lock_for_fork() {
  InlinedCalls::lock_for_fork();
  symbols().lock.lock();
  PythonStack::lock_for_fork();
  core::lock_loaded_libraries_for_fork();
  table().lock_for_fork();
}

void StackSampler::unlock_after_fork() {
  table().unlock_after_fork();
  core::unlock_loaded_libraries_after_fork();
  PythonStack::unlock_after_fork();
  symbols().lock.unlock();
  InlinedCalls::unlock_after_fork();
}

std::string to_string(const StackFrame& frame) {
  std::string text(base_name(frame.file));
  if (frame.line > 0) text += ":" + std::to_string(frame.line);
  if (!frame.function.empty()) text += (text.empty() ? "" : " ") + frame.function;
  return text;
}

std::vector<StackFrame> stack_frames(uint32_t stack) {
  if (const CopyOffer* const first = first_copy()) return first->services->stack_frames(stack);
  std::vector<FramesOfAddress> found = look_up(StackSampler::table().frames(stack));
  remove_memledger(found);
  std::vector<StackFrame> frames;
  for (FramesOfAddress& at : found)
    std::move(at.frames.begin(), at.frames.end(), std::back_inserter(frames));
  return frames;
}

std::vector<StackFrame> frames_at(const std::vector<void*>& addresses) {
  std::vector<StackFrame> frames;
  frames.reserve(addresses.size());
  for (FramesOfAddress& at : look_up(addresses)) frames.push_back(std::move(at.frames.back()));
  return frames;
}

namespace {

// Returns nothing where LibTorch cannot look up.
std::vector<torch::unwind::Frame> symbolized_by_libtorch(const std::vector<void*>& addresses) {
  if (addresses.empty() || symbolizer_has_ended.load()) return {};
  core::calling_out();
  try {
    const core::UsesLoadedLibraries uses;
    find_libraries_of(addresses);
    return torch::unwind::symbolize(addresses, torch::unwind::Mode::fast);
  } catch (...) {
    return {};
  }
}

StackFrame frame_of(const torch::unwind::Frame& symbolized) {
  // Without a line LibTorch gives an offset, or nothing.
  const bool has_source = symbolized.lineno > 0 && !is_compiled(symbolized.filename);
  return {symbolized.funcname, symbolized.filename,
          has_source ? static_cast<int64_t>(symbolized.lineno) : 0};
}

// Debug information has no parameters and no namespaces for a function that only its file sees.
bool has_full_name(const StackFrame& frame) {
  return frame.function == "main" || frame.function.find('(') != std::string::npos;
}

std::map<void*, FramesOfAddress> find_frames(const std::vector<void*>& addresses) {
  std::map<void*, FramesOfAddress> found;
  std::vector<void*> others;
  std::vector<std::vector<StackFrame>> exact = InlinedCalls::frames_at(addresses);
  for (size_t i = 0; i < addresses.size(); ++i) {
    const bool is_exact = !exact[i].empty();
    if (!is_exact || !has_full_name(exact[i].back())) others.push_back(addresses[i]);
    if (is_exact) found[addresses[i]] = {std::move(exact[i]), true};
  }
  const std::vector<torch::unwind::Frame> symbolized = symbolized_by_libtorch(others);
  const core::LockHolder hold(symbols().lock);  // is_compiled()
  for (size_t i = 0; i < others.size(); ++i) {
    StackFrame frame = i < symbolized.size() ? frame_of(symbolized[i]) : StackFrame();
    FramesOfAddress& at = found[others[i]];
    if (!at.exact) {
      at.frames = {std::move(frame)};
    } else if (!frame.function.empty()) {
      at.frames.back().function = std::move(frame.function);
    }
  }
  return found;
}

std::vector<FramesOfAddress> look_up(const std::vector<void*>& addresses) {
  std::vector<void*> unknown;
  {
    const core::LockHolder hold(symbols().lock);
    for (void* const address : addresses) {
      if (!PythonStack::has(address) && symbols().known.count(address) == 0)
        unknown.push_back(address);
    }
  }
  if (!unknown.empty()) {
    std::map<void*, FramesOfAddress> found = find_frames(unknown);
    const core::LockHolder hold(symbols().lock);
    symbols().known.merge(found);
  }
  std::vector<FramesOfAddress> result;
  result.reserve(addresses.size());
  const core::LockHolder hold(symbols().lock);
  for (void* const address : addresses) {
    if (PythonStack::has(address)) {
      result.push_back({{PythonStack::frame_at(address)}, false});
    } else {
      result.push_back(symbols().known[address]);
    }
  }
  return result;
}

}  // namespace

StackFrame program_frame(uint32_t stack) {
  {
    const core::LockHolder hold(symbols().lock);
    const auto known = symbols().of_program.find(stack);
    if (known != symbols().of_program.end()) return known->second;
  }
  StackFrame result = find_program_frame(stack);
  const core::LockHolder hold(symbols().lock);
  symbols().of_program.try_emplace(stack, result);
  return result;
}

}  // namespace memledger
