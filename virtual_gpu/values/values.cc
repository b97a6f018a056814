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
#include <exception>
#include <iterator>
#include <memory>
#include <utility>
#include <vector>

#include "registry/core/thread_context.h"
#include "virtual_gpu/argument_words.h"
#include "virtual_gpu/known_values.h"
#include "virtual_gpu/reads.h"
#include "virtual_gpu/values/computation.h"
#include "virtual_gpu/values/distinct.h"
#include "virtual_gpu/values/operators.h"
#include "virtual_gpu/values/random.h"
#include "virtual_gpu/values/reach.h"
#include "virtual_gpu/values/recordings.h"
#include "virtual_gpu/values/shadows.h"

namespace memledger::virtual_gpu {
namespace {

std::atomic<bool> followed{false};

bool (*defers)() = nullptr;  // memledger_virtual_gpu_defers
decltype(&memledger_virtual_gpu_host_range) host_range = nullptr;
bool (*only_waits)(const void* kernel) = nullptr;  // memledger_virtual_gpu_only_waits

// What an operator did while a stream captured, or had work that waits.
struct Captured {
  std::optional<RecordedArguments> arguments;
  std::vector<std::shared_ptr<NodeRecord>> nodes;
  // Operators inside of it were captured; what they may have written to.
  bool is_inside = false;
  std::vector<OwnedPlace> written_inside;
};

// What runs on this thread, one inside another.
struct Frame {
  const at::RecordFunction* range = nullptr;
  OperatorInfo* info = nullptr;  // nullptr: a range that is no operator
  std::optional<Computation> computation;
  std::optional<DistinctResult> distinct;
  // What it may write to. Owned, as a program may take the storage away from its tensor meanwhile.
  std::vector<OwnedPlace> written;
  size_t known_before = 0;  // of Thread::made_known
  // What the operator is going to read back; aten::equal compares without operators that are seen.
  std::optional<bool> answer;
  bool has_worked = false;
  bool has_queued = false;        // work that is not done now
  bool has_used_library = false;  // of NVIDIA's, on a stream that is not seen
  // A Python tensor among its arguments: what runs inside, also kernels of others, is not seen.
  bool is_opaque = false;
  int exceptions = 0;  // in flight when it began
  std::optional<GeneratorState> generator;
  DrawnBy launch;                      // its last kernel's
  std::unique_ptr<Captured> captured;  // where its work may be deferred
};

struct Thread {
  std::vector<Frame> frames;
  // Made known by operators inside of one that still runs. What that one writes to is not seen.
  std::vector<Place> made_known;
  size_t unknown_in_last_copy = 0;
};

// Operators run while a thread ends, too: what they need then is made again.
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

void note_written(Frame& frame, const at::RecordFunction& fn) {
  const OperatorInfo& info = *frame.info;
  const auto inputs = fn.inputs();
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (info.is_ours && !(i < info.is_written.size() && info.is_written[i])) continue;
    for_each_tensor(inputs[i], [&](const at::Tensor& tensor) {
      if (std::optional<Place> place = Place::of_bytes(tensor))
        frame.written.emplace_back(*std::move(place));
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
  for (const OwnedPlace& place : frame.written) Shadows::get().forget(place.place());
}

// The running operator that does what the thread does; nullptr: none.
Frame* running(Thread& thread) {
  for (size_t i = thread.frames.size(); i-- > 0;) {
    if (thread.frames[i].info != nullptr) return &thread.frames[i];
  }
  return nullptr;
}

void keep(Thread& thread, const Place& place, const Value& value) {
  if (place.storage == nullptr) return;
  Shadows::get().set(place, value);
  thread.made_known.push_back(place);
}

bool fits(const Place& place, const at::Tensor& value) {
  return value.sizes() == at::IntArrayRef(place.sizes) && value.dtype() == place.dtype;
}

// Where a tensor without memory lies, such as a result that was not asked for: nowhere.
Place place_of_nothing(const at::Tensor& tensor) {
  Place place;
  place.sizes = tensor.sizes();
  place.strides = tensor.strides();
  place.dtype = tensor.dtype();
  return place;
}

// Where an operator has put its results, in the order of Computation::run(). Nothing where that
// is not known, as where it threw.
std::optional<std::vector<Place>> result_places(const OperatorInfo& info,
                                                const at::RecordFunction& fn) {
  const std::vector<c10::IValue>& outputs = fn.outputs();
  if (outputs.size() != info.written_argument.size()) return {};
  std::vector<Place> places;
  bool all = true;
  const auto add = [&](const at::Tensor& tensor) {
    std::optional<Place> place = tensor.defined() ? Place::of(tensor) : std::nullopt;
    if (!place && tensor.defined() && tensor.numel() == 0) place = place_of_nothing(tensor);
    all = all && place && place->dtype.itemsize() != 0;
    if (place) places.push_back(*std::move(place));
  };
  for (const c10::IValue& output : outputs) {
    if (output.isTensorList()) {
      for (const at::Tensor& tensor : output.toTensorList()) add(tensor);
    } else if (output.isTensor()) {
      add(output.toTensor());
    } else {
      return {};
    }
  }
  if (!all) return {};
  return places;
}

// None too large: they would be computed in vain.
bool may_compute_all(const std::vector<Place>& places) {
  bool any = false;
  for (const Place& place : places) {
    if (!may_compute(place)) return false;
    any |= place.numel() != 0;
  }
  return any;
}

// The numbers that an operator of a distribution has drawn: its kernel is the one that is known,
// and nobody has drawn from the generator meanwhile.
bool has_drawn_as_known(const Frame& frame, const Place& place) {
  if (!frame.generator) return false;
  const std::optional<uint64_t> count =
      numbers_taken(frame.info->distribution, place.numel(), frame.launch);
  const std::optional<GeneratorState> after = frame.generator->now();
  return count && after && frame.generator->is_followed_by(*after, *count);
}

// What has been computed goes where the operator put it. Returns false where that was not possible.
bool keep_results(Thread& thread, Frame& frame, const at::RecordFunction& fn) {
  OperatorInfo& info = *frame.info;
  std::optional<std::vector<Place>> places = result_places(info, fn);
  if (!places) return false;
  const std::vector<Place>& written = frame.computation->written();
  places->insert(places->end(), written.begin(), written.end());
  if (!may_compute_all(*places) ||
      info.failures.load(std::memory_order_relaxed) >= OperatorInfo::kMostFailures) {
    return false;
  }
  std::optional<RandomNumbers> numbers;
  if (info.distribution != Distribution::kNone) {
    if (frame.generator && frame.generator->is_captured) return false;
    if (!has_drawn_as_known(frame, places->front())) return false;
    numbers = RandomNumbers{frame.generator->seed, frame.generator->offset};
  }
  std::vector<Value> values;
  try {
    const PlainCpu plain;
    values = frame.computation->run(numbers ? &*numbers : nullptr);
  } catch (...) {
    info.failures.fetch_add(1, std::memory_order_relaxed);
    return false;
  }
  if (values.size() != places->size()) return false;
  for (size_t i = 0; i < values.size(); ++i) {
    if (!fits((*places)[i], values[i].data)) return false;
  }
  for (size_t i = 0; i < values.size(); ++i) keep(thread, (*places)[i], values[i]);
  return true;
}

// What the operator may have written to, with what it returned.
std::vector<OwnedPlace> all_written(const Frame& frame, const at::RecordFunction& fn) {
  std::vector<OwnedPlace> result = frame.written;
  for (const c10::IValue& output : fn.outputs()) {
    for_each_tensor(output, [&](const at::Tensor& tensor) {
      if (std::optional<Place> place = Place::of_bytes(tensor))
        result.emplace_back(*std::move(place));
    });
  }
  const std::vector<OwnedPlace>& inside = frame.captured->written_inside;
  result.insert(result.end(), inside.begin(), inside.end());
  return result;
}

// Makes the recording of an operator all of whose work was captured, so that it can be computed.
void record_computation(Recording& recording, Frame& frame, const at::RecordFunction& fn) {
  Captured& captured = *frame.captured;
  const OperatorInfo& info = *frame.info;
  if (!captured.arguments || captured.is_inside || frame.has_worked || frame.has_queued) return;
  std::optional<std::vector<Place>> places = result_places(info, fn);
  if (!places) return;
  captured.arguments->add_written(info, *places);
  const bool all_have_memory = std::all_of(
      places->begin(), places->end(), [](const Place& place) { return place.storage != nullptr; });
  if (!all_have_memory || !may_compute_all(*places)) return;
  if (info.distribution != Distribution::kNone) {
    if (!frame.generator || !frame.generator->is_captured ||
        !has_drawn_as_known(frame, places->front())) {
      return;
    }
    recording.numbers = RecordedNumbers{frame.generator->seed, frame.generator->offset,
                                        frame.generator->captured_offset};
  }
  for (Place& place : *places) recording.results.emplace_back(std::move(place));
  recording.arguments = std::move(captured.arguments);
}

// The last of an operator's nodes stands for all of it.
void record(Frame& frame, const at::RecordFunction& fn, std::vector<OwnedPlace> written) {
  const std::shared_ptr<Recording> recording = Recording::make();
  if (recording == nullptr) return;  // its nodes may write anywhere
  recording->info = frame.info;
  record_computation(*recording, frame, fn);
  recording->written = std::move(written);
  const std::vector<std::shared_ptr<NodeRecord>>& nodes = frame.captured->nodes;
  nodes.back()->set(NodeRecord::Kind::kRecording, recording);
  for (size_t i = 0; i + 1 < nodes.size(); ++i) nodes[i]->set(NodeRecord::Kind::kNothing);
}

// Returns whether the work of an operator was captured, or may have been.
bool end_captured(Thread& thread, Frame& frame, const at::RecordFunction& fn, bool has_thrown) {
  constexpr size_t kMostInside = 1024;
  Captured& captured = *frame.captured;
  const OperatorInfo& info = *frame.info;
  const bool has_nodes = !captured.nodes.empty();
  const bool is_silent = !has_nodes && !frame.has_worked &&
                         (frame.has_used_library || (info.has_kernel && info.writes) ||
                          (!info.is_ours && info.has_kernel));
  if (!has_nodes && !captured.is_inside && !is_silent) return false;
  std::vector<OwnedPlace> written = all_written(frame, fn);
  if (has_nodes && !has_thrown && captured.written_inside.size() < kMostInside)
    record(frame, fn, written);
  if (frame.has_worked || is_silent) forget_written(frame);
  // What operators inside of it have not done has to be forgotten.
  if (is_silent && (!captured.is_inside || frame.has_used_library)) UnseenWork::get().add(written);
  Frame* const outer = running(thread);
  if (outer != nullptr && outer->captured != nullptr) {
    std::vector<OwnedPlace>& inside = outer->captured->written_inside;
    outer->captured->is_inside = true;
    if (inside.size() < kMostInside)
      std::move(written.begin(), written.end(), std::back_inserter(inside));
  }
  return true;
}

void begin_draw(Frame& frame, const at::RecordFunction& fn) {
  const c10::IValue& self = fn.inputs()[0];
  if (!self.isTensor() || !self.toTensor().defined() || !self.toTensor().is_cuda()) return;
  const at::Tensor& tensor = self.toTensor();
  const std::optional<Place> place = Place::of(tensor);
  // In other orders of elements than the memory's, another thread of the kernel makes each.
  if (!place || !may_compute(*place) || !tensor.is_contiguous()) return;
  frame.generator = GeneratorState::of(fn.inputs(), tensor.device().index());
}

void begin(Frame& frame, const at::RecordFunction& fn) {
  const OperatorInfo& info = *frame.info;
  frame.exceptions = std::uncaught_exceptions();
  if (defers()) frame.captured = std::make_unique<Captured>();
  if (info.writes || !info.is_ours) note_written(frame, fn);
  frame.is_opaque = has_python_tensor(fn);
  if (!frame.captured && !frame.is_opaque) frame.distinct = DistinctResult::of(info, fn.inputs());
  if (!info.is_computed) return;
  if (info.distribution != Distribution::kNone) {
    begin_draw(frame, fn);
    if (!frame.generator) return;
  }
  frame.computation = Computation::of(info, fn.inputs());
  if (frame.captured && !info.is_equal)
    frame.captured->arguments = RecordedArguments::of(fn.inputs());
  if (frame.computation && info.is_equal) {
    const PlainCpu plain;
    frame.answer = frame.computation->answer();
    frame.computation.reset();
  }
}

std::unique_ptr<at::ObserverContext> on_start(const at::RecordFunction& fn) {
  if (!followed.load(std::memory_order_relaxed)) return nullptr;
  Thread& thread = this_thread();
  try {
    Frame& frame = thread.frames.emplace_back();
    frame.range = &fn;
    frame.known_before = thread.made_known.size();
    frame.info = operator_info(fn);
    if (frame.info != nullptr) begin(frame, fn);
  } catch (...) {  // unknown, then
  }
  return nullptr;
}

void keep_distinct(Thread& thread, const DistinctResult& distinct, const at::RecordFunction& fn) {
  const std::vector<c10::IValue>& outputs = fn.outputs();
  if (outputs.empty() || !outputs[0].isTensor()) return;
  if (std::optional<Place> place = distinct.keep(outputs[0].toTensor()))
    thread.made_known.push_back(*std::move(place));
}

void end(Thread& thread, Frame& frame, const at::RecordFunction& fn) {
  const OperatorInfo& info = *frame.info;
  const bool has_thrown = std::uncaught_exceptions() > frame.exceptions;
  if (frame.captured && end_captured(thread, frame, fn, has_thrown)) return;
  const bool wrote =
      frame.has_worked || (info.has_kernel && info.writes) || !(info.is_ours || info.is_collective);
  // Where it has launched nothing, it may have asked others to do it.
  const bool is_done = !has_thrown && !frame.has_queued && (frame.has_worked || info.writes);
  if (wrote && !(frame.computation && is_done && keep_results(thread, frame, fn)))
    forget_written(frame);
  if (frame.distinct && is_done) keep_distinct(thread, *frame.distinct, fn);
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
    if (frame.info != nullptr) end(thread, frame, fn);
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

// Its copies are reported as such.
bool is_collective(const Frame& frame) { return frame.info->is_collective; }

// Returns that of the operator that runs; nullptr: there is none.
Frame* note_work(Thread& thread, bool is_queued) {
  Frame* const frame = running(thread);
  if (frame == nullptr) return nullptr;
  if (!frame->has_worked) forget_written(*frame);
  frame->has_worked = true;
  frame->has_queued |= is_queued;
  return frame;
}

void on_write(uintptr_t address, const void* content, size_t bytes) {
  if (!followed.load(std::memory_order_relaxed)) return;
  try {
    note_work(this_thread(), false);
    Shadows::get().write(address, content, bytes);
  } catch (...) {
    Shadows::get().forget_all();
  }
}

void forget_made_inside(Thread& thread, const Frame& frame) {
  // It may write to what operators inside of it have made.
  for (size_t i = frame.known_before; i < thread.made_known.size(); ++i)
    Shadows::get().forget(thread.made_known[i]);
  thread.made_known.resize(std::min(thread.made_known.size(), frame.known_before));
}

// A kernel that is none of LibTorch's: it writes to what it can reach.
void forget_reached(const memledger_virtual_gpu_work& work) {
  const bool is_told = for_each_argument_word(work, [](uintptr_t word) {
    Shadows::get().forget_reached(word);
    uintptr_t begin = 0;
    size_t bytes = 0;
    if (host_range != nullptr && host_range(word, &begin, &bytes) != 0)
      WrittenHostMemory::get().add(begin, bytes);
  });
  if (!is_told) Shadows::get().forget_all();
}

void on_work(const memledger_virtual_gpu_work* work) {
  if (!followed.load(std::memory_order_relaxed)) return;
  try {
    Thread& thread = this_thread();
    Frame* const frame = note_work(thread, work->is_queued);
    if (frame == nullptr && work->kernel != nullptr && only_waits(work->kernel)) return;
    if (frame == nullptr || frame->is_opaque || !(frame->info->is_ours || is_collective(*frame)))
      forget_reached(*work);
    if (frame == nullptr) return;
    frame->launch = {work->blocks, work->threads};
    forget_made_inside(thread, *frame);
  } catch (...) {
    Shadows::get().forget_all();
  }
}

// A library of NVIDIA's works, on which stream is not known.
void on_library_work() {
  if (!followed.load(std::memory_order_relaxed)) return;
  try {
    Thread& thread = this_thread();
    Frame* const frame = running(thread);
    if (frame == nullptr || frame->is_opaque) return Shadows::get().forget_all();
    frame->has_used_library = true;
    forget_made_inside(thread, *frame);
    if (frame->captured == nullptr) note_work(thread, false);
  } catch (...) {
    Shadows::get().forget_all();
  }
}

// What an answer keeps of a node.
using Kept = std::shared_ptr<NodeRecord>;

void* on_capture(const memledger_virtual_gpu_work* work) {
  if (!followed.load(std::memory_order_relaxed)) return nullptr;
  try {
    const auto node = std::make_shared<NodeRecord>();
    node->set_unseen(UnseenWork::get().take());
    Frame* const frame = running(this_thread());
    if (frame == nullptr) {
      if (work->kernel != nullptr && only_waits(work->kernel))
        node->set(NodeRecord::Kind::kNothing);
    } else if (!frame->is_opaque && (frame->info->is_ours || is_collective(*frame)) &&
               frame->captured != nullptr) {
      frame->captured->nodes.push_back(node);
      frame->launch = {work->blocks, work->threads};
    }
    return new Kept(node);
  } catch (...) {
    return nullptr;
  }
}

void on_launched(void* captured) {
  if (!followed.load(std::memory_order_relaxed)) return;
  try {
    if (captured == nullptr) return Shadows::get().forget_all();
    Thread& thread = this_thread();
    const bool is_inside = note_work(thread, false) != nullptr;
    std::vector<Place> known = (*static_cast<Kept*>(captured))->launch();
    if (!is_inside) return;
    std::move(known.begin(), known.end(), std::back_inserter(thread.made_known));
  } catch (...) {
    Shadows::get().forget_all();
  }
}

void on_drop(void* captured) { delete static_cast<Kept*>(captured); }

void on_launch_end() {
  if (followed.load(std::memory_order_relaxed)) UnseenWork::get().forget_all_of_it();
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

constexpr memledger_virtual_gpu_values kValues = {
    &on_read,     &on_write, &on_work,       &on_library_work,  &on_capture,
    &on_launched, &on_drop,  &on_launch_end, &on_write_anywhere};

template <typename Function>
Function find(const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_DEFAULT, name));
}

// After memledger's own work at load (101 to 103).
__attribute__((constructor(104))) void follow_values() {
  const auto know = find<decltype(&memledger_virtual_gpu_know)>("memledger_virtual_gpu_know");
  defers = find<decltype(defers)>("memledger_virtual_gpu_defers");
  host_range = find<decltype(host_range)>("memledger_virtual_gpu_host_range");
  only_waits = find<decltype(only_waits)>("memledger_virtual_gpu_only_waits");
  if (know == nullptr || defers == nullptr || only_waits == nullptr) return;
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

uint64_t max_distinct_values(const at::Tensor& tensor) noexcept {
  const auto elements = static_cast<uint64_t>(tensor.numel());
  try {
    return values_are_followed() ? max_distinct(tensor) : elements;
  } catch (...) {
    return elements;
  }
}

}  // namespace memledger::virtual_gpu
