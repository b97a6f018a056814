// Compiled with NDEBUG whatever the build mode: see SEES_LIBTORCH_INLINES_COPTS.
#include "reporter/names/optimizer_watch.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <unordered_map>

#include "absl/container/inlined_vector.h"
#include "absl/hash/hash.h"
#include "registry/core/lock.h"
#include "registry/hooks/step_observer.h"
#include "registry/hooks/training_notes.h"
#include "reporter/names/optimizer_state.h"

namespace memledger {
namespace {

using WeakTensor = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;

struct Slot {
  std::string name;
  WeakTensor tensor;
};
using Slots = std::vector<Slot>;

pid_t this_thread_id() noexcept { return static_cast<pid_t>(syscall(SYS_gettid)); }

// Also true where another thread has got the id of one that has ended.
bool is_alive(pid_t thread) noexcept {
  const int error = errno;
  const bool is = syscall(SYS_tgkill, getpid(), thread, 0) == 0;
  errno = error;
  return is;
}

// Storage and offset of a parameter: SGD writes to data(), which is another tensor object there.
using Location = std::pair<const c10::StorageImpl*, int64_t>;

std::optional<Location> location_of(const at::Tensor& tensor) {
  const c10::TensorImpl* const impl = tensor.unsafeGetTensorImpl();
  if (!tensor.defined() || !impl->has_storage() || tensor.layout() != c10::kStrided)
    return std::nullopt;
  if (impl->is_nested() || impl->has_symbolic_sizes_strides()) return std::nullopt;
  return Location(impl->unsafe_storage().unsafeGetStorageImpl(), impl->storage_offset());
}

}  // namespace

struct OptimizerWatch::Watch {
  struct Parameter {
    Watch* watch;
    const c10::TensorImpl* tensor;  // the key of its state; may have ended
    Slots slots;
  };

  const torch::optim::Optimizer& optimizer;
  // All that follows is guarded by training_notes_lock().
  pid_t stepper = 0;  // thread that ran the last step seen
  std::unordered_map<const c10::TensorImpl*, std::unique_ptr<Parameter>> parameters;
  std::vector<Location> locations;

  explicit Watch(const torch::optim::Optimizer& its_optimizer) : optimizer(its_optimizer) {}
  static bool note(Parameter& parameter, std::vector<Slots>& dropped);
};

struct OptimizerWatch::Table {
  std::unordered_map<Location, absl::InlinedVector<Watch::Parameter*, 1>, absl::Hash<Location>>
      by_location;
  size_t watches = 0;

  // Never destroyed: programs train after main, too.
  static Table& get() {
    static auto* const table = new Table;
    return *table;
  }

  void forget_locations(Watch& watch) {
    for (const Location& location : watch.locations) {
      const auto entry = by_location.find(location);
      if (entry == by_location.end()) continue;
      auto& parameters = entry->second;
      for (size_t i = parameters.size(); i-- > 0;) {
        if (parameters[i]->watch == &watch)
          parameters.erase(parameters.begin() + static_cast<std::ptrdiff_t>(i));
      }
      if (parameters.empty()) by_location.erase(entry);
    }
    watch.locations.clear();
  }
};

// Returns whether there is a state. Moves what is no longer needed to `dropped`, to be let go of
// without the lock.
bool OptimizerWatch::Watch::note(Parameter& parameter, std::vector<Slots>& dropped) {
  Slots& slots = parameter.slots;
  size_t count = 0;
  bool same = true;
  for_each_state(parameter.watch->optimizer, parameter.tensor,
                 [&](const std::string& name, const at::Tensor& tensor) {
                   if (!tensor.defined()) return;
                   same =
                       same && count < slots.size() &&
                       slots[count].tensor._unsafe_get_target() == tensor.unsafeGetTensorImpl() &&
                       slots[count].name == name;
                   ++count;
                 });
  if (same && count == slots.size()) return count > 0;
  Slots now;
  now.reserve(count);
  for_each_state(parameter.watch->optimizer, parameter.tensor,
                 [&](const std::string& name, const at::Tensor& tensor) {
                   if (tensor.defined())
                     now.push_back({name, WeakTensor(tensor.getIntrusivePtr())});
                 });
  dropped.push_back(std::move(slots));
  slots = std::move(now);
  return count > 0;
}

OptimizerWatch::OptimizerWatch(const torch::optim::Optimizer& optimizer)
    : watch_(std::make_unique<Watch>(optimizer)) {
  {
    const core::LockHolder hold(training_notes_lock());
    ++Table::get().watches;
    add_step_observer(&on_write);
  }
  find_parameters();
}

OptimizerWatch::~OptimizerWatch() {
  const core::LockHolder hold(training_notes_lock());
  Table& table = Table::get();
  table.forget_locations(*watch_);
  if (--table.watches == 0) remove_step_observer(&on_write);
}

void OptimizerWatch::find_parameters() {
  std::vector<std::pair<const c10::TensorImpl*, Location>> now;
  for (const torch::optim::OptimizerParamGroup& group : watch_->optimizer.param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      if (const auto location = location_of(parameter))
        now.emplace_back(parameter.unsafeGetTensorImpl(), *location);
    }
  }
  Table& table = Table::get();
  const core::LockHolder hold(training_notes_lock());
  bool same = now.size() == watch_->locations.size();
  for (size_t i = 0; same && i < now.size(); ++i) {
    same = now[i].second == watch_->locations[i] && watch_->parameters.count(now[i].first) != 0;
  }
  if (same) return;
  table.forget_locations(*watch_);
  watch_->locations.reserve(now.size());
  for (const auto& [tensor, location] : now) {
    std::unique_ptr<Watch::Parameter>& parameter = watch_->parameters[tensor];
    if (parameter == nullptr) parameter.reset(new Watch::Parameter{watch_.get(), tensor, {}});
    watch_->locations.push_back(location);
    table.by_location[location].push_back(parameter.get());
  }
}

void OptimizerWatch::note() {
  std::vector<Slots> dropped;
  const core::LockHolder hold(training_notes_lock());
  for (auto& [tensor, parameter] : watch_->parameters) Watch::note(*parameter, dropped);
}

const torch::optim::Optimizer& OptimizerWatch::optimizer() const { return watch_->optimizer; }

NamedStates OptimizerWatch::noted(const c10::TensorImpl* parameter) const {
  Slots slots;
  {
    const core::LockHolder hold(training_notes_lock());
    const auto entry = watch_->parameters.find(parameter);
    if (entry != watch_->parameters.end()) slots = entry->second->slots;
  }
  NamedStates states;
  for (Slot& slot : slots) {
    if (auto held = slot.tensor.lock())
      states.emplace_back(std::move(slot.name), at::Tensor(std::move(held)));
  }
  return states;
}

// Runs in the middle of a step, or where the program writes to a parameter by hand. Then no other
// thread steps the optimizer, as that one would write there, too; except where threads share the
// parameter without a lock, and have an optimizer each: then nothing is noted.
void OptimizerWatch::on_write(const at::Tensor& written) noexcept {
  try {
    const std::optional<Location> location = location_of(written);
    if (!location.has_value()) return;
    std::vector<Slots> dropped;
    const core::LockHolder hold(training_notes_lock());
    const auto entry = Table::get().by_location.find(*location);
    if (entry == Table::get().by_location.end()) return;
    // One cannot see which optimizer steps. Another thread could be stepping one that shares the
    // parameter, or that it has stepped before.
    const auto& first = entry->second.front()->watch->optimizer;
    const bool shared =
        std::any_of(entry->second.begin(), entry->second.end(),
                    [&](const auto* parameter) { return &parameter->watch->optimizer != &first; });
    if (shared) return;
    const pid_t thread = this_thread_id();
    for (Watch::Parameter* const parameter : entry->second) {
      Watch& watch = *parameter->watch;
      if (watch.stepper != thread && watch.stepper != 0 && is_alive(watch.stepper)) continue;
      if (Watch::note(*parameter, dropped)) watch.stepper = thread;
    }
  } catch (...) {
    // Without memory the states stay without names.
  }
}

}  // namespace memledger
