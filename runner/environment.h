#pragma once

// The environment variables by which `memledger run` passes its options to a program. Users may set
// those of the first group themselves, for a program that is linked with libmemledger.so. Two more
// are declared where they are read: kRunVariable (text/output.h) and kSpecificationVariable
// (virtual_gpu/specification.h).

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace memledger::environment {

// Watch this process from its first allocation, and report when it ends or runs out of memory. On
// unless empty or 0; `full`: with the tables behind the summary.
inline constexpr char kReport[] = "MEMLEDGER";
inline constexpr char kFullReport[] = "full";
// Print no reports on standard error; files are still written. On unless empty or 0.
inline constexpr char kQuiet[] = "MEMLEDGER_QUIET";
// The folder for report files, made if missing. In this and all paths below, %r is the rank, %p the
// process and %% a percent sign.
inline constexpr char kLog[] = "MEMLEDGER_LOG";
// The file for all that a report can say, written with or without reports.
inline constexpr char kSaveReport[] = "MEMLEDGER_SAVE_REPORT";
// The file for births and deaths of storages, written with or without reports.
inline constexpr char kTimeline[] = "MEMLEDGER_TIMELINE";
// Which storages have the program's line noted: off, sampled or all. Without it, large ones of a
// Python program.
inline constexpr char kStacks[] = "MEMLEDGER_STACKS";
// How much is noted of each storage: all or names. Names: RegistryOptions::Detail::kNames, and no
// lines unless MEMLEDGER_STACKS asks for them.
inline constexpr char kDetail[] = "MEMLEDGER_DETAIL";
// A signal that asks for a report while the program goes on: SIGUSR1 or SIGUSR2.
inline constexpr char kReportOn[] = "MEMLEDGER_REPORT_ON";
// Report once the memory that the process' control group uses comes near its limit: at this
// percentage of it, 0 for never.
inline constexpr char kReportNear[] = "MEMLEDGER_REPORT_NEAR";
// Reports promise what a ScopedTrainingPaused does (registry/training_paused.h). On unless empty or
// 0.
inline constexpr char kTrainingPaused[] = "MEMLEDGER_TRAINING_PAUSED";
// The line profile (tracker/line_profiler.h): the functions and the columns, one per line, the
// GPU's number, and the files.
inline constexpr char kLines[] = "MEMLEDGER_LINES";
inline constexpr char kLinesColumns[] = "MEMLEDGER_LINES_COLUMNS";
inline constexpr char kLinesGpu[] = "MEMLEDGER_LINES_GPU";
inline constexpr char kLinesText[] = "MEMLEDGER_LINES_TEXT";
inline constexpr char kLinesJson[] = "MEMLEDGER_LINES_JSON";
inline constexpr char kLinesHtml[] = "MEMLEDGER_LINES_HTML";

// The folder that relative paths above start from: the caller's.
inline constexpr char kFolder[] = "MEMLEDGER_FOLDER";
// A folder that stands for `/` in the paths above, so that reports get out of a run whose own files
// are discarded.
inline constexpr char kOutputs[] = "MEMLEDGER_OUTPUTS";
// The number of the process that the runner became.
inline constexpr char kProcess[] = "MEMLEDGER_RUN_PROCESS";
// For the preloaded library: the path of libmemledger.so, and the LibTorch release it was built for
// (2.11).
inline constexpr char kLibrary[] = "MEMLEDGER_LIBRARY";
inline constexpr char kLibTorch[] = "MEMLEDGER_LIBTORCH";
// Our part of LD_PRELOAD, which programs do not get that cannot take it.
inline constexpr char kPreloaded[] = "MEMLEDGER_PRELOADED";
// The virtual GPU's specification (virtual_gpu/specification.h).
inline constexpr char kVirtualGpu[] = "MEMLEDGER_VIRTUAL_GPU";

// For `memledger validate`: measure a virtual GPU as a real one is measured (on unless empty or 0),
// for tests; and the file for a calibration (virtual_gpu/calibration.h), to whose name the process
// adds its number: FILE.PID.
inline constexpr char kMeasureReal[] = "MEMLEDGER_MEASURE_REAL";
inline constexpr char kCalibration[] = "MEMLEDGER_MEASURE_CALIBRATION";

struct LineSettings {
  std::vector<std::string> functions;  // none: no line profile
  std::vector<std::string> columns;
  std::optional<int> gpu;  // unset: the first, or the CPU where there is none
  std::string text_file, json_file, html_file;
};

inline constexpr int kDefaultReportNear = 95;
inline constexpr int kMaxGpus = 128;

// What is asked of a program. Empty texts and unset numbers: not asked for.
struct Settings {
  bool report = false;
  bool full_report = false;
  bool quiet = false;
  std::string log_folder;
  std::string saved_report;
  std::string timeline;
  std::string stacks;
  std::string detail;
  LineSettings lines;
  std::string report_on;           // SIGUSR2
  std::optional<int> report_near;  // percent; unset: kDefaultReportNear
  bool training_paused = false;
  std::string folder;
  std::string outputs;  // empty: `/`
  int process = 0;      // 0: not known
};

struct Variable {
  std::string name;
  std::optional<std::string> value;  // unset: remove the variable
};

// Returns the variables to change. Others stay as the caller has them.
std::vector<Variable> format(const Settings& settings);

// Returns the value of a variable, or null. Programs pass secure_getenv: in a setuid program the
// environment must not choose files to write.
using Lookup = std::function<const char*(const char* name)>;

// Returns what the variables ask for. A variable whose value is wrong counts as unset.
Settings parse(const Lookup& lookup);

// The endings of file names that choose a format, in lower case.
std::vector<std::string> report_endings();
std::vector<std::string> timeline_endings();

// Returns what is wrong with the ending of a file's name, which chooses the format; empty where
// nothing is. A name without an ending has the default format.
std::string why_no_format(std::string_view path, const std::vector<std::string>& endings);

// Returns what a variable's value has to be, as `it is off, sampled or all`, where it is something
// else. Empty where the value is right or empty.
std::string why_wrong(const char* variable, std::string_view value);

// Returns a line for each variable whose value is wrong: `MEMLEDGER_STACKS=some: it is …`.
std::vector<std::string> wrong_variables(const Lookup& lookup);

// Returns the first of RANK, OMPI_COMM_WORLD_RANK, PMI_RANK and SLURM_PROCID that is a number; 0
// without.
int rank(const Lookup& lookup);

// Returns a path with %r, %p and %% replaced.
std::string expand(std::string_view path, int rank, int process);

}  // namespace memledger::environment
