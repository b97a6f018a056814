#pragma once

// Writes down who holds the memory when an allocation fails, then lets the exception go on.
//
//   memledger::OutOfMemoryOptions options;
//   options.folder = "logs";
//   const absl::Status status = memledger::write_out_of_memory_reports(options);
//
// Adds nothing to the cost of tracking until an allocation fails. Any thread may call any function
// here.

#include <cstddef>
#include <string>

#include "absl/status/status.h"
#include "registry/allocation_failure.h"

namespace memledger {

class MemReporter;

struct OutOfMemoryOptions {
  // Made if missing. Files are called oom-<date>-<time>-<process>.txt, then -2, -3 in the same
  // second. Empty: reports go to standard error.
  std::string folder;
  // Per process, as a failure is not always the end: LibTorch retries a convolution without its
  // workspace, and servers drop the request.
  int max_reports = 8;
  size_t max_rows = 20;  // holders by birthplace, and rows of the table
  // Gives rows names and roles (parameters, gradients, optimizer state). Null: there are no names,
  // and roles are what operators have shown. Not owned: before you destroy it call
  // stop_out_of_memory_reports(), or write_out_of_memory_reports() with another one; both wait for
  // a report in progress. Not used in a child of fork.
  const MemReporter* reporter = nullptr;
  bool quiet = false;  // nothing on standard error but write errors; needs `folder`
  // Without a folder: print a line on a failure, or only on some if there are many, and keep a page
  // on the last one for the report of a run. A program that catches its failures is not drowned by
  // their reports.
  bool keep_last = false;
  // Called by the thread that failed once the failure is reported; may be null. Takes no lock that
  // a thread may hold while it asks for memory.
  void (*told)() noexcept = nullptr;
};

// Starts to write a report of each failed allocation; another call replaces the options. Takes the
// place of the observer of allocation failures (registry/allocation_failure.h). The registry has to
// be active, by Registry::activate() or any reporter or tracker. Failures on several threads at
// once make one report; if memory is too short even for that, a line on standard error says so.
// Returns an error with the folder's name, having changed nothing, if the folder cannot be made or
// written.
absl::Status write_out_of_memory_reports(const OutOfMemoryOptions& options);
// Stops it and restores the observer from before.
void stop_out_of_memory_reports();

// Returns the text of such a report, for programs with an observer of their own.
std::string out_of_memory_report(const AllocationFailure& failure, size_t max_rows = 20,
                                 const MemReporter* reporter = nullptr);

}  // namespace memledger
