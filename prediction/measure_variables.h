#pragma once

// Names between `memledger dry-run` and the programs that it measures. The preloaded library, which
// knows no C++ library, includes this.

namespace memledger::prediction {

// The variables that make a program measure itself (runner/inside/measure.cc). The folder gets one
// file per process that used a GPU, PID.json, and what prediction/run_files.h reads.
inline constexpr char kMeasureVariable[] = "MEMLEDGER_MEASURE";
inline constexpr char kUntilVariable[] = "MEMLEDGER_MEASURE_UNTIL";  // step, any_step or exit
// Ends as `step` does, but steps that differ do not have to come again: no two are alike.
inline constexpr char kUntilAnyStep[] = "any_step";

// PID.progress: one line, replaced in place while the process runs.
inline constexpr char kProgressExtension[] = ".progress";
// The paths of written files, each ended by a zero byte, as a path may hold a newline; all
// processes append.
inline constexpr char kWrittenFiles[] = "written";

// In the folder that has those of all runs. What is older than the marker is kept
// (runner/inside/kept_files.h). Of each file the journal has its path and where it is kept, each
// ended by a zero byte; it may be kept nowhere, if a program was ended at that moment. An empty
// second path: what came to the first by rename() was somewhere else before, or nothing was there.
inline constexpr char kKeptMarker[] = "began";
inline constexpr char kKeptJournal[] = "kept";

}  // namespace memledger::prediction
