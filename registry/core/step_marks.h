#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "registry/core/fork_safe_mutex.h"
#include "registry/core/ledger.h"
#include "registry/core/thread_context.h"

namespace memledger::core {

// Keeps the ends of optimizers' steps as instants of the ledger, so that what was alive between
// steps can be shown after a program has let go of it.
//
// A step's end is the moment after its last operator, before anything is freed: then gradients are
// there, and so is the optimizer's state when main's locals die. Threads report their own steps;
// functions for hooks never throw. Cost of a mark: that of Ledger::changes_since() without rows.
class StepMarks {
 public:
  explicit StepMarks(Ledger& ledger) : ledger_(ledger) {}
  StepMarks(const StepMarks&) = delete;
  StepMarks& operator=(const StepMarks&) = delete;

  // The step after which growth counts: the first makes the optimizer's state.
  static constexpr int64_t kBaselineStep = 2;
  static constexpr size_t kMostRecords = 1024;

  // An operator of the thread's step has run or runs.
  void note_operator(ThreadContext& thread) noexcept;
  // The thread is about to free what lies there, outside operators.
  void note_free(ThreadContext& thread, uintptr_t address) noexcept;
  // The thread does something else, or its ScopedPhase has ended.
  void end(ThreadContext& thread) noexcept;
  void end_scope(ThreadContext& thread) noexcept;

  struct Record {
    int64_t step = 0;
    std::vector<DeviceTotals> devices;  // at the step's end; peaks are the highest so far
  };
  struct PeakStep {
    DeviceKey device;
    int64_t bytes = 0;  // the highest at the end of any step
    int64_t step = 0;   // that reached it
  };
  struct History {
    int64_t steps = 0;
    // At most kMostRecords, evenly spaced: every step, every second one and so on; and the last.
    std::vector<Record> records;
    std::vector<PeakStep> peaks;
    // What was alive after step kBaselineStep and after the last; empty where there is none.
    RecordList baseline, last;
  };
  // Returns the steps so far; one that is still running on the calling thread has ended. Throws
  // std::bad_alloc.
  History history();

 private:
  void mark() noexcept;
  void finish() noexcept;
  void keep(Record record);

  Ledger& ledger_;
  ForkSafeMutex mutex_;  // of what follows
  int64_t steps_ = 0;
  uint64_t marked_ = 0, last_ = 0, baseline_ = 0;  // cursors; 0: none yet
  bool is_marked_ = false;
  std::vector<DeviceTotals> marked_devices_;
  std::vector<Record> records_;
  int64_t every_ = 1;  // how many steps lie between records
  std::vector<PeakStep> peaks_;
};

// Ends a ScopedPhase, and a step if it was one. `marks` may be null.
void leave_phase(ThreadContext& thread, bool was_set, Phase before, StepMarks* marks) noexcept;

}  // namespace memledger::core
