#pragma once

// The report of a program when it ends.

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <string_view>

#include "reporter/formats/run_summary.h"
#include "reporter/report.h"

namespace memledger::inside {

struct ProcessOfRun {
  pid_t process = 0;
  int rank = 0;
  bool full_report = false;  // the tables as well
  bool saves_report = false;
  std::string folder;            // paths below it are shown without it
  bool training_paused = false;  // promised: see ReportOptions
};

// How a process ends, or why its report is written before.
struct ProgramEnd {
  enum class Kind : uint8_t {
    kExit,
    kQuickExit,
    kSuddenExit,
    kExec,
    kSignal,
    kOnDemand,
    kNearLimit
  };
  Kind kind = Kind::kExit;
  std::optional<int> status;  // what the process gave to exit() or _exit(); empty: not known
  std::string signal;         // SIGTERM
  std::string details;        // uncaught exception: …; the program of exec; the limit's figures

  bool goes_on() const { return kind == Kind::kOnDemand || kind == Kind::kNearLimit; }
};

// Keeps what such a report says of steps and, unless the program is watched by names only, of what
// a C++ program keeps from one to the next. Throws std::bad_alloc.
void begin_run_report(bool names_only);

// Returns a device's peak next to what was alive between steps, which shows its parts. Without the
// figures of LibTorch's allocator.
RunOfDevice run_of_device(DeviceReport peak);

// All that a report of a run says but how the process ends: figures and texts, no tensor.
class CollectedRun;
struct DeleteCollectedRun {
  void operator()(CollectedRun* run) const noexcept;
};
using CollectedRunPtr = std::unique_ptr<CollectedRun, DeleteCollectedRun>;

// Collects the state of now. `every_row`: for a file. Files that hold values of the device that are
// not real are reported by this process from now on, unless `goes_on`.
CollectedRunPtr collect_run(const ProcessOfRun& process, bool every_row, bool goes_on = false);

// Returns the report for standard error, of one screen: each device's peak, who held it, the state
// after the last step and at the end, the last allocation that failed.
std::string run_report_text(CollectedRun& run, const ProgramEnd& end);

// Writes all that is known: every row of the peaks, of the last step's end and of what is alive,
// and the steps, as the path's ending asks for: .json, .html, .csv (rows only), else tables.
void write_run_report(CollectedRun& run, const ProgramEnd& end, std::string_view path,
                      std::ostream& out);

}  // namespace memledger::inside
