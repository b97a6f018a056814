#pragma once

// Which line of a function makes the memory grow, without an edit of the program. Needs debug
// information (-g): without it a function has one row. docs/which_line.md explains the figures.
//
//   memledger::LineProfiler profiler({"train_step", "Net::forward"});
//   {
//     const auto enabled = profiler.enable();
//     model->forward(input).sum().backward();
//   }
//   profiler.display().IgnoreError();

#include <c10/core/Device.h>

#include <cstdint>
#include <initializer_list>
#include <iosfwd>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "registry/snapshot.h"
#include "tracker/line_table.h"
#include "tracker/python_function.h"

namespace memledger {

// Chooses the device that all line profilers look at from now on. Until one is chosen, that is the
// CPU, and cuda:0 from its first use on, which forgets what was recorded on the CPU. May be called
// within a profiled function: each line shows the device that was the target while it ran, and what
// was born there is followed until it dies. Throws c10::Error if LibTorch does not see the device.
void set_target_gpu(int index);
void set_target_device(c10::Device device);

struct LineProfilerOptions {
  // Records births and deaths (registry/recording.h), which alive_at_peak() needs.
  bool who_was_alive = false;
  // Calls set_target_gpu(), which holds for all line profilers.
  std::optional<int> target_gpu = std::nullopt;
  // For Python functions only: takes no C++ stacks, and functions of C++ have no rows.
  bool python = false;
};

// Takes the stack at each allocation and free while enabled: 1 to 2 µs each, and about 3 kB for
// each place in the program that allocates. Afterwards each free costs a look-up until all that was
// born is freed. Making a profile takes 0.1 s for each library the first time. Thread-safe. Holds
// no tensor, resets none of LibTorch's statistics, empties no cache.
class LineProfiler {
 public:
  // Profiles functions by the last parts of their qualified names: `forward` and `Net::forward`
  // both find `app::Net::forward`. Functions may be added later: everything is recorded.
  explicit LineProfiler(std::vector<std::string> functions = {}, LineProfilerOptions options = {});
  ~LineProfiler();
  LineProfiler(const LineProfiler&) = delete;
  LineProfiler& operator=(const LineProfiler&) = delete;

  LineProfiler& add_function(std::string name);
  // Adds the function whose code has this address.
  LineProfiler& add_function(const void* address);
  // Adds a Python function. From then on the thread's Python frames are looked at as well: some
  // microseconds for each allocation and free. What backward's threads do counts for the line that
  // waits for it. Throws std::bad_alloc.
  LineProfiler& add_python_function(PythonFunction function);
  // Returns NotFound for the first function that no library loaded so far has, and suggests names.
  absl::Status check_functions() const;

  // Disables the profiler at its end, which must come before the profiler's.
  class On {
   public:
    explicit On(LineProfiler* profiler) : profiler_(profiler) {}
    On(On&& other) noexcept : profiler_(other.profiler_) { other.profiler_ = nullptr; }
    ~On() {
      if (profiler_ != nullptr) profiler_->disable();
    }
    // Leaves the profiler enabled until disable().
    void release() { profiler_ = nullptr; }
    On(const On&) = delete;
    On& operator=(const On&) = delete;
    On& operator=(On&&) = delete;

   private:
    LineProfiler* profiler_;
  };
  // Records until the result dies, or until disable(); calls are counted. Activates the registry.
  [[nodiscard]] On enable();
  void disable();
  // Forgets what was recorded.
  void clear();
  // Forgets the functions; keeps what was recorded.
  void clear_functions();

  // Returns what was recorded so far, of all functions.
  LineProfile profile() const;
  // Write profile(), display() to standard output. `columns` are names (tracker/line_table.h), none
  // for the default ones; `function` limits the text to functions of that name, and `functions` the
  // page to those names. Return InvalidArgument for a wrong column, and NotFound for a function
  // that was not added.
  absl::Status display(const std::string& function = "",
                       const std::vector<std::string>& columns = {}) const;
  absl::Status print_stats(std::ostream& out, const std::vector<std::string>& columns = {},
                           const std::string& function = "") const;
  absl::Status write_json(std::ostream& out, const std::vector<std::string>& columns = {}) const;
  absl::Status write_html(std::ostream& out, const std::vector<std::string>& columns = {},
                          const std::vector<std::string>& functions = {}) const;

  // Returns who was alive when active_bytes.all peaked in that line. Returns FailedPrecondition
  // without LineProfilerOptions::who_was_alive, NotFound if nothing was seen in that line,
  // OutOfRange if the events of that time have been dropped.
  absl::StatusOr<std::vector<StorageInfo>> alive_at_peak(const std::string& function,
                                                         int64_t line) const;

  struct State;

 private:
  std::shared_ptr<State> state_;
};

// Returns the columns of those names, each once; the default ones if there are none. Returns
// InvalidArgument for a wrong name, with a pattern of the right ones.
absl::StatusOr<std::vector<LineColumn>> parse_line_columns(const std::vector<std::string>& names);

// Makes MEMLEDGER_PROFILE() forget what it recorded, and its functions until they run again.
void clear_global_line_profiler();

namespace internal {

// As set_target_device(), but does not ask LibTorch for the device, which must not be done before
// main().
void set_target_device_unseen(c10::Device device);

// A function with one of the macros in it; each instantiation of a template has its own.
class ProfiledBody {
 public:
  ProfiledBody();
  ProfiledBody(int64_t interval, bool enable = true,
               std::initializer_list<const char*> columns = {});

 private:
  friend class ProfiledRun;
  struct State;
  State* const state_;  // never deleted
};

class ProfiledRun {
 public:
  __attribute__((noinline)) explicit ProfiledRun(ProfiledBody& body);
  ~ProfiledRun();
  ProfiledRun(const ProfiledRun&) = delete;
  ProfiledRun& operator=(const ProfiledRun&) = delete;

 private:
  ProfiledBody& body_;
};

template <typename... Columns>
ProfiledBody profiled_every(int64_t interval = 1, bool enable = true, Columns... columns) {
  return ProfiledBody(interval, enable, {static_cast<const char*>(columns)...});
}

}  // namespace internal
}  // namespace memledger

// Profiles the function, method, template or lambda that it stands in. The tables of all such
// functions are printed on standard output at the program's end, and on Ctrl-C.
#define MEMLEDGER_PROFILE()                                             \
  static ::memledger::internal::ProfiledBody memledger_profiled_body{}; \
  const ::memledger::internal::ProfiledRun memledger_profiled_run(memledger_profiled_body)

// Profiles the function that it stands in and prints its table after a number of runs. Arguments:
// the number of runs (1), whether to profile at all (true), and names of columns:
// MEMLEDGER_PROFILE_EVERY(10, enabled, "active_bytes.all.peak"). Throws c10::Error for a number
// below 1 and for a wrong column.
#define MEMLEDGER_PROFILE_EVERY(...)                                         \
  static ::memledger::internal::ProfiledBody memledger_profiled_body_every = \
      ::memledger::internal::profiled_every(__VA_ARGS__);                    \
  const ::memledger::internal::ProfiledRun memledger_profiled_run_every(     \
      memledger_profiled_body_every)
