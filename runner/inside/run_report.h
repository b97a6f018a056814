#pragma once

// What is told of a program when it ends.

#include <sys/types.h>

#include <ostream>
#include <string>
#include <string_view>

namespace memledger::inside {

struct ProcessOfRun {
  pid_t process = 0;
  int rank = 0;
  bool full_report = false;  // the tables as well
  bool saves_report = false;
};

// Keeps what such a report tells of steps. Throws std::bad_alloc.
void begin_run_report();

// Returns the report for standard error, of one screen: each device's peak, who held it, the state
// after the last step and at the end, the last allocation that failed. `when` goes into the first
// line: "at its end". `goes_on`: the program has not ended.
std::string run_report_text(const ProcessOfRun& process, std::string_view when,
                            bool goes_on = false);

// Writes all that is known: every row of the peaks, of the last step's end and of what is alive,
// and the steps, as the path's ending asks for: .json, .html, .csv (rows only), else tables.
void write_run_report(const ProcessOfRun& process, std::string_view path, std::ostream& out);

}  // namespace memledger::inside
