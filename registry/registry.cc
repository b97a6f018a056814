#include "registry/registry.h"

#include <atomic>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "registry/activation.h"
#include "registry/at_load.h"
#include "registry/before_reading.h"
#include "registry/hooks/block_hooks.h"
#include "registry/hooks/cpu_allocator.h"
#include "registry/hooks/cuda_allocator.h"
#include "registry/hooks/operator_observer.h"
#include "registry/hooks/stack_sampler.h"
#include "registry/libtorch/storage_impl.h"
#include "registry/record_values.h"
#include "registry/second_copy/own_services.h"
#include "registry/snapshot_data.h"
#include "registry/state.h"
#include "text/output.h"

namespace memledger {

Registry& Registry::global() {
  static auto* const own = new Registry;
  static Registry& in_use = [&]() -> Registry& {
    const CopyDecision& decision = decide_who_watches(*own, own_services());
    return decision.role == CopyDecision::Role::kHandsOver ? *decision.watching->registry : *own;
  }();
  return in_use;
}

absl::Status Registry::activate(const RegistryOptions& options) {
  if (this_copy_is_refused()) return absl::FailedPreconditionError(copy_decision()->refusal);
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
    const bool names_only = wanted->detail == RegistryOptions::Detail::kNames;
    if (is_first) {
      state.names_only.store(names_only, std::memory_order_relaxed);
      if (names_only) state.ever_names_only.store(true, std::memory_order_relaxed);
    }
    if (wanted->operators && !activation.observing) OperatorObserver::start(names_only);
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
        "memledger: tracking is on, but pthread_atfork found no memory: do not fork");
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
  data->devices = device_values(taken.devices);
  note_what_went_unseen(state, *data);
  add_rows(taken.records, *data);
  return Snapshot(std::move(data));
}

Snapshot Registry::peak_snapshot(c10::Device device) const {
  note_library_workspaces();
  return peak_value(RegistryState::get().ledger.peak(key_of(device)), device);
}

Snapshot Registry::peak_snapshot(c10::Device device, const std::string& label) const {
  RegistryState& state = RegistryState::get();
  const std::optional<size_t> kept = state.peak_labels.find(label);
  note_library_workspaces();
  return kept ? peak_value(state.ledger.peak(key_of(device), *kept), device) : Snapshot();
}

absl::Status Registry::keep_label_peak(const std::string& label) {
  if (label.empty())
    return absl::InvalidArgumentError("memledger: an empty label has no peak of its own");
  if (!RegistryState::get().peak_labels.keep(label)) {
    return absl::ResourceExhaustedError("memledger: cannot keep a peak of the label `" + label +
                                        "`: " + std::to_string(core::kMaxPeakLabels) +
                                        " labels keep one already");
  }
  return absl::OkStatus();
}

namespace {

// Puts a cursor back where it was unless everything was passed on.
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
  changes.devices = device_values(taken.devices);
  changes.born.reserve(taken.born.size());
  for (const core::StorageRecord& record : taken.born)
    changes.born.push_back(storage_value(record));
  changes.died.reserve(taken.died.size());
  for (const core::StorageRecord& record : taken.died)
    changes.died.push_back(storage_value(record));
  note_what_went_unseen(state, changes);
  before.told();
  return changes;
}

}  // namespace

Cursor Registry::copy(const Cursor& cursor) const {
  Cursor copied;
  if (cursor.number_ != 0) copied.number_ = RegistryState::get().ledger.copy_cursor(cursor.number_);
  return copied;
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
  return !this_copy_is_refused() &&
         (device.is_cpu() || (device.is_cuda() && CudaAllocator::is_in_front()));
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
  c10::StorageImpl* const storage = storage_impl_of(tensor);
  if (storage == nullptr) return 0;
  if (active() && can_adopt(*storage)) adopt(*storage);
  return RegistryState::get().ledger.id_at(
      reinterpret_cast<uintptr_t>(storage->_mutable_data_ptr_no_checks().get()));
}

Cursor::~Cursor() {
  if (number_ != 0) copy_services().close_cursor(number_);
}

Cursor& Cursor::operator=(Cursor&& other) noexcept {
  std::swap(number_, other.number_);
  return *this;
}

namespace {

bool has_activated(const absl::Status& status) {
  return status.ok() || absl::IsResourceExhausted(status);
}

// Prints each kind of error once, so that a hundred reporters do not repeat it.
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
  // A message at load has already said that another version was here first.
  if (!status_.ok() && !this_copy_is_refused()) tell_once(status_);
}

ScopedTracking::~ScopedTracking() {
  if (has_activated(status_)) Registry::global().deactivate();
}

ScopedLabel::ScopedLabel(const std::string& label) : before_(copy_services().enter_label(label)) {}

ScopedLabel::~ScopedLabel() { copy_services().leave_label(before_); }

ScopedPhase::ScopedPhase(Phase phase) {
  const CopyServices::PhaseBefore before = copy_services().enter_phase(phase);
  was_set_ = before.was_set;
  before_ = before.phase;
}

ScopedPhase::~ScopedPhase() { copy_services().leave_phase({was_set_, before_}); }

}  // namespace memledger
