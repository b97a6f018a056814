#include "registry/registry.h"

#include <dlfcn.h>
#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "registry/allocation_failure.h"
#include "registry/core/training_threads.h"
#include "registry/device_statistics.h"
#include "registry/hooks/block_hooks.h"
#include "registry/hooks/cpu_allocator.h"
#include "registry/hooks/cuda_allocator.h"
#include "registry/hooks/operator_observer.h"
#include "registry/hooks/stack_sampler.h"
#include "registry/hooks/training_notes.h"
#include "registry/record_values.h"
#include "registry/recording.h"
#include "registry/second_copy/copies.h"
#include "registry/snapshot_data.h"
#include "registry/state.h"
#include "text/output.h"

namespace memledger {
namespace {

// Not in Registry itself, so that its header stays free of locks. Only for the thread whose turn it
// is.
//
// A turn is no lock of ours: LibTorch and the program's allocator are called meanwhile. Other
// threads wait for its end; the one whose it is may come back from there, and goes on at once.
class Activation {
 public:
  int count = 0;
  bool observing = false;
  RegistryOptions options;

  // False: it is this thread's already.
  bool begin_turn() noexcept {
    const std::thread::id mine = std::this_thread::get_id();
    if (turn_of_.load(std::memory_order_relaxed) == mine) return false;
    for (std::thread::id nobody;
         !turn_of_.compare_exchange_weak(nobody, mine, std::memory_order_acquire); nobody = {}) {
      std::this_thread::yield();
    }
    return true;
  }
  void end_turn() noexcept { turn_of_.store({}, std::memory_order_release); }

 private:
  std::atomic<std::thread::id> turn_of_{};
};

Activation& activation() {
  static auto* const one = new Activation;
  return *one;
}

class Turn {
 public:
  Turn() noexcept : begun_(activation().begin_turn()) {}
  ~Turn() {
    if (begun_) activation().end_turn();
  }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

 private:
  const bool begun_;
};

// Stacks that serve both. Nothing where there are none: those from a size on, and samples.
std::optional<StackOptions> wider(StackOptions a, StackOptions b) {
  using Policy = StackOptions::Policy;
  if (a.policy == Policy::kNone) return b;
  if (b.policy == Policy::kNone) return a;
  // Every stack has its own weight, so estimates from all of them, or from samples of two
  // densities, are right as well.
  if (a.policy == Policy::kAll || b.policy == Policy::kAll) return StackOptions::all();
  if (a.policy != b.policy) return std::nullopt;
  return a.bytes <= b.bytes ? a : b;
}

absl::StatusOr<RegistryOptions> wider(const RegistryOptions& present,
                                      const RegistryOptions& asked) {
  const std::optional<StackOptions> stacks = wider(present.stacks, asked.stacks);
  if (!stacks) {
    return absl::FailedPreconditionError(
        "memledger: RegistryOptions::stacks: samples and stacks from a size on cannot be had at "
        "the "
        "same time, and an activation that has not ended takes the other kind; ask for "
        "StackOptions::all(), which serves both");
  }
  RegistryOptions both;
  both.operators = present.operators || asked.operators;
  both.adopt_inputs = present.adopt_inputs || asked.adopt_inputs;
  both.peaks = present.peaks || asked.peaks;
  both.stacks = *stacks;
  return both;
}

bool fork_in_own_turn = false;

void before_fork() {
  fork_in_own_turn = !activation().begin_turn();
  CudaAllocator::lock_for_fork();
  StackSampler::lock_for_fork();
  lock_adoption_for_fork();
  RegistryState& state = RegistryState::get();
  state.ledger.lock_for_fork();
  state.names.lock_for_fork();
  state.labels.lock_for_fork();
  state.peak_labels.lock_for_fork();
  state.label_history.lock_for_fork();
  training_notes_lock().lock();
}

void after_fork() {
  training_notes_lock().unlock();
  RegistryState& state = RegistryState::get();
  state.label_history.unlock_after_fork();
  state.peak_labels.unlock_after_fork();
  state.labels.unlock_after_fork();
  state.names.unlock_after_fork();
  state.ledger.unlock_after_fork();
  unlock_adoption_after_fork();
  StackSampler::unlock_after_fork();
  CudaAllocator::unlock_after_fork();
  if (!fork_in_own_turn) activation().end_turn();
}

// At load, so that whatever takes locks before ours registers its handlers later: those run in the
// reverse order.
bool watch_forks() {
  static const bool watched = pthread_atfork(&before_fork, &after_fork, &after_fork) == 0;
  return watched;
}

c10::Device device_of(core::DeviceKey key) {
  return c10::Device(static_cast<c10::DeviceType>(key.type),
                     static_cast<c10::DeviceIndex>(key.index));
}

// Without an index: the first, as in registry/device_statistics.h.
core::DeviceKey key_of(c10::Device device) {
  const bool indexed = !device.is_cpu() && !device.is_meta();
  const c10::DeviceIndex index = device.has_index() ? device.index() : c10::DeviceIndex{0};
  return {static_cast<int8_t>(device.type()), static_cast<int8_t>(indexed ? index : -1)};
}

StorageKind kind_of(const core::StorageRecord& record, bool temporary) {
  if (record.library_workspace) return StorageKind::kLibraryWorkspace;
  if (record.raw_block) return StorageKind::kRawBlock;
  const bool from_an_operator = record.birthplace.op != 0 && !record.adopted && !temporary;
  // Not `described`: an event has no room for long shapes.
  return from_an_operator && record.dtype == core::kUnknownDtype ? StorageKind::kScratch
                                                                 : StorageKind::kTensor;
}

void fill(StorageInfo& info, const core::StorageRecord& record) {
  const RegistryState& state = RegistryState::get();
  static_cast<Birthplace&>(info) = birthplace_value(record.birthplace);
  info.stack = record.stack;
  info.adopted = record.adopted;
  info.id = record.id;
  info.address = record.address;
  info.nbytes = record.nbytes;
  info.device = device_of(record.device);
  info.stack_weight = record.stack_weight;
  info.temporary =
      state.running.is_running(record.birthplace.thread, record.birthplace.op_sequence);
  info.raw_block = record.raw_block;
  info.used_as_parameter = record.parameter_like;
  info.kind = kind_of(record, info.temporary);
  if (record.described) {
    info.dtype = static_cast<c10::ScalarType>(record.dtype);
    info.shape.assign(record.shape.begin(), record.shape.end());
  }
}

StorageInfo to_value(const core::StorageRecord& record) {
  StorageInfo info;
  fill(info, record);
  return info;
}

std::vector<DeviceInfo> to_values(const std::vector<core::DeviceTotals>& devices) {
  std::vector<DeviceInfo> result;
  result.reserve(devices.size());
  for (const core::DeviceTotals& one : devices) {
    result.push_back({device_of(one.device), one.counters, one.table_bytes, one.adopted_bytes,
                      one.raw_block_bytes, one.library_workspace_bytes});
  }
  return result;
}

template <typename Value>
void note_what_went_unseen(const RegistryState& state, Value& value) {
  const Unseen& cpu = state.unseen_of(WatchedType::kCpu);
  const Unseen& cuda = state.unseen_of(WatchedType::kCuda);
  value.unseen_before_tracking = cpu.before.load(std::memory_order_relaxed);
  value.tracking_was_off = cpu.in_gap.load(std::memory_order_relaxed);
  value.cuda_unseen_before_tracking = cuda.before.load(std::memory_order_relaxed);
  value.cuda_tracking_was_off = cuda.in_gap.load(std::memory_order_relaxed);
}

void add_rows(const core::RecordList& records, Snapshot::Data& data) {
  std::vector<std::pair<core::DeviceKey, size_t>> counts;
  const auto place_of = [&](core::DeviceKey device) {
    return std::find_if(counts.begin(), counts.end(),
                        [&](const auto& count) { return count.first == device; });
  };
  for (const core::StorageRecord& record : records) {
    auto place = place_of(record.device);
    if (place == counts.end()) place = counts.insert(place, {record.device, 0});
    ++place->second;
  }
  std::vector<core::LargeVector<StorageInfo>*> rows;
  for (const auto& [device, count] : counts) {
    const c10::Device of = device_of(device);
    rows.push_back(&data.storages[{of.type(), of.index()}]);
    rows.back()->reserve(count);
  }
  for (const core::StorageRecord& record : records) {
    fill(rows[static_cast<size_t>(place_of(record.device) - counts.begin())]->emplace_back(),
         record);
  }
}

// Of two storages at one address at different times the later one is found there; at one peak there
// is only one.
Snapshot to_snapshot(const core::LedgerPeak& peak, c10::Device device) {
  const RegistryState& state = RegistryState::get();
  auto data = std::make_shared<Snapshot::Data>();
  data->time = std::chrono::system_clock::now();
  data->complete = peak.complete;
  note_what_went_unseen(state, *data);
  add_rows(peak.records, *data);
  DeviceInfo info;
  info.device = device_of(key_of(device));
  info.counters.current_bytes = info.counters.peak_bytes = peak.bytes;
  info.counters.current_count = static_cast<int64_t>(peak.records.size());
  for (const core::StorageRecord& record : peak.records) {
    info.table_bytes += record.nbytes;
    if (record.adopted) info.adopted_bytes += record.nbytes;
    if (record.raw_block) info.raw_block_bytes += record.nbytes;
    if (record.library_workspace) info.library_workspace_bytes += record.nbytes;
  }
  data->devices.push_back(info);
  return Snapshot(std::move(data));
}

// The program may have set an allocator of its own since the activation: what came through it went
// unseen, what comes will not.
void stay_in_front() {
  if (!RegistryState::get().active.load(std::memory_order_relaxed)) return;
  if (!CudaAllocator::is_in_front()) CudaAllocator::put_in_front();
  if (TrackingCpuAllocator::is_in_front()) return;
  const Turn turn;
  try {
    TrackingCpuAllocator::put_in_front();
  } catch (const std::exception&) {
    RegistryState::get().swallowed_exceptions.fetch_add(1, std::memory_order_relaxed);
  }
}

// LibTorch makes and drops them without a word: each reading of the table begins with what it has
// now.
void note_library_workspaces() {
  core::Ledger& ledger = RegistryState::get().ledger;
  for (const LibraryWorkspace& one : library_workspaces())
    ledger.mark_library_workspace(one.address, key_of(one.device));
}

// Storages keep pointers into this code, and LibTorch keeps the callbacks: a plugin that brings
// memledger must not be unloaded.
void stay_loaded() {
  Dl_info info;
  if (dladdr(reinterpret_cast<void*>(&stay_loaded), &info) != 0 && info.dli_fname != nullptr) {
    dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD | RTLD_NODELETE);
  }
}

class OwnServices final : public CopyServices {
 public:
  uint32_t enter_label(const std::string& label) override {
    core::ThreadContext& thread = core::this_thread();
    core::NameTable& labels = RegistryState::get().labels;
    const uint32_t before = thread.label;
    std::string path(labels.name(before));
    if (!path.empty()) path += '/';
    path += label;
    thread.label = labels.intern(path);
    RegistryState::get().label_history.note(thread.thread, thread.label);
    return before;
  }
  void leave_label(uint32_t before) override {
    core::ThreadContext& thread = core::this_thread();
    thread.label = before;
    RegistryState::get().label_history.note(thread.thread, before);
  }

  PhaseBefore enter_phase(Phase phase) override {
    core::ThreadContext& thread = core::this_thread();
    const PhaseBefore before{thread.phase_is_set, thread.set_phase};
    thread.phase_is_set = true;
    thread.set_phase = phase;
    return before;
  }
  void leave_phase(PhaseBefore before) override {
    core::ThreadContext& thread = core::this_thread();
    thread.phase_is_set = before.was_set;
    thread.set_phase = before.phase;
  }

  void close_cursor(uint64_t number) override { RegistryState::get().ledger.close_cursor(number); }
  AllocationFailureObserver set_failure_observer(
      AllocationFailureObserver observer) noexcept override {
    return set_allocation_failure_observer(observer);
  }
  void start_recording(size_t max_events, core::RecordingMark& mark) override {
    RegistryState& state = RegistryState::get();
    mark = state.ledger.start_recording(max_events);
    try {
      state.label_history.start();
      mark.label_changes = state.label_history.written();
    } catch (...) {
      state.ledger.stop_recording();
      throw;
    }
  }
  void stop_recording() noexcept override {
    RegistryState& state = RegistryState::get();
    state.label_history.stop();
    state.ledger.stop_recording();
  }
  Recording read_recording(core::RecordingMark& since, bool with_alive) override;
  uint32_t this_thread_number() noexcept override { return core::this_thread().thread; }
  std::vector<StackFrame> stack_frames(uint32_t stack) override {
    return memledger::stack_frames(stack);
  }
  BlockObserver set_block_observer(BlockObserver observer) noexcept override {
    return RegistryState::get().block_observer.exchange(observer, std::memory_order_acq_rel);
  }
  std::vector<LiveStorage> live_storages(c10::Device device) override {
    return live_storages_here(device);
  }
  void know_storage(c10::StorageImpl& storage) override { know_storage_here(storage); }
  bool owns_watched_block(const c10::StorageImpl& storage) noexcept override {
    return owns_watched_block_here(storage);
  }
  uint32_t take_stack() noexcept override { return StackSampler::take_now(); }
  std::vector<void*> stack_addresses(uint32_t stack) override {
    return StackSampler::table().frames(stack);
  }
  void want_gradients(bool wanted) noexcept override { want_gradients_here(wanted); }
  void note_gradient(const at::Tensor& leaf) override { note_gradient_here(leaf); }
  at::Tensor noted_gradient(const at::Tensor& leaf) override { return noted_gradient_here(leaf); }
  bool no_other_thread_trains() noexcept override {
    return !core::TrainingThreads::any_but(core::this_thread().thread);
  }
  bool trains(uint32_t thread) noexcept override {
    return core::TrainingThreads::is_training(thread);
  }
  void note_that_this_thread_trains() noexcept override {
    core::TrainingThreads::note(core::this_thread());
  }
  void add_step_observer(StepObserver observer) noexcept override {
    RegistryState::get().step_observers.add(observer);
  }
  void remove_step_observer(StepObserver observer) noexcept override {
    RegistryState::get().step_observers.remove(observer);
  }
  bool allocator_is_usable(c10::DeviceType type) noexcept override {
    return memledger::allocator_is_usable(type);
  }
  bool take_exit_report() noexcept override {
    return !exit_report_taken_.exchange(true, std::memory_order_relaxed);
  }

 private:
  std::atomic<bool> exit_report_taken_{false};
};

StorageInfo to_value(const core::LedgerEvent& event) {
  core::StorageRecord record;
  record.id = event.id;
  record.address = event.address;
  record.nbytes = event.nbytes;
  record.birthplace = event.birthplace;
  record.stack = event.stack;
  record.device = event.device;
  record.adopted = event.adopted;
  record.raw_block = event.raw_block;
  record.library_workspace = event.library_workspace;
  record.parameter_like = event.parameter_like;
  record.described = event.described;
  record.dtype = event.dtype;
  record.shape.assign(event.shape.begin(), event.shape.begin() + event.dims);
  StorageInfo info = to_value(record);
  if (!event.complete && info.kind == StorageKind::kScratch) info.kind = StorageKind::kTensor;
  return info;
}

Recording OwnServices::read_recording(core::RecordingMark& since, bool with_alive) {
  stay_in_front();
  note_library_workspaces();
  RegistryState& state = RegistryState::get();
  core::LedgerRecording read = state.ledger.recording(since, with_alive);
  Recording result;
  result.begin_ns = read.complete_since_ns;
  result.end_ns = read.end.time_ns;
  result.end_time = std::chrono::system_clock::now();
  result.dropped_events = read.dropped;
  result.devices = to_values(read.devices);
  std::unordered_map<uint64_t, size_t> places;
  places.reserve(read.events.size() + read.alive.size());
  const auto life_of = [&](uint64_t id) -> Lifetime& {
    const auto [place, is_new] = places.try_emplace(id, result.lifetimes.size());
    if (is_new) result.lifetimes.emplace_back();
    return result.lifetimes[place->second];
  };
  for (const core::LedgerEvent& event : read.events) {
    Lifetime& life = life_of(event.id);
    life.storage = to_value(event);
    life.used_as_parameter = event.parameter_like;
    (event.birth ? life.born_ns : life.died_ns) = event.time_ns;
  }
  for (const core::StorageRecord& record : read.alive) {
    Lifetime& life = life_of(record.id);
    life.storage = to_value(record);
    life.used_as_parameter = record.parameter_like;
  }
  std::sort(result.lifetimes.begin(), result.lifetimes.end(),
            [](const Lifetime& a, const Lifetime& b) { return a.storage.id < b.storage.id; });
  const core::LabelHistory::Reading labels =
      state.label_history.read(since.label_changes, result.begin_ns, result.end_ns);
  for (const core::LabelHistory::Change& change : labels.changes) {
    result.label_changes.push_back(
        {change.time_ns, change.thread, state.labels.name(change.label)});
  }
  result.dropped_label_changes = static_cast<int64_t>(labels.overwritten);
  if (!with_alive) {
    since = read.end;
    since.label_changes = labels.end;
  }
  return result;
}

OwnServices& own_services() {
  static auto* const services = new OwnServices;
  return *services;
}

// Of the copy that watches. Labels and cursors go straight to it, as all other things do through
// Registry::global().
CopyServices& services() { return copy_services(); }

bool is_refused() {
  const CopyDecision* const decision = copy_decision();
  return decision != nullptr && decision->role == CopyDecision::Role::kRefused;
}

// Keeps this copy's notes whole in a child of fork. The copy that watches sees to all other locks.
void watch_forks_for_notes() {
  static const int registered =
      pthread_atfork([] { training_notes_lock().lock(); }, [] { training_notes_lock().unlock(); },
                     [] { training_notes_lock().unlock(); });
  (void)registered;
}

// Before the program's own static objects, so that an allocation before the first activation is not
// overlooked.
__attribute__((constructor(101))) void at_load() {
  stay_loaded();
  Registry::global();
  if (first_copy() != nullptr) {
    watch_forks_for_notes();
    return;
  }
  RegistryState::get();  // made now, while there is memory
  watch_forks();
  if (is_refused()) {
    note_unseen(WatchedType::kCpu);
    note_unseen(WatchedType::kCuda);
    return;
  }
  if (c10::GetAllocator(c10::DeviceType::CPU) != nullptr) {
    TrackingCpuAllocator::put_in_front();
  } else {
    // A statically linked LibTorch that has not come up yet.
    note_unseen(WatchedType::kCpu);
  }
  CudaAllocator::put_in_front();
}

}  // namespace

CopyServices& copy_services() {
  Registry::global();
  const CopyOffer* const first = first_copy();
  return first == nullptr ? own_services() : *first->services;
}

BlockObserver set_block_observer(BlockObserver observer) noexcept {
  return services().set_block_observer(observer);
}
std::vector<LiveStorage> live_storages(c10::Device device) {
  return services().live_storages(device);
}
void know_storage(c10::StorageImpl& storage) { services().know_storage(storage); }
bool owns_watched_block(const c10::StorageImpl& storage) noexcept {
  return services().owns_watched_block(storage);
}
uint32_t take_stack() noexcept { return services().take_stack(); }
std::vector<void*> stack_addresses(uint32_t stack) { return services().stack_addresses(stack); }

bool take_exit_report() noexcept { return services().take_exit_report(); }

Registry& Registry::global() {
  static auto* const own = new Registry;
  static Registry& in_use = [&]() -> Registry& {
    const CopyDecision& decision = decide_who_watches(*own, own_services());
    return decision.role == CopyDecision::Role::kHandsOver ? *decision.watching->registry : *own;
  }();
  return in_use;
}

absl::Status Registry::activate(const RegistryOptions& options) {
  if (is_refused()) return absl::FailedPreconditionError(copy_decision()->refusal);
  CudaAllocator::put_in_front();
  const Turn turn;
  Activation& activation = memledger::activation();
  const bool is_first = activation.count == 0;
  const absl::StatusOr<RegistryOptions> wanted =
      is_first ? options : wider(activation.options, options);
  if (!wanted.ok()) return wanted.status();
  RegistryState& state = RegistryState::get();
  try {
    if (is_first) TrackingCpuAllocator::put_in_front();
    OperatorObserver::adopt_inputs(wanted->adopt_inputs);
    if (wanted->operators && !activation.observing) OperatorObserver::start();
  } catch (const std::exception& error) {
    return absl::InternalError(
        "memledger: cannot watch operators: " + std::string(first_line(error.what())) +
        "; activate with RegistryOptions::operators = false to have bytes without names");
  }
  activation.observing = wanted->operators;
  activation.options = *wanted;
  ++activation.count;
  state.ledger.keep_peaks(wanted->peaks);
  StackSampler::set(wanted->stacks);
  if (is_first) {
    state.ledger.restart_peaks();
    state.ever_active.store(true, std::memory_order_relaxed);
    state.active.store(true, std::memory_order_relaxed);
  }
  if (!watch_forks())
    return absl::ResourceExhaustedError(
        "memledger: tracking is on, but there was no memory to prepare for fork: do not fork");
  return absl::OkStatus();
}

void Registry::deactivate() {
  const Turn turn;
  Activation& activation = memledger::activation();
  if (activation.count == 0 || --activation.count > 0) return;
  RegistryState::get().active.store(false, std::memory_order_relaxed);
  if (activation.observing) OperatorObserver::stop();
  activation.observing = false;
}

bool Registry::active() const {
  return RegistryState::get().active.load(std::memory_order_relaxed);
}

Snapshot Registry::snapshot() const {
  stay_in_front();
  note_library_workspaces();
  RegistryState& state = RegistryState::get();
  core::LedgerSnapshot taken = state.ledger.snapshot();
  auto data = std::make_shared<Snapshot::Data>();
  data->time = taken.time;
  data->devices = to_values(taken.devices);
  note_what_went_unseen(state, *data);
  add_rows(taken.records, *data);
  return Snapshot(std::move(data));
}

Snapshot Registry::peak_snapshot(c10::Device device) const {
  note_library_workspaces();
  return to_snapshot(RegistryState::get().ledger.peak(key_of(device)), device);
}

Snapshot Registry::peak_snapshot(c10::Device device, const std::string& label) const {
  RegistryState& state = RegistryState::get();
  const std::optional<size_t> kept = state.peak_labels.find(label);
  note_library_workspaces();
  return kept ? to_snapshot(state.ledger.peak(key_of(device), *kept), device) : Snapshot();
}

absl::Status Registry::keep_label_peak(const std::string& label) {
  if (label.empty())
    return absl::InvalidArgumentError("memledger: an empty label has no peak of its own");
  if (!RegistryState::get().peak_labels.keep(label)) {
    return absl::ResourceExhaustedError("memledger: no peak is kept of the label `" + label +
                                        "`: " + std::to_string(core::kMaxPeakLabels) +
                                        " labels keep one already");
  }
  return absl::OkStatus();
}

namespace {

// Where a cursor was: it goes back there unless all has been told.
class CursorBefore {
 public:
  CursorBefore(core::Ledger& ledger, uint64_t cursor)
      : ledger_(ledger), cursor_(cursor), before_(ledger.copy_cursor(cursor)) {}
  ~CursorBefore() {
    if (!told_) ledger_.swap_cursors(cursor_, before_);
    ledger_.close_cursor(before_);
  }
  CursorBefore(const CursorBefore&) = delete;
  CursorBefore& operator=(const CursorBefore&) = delete;
  void told() noexcept { told_ = true; }

 private:
  core::Ledger& ledger_;
  const uint64_t cursor_;
  const uint64_t before_;
  bool told_ = false;
};

Changes changes_of(uint64_t cursor, bool rows) {
  stay_in_front();
  note_library_workspaces();
  RegistryState& state = RegistryState::get();
  CursorBefore before(state.ledger, cursor);
  core::LedgerChanges taken = state.ledger.changes_since(cursor, rows);
  Changes changes;
  changes.from_snapshot = taken.from_snapshot;
  changes.time = taken.time;
  changes.devices = to_values(taken.devices);
  changes.born.reserve(taken.born.size());
  for (const core::StorageRecord& record : taken.born) changes.born.push_back(to_value(record));
  changes.died.reserve(taken.died.size());
  for (const core::StorageRecord& record : taken.died) changes.died.push_back(to_value(record));
  note_what_went_unseen(state, changes);
  before.told();
  return changes;
}

}  // namespace

Cursor Registry::copy(const Cursor& cursor) const {
  Cursor made;
  if (cursor.number_ != 0) made.number_ = RegistryState::get().ledger.copy_cursor(cursor.number_);
  return made;
}

Changes Registry::changes_since(Cursor& cursor) const {
  if (cursor.number_ == 0) cursor.number_ = RegistryState::get().ledger.open_cursor();
  return changes_of(cursor.number_, /*rows=*/true);
}

Changes Registry::skip_changes(Cursor& cursor) const {
  if (cursor.number_ == 0) cursor.number_ = RegistryState::get().ledger.open_cursor();
  return changes_of(cursor.number_, /*rows=*/false);
}

Counters Registry::counters(c10::Device device) const {
  return RegistryState::get().ledger.counters(key_of(device));
}

bool Registry::follows(c10::Device device) const {
  return !is_refused() && (device.is_cpu() || (device.is_cuda() && CudaAllocator::is_in_front()));
}

void Registry::reset_peak(c10::Device device) {
  RegistryState::get().ledger.reset_peak(key_of(device));
}

HookHealth Registry::health() const {
  const RegistryState& state = RegistryState::get();
  HookHealth health;
  health.unknown_frees = state.unknown_frees.load(std::memory_order_relaxed);
  health.dropped_records = state.ledger.dropped_records();
  health.swallowed_exceptions = state.swallowed_exceptions.load(std::memory_order_relaxed);
  return health;
}

uint64_t Registry::storage_id(const at::Tensor& tensor) const {
  if (!tensor.defined() || !tensor.unsafeGetTensorImpl()->has_storage()) return 0;
  c10::StorageImpl* const storage =
      tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
  if (storage == nullptr) return 0;
  if (active() && can_adopt(*storage)) adopt(*storage);
  return RegistryState::get().ledger.id_at(
      reinterpret_cast<uintptr_t>(storage->_mutable_data_ptr_no_checks().get()));
}

Cursor::~Cursor() {
  if (number_ != 0) services().close_cursor(number_);
}

Cursor& Cursor::operator=(Cursor&& other) noexcept {
  std::swap(number_, other.number_);
  return *this;
}

namespace {

bool has_activated(const absl::Status& status) {
  return status.ok() || absl::IsResourceExhausted(status);
}

// Once for each kind of error, so that a hundred reporters do not tell it a hundred times.
void tell_once(const absl::Status& status) noexcept {
  static std::atomic<uint32_t> told_codes{0};
  const uint32_t code = 1U << static_cast<uint32_t>(status.raw_code());
  if ((told_codes.fetch_or(code, std::memory_order_relaxed) & code) != 0) return;
  const bool active = Registry::global().active();
  tell({{status.message().data(), status.message().size()},
        active ? "" : ". Figures that need tracking read ?"});
}

}  // namespace

ScopedTracking::ScopedTracking(const RegistryOptions& options)
    : status_(Registry::global().activate(options)) {
  // That another version was here first was told at load.
  if (!status_.ok() && !is_refused()) tell_once(status_);
}

ScopedTracking::~ScopedTracking() {
  if (has_activated(status_)) Registry::global().deactivate();
}

ScopedLabel::ScopedLabel(const std::string& label) : before_(services().enter_label(label)) {}

ScopedLabel::~ScopedLabel() { services().leave_label(before_); }

ScopedPhase::ScopedPhase(Phase phase) {
  const CopyServices::PhaseBefore before = services().enter_phase(phase);
  was_set_ = before.was_set;
  before_ = before.phase;
}

ScopedPhase::~ScopedPhase() { services().leave_phase({was_set_, before_}); }

}  // namespace memledger
