#include "runner/command_line.h"

#include <CLI/CLI.hpp>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "runner/dry_run.h"
#include "runner/output_files.h"
#include "runner/version_text.h"
#include "tracker/line_table.h"
#include "virtual_gpu/specification.h"

namespace memledger::runner {
namespace {

using Words = std::vector<std::string>;
using Kind = OutputFile::Kind;

constexpr size_t kHelpColumn = 30;
constexpr char kOptions[] = "Options";

// What an option says that may stand alone: `--json`, `--json=FILE`.
struct OptionalValue {
  bool is_given = false;
  std::string value;
};

// Where an option's value goes. A flag sets its bool; a list takes all values, the others the last.
using Target = std::variant<bool*, std::string*, std::optional<std::string>*, std::optional<int>*,
                            std::vector<std::string>*, OptionalValue*>;

struct OptionDeclaration {
  std::string names;  // as CLI11 takes them
  std::string value;  // what help calls it; empty: a flag
  Target target;
  std::string help;
  std::string group = kOptions;
  std::optional<OutputFile> output = std::nullopt;  // the value is a path that is written
};

struct Command {
  std::string name;  // empty: `memledger` itself
  std::string usage;
  std::string summary;  // in the list of commands
  std::string description;
  std::string examples_and_exit_status;
  std::vector<OptionDeclaration> options;
  // What is no option. Where it is a program, its first word ends the options.
  std::vector<std::string>* operands = nullptr;
  bool runs_program = false;
  // Checks the options against each other and returns them.
  std::function<absl::StatusOr<Request>()> finish;
};

absl::Status invalid(std::string_view message) {
  return absl::InvalidArgumentError(absl::string_view(message.data(), message.size()));
}

// The commands.

absl::Status complete_line_profile(RunOptions& options) {
  environment::LineSettings& lines = options.lines;
  if (lines.functions.empty()) {
    const bool is_asked_for = !lines.columns.empty() || options.no_default_columns || lines.gpu ||
                              !lines.text_file.empty() || !lines.json_file.empty() ||
                              !lines.html_file.empty();
    return is_asked_for ? invalid("-c, -D, -g, -r, -T and --html require -f FUNCTION.")
                        : absl::OkStatus();
  }
  for (const std::string& function : lines.functions) {
    if (function.empty() || function.find('\n') != std::string::npos)
      return invalid("-f: a function's name is neither empty nor of several lines");
  }
  for (const std::string& column : lines.columns) {
    if (!LineColumn::parse(column))
      return invalid(absl::StrCat("-c ", column, ": there is no such column; the columns are ",
                                  all_column_names()));
  }
  if (!options.no_default_columns) {
    std::vector<std::string> names;
    for (const LineColumn column : default_line_columns()) names.push_back(column.name());
    lines.columns.insert(lines.columns.begin(), names.begin(), names.end());
  }
  if (lines.columns.empty()) return invalid("-D leaves no column: name one with -c COLUMN");
  return absl::OkStatus();
}

absl::Status check_gpu(const std::string& option, const std::string& specification) {
  const auto parsed = virtual_gpu::parse_specification(specification);
  return parsed.specification
             ? absl::OkStatus()
             : invalid(absl::StrCat(option, "=", specification, ": ", parsed.error));
}

// Adds a calibration to a specification that is right without it.
absl::Status calibrate(const std::string& file, std::string& specification) {
  if (file.find(',') != std::string::npos)
    return invalid(absl::StrCat("--calibration=", file, ": the file's name has a comma in it"));
  absl::StrAppend(&specification, ",calibration=", file);
  const auto parsed = virtual_gpu::parse_specification(specification);
  if (parsed.specification) return absl::OkStatus();
  // Some errors begin with the option, others do not name it.
  const bool names_option = parsed.error.compare(0, 12, "calibration=") == 0;
  return invalid(names_option ? absl::StrCat("--", parsed.error)
                              : absl::StrCat("--calibration=", file, ": ", parsed.error));
}

const OutputFile kLogFolder{Kind::kFolderOfProgram, {}, false};
OutputFile saved_report() {
  return {Kind::kFileOfProgram, environment::report_endings(), /*ending_chooses=*/true};
}
OutputFile timeline() {
  return {Kind::kFileOfProgram, environment::timeline_endings(), /*ending_chooses=*/true};
}

// What the words of `memledger run` say, before they are checked.
struct RunWords {
  RunOptions options;
  OptionalValue report;
  std::optional<std::string> writes, writes_limit;
};

// An option that wins over the caller's variable.
struct SettingOption {
  const char* option;
  const char* variable;
  std::optional<std::string> value;  // unset: not given
  std::optional<OutputFile> output;
};

std::vector<SettingOption> settings_of(const RunOptions& options) {
  std::optional<std::string> report_near;
  if (options.report_near) report_near = std::to_string(*options.report_near);
  return {
      {"--log", environment::kLog, options.log_folder, kLogFolder},
      {"--save-report", environment::kSaveReport, options.saved_report, saved_report()},
      {"--timeline", environment::kTimeline, options.timeline, timeline()},
      {"--stacks", environment::kStacks, options.stacks, std::nullopt},
      {"--detail", environment::kDetail, options.detail, std::nullopt},
      {"--report-on", environment::kReportOn, options.report_on, std::nullopt},
      {"--report-near", environment::kReportNear, report_near, std::nullopt},
  };
}

// Checks what counts: the option, or the variable where there is none. Files of options are checked
// where all options are.
absl::Status check_setting(const SettingOption& setting) {
  const char* const of_caller = setting.value ? nullptr : std::getenv(setting.variable);
  const std::string name = setting.value ? setting.option : setting.variable;
  const std::string value = setting.value.value_or(of_caller == nullptr ? "" : of_caller);
  if (value.empty()) return absl::OkStatus();
  const std::string wrong = environment::why_wrong(setting.variable, value);
  if (!wrong.empty()) return invalid(absl::StrCat(name, "=", value, ": ", wrong));
  const bool is_of_caller = !setting.value && setting.output;
  return is_of_caller ? check_output(*setting.output, name, value) : absl::OkStatus();
}

absl::Status take_writes(const std::optional<std::string>& writes,
                         const std::optional<std::string>& limit, WriteOptions& options) {
  if (writes && *writes != "discard" && *writes != "allow")
    return invalid(absl::StrCat("--writes=", *writes, ": it is discard or allow"));
  if (writes) options.policy = *writes == "allow" ? WritePolicy::kAllow : WritePolicy::kDiscard;
  if (!limit) return absl::OkStatus();
  const std::optional<uint64_t> bytes = virtual_gpu::parse_bytes(*limit);
  if (!bytes || *bytes == 0)
    return invalid(absl::StrCat("--writes-limit=", *limit, ": it is a size, such as 8GiB"));
  options.limit_bytes = *bytes;
  return absl::OkStatus();
}

absl::StatusOr<Request> finish_run(RunWords& words) {
  RunOptions& options = words.options;
  if (!words.report.value.empty() && words.report.value != "full")
    return invalid(absl::StrCat("--report=", words.report.value, ": it is full, or has no value"));
  options.report = words.report.is_given;
  options.full_report = words.report.value == "full";
  if (options.program.empty())
    return invalid("which program? memledger run [OPTION]… -- PROGRAM [ARGUMENT]…");
  if (const absl::Status status = complete_line_profile(options); !status.ok()) return status;
  for (const SettingOption& setting : settings_of(options)) {
    const absl::Status status = check_setting(setting);
    if (!status.ok()) return status;
  }
  if (!options.virtual_gpu.empty()) {
    if (const absl::Status status = check_gpu("--virtual-gpu", options.virtual_gpu); !status.ok())
      return status;
  }
  if (words.writes) {
    const absl::Status status = take_writes(words.writes, words.writes_limit, options.writes);
    if (!status.ok()) return status;
  }
  if (words.writes_limit && words.writes != "discard")
    return invalid("--writes-limit requires --writes=discard");
  if (words.writes == "discard" && options.virtual_gpu.empty())
    return invalid("--writes=discard requires --virtual-gpu");
  if (!options.calibration.empty()) {
    if (options.virtual_gpu.empty()) return invalid("--calibration requires --virtual-gpu");
    if (const absl::Status status = calibrate(options.calibration, options.virtual_gpu);
        !status.ok())
      return status;
  }
  return Request(options);
}

Command declare_run(RunWords& words) {
  RunOptions& options = words.options;
  Command command;
  command.name = "run";
  command.usage = "memledger run [OPTION]… [--] PROGRAM [ARGUMENT]…";
  command.summary = "Run a program and report its tensor memory when it ends";
  command.description =
      "Runs an unmodified program that uses LibTorch, and reports its tensor memory when it\n"
      "ends or runs out of memory. Children of the program are watched as well.";
  environment::LineSettings& lines = options.lines;
  const std::string reports = "Reports", profile = "Line profile";
  command.options = {
      {"--virtual-gpu", "GPU[:MEMORY][+GPU…][,count=N]", &options.virtual_gpu,
       "Use virtual GPUs instead of real ones, N of each. Kernels do not run:\n"
       "values are assumed. `memledger gpus` lists what GPU can be, or it is a\n"
       "file, @FILE.json; MEMORY is a size such as 24GiB."},
      {"--calibration", "FILE", &options.calibration,
       "What `memledger validate` measured of such a GPU: contexts and cuDNN's\n"
       "workspaces are as they were there."},
      {"--writes", "allow|discard", &words.writes,
       "Let the program write for real (allow, the default), or discard what\n"
       "it writes when it ends (discard); reports stay. For --virtual-gpu."},
      {"--writes-limit", "SIZE", &words.writes_limit,
       "With --writes=discard, hold at most so much of it, in memory: 8GiB.\n"
       "The default is half of what is free."},
      {"--log", "FOLDER", &options.log_folder,
       "Write reports to files in FOLDER instead of standard error.\n"
       "In all paths %r is the rank, %p the process and %% a percent sign.",
       reports, kLogFolder},
      {"-q,--quiet", "", &options.quiet,
       "Print no report on standard error. Files are still written; where no\n"
       "option names one, nothing is watched, but for --virtual-gpu.",
       reports},
      {"--report", "full", &words.report,
       "Print the tables behind the summary as well. Without a value: print\n"
       "the report beside a line profile, which takes its place.",
       reports},
      {"--save-report", "FILE", &options.saved_report,
       "Write all that is known to FILE: the steps, and every row of the\n"
       "peaks, the last step and the end. .json, .html, .csv or .txt.",
       reports, saved_report()},
      {"--timeline", "FILE", &options.timeline,
       "Record births and deaths of all storages: a .json file for\n"
       "ui.perfetto.dev, a .pickle file for pytorch.org/memory_viz.",
       reports, timeline()},
      {"--stacks", "WHOSE", &options.stacks,
       "Note the program's line with allocations: off, all, or sampled by\n"
       "bytes, the default.",
       reports},
      {"--detail", "HOW", &options.detail,
       "What to note of each tensor: all, or names, which costs less: who made\n"
       "it, but no shape, layer or line.",
       reports},
      {"--report-on", "SIGUSR1|SIGUSR2", &options.report_on,
       "Report whenever the process gets this signal, and go on.", reports},
      {"--report-near", "PERCENT", &options.report_near,
       "Report once the memory in use nears the control group's limit, where\n"
       "the kernel would kill the process. The default is 95; 0 is never.",
       reports},
      {"--training-paused", "", &options.training_paused,
       "Promise that no other thread trains or sets gradients while a report\n"
       "is written: those that the program set by hand are read, too.",
       reports},
      {"-f,--function", "FUNCTION", &lines.functions,
       "Profile the memory of each line of FUNCTION, named by the end of\n"
       "its qualified name. May be repeated. Replaces the report.",
       profile},
      {"-c,--column", "COLUMN", &lines.columns,
       "Add a column, named as in torch.cuda.memory_stats(). May be repeated.", profile},
      {"-D,--no-default-columns", "", &options.no_default_columns,
       "Leave out active_bytes.all.peak and reserved_bytes.all.peak.", profile},
      {"-g,--gpu", "NUMBER", &lines.gpu,
       "Profile this GPU. The default is 0, or the CPU where there is no GPU.", profile},
      {"-T,--text", "FILE", &lines.text_file, "Write the line profile to FILE as text.", profile,
       OutputFile{Kind::kFileOfProgram, {".txt"}, false}},
      {"-r,--json", "FILE", &lines.json_file, "Write the line profile to FILE as JSON.", profile,
       OutputFile{Kind::kFileOfProgram, {".json"}, false}},
      {"--html", "FILE", &lines.html_file,
       "Write the line profile to FILE as a page with bars beside the source.", profile,
       OutputFile{Kind::kFileOfProgram, {".html", ".htm"}, false}},
  };
  command.examples_and_exit_status =
      "Examples:\n"
      "  memledger run -- ./train --epochs=1\n"
      "  memledger run --virtual-gpu=h200:24GiB,count=2 -- ./train\n"
      "  memledger run --log=reports/%r -- torchrun --nproc-per-node=2 train.py\n"
      "  memledger run -f train_step --html=lines.html -- ./train\n"
      "\n"
      "Exit status:\n"
      "  The program's own, signals included; and, if the program does not start:\n"
      "  2    wrong usage, or a path that cannot be written\n"
      "  126  the program cannot be run, or memledger's own libraries are missing\n"
      "  127  there is no such program";
  command.operands = &options.program;
  command.runs_program = true;
  command.finish = [&words] { return finish_run(words); };
  return command;
}

// The words that all commands have that make dry-runs.
struct DryRunCommonWords {
  std::optional<std::string> until, timeout, writes, writes_limit;
  OptionalValue json;
};

// What the words of `memledger dry-run` say, before they are checked.
struct DryRunWords {
  DryRunOptions options;
  DryRunCommonWords common;
  std::optional<std::string> settings, calibration;
};

absl::Status take_until(const std::optional<std::string>& until, bool& until_exit) {
  if (until && *until != "step" && *until != "exit")
    return invalid(absl::StrCat("--until=", *until, ": it is step or exit"));
  until_exit = until == "exit";
  return absl::OkStatus();
}

absl::Status take_timeout(const std::optional<std::string>& timeout, int& timeout_s) {
  if (timeout && (!absl::SimpleAtoi(*timeout, &timeout_s) || timeout_s < 1))
    return invalid(absl::StrCat("--timeout=", *timeout, ": it is a number of seconds"));
  return absl::OkStatus();
}

absl::Status check_assumptions(const std::vector<std::string>& assumptions) {
  for (const std::string& assumption : assumptions) {
    if (!parse_assumption(assumption))
      return invalid(absl::StrCat("--assume=", assumption,
                                  ": it is FILE:LINE=VALUE, such as train.py:12=4096"));
  }
  return absl::OkStatus();
}

void declare_assume(std::vector<std::string>& assumptions,
                    std::vector<OptionDeclaration>& options) {
  options.push_back({"--assume", "FILE:LINE=VALUE", &assumptions,
                     "What the program reads of the GPU in that line: a number, true or\n"
                     "false. May be repeated."});
}

// Checks what all commands say that make dry-runs, and gives it to their options.
template <typename Options>
absl::Status take_common(const DryRunCommonWords& words, Options& options) {
  if (const absl::Status status = take_until(words.until, options.until_exit); !status.ok())
    return status;
  if (const absl::Status status = take_timeout(words.timeout, options.timeout_s); !status.ok())
    return status;
  if (const absl::Status status = take_writes(words.writes, words.writes_limit, options.writes);
      !status.ok())
    return status;
  options.json = words.json.is_given;
  options.json_file = words.json.value;
  return absl::OkStatus();
}

void declare_common(DryRunCommonWords& words, const char* schema,
                    std::vector<OptionDeclaration>& options) {
  options.push_back({"--until", "step|exit", &words.until,
                     "End the program once the peak no longer moves from one optimizer step\n"
                     "to the next (step, the default), or let it run to its end (exit)."});
  options.push_back({"--timeout", "SECONDS", &words.timeout,
                     "Give up on a run after so many seconds. The default is 600."});
  options.push_back({"--writes", "discard|allow", &words.writes,
                     "Discard what the program writes when a run ends (discard, the\n"
                     "default), or let it write for real, with zeros for values of the GPU."});
  options.push_back({"--writes-limit", "SIZE", &words.writes_limit,
                     "Hold at most so much of what a run writes, in memory: 8GiB. The\n"
                     "default is half of what is free, for all runs that go side by side."});
  options.push_back({"--json", "FILE", &words.json,
                     absl::StrCat("Print JSON (", schema,
                                  ") instead of text, or write it to\nFILE beside the text."),
                     kOptions, OutputFile{Kind::kFile, {".json"}, false}});
}

absl::StatusOr<Request> finish_dry_run(DryRunWords& words) {
  DryRunOptions& options = words.options;
  if (options.gpus.empty())
    return invalid(
        "on which GPU? memledger dry-run --gpu=h100 -- PROGRAM; `memledger gpus` lists them");
  if (options.program.empty())
    return invalid("which program? memledger dry-run --gpu=GPU [OPTION]… -- PROGRAM [ARGUMENT]…");
  for (std::string& gpu : options.gpus) {
    if (const absl::Status status = check_gpu("--gpu", gpu); !status.ok()) return status;
    if (!words.calibration) continue;
    if (const absl::Status status = calibrate(*words.calibration, gpu); !status.ok()) return status;
  }
  if (const absl::Status status = take_common(words.common, options); !status.ok()) return status;
  if (const absl::Status status = check_assumptions(options.assumptions); !status.ok())
    return status;
  if (words.settings && *words.settings != "try" && *words.settings != "none")
    return invalid(absl::StrCat("--settings=", *words.settings, ": it is try or none"));
  options.settings = words.settings != "none";
  return Request(options);
}

Command declare_dry_run(DryRunWords& words) {
  DryRunOptions& options = words.options;
  Command command;
  command.name = "dry-run";
  command.usage = "memledger dry-run --gpu=GPU [OPTION]… [--] PROGRAM [ARGUMENT]…";
  command.summary = "Tell whether a program fits on a GPU that is not here";
  command.description =
      "Runs a program on virtual GPUs and tells whether it fits, and between which figures its\n"
      "memory lies. Kernels do not run: what the program reads without anybody knowing it is\n"
      "assumed, and tried with other values. What it writes is discarded; its input is empty and\n"
      "its output hidden. One run goes on for as long as all have taken, at most 30 s, to see\n"
      "what comes later, such as an evaluation.";
  command.options = {
      {"--gpu,--virtual-gpu", "GPU[:MEMORY][+GPU…][,count=N]", &options.gpus,
       "The GPUs of the machine, as `memledger gpus` lists them. May be\n"
       "repeated: each is a machine of its own."},
      {"--calibration", "FILE", &words.calibration,
       "What `memledger validate` measured of such a GPU."},
      {"--settings", "try|none", &words.settings,
       "Once the answer is printed, try other settings of LibTorch's allocator\n"
       "where they may change it (try, the default), or end there (none)."},
  };
  declare_common(words.common, "memledger.prediction/1", command.options);
  declare_assume(options.assumptions, command.options);
  command.examples_and_exit_status =
      "Examples:\n"
      "  memledger dry-run --gpu=l4 -- ./train --batch=32\n"
      "  memledger dry-run --gpu=rtx4090 --gpu=a100 -- python train.py\n"
      "  memledger dry-run --gpu=h100,count=2 --json -- torchrun --nproc-per-node=2 train.py\n"
      "\n"
      "Exit status:\n"
      "  0    it fits on every GPU\n"
      "  10   it does not fit on one\n"
      "  11   not known\n"
      "  12   the program failed\n"
      "  1    a file could not be written at the end\n"
      "  2    wrong usage, or a path that cannot be written\n"
      "  126  memledger's own libraries are missing, or the program cannot be run\n"
      "  127  there is no such program";
  command.operands = &options.program;
  command.runs_program = true;
  command.finish = [&words] { return finish_dry_run(words); };
  return command;
}

// What the words of `memledger fit` say, before they are checked.
struct FitWords {
  FitOptions options;
  DryRunCommonWords common;
  std::vector<std::string> gpus;
  std::optional<std::string> from, to, within, svg;
};

absl::StatusOr<int64_t> fit_value(const char* option, const std::string& text) {
  int64_t value = 0;
  if (!absl::SimpleAtoi(text, &value) || value < 1 || value > prediction::kLargestFitValue)
    return invalid(absl::StrCat(option, "=", text, ": it is a whole number from 1 to ",
                                prediction::kLargestFitValue));
  return value;
}

absl::Status set_fit_bounds(const FitWords& words, prediction::FitBounds& bounds) {
  if (words.from) {
    const auto from = fit_value("--from", *words.from);
    if (!from.ok()) return from.status();
    bounds.from = *from;
  }
  if (words.to) {
    const auto to = fit_value("--to", *words.to);
    if (!to.ok()) return to.status();
    bounds.to = *to;
  }
  if (bounds.to && *bounds.to < bounds.from)
    return invalid(absl::StrCat("--from=", bounds.from, " is larger than --to=", *bounds.to));
  return absl::OkStatus();
}

absl::StatusOr<Request> finish_fit(FitWords& words) {
  FitOptions& options = words.options;
  if (words.gpus.empty())
    return invalid(
        "on which GPU? memledger fit --gpu=h100 --arg='--batch={}' -- PROGRAM; `memledger gpus` "
        "lists them");
  if (words.gpus.size() > 1)
    return invalid("one GPU at a time: give --gpu once, with + for several in one machine");
  options.gpu = words.gpus.front();
  if (const absl::Status status = check_gpu("--gpu", options.gpu); !status.ok()) return status;
  if (options.program.empty())
    return invalid(
        "which program? memledger fit --gpu=GPU --arg='--batch={}' -- PROGRAM [ARGUMENT]…");
  if (arguments_with_value(options).empty()) {
    return options.arguments.empty()
               ? invalid(
                     "where does the value go? Give --arg='--batch={}', or write {} in an "
                     "argument of the program")
               : invalid(absl::StrCat("--arg=", options.arguments.front(),
                                      ": it needs {} where the value goes: --arg='--batch={}'"));
  }
  if (const absl::Status status = set_fit_bounds(words, options.bounds); !status.ok())
    return status;
  if (const absl::Status status = take_common(words.common, options); !status.ok()) return status;
  if (const absl::Status status = check_assumptions(options.assumptions); !status.ok())
    return status;
  if (words.within) {
    const auto within = fit_value("--within", *words.within);
    if (!within.ok()) return within.status();
    options.within_s = static_cast<int>(*within);
  }
  options.svg_file = words.svg.value_or("");
  return Request(options);
}

Command declare_fit(FitWords& words) {
  FitOptions& options = words.options;
  Command command;
  command.name = "fit";
  command.usage = "memledger fit --gpu=GPU --arg='--batch={}' [OPTION]… [--] PROGRAM [ARGUMENT]…";
  command.summary = "Find the largest batch, or other value, that fits on a GPU";
  command.description =
      "Runs a program on virtual GPUs, as `memledger dry-run` does, with one value after the "
      "other,\n"
      "and finds the largest with which it fits: that one fits, and the next does not, or is not\n"
      "known to. Then it tells what would free memory.";
  command.options = {
      {"--gpu,--virtual-gpu", "GPU[:MEMORY][+GPU…][,count=N]", &words.gpus,
       "The GPUs of the machine, as `memledger gpus` lists them."},
      {"--arg", "ARGUMENT", &options.arguments,
       "Append ARGUMENT to the program's, with the value in place of {}. May\n"
       "be repeated. Not needed where an argument of PROGRAM has {} itself."},
      {"--from", "N", &words.from, "The smallest value to try. The default is 1."},
      {"--to", "N", &words.to, "The largest value to try."},
      {"--within", "SECONDS", &words.within,
       "Try no other value after so long. The default is 3600."},
      {"--svg", "FILE", &words.svg, "Draw the peak against the value into FILE.", kOptions,
       OutputFile{Kind::kFile, {".svg"}, false}},
  };
  declare_common(words.common, "memledger.fit/1", command.options);
  declare_assume(options.assumptions, command.options);
  command.examples_and_exit_status =
      "Examples:\n"
      "  memledger fit --gpu=l4 --arg='--batch={}' -- ./train\n"
      "  memledger fit --gpu=rtx4090 --from=8 --to=256 -- python train.py --batch {}\n"
      "  memledger fit --gpu=t4 --arg='--batch={}' --svg=peak.svg --json=fit.json -- ./train\n"
      "\n"
      "Exit status:\n"
      "  0    found\n"
      "  10   not even the smallest value fits\n"
      "  12   the program failed\n"
      "  1    a file could not be written at the end\n"
      "  2    wrong usage, a path that cannot be written, or the value does not\n"
      "       change the peak\n"
      "  126  memledger's own libraries are missing, or the program cannot be run\n"
      "  127  there is no such program";
  command.operands = &options.program;
  command.runs_program = true;
  command.finish = [&words] { return finish_fit(words); };
  return command;
}

// What the words of `memledger validate` say, before they are checked.
struct ValidateWords {
  ValidateOptions options;
  DryRunCommonWords common;
};

absl::StatusOr<Request> finish_validate(ValidateWords& words) {
  ValidateOptions& options = words.options;
  for (const std::string& gpu : {options.gpu, options.real_side}) {
    if (gpu.empty()) continue;
    if (const absl::Status status = check_gpu("--gpu", gpu); !status.ok()) return status;
  }
  if (const absl::Status status = take_common(words.common, options); !status.ok()) return status;
  if (options.json && options.program.empty())
    return invalid("--json requires a program: memledger validate --json -- PROGRAM");
  return Request(options);
}

Command declare_validate(ValidateWords& words) {
  ValidateOptions& options = words.options;
  Command command;
  command.name = "validate";
  command.usage = "memledger validate [OPTION]… [-- PROGRAM [ARGUMENT]…]";
  command.summary = "Compare this machine's GPU with the virtual one of its name";
  command.description =
      "Runs a program on this machine's GPU and on the virtual one of its name, and prints what\n"
      "it took there beside what dry-run says. Without a program it runs the training steps of\n"
      "built-in networks, which a clone of the repository has, and prints the peaks of each phase.";
  const std::string hidden;
  command.options = {
      {"--gpu,--virtual-gpu", "GPU", &options.gpu,
       "The virtual side, where no GPU that `memledger gpus` lists has the\n"
       "real one's name, or with options: h100,calibration=FILE."},
      {"--write-calibration", "FILE", &options.calibration_file,
       "Write what was measured of the real device to FILE: its context, and\n"
       "cuDNN's workspaces for the program's convolutions. `memledger run` and\n"
       "`memledger dry-run` take it with --calibration, where no GPU is.",
       kOptions, OutputFile{Kind::kFile, {".json"}, false}},
      {"--network", "NAME", &options.networks.names,
       "Only this built-in network, such as ResNet-50. May be repeated."},
      {"--address-log", "FILE", &options.networks.address_log,
       "Write where cudaMalloc puts 300 blocks on both sides to FILE (CSV).", kOptions,
       OutputFile{Kind::kFile, {".csv"}, false}},
      {"--expect-equal", "", &options.networks.expect_equal,
       "End with 1 if a peak of a built-in network differs."},
      {"--real-side", "GPU", &options.real_side, "", hidden},
      {"--networks-program", "FILE", &options.networks.program, "", hidden},
  };
  declare_common(words.common, "memledger.validation/1", command.options);
  command.examples_and_exit_status =
      "Examples:\n"
      "  memledger validate -- python train.py\n"
      "  memledger validate --write-calibration=h100.json -- ./train --batch=32\n"
      "  memledger dry-run --gpu=h100 --calibration=h100.json -- ./train --batch=64\n"
      "\n"
      "Exit status:\n"
      "  0    both sides ran, whatever they say\n"
      "  12   one did not\n"
      "  2    wrong usage, or a path that cannot be written\n"
      "  126  the program cannot be run, or memledger's own libraries are missing";
  command.operands = &options.program;
  command.runs_program = true;
  command.finish = [&words] { return finish_validate(words); };
  return command;
}

absl::StatusOr<Request> finish_log(const LogOptions& options) {
  const std::string usage = "memledger log [--svg=FILE] FILE [FILE2]";
  if (options.files.empty()) return invalid("which log? " + usage);
  if (options.files.size() > 2) return invalid("one log, or two to compare: " + usage);
  if (options.svg && options.svg->empty()) return invalid("--svg needs a value: --svg=FILE");
  if (options.svg && options.files.size() == 2)
    return invalid("--svg draws one log: leave out --svg, or the second FILE");
  return Request(options);
}

Command declare_log(LogOptions& options) {
  Command command;
  command.name = "log";
  command.usage = "memledger log [--svg=FILE] FILE [FILE2]";
  command.summary = "Sum up a log of MemTracker, or compare two logs";
  command.description = "Sums up a log written by MemTracker or gpu_mem_track, or compares two.";
  command.options = {{"--svg", "FILE", &options.svg,
                      "Draw the totals of the log into FILE. With - the drawing goes to\n"
                      "standard output, in place of the summary.",
                      kOptions, OutputFile{Kind::kPrinted, {".svg"}, false}}};
  command.examples_and_exit_status =
      "Examples:\n"
      "  memledger log 30-Apr-21-20:25:29-gpu_mem_track.txt\n"
      "  memledger log --svg=totals.svg train.txt\n"
      "  memledger log before.txt after.txt\n"
      "\n"
      "Exit status:\n"
      "  0  all is written\n"
      "  1  a file cannot be read, is no log, or cannot be written\n"
      "  2  wrong usage";
  command.operands = &options.files;
  command.finish = [&options] { return finish_log(options); };
  return command;
}

absl::StatusOr<Request> finish_gpus(const GpusOptions& options, const Words& operands) {
  if (!operands.empty())
    return invalid(absl::StrCat("it takes no arguments: leave out `", operands.front(), "`"));
  return Request(options);
}

Command declare_gpus(GpusOptions& options, Words& operands) {
  Command command;
  command.name = "gpus";
  command.usage = "memledger gpus [--json]";
  command.summary = "List the GPUs that --virtual-gpu knows";
  command.description =
      "Lists the GPUs that --virtual-gpu knows: compute capability, memory, what the context\n"
      "takes of it, and where the figures come from.";
  command.options = {{"--json", "", &options.json,
                      "Print all fields as JSON (memledger.gpus/1). One of its rows, changed\n"
                      "in a file, is a GPU of your own: --virtual-gpu=@FILE.json."}};
  command.examples_and_exit_status =
      "Examples:\n"
      "  memledger gpus\n"
      "  memledger gpus --json | jq '.gpus[] | select(.name == \"h100\")' >mine.json\n"
      "  memledger run --virtual-gpu=@mine.json -- ./train\n"
      "\n"
      "Exit status:\n"
      "  0  all is written\n"
      "  1  standard output cannot be written\n"
      "  2  wrong usage";
  command.operands = &operands;
  command.finish = [&options, &operands] { return finish_gpus(options, operands); };
  return command;
}

// `memledger` itself.
Command declare_main(bool& version) {
  Command command;
  command.usage = "memledger COMMAND [OPTION]… [ARGUMENT]…";
  command.description = "memledger keeps the books of a LibTorch program's tensor memory.";
  command.options = {
      {"--version", "", &version, "Print the versions of memledger, LibTorch and this build."}};
  command.examples_and_exit_status =
      "Examples:\n"
      "  memledger run --help       explains a command, with more examples\n"
      "  memledger run -- ./train   runs a program and reports its memory";
  command.finish = [&version]() -> absl::StatusOr<Request> {
    if (!version) return invalid("which command? `memledger --help` lists them");
    return Request(PrintText{version_text()});
  };
  return command;
}

std::string full_name(const Command& command) {
  return command.name.empty() ? "memledger" : "memledger " + command.name;
}

// From declarations to CLI11.

class HelpFormatter : public CLI::Formatter {
 public:
  explicit HelpFormatter(std::string usage) : usage_(std::move(usage)) {
    column_width(kHelpColumn);
  }

  std::string make_usage(const CLI::App* /*app*/, std::string /*name*/) const override {
    return "\nUsage: " + usage_ + "\n\n";
  }
  std::string make_group(std::string group, bool is_positional,
                         std::vector<const CLI::Option*> options) const override {
    std::string result = group + ":\n";
    for (const CLI::Option* const option : options) result += make_option(option, is_positional);
    return result;
  }
  std::string make_option_name(const CLI::Option* option, bool /*is_positional*/) const override {
    std::vector<std::string> names;
    for (const std::string& name : option->get_snames()) names.push_back("-" + name);
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
    const std::string& value = option->get_option_text();
    const std::string equals =
        option->get_items_expected_min() == 0 ? "[=" + value + "]" : "=" + value;
    return absl::StrJoin(names, ", ") + (value.empty() ? "" : equals);
  }
  std::string make_option_opts(const CLI::Option* /*option*/) const override { return ""; }

 private:
  std::string usage_;
};

void store(const OptionDeclaration& option, const std::vector<std::string>& values) {
  const std::string last = values.empty() ? "" : values.back();
  if (auto* const* optional = std::get_if<OptionalValue*>(&option.target)) {
    **optional = {true, last};
  } else if (auto* const* list = std::get_if<std::vector<std::string>*>(&option.target)) {
    **list = values;
  } else if (auto* const* text = std::get_if<std::string*>(&option.target)) {
    **text = last;
  } else if (auto* const* maybe = std::get_if<std::optional<std::string>*>(&option.target)) {
    **maybe = last;
  } else {
    int gpu = 0;
    if (!absl::SimpleAtoi(last, &gpu) || gpu < 0 || gpu >= environment::kMaxGpus) {
      const std::string name = option.names.substr(0, option.names.find(','));
      throw CLI::ValidationError(absl::StrCat(name, " ", last, ": a GPU is a number from 0 to ",
                                              environment::kMaxGpus - 1));
    }
    *std::get<std::optional<int>*>(option.target) = gpu;
  }
}

void add_option(CLI::App& app, const OptionDeclaration& option) {
  if (bool* const* const flag = std::get_if<bool*>(&option.target)) {
    app.add_flag_callback(
           option.names, [flag = *flag] { *flag = true; }, option.help)
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast)
        ->group(option.group);
    return;
  }
  const auto take = [&option](const std::vector<std::string>& values) {
    store(option, values);
    return true;
  };
  CLI::Option* const added = app.add_option(option.names, take, option.help)
                                 ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
                                 ->option_text(option.value)
                                 ->group(option.group);
  if (std::holds_alternative<OptionalValue*>(option.target)) added->expected(0, 1);
}

// The command is referred to.
std::unique_ptr<CLI::App> make_app(const Command& command) {
  auto app = std::make_unique<CLI::App>(command.description);
  app->formatter(std::make_shared<HelpFormatter>(command.usage));
  app->set_help_flag("-h,--help", "Print this help.");
  app->footer(command.examples_and_exit_status);
  app->allow_extras();
  for (const OptionDeclaration& option : command.options) add_option(*app, option);
  return app;
}

bool takes_value(const CLI::Option& option) { return option.get_items_expected_min() > 0; }

// Whether the value of an option is the next word: of `--log`, `-f` and `-qf`, not of `--log=x` and
// `-fx`.
bool takes_next_word(const CLI::App& app, const std::string& word) {
  if (word.compare(0, 2, "--") == 0) {
    const CLI::Option* const option = app.get_option_no_throw(word);
    return option != nullptr && takes_value(*option);
  }
  for (size_t i = 1; i < word.size(); ++i) {
    const CLI::Option* const option = app.get_option_no_throw(std::string("-") + word[i]);
    if (option == nullptr) return false;
    if (takes_value(*option)) return i + 1 == word.size();
  }
  return false;
}

// Returns the word as CLI11 has to see it: `-f=x` would be a function `=x` to it, `--log=` would
// take the next word, and a flag any value.
absl::StatusOr<std::string> checked(const CLI::App& app, const std::string& word) {
  const size_t equals = word.find('=');
  const std::string name = word.substr(0, equals);
  const CLI::Option* const option = app.get_option_no_throw(name);
  if (equals == std::string::npos || option == nullptr) return word;
  if (option->get_items_expected_max() == 0) return invalid(name + " takes no value: " + name);
  if (equals + 1 == word.size())
    return invalid(absl::StrCat(name, "= needs a value: ", name, "=", option->get_option_text()));
  return name.size() == 2 ? name + word.substr(equals + 1) : word;
}

struct SplitWords {
  Words options;  // with their values
  Words operands;
};

// CLI11 2.1.2 takes words such as [a,b] and -- apart wherever it meets them, so it gets options
// and their values only.
absl::StatusOr<SplitWords> split(const CLI::App& app, const Words& words, bool runs_program) {
  SplitWords result;
  auto word = words.begin();
  for (; word != words.end(); ++word) {
    if (*word == "--") {
      ++word;
      break;
    }
    if (word->empty() || word->front() != '-') {
      if (runs_program) break;
      result.operands.push_back(*word);
      continue;
    }
    absl::StatusOr<std::string> option = checked(app, *word);
    if (!option.ok()) return option.status();
    result.options.push_back(*std::move(option));
    if (!takes_next_word(app, *word)) continue;
    if (word + 1 == words.end() || word[1] == "--")
      return invalid(absl::StrCat(*word, " needs a value"));
    result.options.push_back(*++word);
  }
  result.operands.insert(result.operands.end(), word, words.end());
  return result;
}

// The value of an option that takes a path; empty where it was not given.
std::string value_of(const OptionDeclaration& option) {
  if (auto* const* optional = std::get_if<OptionalValue*>(&option.target))
    return (*optional)->value;
  if (auto* const* text = std::get_if<std::string*>(&option.target)) return **text;
  auto* const* maybe = std::get_if<std::optional<std::string>*>(&option.target);
  return maybe == nullptr ? "" : (*maybe)->value_or("");
}

absl::Status check_file(const OptionDeclaration& option) {
  const std::string path = option.output ? value_of(option) : "";
  if (path.empty()) return absl::OkStatus();
  const std::string longest = option.names.substr(option.names.rfind(',') + 1);
  return check_output(*option.output, longest, path);
}

absl::StatusOr<Request> parse_words(const Command& command, const Words& words) {
  const std::unique_ptr<CLI::App> app = make_app(command);
  absl::StatusOr<SplitWords> split_words = split(*app, words, command.runs_program);
  if (!split_words.ok()) return split_words.status();
  try {
    std::reverse(split_words->options.begin(), split_words->options.end());  // as CLI11 wants them
    app->parse(std::move(split_words->options));
  } catch (const CLI::CallForHelp&) {
    return Request(PrintText{app->help()});
  } catch (const CLI::ParseError& error) {
    return invalid(error.what());
  }
  if (const Words unknown = app->remaining(); !unknown.empty())
    return invalid(absl::StrCat("there is no option `", unknown.front(), "`; `", full_name(command),
                                " --help` lists the options"));
  if (command.operands != nullptr) *command.operands = std::move(split_words->operands);
  for (const OptionDeclaration& option : command.options) {
    const absl::Status status = check_file(option);
    if (!status.ok()) return status;
  }
  return command.finish();
}

absl::StatusOr<Request> parse(const Command& command, const Words& words) {
  absl::StatusOr<Request> request = parse_words(command, words);
  if (request.ok()) return request;
  return invalid(absl::StrCat(full_name(command), ": ", request.status().message()));
}

std::string help_with(const std::vector<Command>& commands) {
  bool version = false;
  const Command main = declare_main(version);
  const std::unique_ptr<CLI::App> app = make_app(main);
  for (const Command& command : commands)
    app->add_subcommand(command.name, command.summary)->group("Commands");
  return app->help();
}

std::string no_such_command(const std::string& name, const std::vector<Command>& commands) {
  const std::string names = absl::StrJoin(
      commands, ", ",
      [](std::string* out, const Command& command) { absl::StrAppend(out, command.name); });
  return absl::StrCat("there is no command `", name, "`; the commands are ", names,
                      " and help. To run a program: memledger run -- PROGRAM");
}

absl::StatusOr<Request> parse_with(const std::vector<Command>& commands, Words words) {
  if (words.size() > 1 && words[0] == "help") words = {words[1], "--help"};
  if (words.empty() || words[0] == "help" || words[0] == "--help" || words[0] == "-h")
    return Request(PrintText{help_with(commands)});
  if (words[0].compare(0, 1, "-") == 0) {
    bool version = false;
    return parse(declare_main(version), {words[0]});
  }
  for (const Command& command : commands) {
    if (command.name == words[0]) return parse(command, {words.begin() + 1, words.end()});
  }
  return invalid("memledger: " + no_such_command(words[0], commands));
}

}  // namespace

absl::StatusOr<Request> parse_command_line(const std::vector<std::string>& words) {
  RunWords run;
  DryRunWords dry_run;
  FitWords fit;
  ValidateWords validate;
  LogOptions log;
  GpusOptions gpus;
  Words gpus_operands;
  return parse_with(
      {declare_run(run), declare_dry_run(dry_run), declare_fit(fit), declare_validate(validate),
       declare_log(log), declare_gpus(gpus, gpus_operands)},
      words);
}

std::string general_help() { return std::get<PrintText>(*parse_command_line({"--help"})).text; }

}  // namespace memledger::runner
