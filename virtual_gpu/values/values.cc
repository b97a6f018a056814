// Compiled with NDEBUG whatever the build mode: see SEES_LIBTORCH_INLINES_COPTS.
#include "virtual_gpu/values/values.h"

#include <ATen/core/grad_mode.h>
#include <ATen/record_function.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/Exception.h>
#include <dlfcn.h>
#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <string_view>
#include <utility>
#include <vector>

#include "registry/core/thread_context.h"
#include "virtual_gpu/known_values.h"
#include "virtual_gpu/values/computation.h"
#include "virtual_gpu/values/operators.h"
#include "virtual_gpu/values/shadows.h"

namespace memledger::virtual_gpu {
namespace {

std::atomic<bool> followed{false};

// What runs on this thread, one inside another.
struct Frame {
  const at::RecordFunction* range = nullptr;
  OperatorInfo* info = nullptr;  // nullptr: a range that is no operator
  std::optional<Computation> computation;
  // What it may write to. Weak, as a program may take the storage away from its tensor meanwhile.
  std::vector<std::pair<Place, c10::weak_intrusive_ptr<c10::StorageImpl>>> written;
  size_t known_before = 0;  // of Thread::made_known
  // What the operator is going to read back; aten::equal compares without operators that are seen.
  std::optional<bool> answer;
  bool has_worked = false;
  bool was_captured = false;
  // A Python tensor among its arguments: what runs inside, also kernels of others, is not seen.
  bool is_opaque = false;
};

struct Thread {
  std::vector<Frame> frames;
  // Made known by operators inside of one that still runs. What that one writes to is not seen.
  std::vector<Place> made_known;
  size_t unknown_in_last_copy = 0;
};

// Operators run while a thread ends, too: what they need then is made once more.
Thread& this_thread() {
  thread_local Thread* thread = nullptr;
  struct Owner {
    ~Owner() { delete std::exchange(thread, nullptr); }
  };
  if (thread == nullptr) {
    thread = new Thread;
    thread_local Owner owner;
    static_cast<void>(owner);
  }
  return *thread;
}

template <typename Visit>
void for_each_tensor(const c10::IValue& value, const Visit& visit) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) visit(value.toTensor());
  } else if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorList()) {
      if (tensor.defined()) visit(tensor);
    }
  } else if (value.isOptionalTensorList()) {
    for (const std::optional<at::Tensor> tensor : value.toOptionalTensorList()) {
      if (tensor && tensor->defined()) visit(*tensor);
    }
  } else if (value.isList() && !value.isIntList() && !value.isDoubleList() && !value.isBoolList()) {
    // A list of lists, as c10d's.
    for (const c10::IValue& element : value.toListRef()) for_each_tensor(element, visit);
  }
}

c10::weak_intrusive_ptr<c10::StorageImpl> weak(c10::StorageImpl* storage) {
  c10::raw::weak_intrusive_ptr::incref(storage);
  return c10::weak_intrusive_ptr<c10::StorageImpl>::reclaim(storage);
}

void note_written(Frame& frame, const at::RecordFunction& fn) {
  const OperatorInfo& info = *frame.info;
  const auto inputs = fn.inputs();
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (info.is_ours && !(i < info.is_written.size() && info.is_written[i])) continue;
    for_each_tensor(inputs[i], [&](const at::Tensor& tensor) {
      if (std::optional<Place> place = Place::of_bytes(tensor)) {
        auto owner = weak(place->storage);
        frame.written.emplace_back(*std::move(place), std::move(owner));
      }
    });
  }
}

bool has_python_tensor(const at::RecordFunction& fn) {
  bool result = false;
  for (const c10::IValue& input : fn.inputs()) {
    for_each_tensor(input, [&](const at::Tensor& tensor) {
      result |= tensor.unsafeGetTensorImpl()->key_set().has(c10::DispatchKey::Python);
    });
  }
  return result;
}

void forget_written(const Frame& frame) {
  for (const auto& [place, owner] : frame.written) Shadows::get().forget(place);
}

// The running operator that does what the thread does; nullptr: none.
Frame* running(Thread& thread) {
  for (size_t i = thread.frames.size(); i-- > 0;) {
    if (thread.frames[i].info != nullptr) return &thread.frames[i];
  }
  return nullptr;
}

void keep(Thread& thread, const Place& place, const Value& value) {
  Shadows::get().set(place, value);
  thread.made_known.push_back(place);
}

bool fits(const Place& place, const at::Tensor& value) {
  return value.sizes() == at::IntArrayRef(place.sizes) && value.dtype() == place.dtype;
}

// What has been computed goes where the operator put it. Returns false where that was not possible.
bool keep_results(Thread& thread, Frame& frame, const at::RecordFunction& fn) {
  OperatorInfo& info = *frame.info;
  const std::vector<c10::IValue>& outputs = fn.outputs();
  if (outputs.size() != info.written_argument.size()) return false;  // it threw
  std::vector<Place> places;
  bool any = false;
  for (const c10::IValue& output : outputs) {
    std::optional<Place> place = output.isTensor() && output.toTensor().defined()
                                     ? Place::of(output.toTensor())
                                     : std::nullopt;
    if (!place) return false;
    any |= Shadows::get().may_hold(*place) && place->numel() != 0;
    if (!place->dtype.itemsize()) return false;
    places.push_back(*std::move(place));
  }
  // None too large: they would be computed in vain.
  for (const Place& place : places) {
    if (!may_compute(place)) return false;
  }
  if (!any || info.failures.load(std::memory_order_relaxed) >= OperatorInfo::kMostFailures)
    return false;
  std::vector<Value> values;
  try {
    const PlainCpu plain;
    values = frame.computation->run();
  } catch (...) {
    info.failures.fetch_add(1, std::memory_order_relaxed);
    return false;
  }
  if (values.size() != places.size()) return false;
  for (size_t i = 0; i < places.size(); ++i) {
    if (!fits(places[i], values[i].data)) return false;
  }
  for (size_t i = 0; i < places.size(); ++i) keep(thread, places[i], values[i]);
  return true;
}

std::unique_ptr<at::ObserverContext> on_start(const at::RecordFunction& fn) {
  if (!followed.load(std::memory_order_relaxed)) return nullptr;
  Thread& thread = this_thread();
  try {
    Frame& frame = thread.frames.emplace_back();
    frame.range = &fn;
    frame.known_before = thread.made_known.size();
    frame.info = operator_info(fn);
    if (frame.info == nullptr) return nullptr;
    if (frame.info->writes || !frame.info->is_ours) note_written(frame, fn);
    frame.is_opaque = has_python_tensor(fn);
    if (frame.info->is_computed) frame.computation = Computation::of(*frame.info, fn.inputs());
    if (frame.computation && frame.info->is_equal) {
      const PlainCpu plain;
      frame.answer = frame.computation->answer();
      frame.computation.reset();
    }
  } catch (...) {  // unknown, then
  }
  return nullptr;
}

void on_end(const at::RecordFunction& fn, at::ObserverContext*) {
  Thread& thread = this_thread();
  // A range may end on another thread than its own.
  while (!thread.frames.empty() && thread.frames.back().info == nullptr &&
         thread.frames.back().range != &fn) {
    thread.frames.pop_back();
  }
  if (thread.frames.empty() || thread.frames.back().range != &fn) return;
  try {
    Frame frame = std::move(thread.frames.back());
    thread.frames.pop_back();
    if (frame.info != nullptr) {
      const OperatorInfo& info = *frame.info;
      const bool wrote = frame.has_worked || (info.has_kernel && info.writes) || !info.is_ours;
      // Where it has launched nothing, it may have asked a library to, or others to do it.
      const bool is_computed =
          frame.computation && !frame.was_captured && (frame.has_worked || info.writes);
      if (wrote && !(is_computed && keep_results(thread, frame, fn))) forget_written(frame);
    }
  } catch (...) {
    Shadows::get().forget_all();
  }
  if (running(thread) == nullptr) thread.made_known.clear();
}

size_t read_known(Thread& thread, void* destination, uintptr_t address, size_t bytes) {
  const size_t unknown = Shadows::get().read(destination, address, bytes);
  if (unknown == 0 || bytes != sizeof(bool)) return unknown;
  for (const Frame& frame : thread.frames) {
    if (!frame.answer) continue;
    *static_cast<bool*>(destination) = *frame.answer;
    return 0;
  }
  return unknown;
}

size_t on_read(void* destination, uintptr_t address, size_t bytes) {
  if (!followed.load(std::memory_order_relaxed)) return bytes;
  try {
    Thread& thread = this_thread();
    thread.unknown_in_last_copy = bytes;
    return thread.unknown_in_last_copy = read_known(thread, destination, address, bytes);
  } catch (...) {
    return bytes;
  }
}

void note_work(bool is_captured) {
  Frame* const frame = running(this_thread());
  if (frame == nullptr) return;
  if (!frame->has_worked) forget_written(*frame);
  frame->has_worked = true;
  if (!is_captured) return;
  // Operators around it have no result before it has one.
  for (Frame& around : this_thread().frames) around.was_captured = true;
}

void on_write(uintptr_t address, const void* content, size_t bytes) {
  if (!followed.load(std::memory_order_relaxed)) return;
  try {
    note_work(false);
    Shadows::get().write(address, content, bytes);
  } catch (...) {
    Shadows::get().forget_all();
  }
}

void on_work(bool is_captured) {
  if (!followed.load(std::memory_order_relaxed)) return;
  try {
    Thread& thread = this_thread();
    note_work(is_captured);
    const Frame* const frame = running(thread);
    if (frame == nullptr || frame->is_opaque) return Shadows::get().forget_all();
    // It may write to what operators inside of it have made.
    for (size_t i = frame->known_before; i < thread.made_known.size(); ++i)
      Shadows::get().forget(thread.made_known[i]);
    thread.made_known.resize(std::min(thread.made_known.size(), frame->known_before));
  } catch (...) {
    Shadows::get().forget_all();
  }
}

void on_write_anywhere() {
  if (followed.load(std::memory_order_relaxed)) Shadows::get().forget_all();
}

void on_shared(uintptr_t address, size_t bytes, bool is_shared) {
  if (!followed.load(std::memory_order_relaxed)) return;
  try {
    Shadows::get().set_shared(address, bytes, is_shared);
  } catch (...) {
    followed.store(false);  // nothing is claimed any more
  }
}

constexpr memledger_virtual_gpu_values kValues = {&on_read, &on_write, &on_work,
                                                  &on_write_anywhere};

// After memledger's own work at load (101 to 103).
__attribute__((constructor(104))) void follow_values() {
  const auto know = reinterpret_cast<decltype(&memledger_virtual_gpu_know)>(
      dlsym(RTLD_DEFAULT, "memledger_virtual_gpu_know"));
  if (know == nullptr) return;
  const uint64_t most_bytes = know(&kValues);
  if (most_bytes == 0) return;
  Shadows::get().set_limit(most_bytes);
  // LibTorch does not use CUDA in a child; a lock may be held there.
  pthread_atfork(nullptr, nullptr, [] { followed.store(false); });
  at::addGlobalCallback(at::RecordFunctionCallback(&on_start, &on_end)
                            .needsInputs(true)
                            .needsOutputs(true)
                            .scopes({at::RecordScope::FUNCTION}));
  followed.store(true);
  const auto know_shared = reinterpret_cast<decltype(&memledger_virtual_gpu_know_shared)>(
      dlsym(RTLD_DEFAULT, "memledger_virtual_gpu_know_shared"));
  if (know_shared != nullptr) know_shared(&on_shared);
}

constexpr size_t kCpu = 0;  // of ThreadContext::wrapper_depth

struct SilentWarnings : c10::WarningHandler {
  void process(const c10::Warning&) override {}
};

// All that a mode of the program adds to an operator.
c10::DispatchKeySet modes() {
  using c10::DispatchKey;
  return c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::autocast_dispatch_keyset |
         c10::DispatchKeySet(
             {DispatchKey::Python, DispatchKey::PythonTLSSnapshot, DispatchKey::PythonDispatcher,
              DispatchKey::PreDispatch, DispatchKey::FuncTorchDynamicLayerFrontMode,
              DispatchKey::FuncTorchDynamicLayerBackMode, DispatchKey::FuncTorchVmapMode,
              DispatchKey::FuncTorchBatched, DispatchKey::FuncTorchGradWrapper,
              DispatchKey::VmapMode, DispatchKey::Batched, DispatchKey::Functionalize,
              DispatchKey::Tracer, DispatchKey::DeferredInit});
}

}  // namespace

struct PlainCpu::Guards {
  at::DisableRecordFunctionGuard no_observers;
  at::AutoGradMode no_grad{false};
  c10::impl::ForceDispatchKeyGuard no_modes{c10::DispatchKeySet(c10::DispatchKey::BackendSelect),
                                            modes()};
  SilentWarnings silent;
  c10::WarningUtils::WarningHandlerGuard no_warnings{&silent};
};

PlainCpu::PlainCpu() : guards_(std::make_unique<Guards>()) {
  ++core::this_thread().wrapper_depth[kCpu];
}

PlainCpu::~PlainCpu() { --core::this_thread().wrapper_depth[kCpu]; }

bool values_are_followed() noexcept { return followed.load(std::memory_order_relaxed); }

bool last_copy_was_known() noexcept {
  return values_are_followed() && this_thread().unknown_in_last_copy == 0;
}

std::optional<at::Tensor> known_values(const at::Tensor& tensor) noexcept {
  try {
    if (!tensor.defined()) return {};
    if (tensor.is_cpu()) return tensor;
    if (!values_are_followed()) return {};
    const std::optional<Place> place = Place::of(tensor);
    if (!place) return {};
    const std::optional<Value> value = Shadows::get().find(*place);
    if (!value || !value->is_known()) return {};
    return value->data;
  } catch (...) {
    return {};
  }
}

}  // namespace memledger::virtual_gpu
