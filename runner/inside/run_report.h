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
};

// Returns the report for standard error: each device's peak on a few lines, the table of what is
// alive, and the largest of each peak. `when` ends the first line: "at its end".
std::string run_report_text(const ProcessOfRun& process, std::string_view when);

// Writes every row of the peaks and of what is alive, as the path's ending asks for: .json, .html,
// .csv (both of the peaks), else tables.
void write_run_report(const ProcessOfRun& process, std::string_view path, std::ostream& out);

}  // namespace memledger::inside
