#include "tracker/memory_expectations.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <new>
#include <optional>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "registry/core/fork_safe_mutex.h"
#include "registry/registry.h"
#include "text/bytes.h"
#include "text/names.h"
#include "text/output.h"
#include "tracker/exact_device.h"
#include "tracker/storage_group.h"
#include "tracker/until_told.h"

namespace memledger {
namespace {

constexpr size_t kMostHolders = 10;

std::atomic<FailureHandler> failure_handler{nullptr};

void write_failure(const char* before, const ExpectationFailure& failure) noexcept {
  try {
    write_standard_error(std::string(before) + printable(failure.where.file()) + ":" +
                         std::to_string(failure.where.line()) + ": " + failure.message + "\n");
  } catch (const std::bad_alloc&) {
    write_standard_error(before);
    write_standard_error(failure.message);
    write_standard_error("\n");
  }
}

void abort_with(const ExpectationFailure& failure) {
  write_failure("", failure);
  std::abort();
}

void tell(const ExpectationFailure& failure) noexcept {
  const FailureHandler handler = failure_handler.load();
  try {
    (handler != nullptr ? handler : &abort_with)(failure);
  } catch (...) {
    write_failure("memledger: the failure handler threw; the failure was:\n", failure);
  }
}

// Reports that a destructor could not look.
void tell_trouble(SourceLocation where, const char* what, const std::exception& error) noexcept {
  ExpectationFailure failure{where, {}};
  try {
    failure.message = std::string("memledger could not look ") + what + ": " + error.what();
  } catch (const std::bad_alloc&) {
    failure.message = "no memory";  // fits into the string itself
  }
  tell(failure);
}

// A check that could not look has not passed.
std::optional<TestVerdict> tracking_is_off(const char* expected) {
  if (Registry::global().active()) return std::nullopt;
  return TestVerdict::failed(std::string(expected) +
                             " expected, but it cannot be told: tracking is off");
}

std::string size_text(int64_t bytes) { return size_in_words(static_cast<double>(bytes)); }

std::string counted(size_t count, const char* what) {
  return std::to_string(count) + " " + what + (count == 1 ? "" : "s");
}

std::string line_text(SourceLocation where) {
  return "line " + std::to_string(where.line()) + " of " + printable(base_name(where.file()));
}

// Returns the largest groups of the storages, a line each, without the last line's end.
std::string holders(const std::vector<const StorageInfo*>& storages) {
  struct Group {
    int64_t bytes = 0;
    size_t count = 0;
  };
  std::unordered_map<StorageGroup, Group, StorageGroupHash> groups;
  for (const StorageInfo* const storage : storages) {
    Group& group = groups[storage_group(*storage)];
    group.bytes += storage->nbytes;
    ++group.count;
  }
  using Row = std::tuple<int64_t, std::string, size_t>;  // -bytes, so that it sorts as printed
  std::vector<Row> rows;
  rows.reserve(groups.size());
  for (const auto& [key, group] : groups)
    rows.emplace_back(-group.bytes, to_string(key), group.count);
  std::sort(rows.begin(), rows.end());
  std::string text;
  const auto add_line = [&text](const std::string& line) {
    text += (text.empty() ? "  " : "\n  ") + line;
  };
  int64_t rest = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    const auto& [minus_bytes, where, count] = rows[i];
    if (i < kMostHolders) {
      add_line(size_text(-minus_bytes) + " in " + std::to_string(count) + ": " + where);
    } else {
      rest -= minus_bytes;
    }
  }
  if (rows.size() > kMostHolders)
    add_line("… and " + counted(rows.size() - kMostHolders, "more group") + ", " + size_text(rest));
  return text;
}

}  // namespace

FailureHandler set_failure_handler(FailureHandler handler) {
  return failure_handler.exchange(handler);
}

struct NoLeak::State {
  ScopedTracking tracking;
  Cursor cursor;
  LeakOptions options;
  SourceLocation where;
  std::unordered_set<uint64_t> meant_to_stay;
  // Born in the scope and alive at the last check.
  std::unordered_map<uint64_t, StorageInfo> survivors;
  bool checked = false;
  int exceptions = std::uncaught_exceptions();

  TestVerdict look() {
    if (std::optional<TestVerdict> off = tracking_is_off("no leak")) return *std::move(off);
    UntilTold until_told(cursor);  // counting the same changes twice does no harm
    const Changes changes = Registry::global().changes_since(cursor);
    if (changes.from_snapshot) {
      TestVerdict lost = TestVerdict::failed(
          "no leak expected since " + line_text(where) +
          ", but it cannot be told: what was alive then has been lost (fork, or no memory)");
      survivors.clear();
      until_told.told();
      return lost;
    }
    for (const StorageInfo& storage : changes.died) survivors.erase(storage.id);
    for (const StorageInfo& storage : changes.born) {
      if (!storage.adopted && takes_in(options.device, storage.device))
        survivors.emplace(storage.id, storage);
    }
    until_told.told();
    std::vector<const StorageInfo*> leaked;
    int64_t bytes = 0;
    for (const auto& [id, storage] : survivors) {
      if (meant_to_stay.count(id) != 0) continue;
      leaked.push_back(&storage);
      bytes += storage.nbytes;
    }
    if (leaked.empty() || bytes <= options.tolerance_bytes) return {};
    std::string message = "no leak expected, but " + counted(leaked.size(), "storage") + " (" +
                          size_text(bytes) + ") born since " + line_text(where) +
                          (leaked.size() == 1 ? " is" : " are") + " alive:\n";
    return TestVerdict::failed(message + holders(leaked));
  }
};

NoLeak::NoLeak(const LeakOptions& options, SourceLocation where)
    : state_(std::make_unique<State>()) {
  state_->options = options;
  state_->where = where;
  Registry::global().changes_since(state_->cursor);
}

NoLeak::~NoLeak() {
  if (state_->checked || std::uncaught_exceptions() > state_->exceptions) return;
  try {
    const TestVerdict verdict = state_->look();
    if (!verdict) tell({state_->where, verdict.message()});
  } catch (const std::exception& error) {
    tell_trouble(state_->where, "for leaks", error);
  }
}

void NoLeak::keep(const at::Tensor& tensor) {
  if (const uint64_t id = Registry::global().storage_id(tensor); id != 0)
    state_->meant_to_stay.insert(id);
}

TestVerdict NoLeak::check() {
  TestVerdict verdict = state_->look();
  state_->checked = true;
  return verdict;
}

namespace {

// What one PeakAtMost waits for. All share the device's one peak, so each notes it before it is
// reset.
struct PeakWatch {
  c10::Device device = c10::Device(c10::DeviceType::CPU);
  int64_t limit = 0;         // of all live tensors
  uint64_t last_before = 0;  // the newest storage when it began
  int64_t highest = 0;       // peak above the limit before the last reset; else 0
  // For a budget, which leaves out what is adopted in the scope: adopted_ever() when it began.
  std::optional<int64_t> adopted_before;
  std::string holders;  // at the highest moment
};

struct PeakWatches {
  ForkSafeMutex lock;
  std::vector<PeakWatch*> all;
};

PeakWatches& peak_watches() {
  static auto* const watches = new PeakWatches;
  return *watches;
}

// Returns the bytes of all storages ever adopted: they are in all counts but that of what was
// allocated.
int64_t adopted_ever(const Counters& counters) {
  return counters.current_bytes - counters.allocated_bytes + counters.freed_bytes;
}

std::string holders_at_peak(const Snapshot& peak, const PeakWatch& watch) {
  std::vector<const StorageInfo*> inside;
  int64_t before = 0;
  for (const StorageInfo& storage : peak.storages(watch.device)) {
    if (storage.id > watch.last_before && !storage.adopted) {
      inside.push_back(&storage);
    } else {
      before += storage.nbytes;
    }
  }
  std::string text = holders(inside);
  if (before > 0)
    text +=
        (text.empty() ? "  " : "\n  ") + size_text(before) + " of it was alive before the scope";
  if (!peak.complete())
    text +=
        "\n  some of those freed since are missing: peaks were not kept then "
        "(RegistryOptions::peaks)";
  return text;
}

// Takes in the device's peak, which is of the watch's scope if it is above its limit: when the
// scope began, it was not. Under the lock.
void note_peak(PeakWatch& watch) {
  if (Registry::global().counters(watch.device).peak_bytes <= std::max(watch.limit, watch.highest))
    return;
  const Counters counters = Registry::global().snapshot().counters(watch.device);
  const int64_t bytes = counters.peak_bytes -
                        (watch.adopted_before ? adopted_ever(counters) - *watch.adopted_before : 0);
  if (bytes <= std::max(watch.limit, watch.highest)) return;
  const Snapshot peak = Registry::global().peak_snapshot(watch.device);
  std::string text = holders_at_peak(peak, watch);
  watch.highest = bytes;
  watch.holders = std::move(text);
}

void begin_to_watch(PeakWatch& watch) {
  PeakWatches& watches = peak_watches();
  const std::lock_guard<ForkSafeMutex> hold(watches.lock);
  watches.all.reserve(watches.all.size() + 1);
  if (Registry::global().counters(watch.device).peak_bytes > watch.limit) {
    for (PeakWatch* const other : watches.all) {
      if (other->device == watch.device) note_peak(*other);
    }
    Registry::global().reset_peak(watch.device);
  }
  watches.all.push_back(&watch);
}

void stop_watching(PeakWatch& watch) {
  PeakWatches& watches = peak_watches();
  const std::lock_guard<ForkSafeMutex> hold(watches.lock);
  watches.all.erase(std::remove(watches.all.begin(), watches.all.end(), &watch), watches.all.end());
}

uint64_t newest_storage(const Snapshot& snapshot) {
  uint64_t newest = 0;
  for (const DeviceInfo& device : snapshot.devices()) {
    const auto storages = snapshot.storages(device.device);
    if (!storages.empty()) newest = std::max(newest, storages.back().id);
  }
  return newest;
}

}  // namespace

struct PeakAtMost::State {
  ScopedTracking tracking;
  PeakWatch watch;
  int64_t at_start = 0;
  int64_t bytes = 0;
  PeakOver over = PeakOver::kNothing;
  SourceLocation where;
  bool checked = false;
  int exceptions = std::uncaught_exceptions();

  ~State() { stop_watching(watch); }

  TestVerdict look() {
    if (std::optional<TestVerdict> off = tracking_is_off("a peak or budget"))
      return *std::move(off);
    int64_t highest = 0;
    std::string holders;
    {
      const std::lock_guard<ForkSafeMutex> hold(peak_watches().lock);
      note_peak(watch);
      if (watch.highest <= watch.limit) return {};
      highest = watch.highest;
      holders = watch.holders;
    }
    const std::string expected =
        over == PeakOver::kStart
            ? "a budget of " + size_text(bytes) + " (above " + size_text(at_start) + ")"
            : "a peak of at most " + size_text(bytes);
    const int64_t base = over == PeakOver::kStart ? at_start : 0;
    return TestVerdict::failed(expected + " expected on " + watch.device.str() + " since " +
                               line_text(where) + ", but it was " + size_text(highest - base) +
                               ", " + std::to_string(highest - watch.limit) +
                               " bytes more. Alive then:\n" + holders);
  }
};

PeakAtMost::PeakAtMost(c10::Device device, int64_t bytes, PeakOver over, SourceLocation where)
    : state_(std::make_unique<State>()) {
  const Snapshot start = Registry::global().snapshot();
  State& state = *state_;
  state.watch.device = exact_device(device);
  TORCH_CHECK(!Registry::global().active() || Registry::global().follows(state.watch.device),
              "memledger: cannot expect a peak on ", device,
              ": memledger does not follow that device");
  state.watch.last_before = newest_storage(start);
  state.bytes = bytes;
  state.over = over;
  state.where = where;
  const Counters counters = start.counters(state.watch.device);
  state.at_start = counters.current_bytes;
  if (over == PeakOver::kStart) state.watch.adopted_before = adopted_ever(counters);
  state.watch.limit = bytes + (over == PeakOver::kStart ? state.at_start : 0);
  begin_to_watch(state.watch);
}

PeakAtMost::~PeakAtMost() {
  if (state_->checked || std::uncaught_exceptions() > state_->exceptions) return;
  try {
    const TestVerdict verdict = state_->look();
    if (!verdict) tell({state_->where, verdict.message()});
  } catch (const std::exception& error) {
    tell_trouble(state_->where, "at the peak", error);
  }
}

TestVerdict PeakAtMost::check() {
  TestVerdict verdict = state_->look();
  state_->checked = true;
  return verdict;
}

}  // namespace memledger
