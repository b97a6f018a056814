#include "tracker/line_log.h"

#include <c10/core/Allocator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <optional>

#include "registry/block_observer.h"
#include "registry/recording.h"
#include "registry/registry.h"
#include "registry/stacks.h"

namespace memledger {
namespace {

struct Reading {
  DeviceFigures current, allocated, freed;
  uint64_t begun = 0, ended = 0;  // Shared::readings before and after it was read
};

struct Shared {
  std::mutex lock;
  std::vector<std::shared_ptr<LineLog>> logs;
  std::vector<std::shared_ptr<LineLog>> ended;  // not written any more, but what they saw born is still alive
  // Of the two, for a look without the lock.
  std::atomic<bool> recording{false}, following{false};
  uint64_t generation = 0;      // of LineLog::begun
  std::optional<Reading> last;  // of the target
  int64_t last_ns = 0;
  std::atomic<uint64_t> readings{0};
  // CPU: what LibTorch keeps no statistics of.
  std::atomic<int64_t> cpu_bytes{0}, cpu_count{0}, cpu_allocated{0}, cpu_freed{0}, cpu_births{0}, cpu_deaths{0};
  std::atomic<int32_t> target{0};   // type and index; the CPU
  std::atomic<bool> chosen{false};  // else the first GPU becomes the target when it is first used
};

Shared& shared() {
  static auto* const one = new Shared;
  return *one;
}

thread_local uint32_t stack_before = 0;
thread_local uint64_t generation_before = 0;  // when stack_before was taken
thread_local bool busy = false;

int32_t packed(c10::Device device) {
  return static_cast<int32_t>(device.type()) << 8 | static_cast<uint8_t>(device.has_index() ? device.index() : 0);
}

c10::Device unpacked(int32_t target) {
  const auto type = static_cast<c10::DeviceType>(target >> 8);
  return type == c10::DeviceType::CPU ? c10::Device(type) : c10::Device(type, static_cast<c10::DeviceIndex>(target & 0xff));
}

int32_t target_now() { return shared().target.load(std::memory_order_relaxed); }

// LibTorch itself must not be asked whether there is CUDA while libraries are being loaded: it would remember a too early answer.
const c10::Device kFirstGpu(c10::DeviceType::CUDA, 0);

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
  reading.current.fill(LineFigures::kUnknown);
  reading.allocated.fill(0);
  reading.freed.fill(0);
  for (const size_t stat : {4, 5, 6, 8}) {
    reading.current[stat * kPoolNames.size()] = s.cpu_bytes.load(std::memory_order_relaxed);
    reading.allocated[stat * kPoolNames.size()] = s.cpu_allocated.load(std::memory_order_relaxed);
    reading.freed[stat * kPoolNames.size()] = s.cpu_freed.load(std::memory_order_relaxed);
  }
  for (const size_t stat : {0, 2}) {
    reading.current[stat * kPoolNames.size()] = s.cpu_count.load(std::memory_order_relaxed);
    reading.allocated[stat * kPoolNames.size()] = s.cpu_births.load(std::memory_order_relaxed);
    reading.freed[stat * kPoolNames.size()] = s.cpu_deaths.load(std::memory_order_relaxed);
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

// What it has not seen must not tell it where a function begins.
void begin_anew(Shared& s, LineLog& log) { log.begun = ++s.generation; }

// Its line has not left it behind.
void forget(LineLog& log, const BlockEvent& event) {
  const auto born = log.alive.find(event.id);
  if (born == log.alive.end()) return;
  born->second->figures.line_left -= event.nbytes;
  log.alive.erase(born);
}

// The lock is held.
void watch_what_is_needed(Shared& s) {
  s.recording.store(!s.logs.empty(), std::memory_order_relaxed);
  s.following.store(!s.ended.empty(), std::memory_order_relaxed);
}

// Deaths that no profiler is on for, of whatever device: the target may have changed since.
void forget_in_ended(Shared& s, const BlockEvent& event) {
  const std::lock_guard<std::mutex> hold(s.lock);
  for (const std::shared_ptr<LineLog>& log : s.ended) forget(*log, event);
}

Reading read(c10::Device device) {
  const uint64_t begun = shared().readings.fetch_add(1) + 1;
  Reading reading = read_unordered(device);
  reading.begun = begun;
  reading.ended = shared().readings.load();
  return reading;
}

// Whether it was read before `last` was, by another thread that came first to the lock. What began after `last` had been read is
// newer, and smaller only because the program has reset LibTorch's statistics.
bool is_overtaken(const Reading& reading, const Reading& last) {
  if (reading.begun > last.ended) return false;
  for (size_t i = 0; i < kDeviceStats; ++i) {
    if (reading.allocated[i] < last.allocated[i] || reading.freed[i] < last.freed[i]) return true;
  }
  return false;
}

void note(LineLog& log, StackPair pair, const Reading& before, const Reading& after, const BlockEvent& event, int64_t before_ns,
          int64_t now) {
  LineCell& cell = log.cells[pair];
  LineFigures& figures = cell.figures;
  for (size_t i = 0; i < kDeviceStats; ++i) {
    cell.at_entry[i] = std::max(cell.at_entry[i], before.current[i]);
    const int64_t high = std::max(before.current[i], after.current[i]);
    if (high > figures.peak[i] || figures.events == 0) {
      figures.peak[i] = high;
      if (i == kActiveBytes) figures.peak_time_ns = before.current[i] > after.current[i] ? before_ns : now;
    }
    figures.current[i] = figures.events == 0 ? after.current[i] : std::max(figures.current[i], after.current[i]);
    // A reset of LibTorch's accumulated statistics makes them smaller.
    figures.allocated[i] += std::max<int64_t>(after.allocated[i] - before.allocated[i], 0);
    figures.freed[i] += std::max<int64_t>(after.freed[i] - before.freed[i], 0);
  }
  ++figures.events;
  if (event.birth) {
    figures.line_allocated += event.nbytes;
    figures.line_left += event.nbytes;
    log.alive[event.id] = &cell;
    return;
  }
  figures.line_freed += event.nbytes;
  forget(log, event);
}

// The lock is held.
void choose_first_gpu(Shared& s, const Reading& before) {
  if (s.chosen.exchange(true)) return;
  s.target.store(packed(kFirstGpu), std::memory_order_relaxed);
  s.last = before;
  for (const std::shared_ptr<LineLog>& log : s.logs) {
    log->alive.clear();
    log->cells.clear();
    begin_anew(s, *log);
  }
}

void observe(const BlockEvent& event) noexcept {
  if (busy) return;
  Shared& s = shared();
  if (!event.birth && s.following.load(std::memory_order_relaxed)) forget_in_ended(s, event);
  if (!s.recording.load(std::memory_order_relaxed)) return;
  if (event.device == kFirstGpu && !s.chosen.load(std::memory_order_relaxed)) {
    const std::lock_guard<std::mutex> hold(s.lock);
    choose_first_gpu(s, Reading{});
  }
  if (packed(event.device) != target_now()) return;
  busy = true;
  try {
    if (event.device.is_cpu()) {
      s.cpu_bytes.fetch_add(event.birth ? event.nbytes : -event.nbytes, std::memory_order_relaxed);
      s.cpu_count.fetch_add(event.birth ? 1 : -1, std::memory_order_relaxed);
      (event.birth ? s.cpu_allocated : s.cpu_freed).fetch_add(event.nbytes, std::memory_order_relaxed);
      (event.birth ? s.cpu_births : s.cpu_deaths).fetch_add(1, std::memory_order_relaxed);
    }
    const uint32_t stack = take_stack();
    Reading after = read(event.device);
    const int64_t now = recording_clock_ns();
    const std::lock_guard<std::mutex> hold(s.lock);
    if (packed(event.device) != s.target.load(std::memory_order_relaxed)) {
      busy = false;
      return;
    }
    const Reading before = s.last.value_or(after);
    const bool overtaken = is_overtaken(after, before);
    if (overtaken) {
      // Its peak counts; its sums are in the later reading.
      after.allocated = before.allocated;
      after.freed = before.freed;
    }
    for (const std::shared_ptr<LineLog>& log : s.logs) {
      const uint32_t known_before = generation_before < log->begun ? 0 : stack_before;
      note(*log, {known_before, stack}, before, after, event, s.last_ns, now);
    }
    if (!overtaken) {
      s.last = after;
      s.last_ns = now;
    }
    stack_before = stack;
    generation_before = s.generation;
  } catch (...) {
    // No memory: this event is not in the tables.
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
  static const int fork_handlers =
      pthread_atfork([] { shared().lock.lock(); }, [] { shared().lock.unlock(); }, [] { shared().lock.unlock(); });
  static_cast<void>(fork_handlers);
  Shared& s = shared();
  if (!s.chosen.load()) {
    Reading gpu{};
    try {
      gpu = memledger::read(kFirstGpu);
    } catch (const std::exception&) {  // there is no CUDA
    }
    const std::lock_guard<std::mutex> hold(s.lock);
    if (gpu.current[kActiveBytes] > 0) choose_first_gpu(s, gpu);
  }
  const c10::Device device = unpacked(target_now());
  bool first = false;
  {
    const std::lock_guard<std::mutex> hold(s.lock);
    first = s.logs.empty();
  }
  if (first) count_cpu_from_now();
  const Reading now = memledger::read(device);
  const std::lock_guard<std::mutex> hold(s.lock);
  if (s.logs.empty()) {
    s.last = now;
    s.last_ns = recording_clock_ns();
  }
  begin_anew(s, *log);
  s.logs.push_back(log);
  s.ended.erase(std::remove(s.ended.begin(), s.ended.end(), log), s.ended.end());
  watch_what_is_needed(s);
  set_block_observer(&observe);
}

void LineLogs::stop(const std::shared_ptr<LineLog>& log) {
  Shared& s = shared();
  const std::lock_guard<std::mutex> hold(s.lock);
  s.logs.erase(std::remove(s.logs.begin(), s.logs.end(), log), s.logs.end());
  if (!log->alive.empty()) s.ended.push_back(log);
  watch_what_is_needed(s);
  if (s.logs.empty() && s.ended.empty()) set_block_observer(nullptr);
}

void LineLogs::drop(const std::shared_ptr<LineLog>& log) {
  Shared& s = shared();
  const std::lock_guard<std::mutex> hold(s.lock);
  s.logs.erase(std::remove(s.logs.begin(), s.logs.end(), log), s.logs.end());
  s.ended.erase(std::remove(s.ended.begin(), s.ended.end(), log), s.ended.end());
  watch_what_is_needed(s);
  if (s.logs.empty() && s.ended.empty()) set_block_observer(nullptr);
}

void LineLogs::clear(const std::shared_ptr<LineLog>& log) {
  Shared& s = shared();
  const std::lock_guard<std::mutex> hold(s.lock);
  log->cells.clear();
  log->alive.clear();
  begin_anew(s, *log);
}

std::vector<std::pair<StackPair, LineCell>> LineLogs::read(const std::shared_ptr<LineLog>& log) {
  const std::lock_guard<std::mutex> hold(shared().lock);
  return {log->cells.begin(), log->cells.end()};
}

c10::Device LineLogs::target() { return unpacked(target_now()); }

void LineLogs::set_target(c10::Device device) {
  Shared& s = shared();
  if (device.is_cpu()) count_cpu_from_now();
  const Reading now = memledger::read(device);
  const std::lock_guard<std::mutex> hold(s.lock);
  s.chosen.store(true);
  s.target.store(packed(device), std::memory_order_relaxed);
  s.last = now;
  for (const std::shared_ptr<LineLog>& log : s.logs) begin_anew(s, *log);
}

}  // namespace memledger
