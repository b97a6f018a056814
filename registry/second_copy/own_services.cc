#include "registry/second_copy/own_services.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <string>
#include <unordered_map>
#include <vector>

#include "registry/before_reading.h"
#include "registry/device_statistics.h"
#include "registry/hooks/block_hooks.h"
#include "registry/hooks/external_storages.h"
#include "registry/hooks/python_stack.h"
#include "registry/hooks/stack_sampler.h"
#include "registry/hooks/training_notes.h"
#include "registry/record_values.h"
#include "registry/recording.h"
#include "registry/registry.h"
#include "registry/state.h"

namespace memledger {
namespace {

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
    const PhaseBefore before{thread.phase.is_set(), thread.phase.set_phase()};
    thread.phase.open_scope(phase);
    return before;
  }
  void leave_phase(PhaseBefore before) override {
    core::ThreadContext& thread = core::this_thread();
    core::leave_phase(thread, before.was_set, before.phase, RegistryState::get().step_marks.load());
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
  std::vector<ExternalStorage> external_storages() override { return ExternalStorages::alive(); }
  void know_storage(c10::StorageImpl& storage) override { know_storage_here(storage); }
  void know_parameter(c10::StorageImpl& storage) noexcept override {
    RegistryState::get().ledger.mark_told_parameter(
        reinterpret_cast<uintptr_t>(storage._mutable_data_ptr_no_checks().get()));
  }
  c10::Allocator* watched_cpu_allocator(c10::Allocator* allocator) noexcept override {
    const Wrappers& wrappers = Wrappers::of(WatchedType::kCpu);
    const size_t index = wrappers.standing_before(allocator);
    return index < Wrappers::kMax ? wrappers.wrapper(index) : allocator;
  }
  bool owns_watched_block(const c10::StorageImpl& storage) noexcept override {
    return owns_watched_block_here(storage);
  }
  OperatorRun run_that_made(const c10::StorageImpl& storage) noexcept override {
    const auto [thread, run] = RegistryState::get().ledger.run_at(reinterpret_cast<uintptr_t>(
        const_cast<c10::StorageImpl&>(storage)._mutable_data_ptr_no_checks().get()));
    return {thread, run};
  }
  OperatorRun run_before_node(uint64_t forward_thread, uint64_t sequence_number) noexcept override {
    const core::ForwardOperators::Made made =
        RegistryState::get().forward_operators.find(forward_thread, sequence_number);
    return {made.on_thread, made.op_sequence};
  }
  uint32_t take_stack() noexcept override { return StackSampler::take_now(); }
  uint32_t take_program_stack() noexcept override { return StackSampler::take_program_now(); }
  std::vector<void*> stack_addresses(uint32_t stack) override {
    return StackSampler::table().frames(stack);
  }
  void want_gradients(bool wanted) noexcept override { want_gradients_here(wanted); }
  void note_gradient(const at::Tensor& leaf) override { note_gradient_here(leaf); }
  at::Tensor noted_gradient(const at::Tensor& leaf) override { return noted_gradient_here(leaf); }
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
  result.devices = device_values(read.devices);
  std::unordered_map<uint64_t, size_t> index_by_id;
  index_by_id.reserve(read.events.size() + read.alive.size());
  const auto life_of = [&](uint64_t id) -> Lifetime& {
    const auto [known, is_new] = index_by_id.try_emplace(id, result.lifetimes.size());
    if (is_new) result.lifetimes.emplace_back();
    return result.lifetimes[known->second];
  };
  for (const core::LedgerEvent& event : read.events) {
    Lifetime& life = life_of(event.id);
    life.storage = storage_value(event);
    life.used_as_parameter = event.parameter_like;
    (event.birth ? life.born_ns : life.died_ns) = event.time_ns;
  }
  for (const core::StorageRecord& record : read.alive) {
    Lifetime& life = life_of(record.id);
    life.storage = storage_value(record);
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

}  // namespace

CopyServices& own_services() {
  static auto* const services = new OwnServices;
  return *services;
}

CopyServices& copy_services() {
  Registry::global();
  const CopyOffer* const first = first_copy();
  return first == nullptr ? own_services() : *first->services;
}

BlockObserver set_block_observer(BlockObserver observer) noexcept {
  return copy_services().set_block_observer(observer);
}
std::vector<LiveStorage> live_storages(c10::Device device) {
  return copy_services().live_storages(device);
}
std::vector<ExternalStorage> external_storages() { return copy_services().external_storages(); }
void know_storage(c10::StorageImpl& storage) { copy_services().know_storage(storage); }
void know_parameter(c10::StorageImpl& storage) noexcept { copy_services().know_parameter(storage); }
c10::Allocator* watched_cpu_allocator(c10::Allocator* allocator) noexcept {
  return copy_services().watched_cpu_allocator(allocator);
}
bool owns_watched_block(const c10::StorageImpl& storage) noexcept {
  return copy_services().owns_watched_block(storage);
}
OperatorRun run_that_made(const c10::StorageImpl& storage) noexcept {
  return copy_services().run_that_made(storage);
}
OperatorRun run_before_node(uint64_t forward_thread, uint64_t sequence_number) noexcept {
  return copy_services().run_before_node(forward_thread, sequence_number);
}
uint32_t take_stack() noexcept { return copy_services().take_stack(); }
uint32_t take_program_stack() noexcept { return copy_services().take_program_stack(); }
bool is_of_python(const void* address) noexcept { return PythonStack::has(address); }
std::vector<void*> stack_addresses(uint32_t stack) {
  return copy_services().stack_addresses(stack);
}

bool take_exit_report() noexcept { return copy_services().take_exit_report(); }

}  // namespace memledger
