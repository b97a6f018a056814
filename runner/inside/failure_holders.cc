#include "runner/inside/failure_holders.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <time.h>

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "registry/core/fork_safe_mutex.h"
#include "reporter/formats/run_summary.h"
#include "reporter/mem_reporter.h"
#include "runner/inside/holders.h"

namespace memledger::inside {
namespace {

constexpr int64_t kMaxWaitMs = 600;

std::atomic<void*> searcher{nullptr};
std::atomic<bool> is_asked{false};
std::atomic<uint64_t> searches{0};  // that have ended
std::atomic<int> failures{0};

struct NotedHolders {
  ForkSafeMutex lock;
  std::string text;  // guarded by it
};
NotedHolders& noted_holders() {
  static auto* const noted = new NotedHolders;
  return *noted;
}

template <typename Function>
Function python_function(const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_DEFAULT, name));
}

// Called by Python's main thread, with its lock.
int search_now(void* /*unused*/) {
  using Object = void;
  is_asked.store(false);
  const auto call = python_function<Object* (*)(Object*, Object*)>("PyObject_CallObject");
  const auto let_go = python_function<void (*)(Object*)>("Py_DecRef");
  const auto clear_error = python_function<void (*)()>("PyErr_Clear");
  void* const function = searcher.load();  // none once Python ends
  if (function != nullptr && call != nullptr && let_go != nullptr && clear_error != nullptr) {
    if (Object* const result = call(function, nullptr)) {
      let_go(result);
    } else {
      clear_error();
    }
  }
  searches.fetch_add(1);
  return 0;
}

// Returns what of a device was held when holders were last looked for.
std::string held_text(const DeviceReport& device) {
  RunOfDevice run;
  DeviceReport held = device;
  held.rows.clear();
  held.total_bytes = 0;
  for (const ReportRow& row : device.rows) {
    if (row.held_by.empty()) continue;
    held.rows.push_back(row);
    held.total_bytes += row.nbytes.value_or(0);
  }
  if (held.rows.empty()) return "";
  std::vector<std::string> lines;
  add_wrapped(lines, fmt::format("Of it alive since an earlier failure, on {}: {}",
                                 device.device.str(), largest_rows(held, run, 3)));
  for (const std::string& advice : advice_on_holders(held)) add_wrapped(lines, "Advice: " + advice);
  std::string text;
  for (const std::string& line : lines)
    text.append(line, 0, line.find_last_not_of(' ') + 1).append("\n");
  return text;
}

bool is_told(int number) { return number <= 8 || (number & (number - 1)) == 0; }

}  // namespace

void set_searcher(void* function) noexcept { searcher.store(function); }

bool has_searcher() noexcept { return searcher.load() != nullptr; }

void search_soon() noexcept {
  if (searcher.load() == nullptr || is_asked.exchange(true)) return;
  const auto call_soon = python_function<int (*)(int (*)(void*), void*)>("Py_AddPendingCall");
  if (call_soon == nullptr || call_soon(&search_now, nullptr) != 0) is_asked.store(false);
}

bool search_and_wait() noexcept {
  if (searcher.load() == nullptr) return false;
  const uint64_t before = searches.load();
  search_soon();
  constexpr timespec kBetweenLooks{0, 5'000'000};
  for (int64_t waited = 0; waited < kMaxWaitMs && searches.load() == before; waited += 5)
    nanosleep(&kBetweenLooks, nullptr);
  return searches.load() != before;
}

void note_failure() noexcept {
  if (searcher.load() == nullptr || !is_told(failures.fetch_add(1) + 1)) return;
  try {
    std::string text;
    if (failures.load() > 1) {
      Report report = MemReporter().collect();
      add_holders_to({&report});
      for (const DeviceReport& device : report.devices) text += held_text(device);
    }
    const std::lock_guard<ForkSafeMutex> hold(noted_holders().lock);
    noted_holders().text.swap(text);
  } catch (...) {
    // Without memory, nobody is said to hold it.
  }
  search_soon();
}

std::string failure_holders_text() {
  const std::lock_guard<ForkSafeMutex> hold(noted_holders().lock);
  return noted_holders().text;
}

}  // namespace memledger::inside
