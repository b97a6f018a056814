#pragma once

// Which line of a function makes the memory grow, without an edit of the program: the stack is
// taken at each allocation and free, and lines come from the debug information (-g) when the
// profile is shown.
//
//   memledger::LineProfiler prof({"train_step", "Net::forward"});
//   {
//     auto on = prof.enable();
//     train_step();
//   }
//   prof.display();
//
// or, in the body of a function, method, template or lambda:
//
//   MEMLEDGER_PROFILE();                 // tables of all such functions on standard output at
//   exit, and on Ctrl-C MEMLEDGER_PROFILE_EVERY(10);         // every tenth run; without a number
//   every run MEMLEDGER_PROFILE_EVERY(10, enable, "active_bytes.all.peak", …);
//
// A table has the whole source of the function. Peaks are the highest of all runs and threads while
// the line ran, what it called included; `allocated` and `freed` are sums over all runs. The first
// line shows what the device held when the function began. A line that neither allocates nor frees
// shows nothing: it could not be seen. In a recursion an event belongs to the innermost run. On the
// CPU `reserved_bytes` and `allocated_bytes` are the bytes requested, as nothing is cached or
// rounded there, and figures of segments and pools are `?`.
//
// In optimised code a function that was inlined has no frame: its lines are folded into its
// caller's, and a note under the table says which lines have no code of their own. Without debug
// information a function has one row.
//
// Units: bytes as LibTorch's statistics count them; line.* as requested. Errors: InvalidArgument
// for a column or a function that does not exist, with the right names. No statistic of LibTorch's
// is reset and no cache emptied. Thread-safety: all functions, from any thread. Ownership: holds no
// tensor. Cost: 1 to 2 µs for each allocation and free while enabled (afterwards a look-up for each
// free while something of it is alive), some 3 kB for each place in the program that allocates;
// showing takes 0.1 s for each library the first time.

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

namespace memledger {

// The device that all line profilers look at from now on. Until it is set: cuda:0 from its first
// use on (what was recorded on the CPU before is forgotten then), and the CPU in programs that do
// not use it. c10::Error if LibTorch does not see it. Within a function, too: each line then shows
// the figures of the device that was the target while it ran, and what was born there is followed
// until it dies.
void set_target_gpu(int index);
void set_target_device(c10::Device device);

struct LineProfilerOptions {
  // Remember births and deaths (registry/recording.h), for alive_at_peak().
  bool who_was_alive = false;
  // set_target_gpu() of it, for all line profilers.
  std::optional<int> target_gpu = std::nullopt;
};

class LineProfiler {
 public:
  // Functions by the last parts of their qualified names. Nothing else: all is recorded, and shown
  // are those added later.
  explicit LineProfiler(std::vector<std::string> functions = {}, LineProfilerOptions options = {});
  ~LineProfiler();
  LineProfiler(const LineProfiler&) = delete;
  LineProfiler& operator=(const LineProfiler&) = delete;

  LineProfiler& add_function(std::string name);
  // The function that this address lies in.
  LineProfiler& add_function(const void* address);
  // NotFound: the first function that is not there, with the names most like it. Libraries that are
  // opened later count later.
  absl::Status check_functions() const;

  class On {
   public:
    explicit On(LineProfiler* profiler) : profiler_(profiler) {}
    On(On&& other) noexcept : profiler_(other.profiler_) { other.profiler_ = nullptr; }
    ~On() {
      if (profiler_ != nullptr) profiler_->disable();
    }
    // Until disable().
    void release() { profiler_ = nullptr; }
    On(const On&) = delete;
    On& operator=(const On&) = delete;
    On& operator=(On&&) = delete;

   private:
    LineProfiler* profiler_;
  };
  // Until the result dies, or disable(). Counted. Activates the registry.
  [[nodiscard]] On enable();
  void disable();
  // Forgets what was recorded.
  void clear();
  // Forgets which functions are shown; what was recorded stays.
  void clear_functions();

  LineProfile profile() const;
  // Of one function, or of all ("").
  absl::Status display(const std::string& function = "",
                       const std::vector<std::string>& columns = {}) const;
  absl::Status print_stats(std::ostream& out, const std::vector<std::string>& columns = {},
                           const std::string& function = "") const;
  absl::Status write_json(std::ostream& out, const std::vector<std::string>& columns = {}) const;
  absl::Status write_html(std::ostream& out, const std::vector<std::string>& columns = {}) const;

  // Who was alive when the line's active_bytes.all was highest. FailedPrecondition without
  // LineProfilerOptions::who_was_alive, NotFound if the line has no events, OutOfRange if it is too
  // long ago.
  absl::StatusOr<std::vector<StorageInfo>> alive_at_peak(const std::string& function,
                                                         int64_t line) const;

  struct State;

 private:
  std::shared_ptr<State> state_;
};

// Empty: the default ones. InvalidArgument names the one that is wrong, and the right ones.
absl::StatusOr<std::vector<LineColumn>> parse_line_columns(const std::vector<std::string>& names);

// Of MEMLEDGER_PROFILE(): forgets what it recorded, and the functions. Those that begin to run
// afterwards are there again.
void clear_global_line_profiler();

namespace internal {

// set_target_device() without a look whether LibTorch sees it: it must not be asked before main.
void set_target_device_unseen(c10::Device device);

// The functions that a macro stands in: one for each place, or each instantiation.
class ProfiledBody {
 public:
  ProfiledBody();
  ProfiledBody(int64_t interval, bool enable = true,
               std::initializer_list<const char*> columns = {});

 private:
  friend class ProfiledRun;
  struct State;
  State* const state_;  // as long as the process
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

#define MEMLEDGER_PROFILE()                                             \
  static ::memledger::internal::ProfiledBody memledger_profiled_body{}; \
  const ::memledger::internal::ProfiledRun memledger_profiled_run(memledger_profiled_body)

#define MEMLEDGER_PROFILE_EVERY(...)                                         \
  static ::memledger::internal::ProfiledBody memledger_profiled_body_every = \
      ::memledger::internal::profiled_every(__VA_ARGS__);                    \
  const ::memledger::internal::ProfiledRun memledger_profiled_run_every(     \
      memledger_profiled_body_every)
