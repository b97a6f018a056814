#include "tracker/lines/line_log.h"

#include <c10/core/Allocator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <unwind.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <exception>
#include <limits>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include "registry/core/fork_safe_mutex.h"
#include "registry/core/loaded_libraries.h"
#include "registry/hooks/block_observer.h"
#include "registry/recording.h"
#include "registry/registry.h"
#include "registry/stacks.h"

namespace memledger {
namespace {

// The most functions that are kept for each stack as having run instead of another. Without the
// limit memory would grow with the number of pairs of stacks.
constexpr size_t kMostInstead = 8;

// A stack's frames, outermost first.
struct Frames {
  std::vector<void*> addresses;
  std::vector<uintptr_t> functions;  // where their code begins; 0: unknown
};

// Devices that can be a target have a slot: the CPU, then CUDA's by index.
constexpr size_t kCpu = 0;
constexpr size_t kMostDevices = size_t{std::numeric_limits<c10::DeviceIndex>::max()} + 2;

struct Reading {
  DeviceFigures current, allocated, freed;
  bool of_cpu = false;
  uint64_t begun = 0, ended = 0;  // Shared::readings before and after it was read
};

struct FramesBefore {
  const Frames* frames = nullptr;
  uint64_t generation = 0;  // when they were taken
};

struct LastReading {
  std::optional<Reading> reading;
  int64_t ns = 0;
};

struct Shared {
  // Not held while LibTorch, the registry or the program is called.
  ForkSafeMutex lock;
  std::vector<std::shared_ptr<LineLog>> logs;
  // Stopped, but storages that they saw born are still alive.
  std::vector<std::shared_ptr<LineLog>> ended;
  // Whether there are any of the two, for a look without the lock.
  std::atomic<bool> recording{false}, following{false};
  // Whether a log that records has C++ stacks.
  std::atomic<bool> has_stacks{false};
  uint64_t generation = 0;  // of LineLog::begun
  // Never shrinks, like the registry's stacks.
  std::unordered_map<uint32_t, std::unique_ptr<const Frames>> frames;
  std::map<std::vector<PythonCall>, std::unique_ptr<const Frames>> python_frames;
  std::map<uint64_t, FramesBefore> python_before;  // by Python's threads
  std::map<size_t, LastReading> last;              // by slot, of present and earlier targets
  std::atomic<uint64_t> readings{0};
  // LibTorch keeps no statistics of the CPU.
  std::atomic<int64_t> cpu_bytes{0}, cpu_count{0}, cpu_allocated{0}, cpu_freed{0}, cpu_births{0},
      cpu_deaths{0};
  std::atomic<int32_t> target{0};   // packed(); 0 is the CPU
  std::atomic<bool> chosen{false};  // false: the first GPU becomes the target when it is first used
  // By slot, of earlier targets: what was born there may die there.
  std::array<std::atomic<bool>, kMostDevices> was_target{};
};

Shared& shared() {
  static auto* const shared = new Shared;
  return *shared;
}

thread_local FramesBefore frames_before;
thread_local bool busy = false;

int32_t packed(c10::Device device) {
  return static_cast<int32_t>(device.type()) << 8 |
         static_cast<uint8_t>(device.has_index() ? device.index() : 0);
}

c10::Device unpacked(int32_t target) {
  const auto type = static_cast<c10::DeviceType>(target >> 8);
  return type == c10::DeviceType::CPU
             ? c10::Device(type)
             : c10::Device(type, static_cast<c10::DeviceIndex>(target & 0xff));
}

size_t slot_of(c10::Device device) {
  return device.is_cpu() ? kCpu
                         : size_t{1} + static_cast<size_t>(device.has_index() ? device.index() : 0);
}

c10::Device device_at(size_t slot) {
  return slot == kCpu ? c10::Device(c10::DeviceType::CPU)
                      : c10::Device(c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(slot - 1));
}

bool can_be_target(c10::Device device) { return device.is_cpu() || device.is_cuda(); }

int32_t target_now() { return shared().target.load(std::memory_order_relaxed); }

// A constant, as LibTorch must not be asked for CUDA while libraries are being loaded: it would
// remember the early answer.
const c10::Device kFirstGpu(c10::DeviceType::CUDA, 0);

// What the CPU has figures of; LibTorch keeps no statistics of it.
constexpr std::array kCpuCounts = {0 * kPoolNames.size(), 2 * kPoolNames.size()};
constexpr std::array kCpuBytes = {4 * kPoolNames.size(), 5 * kPoolNames.size(),
                                  6 * kPoolNames.size(), 8 * kPoolNames.size()};

// Calls back with each statistic that the reading's device has.
template <typename Visit>
void for_each_stat(const Reading& reading, const Visit& visit) {
  if (reading.of_cpu) {
    for (const size_t stat : kCpuCounts) visit(stat);
    for (const size_t stat : kCpuBytes) visit(stat);
  } else {
    for (size_t stat = 0; stat < kDeviceStats; ++stat) visit(stat);
  }
}

void put(Reading& reading, size_t stat, const c10::CachingAllocator::StatArray& values) {
  for (size_t pool = 0; pool < kPoolNames.size(); ++pool) {
    reading.current[stat * kPoolNames.size() + pool] = values[pool].current;
    reading.allocated[stat * kPoolNames.size() + pool] = values[pool].allocated;
    reading.freed[stat * kPoolNames.size() + pool] = values[pool].freed;
  }
}

Reading read_cpu() {
  Shared& s = shared();
  Reading reading;
  reading.of_cpu = true;
  reading.current.fill(LineFigures::kUnknown);
  reading.allocated.fill(0);
  reading.freed.fill(0);
  for (const size_t stat : kCpuBytes) {
    reading.current[stat] = s.cpu_bytes.load(std::memory_order_relaxed);
    reading.allocated[stat] = s.cpu_allocated.load(std::memory_order_relaxed);
    reading.freed[stat] = s.cpu_freed.load(std::memory_order_relaxed);
  }
  for (const size_t stat : kCpuCounts) {
    reading.current[stat] = s.cpu_count.load(std::memory_order_relaxed);
    reading.allocated[stat] = s.cpu_births.load(std::memory_order_relaxed);
    reading.freed[stat] = s.cpu_deaths.load(std::memory_order_relaxed);
  }
  return reading;
}

Reading read_unordered(c10::Device device) {
  if (device.is_cpu()) return read_cpu();
  Reading reading{};
  auto* const allocator = dynamic_cast<c10::DeviceAllocator*>(c10::GetAllocator(device.type()));
  if (allocator == nullptr || !allocator->initialized()) return reading;
  const c10::CachingDeviceAllocator::DeviceStats stats = allocator->getDeviceStats(device.index());
  put(reading, 0, stats.allocation);
  put(reading, 1, stats.segment);
  put(reading, 2, stats.active);
  put(reading, 3, stats.inactive_split);
  put(reading, 4, stats.allocated_bytes);
  put(reading, 5, stats.reserved_bytes);
  put(reading, 6, stats.active_bytes);
  put(reading, 7, stats.inactive_split_bytes);
  put(reading, 8, stats.requested_bytes);
  return reading;
}

// Makes the log ignore frames from before, which would give wrong beginnings of functions.
void begin_anew(Shared& s, LineLog& log) { log.begun = ++s.generation; }

void forget_all(Shared& s, LineLog& log) {
  log.alive.clear();
  log.stacks.clear();
  log.python.clear();
  log.targets.clear();
  begin_anew(s, log);
}

// Takes a storage that died out of its line's `line_left`.
void forget(LineLog& log, const BlockEvent& event) {
  const auto born = log.alive.find(event.id);
  if (born == log.alive.end()) return;
  born->second.stack->figures.line_left -= event.nbytes;
  if (born->second.python != nullptr) born->second.python->figures.line_left -= event.nbytes;
  log.alive.erase(born);
}

// The lock is held.
void watch_what_is_needed(Shared& s) {
  s.recording.store(!s.logs.empty(), std::memory_order_relaxed);
  s.has_stacks.store(
      std::any_of(s.logs.begin(), s.logs.end(), [](const auto& log) { return log->has_stacks; }),
      std::memory_order_relaxed);
  s.following.store(!s.ended.empty(), std::memory_order_relaxed);
}

// Follows deaths for stopped profilers, on all devices, as the target may have changed since.
void forget_in_ended(Shared& s, const BlockEvent& event) {
  const std::lock_guard<ForkSafeMutex> hold(s.lock);
  for (const std::shared_ptr<LineLog>& log : s.ended) forget(*log, event);
}

Reading read(c10::Device device) {
  const uint64_t begun = shared().readings.fetch_add(1) + 1;
  Reading reading = read_unordered(device);
  reading.begun = begun;
  reading.ended = shared().readings.load();
  return reading;
}

// Returns whether another thread read `last` after this, and took the lock first. A reading that
// began after `last` had ended is newer; it is smaller only if the program reset LibTorch's
// statistics.
bool is_overtaken(const Reading& reading, const Reading& last) {
  if (reading.begun > last.ended) return false;
  for (size_t i = 0; i < kDeviceStats; ++i) {
    if (reading.allocated[i] < last.allocated[i] || reading.freed[i] < last.freed[i]) return true;
  }
  return false;
}

// Asks the unwinder's tables where functions begin, once for each stack, without the lock.
const Frames* frames_of(Shared& s, uint32_t stack) {
  if (stack == 0) return nullptr;
  static thread_local std::array<std::pair<uint32_t, const Frames*>, 64> cache{};
  auto& [cached, its_frames] = cache[stack % cache.size()];
  if (cached == stack) return its_frames;
  {
    const std::lock_guard<ForkSafeMutex> hold(s.lock);
    if (const auto known = s.frames.find(stack); known != s.frames.end()) {
      cached = stack;
      return its_frames = known->second.get();
    }
  }
  auto frames = std::make_unique<Frames>();
  frames->addresses = stack_addresses(stack);
  std::reverse(frames->addresses.begin(), frames->addresses.end());
  frames->functions.reserve(frames->addresses.size());
  {
    const core::UsesLoadedLibraries uses;
    for (void* const address : frames->addresses) {
      void* const function = _Unwind_FindEnclosingFunction(address);
      frames->functions.push_back(reinterpret_cast<uintptr_t>(function));
    }
  }
  const std::lock_guard<ForkSafeMutex> hold(s.lock);
  return s.frames.try_emplace(stack, std::move(frames)).first->second.get();
}

const Frames* frames_of(Shared& s, const std::vector<PythonCall>& calls) {
  const std::lock_guard<ForkSafeMutex> hold(s.lock);
  std::unique_ptr<const Frames>& known = s.python_frames[calls];
  if (known == nullptr) {
    auto frames = std::make_unique<Frames>();
    for (const PythonCall call : calls) {
      const uintptr_t code = code_of(call.function);
      // The same wherever the same line of it runs.
      frames->addresses.push_back(
          reinterpret_cast<void*>(code << 32 | static_cast<uint32_t>(call.line)));
      frames->functions.push_back(code);
    }
    known = std::move(frames);
  }
  return known.get();
}

// Returns what began between two stacks. A function still runs if all frames further out, which
// wait at their calls, are the same.
Beginning beginning(const Frames* before, const Frames& now) {
  Beginning result;
  if (before == nullptr) return result;
  const auto [in_before, in_now] = std::mismatch(before->addresses.begin(), before->addresses.end(),
                                                 now.addresses.begin(), now.addresses.end());
  const auto first_new = static_cast<size_t>(in_now - now.addresses.begin());
  result.continued = static_cast<uint32_t>(first_new);
  if (in_before == before->addresses.end() || in_now == now.addresses.end()) return result;
  if (before->functions[first_new] == now.functions[first_new]) {
    ++result.continued;  // the same function, at another line
  } else {
    result.instead = before->functions[first_new];
  }
  return result;
}

void note_beginning(LineStack& stack, Beginning now, const Reading& before) {
  size_t instead = 0;
  const auto find = [&]() -> Beginning* {
    for (Beginning& beginning : stack.beginnings) {
      if (beginning.continued == now.continued && beginning.instead == now.instead)
        return &beginning;
      if (beginning.instead != 0) ++instead;
    }
    return nullptr;
  };
  Beginning* known = find();
  if (known == nullptr && now.instead != 0 && instead >= kMostInstead) {
    now.instead = 0;
    known = find();
  }
  if (known == nullptr) {
    now.held.fill(LineFigures::kUnknown);
    known = &stack.beginnings.emplace_back(now);
  }
  for_each_stat(before,
                [&](size_t i) { known->held[i] = std::max(known->held[i], before.current[i]); });
}

void note_sums(LineFigures& figures, const Reading& before, const Reading& after,
               bool also_allocated) {
  for_each_stat(after, [&](size_t i) {
    // Negative after a reset of LibTorch's accumulated statistics.
    if (also_allocated)
      figures.allocated[i] += std::max<int64_t>(after.allocated[i] - before.allocated[i], 0);
    figures.freed[i] += std::max<int64_t>(after.freed[i] - before.freed[i], 0);
  });
  ++figures.events;
}

void note(LineStack& stack, const Reading& before, const Reading& after, const BlockEvent& event,
          int64_t before_ns, int64_t now) {
  LineFigures& figures = stack.figures;
  for_each_stat(after, [&](size_t i) {
    const int64_t high = std::max(before.current[i], after.current[i]);
    if (high > figures.peak[i]) {
      figures.peak[i] = high;
      if (i == kActiveBytes) {
        figures.peak_time_ns = before.current[i] > after.current[i] ? before_ns : now;
        figures.peak_gpu = event.device.is_cpu() ? -1 : event.device.index();
      }
    }
    figures.current[i] = std::max(figures.current[i], after.current[i]);
  });
  note_sums(figures, before, after, true);
  if (event.birth) {
    figures.line_allocated += event.nbytes;
    figures.line_left += event.nbytes;
  } else {
    figures.line_freed += event.nbytes;
  }
}

// Notes the calls that have begun since this thread's last event.
void note_beginning(const LineLog& log, LineStack& line, const FramesBefore& frames_then,
                    const Frames* frames, const Reading& before) {
  if (frames == nullptr) return;
  const Beginning begun =
      beginning(frames_then.generation < log.begun ? nullptr : frames_then.frames, *frames);
  if (begun.continued < frames->addresses.size()) note_beginning(line, begun, before);
}

// Returns whether a death is of a storage whose birth was recorded.
bool is_known_death(Shared& s, const BlockEvent& event) {
  if (event.birth) return false;
  const std::lock_guard<ForkSafeMutex> hold(s.lock);
  return std::any_of(s.logs.begin(), s.logs.end(),
                     [&](const auto& log) { return log->alive.count(event.id) > 0; });
}

// The lock is held.
bool is_recorded(const Shared& s, c10::Device device) {
  const auto has = [device](const std::shared_ptr<LineLog>& log) {
    return std::find(log->targets.begin(), log->targets.end(), device) != log->targets.end();
  };
  return std::any_of(s.logs.begin(), s.logs.end(), has) ||
         std::any_of(s.ended.begin(), s.ended.end(), has);
}

// The lock is held.
void choose_first_gpu(Shared& s, const Reading& before) {
  if (s.chosen.exchange(true)) return;
  s.target.store(packed(kFirstGpu), std::memory_order_relaxed);
  s.last[slot_of(kFirstGpu)] = {before, recording_clock_ns()};
  for (const std::shared_ptr<LineLog>& log : s.logs) forget_all(s, *log);
}

void observe(const BlockEvent& event) noexcept {
  if (busy) return;
  Shared& s = shared();
  if (!event.birth && s.following.load(std::memory_order_relaxed)) forget_in_ended(s, event);
  if (!s.recording.load(std::memory_order_relaxed)) return;
  if (event.device == kFirstGpu && !s.chosen.load(std::memory_order_relaxed)) {
    const std::lock_guard<ForkSafeMutex> hold(s.lock);
    choose_first_gpu(s, Reading{});
  }
  if (!can_be_target(event.device)) return;
  const size_t slot = slot_of(event.device);
  if (packed(event.device) != target_now() && !s.was_target[slot].load(std::memory_order_relaxed))
    return;
  busy = true;
  try {
    if (event.device.is_cpu()) {
      s.cpu_bytes.fetch_add(event.birth ? event.nbytes : -event.nbytes, std::memory_order_relaxed);
      s.cpu_count.fetch_add(event.birth ? 1 : -1, std::memory_order_relaxed);
      (event.birth ? s.cpu_allocated : s.cpu_freed)
          .fetch_add(event.nbytes, std::memory_order_relaxed);
      (event.birth ? s.cpu_births : s.cpu_deaths).fetch_add(1, std::memory_order_relaxed);
    }
    const bool is_wanted = packed(event.device) == target_now() || is_known_death(s, event);
    const bool has_stacks = is_wanted && s.has_stacks.load(std::memory_order_relaxed);
    const uint32_t stack = has_stacks ? take_stack() : 0;
    const Frames* const frames = frames_of(s, stack);
    const bool has_python = is_wanted && PythonFunctions::are_read();
    const PythonCalls python = has_python ? PythonFunctions::read_calls() : PythonCalls();
    const std::vector<PythonCall>& calls = python.calls;
    const Frames* const python_frames = has_python ? frames_of(s, calls) : nullptr;
    Reading after = read(event.device);
    const int64_t now = recording_clock_ns();
    const std::lock_guard<ForkSafeMutex> hold(s.lock);
    LastReading& last = s.last[slot];
    const Reading& before = last.reading.has_value() ? *last.reading : after;
    const bool overtaken = is_overtaken(after, before);
    if (overtaken) {
      // Its sums are in the later reading; its peak counts.
      after.allocated = before.allocated;
      after.freed = before.freed;
    }
    const bool of_target = packed(event.device) == s.target.load(std::memory_order_relaxed);
    for (const std::shared_ptr<LineLog>& log : s.logs) {
      if (!is_wanted) break;
      const bool is_born_elsewhere = !of_target && !event.birth && log->alive.count(event.id) > 0;
      BornAt at;
      if (of_target) {
        at.stack = &log->stacks[stack];
        note_beginning(*log, *at.stack, frames_before, frames, before);
        note(*at.stack, before, after, event, last.ns, now);
        if (!calls.empty()) {
          at.python = &log->python[calls];
          note_beginning(*log, *at.python, s.python_before[python.thread], python_frames, before);
          note(*at.python, before, after, event, last.ns, now);
        }
        if (std::find(log->targets.begin(), log->targets.end(), event.device) == log->targets.end())
          log->targets.push_back(event.device);
        if (event.birth) log->alive[event.id] = at;
      } else if (is_born_elsewhere) {
        // Its birth was recorded when this device was the target, so its death is, too.
        at.stack = &log->stacks[stack];
        if (!calls.empty()) at.python = &log->python[calls];
        for (LineStack* const line : {at.stack, at.python}) {
          if (line == nullptr) continue;
          note_sums(line->figures, before, after, false);
          line->figures.line_freed += event.nbytes;
        }
      }
      if (!event.birth) forget(*log, event);
    }
    if (!overtaken) last = {after, now};
    if (is_wanted) {
      frames_before = {frames, s.generation};
      if (has_python) s.python_before[python.thread] = {python_frames, s.generation};
    }
  } catch (...) {
    // No memory: this event is not recorded.
  }
  busy = false;
}

void count_cpu_from_now() {
  const Counters counters = Registry::global().counters(c10::Device(c10::kCPU));
  Shared& s = shared();
  s.cpu_bytes.store(counters.current_bytes);
  s.cpu_count.store(counters.current_count);
}

}  // namespace

void LineLogs::start(const std::shared_ptr<LineLog>& log) {
  Shared& s = shared();
  bool first = false;
  {
    const std::lock_guard<ForkSafeMutex> hold(s.lock);
    if (log->on > 0) {
      ++log->on;
      return;
    }
    first = s.logs.empty();
  }
  if (!s.chosen.load()) {
    Reading gpu{};
    try {
      gpu = memledger::read(kFirstGpu);
    } catch (const std::exception&) {  // there is no CUDA
    }
    const std::lock_guard<ForkSafeMutex> hold(s.lock);
    if (gpu.current[kActiveBytes] > 0) choose_first_gpu(s, gpu);
  }
  if (first) count_cpu_from_now();
  const size_t target = slot_of(unpacked(target_now()));
  std::map<size_t, LastReading> now;
  for (size_t slot = 0; slot < kMostDevices; ++slot) {
    if (slot == target || s.was_target[slot].load(std::memory_order_relaxed))
      now[slot] = {memledger::read(device_at(slot)), recording_clock_ns()};
  }
  const std::lock_guard<ForkSafeMutex> hold(s.lock);
  // Another thread may have started it meanwhile.
  if (log->on++ > 0) return;
  if (s.logs.empty()) s.last = std::move(now);
  begin_anew(s, *log);
  s.logs.push_back(log);
  s.ended.erase(std::remove(s.ended.begin(), s.ended.end(), log), s.ended.end());
  watch_what_is_needed(s);
  set_block_observer(&observe);
}

void LineLogs::stop(const std::shared_ptr<LineLog>& log) {
  Shared& s = shared();
  const std::lock_guard<ForkSafeMutex> hold(s.lock);
  if (log->on == 0 || --log->on > 0) return;
  s.logs.erase(std::remove(s.logs.begin(), s.logs.end(), log), s.logs.end());
  if (!log->alive.empty()) s.ended.push_back(log);
  watch_what_is_needed(s);
  if (s.logs.empty() && s.ended.empty()) set_block_observer(nullptr);
}

void LineLogs::drop(const std::shared_ptr<LineLog>& log) {
  Shared& s = shared();
  const std::lock_guard<ForkSafeMutex> hold(s.lock);
  s.logs.erase(std::remove(s.logs.begin(), s.logs.end(), log), s.logs.end());
  s.ended.erase(std::remove(s.ended.begin(), s.ended.end(), log), s.ended.end());
  watch_what_is_needed(s);
  if (s.logs.empty() && s.ended.empty()) set_block_observer(nullptr);
}

void LineLogs::clear(const std::shared_ptr<LineLog>& log) {
  Shared& s = shared();
  const std::lock_guard<ForkSafeMutex> hold(s.lock);
  forget_all(s, *log);
}

LineRecord LineLogs::read(const std::shared_ptr<LineLog>& log) {
  const std::lock_guard<ForkSafeMutex> hold(shared().lock);
  return {{log->stacks.begin(), log->stacks.end()},
          {log->python.begin(), log->python.end()},
          log->targets};
}

void LineLogs::show(const std::shared_ptr<LineLog>& log, std::string name) {
  const std::lock_guard<ForkSafeMutex> hold(shared().lock);
  log->shown.names.push_back(std::move(name));
}

void LineLogs::show(const std::shared_ptr<LineLog>& log, uintptr_t address) {
  const std::lock_guard<ForkSafeMutex> hold(shared().lock);
  log->shown.addresses.push_back(address);
}

void LineLogs::show(const std::shared_ptr<LineLog>& log, ShownPython function) {
  const std::lock_guard<ForkSafeMutex> hold(shared().lock);
  log->shown.python.push_back(std::move(function));
}

void LineLogs::show_nothing(const std::shared_ptr<LineLog>& log) {
  const std::lock_guard<ForkSafeMutex> hold(shared().lock);
  log->shown = {};
}

ShownFunctions LineLogs::shown(const std::shared_ptr<LineLog>& log) {
  const std::lock_guard<ForkSafeMutex> hold(shared().lock);
  return log->shown;
}

c10::Device LineLogs::target() { return unpacked(target_now()); }

void LineLogs::set_target(c10::Device device) {
  Shared& s = shared();
  if (device.is_cpu()) count_cpu_from_now();
  const Reading now = memledger::read(device);
  const std::lock_guard<ForkSafeMutex> hold(s.lock);
  s.chosen.store(true);
  const c10::Device before = unpacked(s.target.load(std::memory_order_relaxed));
  if (before == device) return;
  LastReading& last = s.last[slot_of(device)];
  if (s.logs.empty() || !last.reading || !is_overtaken(now, *last.reading))
    last = {now, recording_clock_ns()};
  if (is_recorded(s, before)) s.was_target[slot_of(before)].store(true, std::memory_order_relaxed);
  s.target.store(packed(device), std::memory_order_relaxed);
}

}  // namespace memledger
