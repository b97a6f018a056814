#pragma once

// Says who holds the memory when an allocation fails: writes a file at that moment, and lets the
// allocator's exception go on to the program.
//
//   memledger::OutOfMemoryOptions options;
//   options.folder = "logs";
//   absl::Status status = memledger::write_out_of_memory_reports(options);   // once, at the start
//
// `memledger run` and MEMLEDGER=1 do this for the whole program. The files are named
// oom-<date>-<time>-<process>.txt, and -2, -3 … for more of them in one second.
//
// A failure is not always the end: LibTorch itself tries another algorithm when a convolution's
// workspace finds no memory, and servers drop the request. So the number of reports is limited.
//
// Thread-safety: all functions may be called from any thread; failures on several threads at once
// make one report. The registry must be active (Registry::activate(), or any reporter or tracker
// that lives). Cost: none until an allocation fails; then a report's. If the machine has no memory
// for the report either, a line on standard error says so.

#include <cstddef>
#include <string>

#include "absl/status/status.h"
#include "registry/allocation_failure.h"

namespace memledger {

class MemReporter;

struct OutOfMemoryOptions {
  std::string folder;    // made if missing; empty: standard error instead of files
  int max_reports = 8;   // of the process
  size_t max_rows = 20;  // holders by birthplace, and rows of the table
  // Gives rows their names and roles (parameters, gradients, optimizer state …); null: none are
  // known, and the summary by role is of what operators have shown. Not owned: call
  // stop_out_of_memory_reports(), or write_out_of_memory_reports() with another one, before it
  // ends. Both wait for a report that is being made on another thread. Other threads may train
  // meanwhile (reporter/mem_reporter.h). Not used in a child of fork.
  const MemReporter* reporter = nullptr;
  bool quiet = false;  // on standard error only why a file cannot be written
};

// From now on until the process ends; a further call replaces the options. Takes the place of the
// observer of allocation failures. Errors: where the folder cannot be made or written to, with its
// name; nothing has changed then.
absl::Status write_out_of_memory_reports(const OutOfMemoryOptions& options);
// Puts the observer back that was there before.
void stop_out_of_memory_reports();

// The text of such a report, for programs with an observer of their own.
std::string out_of_memory_report(const AllocationFailure& failure, size_t max_rows = 20,
                                 const MemReporter* reporter = nullptr);

}  // namespace memledger
