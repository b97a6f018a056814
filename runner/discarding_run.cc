#include "runner/discarding_run.h"

#include <fnmatch.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <ostream>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "prediction/measure_variables.h"
#include "runner/dry_run_messages.h"
#include "runner/environment.h"
#include "runner/scratch_folder.h"
#include "runner/writes/foreground.h"
#include "text/names.h"
#include "text/output.h"

namespace memledger::runner {
namespace {

namespace fs = std::filesystem;

constexpr int kCannotRun = 126;
constexpr char kCommand[] = "memledger run";

// Files of memledger's that are written in the run's own folder, and are taken to where the user
// wants them once the program has ended. Others that the program puts there are not.
class KeptOutputs {
 public:
  // `folder` stands for `/`.
  KeptOutputs(const RunOptions& options, std::string folder) : folder_(std::move(folder)) {
    add_folder(options.log_folder, environment::kLog);
    add_file(options.saved_report, environment::kSaveReport);
    add_file(options.timeline, environment::kTimeline);
    for (const std::string& path :
         {options.lines.text_file, options.lines.json_file, options.lines.html_file})
      add_file(path, nullptr);
  }

  void deliver() const {
    std::error_code error;
    for (fs::recursive_directory_iterator at(folder_, error), end; !error && at != end;
         at.increment(error)) {
      if (!at->is_regular_file(error) || at->is_symlink(error)) continue;
      const std::string path = at->path().string().substr(folder_.size());
      for (const Output& output : outputs_) {
        if (fnmatch(output.pattern.c_str(), path.c_str(), FNM_PATHNAME) != 0) continue;
        deliver(at->path(), path, output);
        break;
      }
    }
  }

 private:
  struct Output {
    std::string pattern;  // of absolute paths, as fnmatch() has it
    bool is_named_by_us = false;
    std::optional<RunFile> file;  // where it is one path
  };

  static std::string value_of(const std::optional<std::string>& option, const char* variable) {
    if (option || variable == nullptr) return option.value_or("");
    const char* const of_caller = std::getenv(variable);
    return of_caller == nullptr ? "" : of_caller;
  }

  static std::string escaped(const std::string& text) {
    return absl::StrReplaceAll(text, {{"\\", "\\\\"}, {"*", "\\*"}, {"?", "\\?"}, {"[", "\\["}});
  }

  // Returns the pattern of what environment::expand() makes of a path.
  static std::string pattern_of(const std::string& path) {
    const std::string absolute = fs::absolute(path).lexically_normal().string();
    return absl::StrReplaceAll(escaped(absolute), {{"%%", "%"}, {"%r", "*"}, {"%p", "*"}});
  }

  void add_folder(const std::optional<std::string>& option, const char* variable) {
    const std::string folder = value_of(option, variable);
    if (folder.empty()) return;
    std::string pattern = pattern_of(folder);
    if (absl::EndsWith(pattern, "/")) pattern.pop_back();
    for (const char* const name : {"memledger-*.txt", "oom-*.txt"})
      outputs_.push_back({absl::StrCat(pattern, "/", name), /*is_named_by_us=*/true, {}});
  }

  void add_file(const std::optional<std::string>& option, const char* variable) {
    const std::string path = value_of(option, variable);
    if (path.empty()) return;
    const std::string pattern = pattern_of(path);
    Output output{pattern, false, {}};
    if (!absl::StrContains(path, '%')) output.file.emplace(fs::absolute(path).lexically_normal());
    outputs_.push_back(std::move(output));
    // Processes that end later write NAME.PID.EXTENSION.
    const std::string ending = fs::path(pattern).extension().string();
    const std::string stem = pattern.substr(0, pattern.size() - ending.size());
    outputs_.push_back({absl::StrCat(stem, ".[0-9]*", ending), false, {}});
  }

  static void deliver(const fs::path& from, const std::string& path, const Output& output) {
    const fs::path wanted = path;
    std::error_code error;
    fs::create_directories(wanted.parent_path(), error);
    const auto write = [&](std::ostream& out) {
      std::ifstream file(from, std::ios::binary);
      out << file.rdbuf();
    };
    absl::Status status;
    if (output.is_named_by_us) {
      status =
          write_new_file((wanted.parent_path() / wanted.stem()).string(), ".txt", "report", write)
              .status();
    } else if (output.file) {
      const auto written = output.file->write("report", write);
      status = written.status();
      if (written.ok() && written->path != path)
        tell({kCommand, ": another run has meanwhile written ", printable(path),
              "; this run's is in ", printable(written->path)});
    } else {
      // Processes of other runs have had the same numbers, as each run counts its own.
      const std::string stem = (wanted.parent_path() / wanted.stem()).string();
      const auto written = write_new_file(stem, wanted.extension().string(), "report", write);
      status = written.status();
      if (written.ok() && *written != path)
        tell({kCommand, ": there was a file at ", printable(path), "; the report is in ",
              printable(*written)});
    }
    if (!status.ok()) tell_error(kCommand, status);
  }

  const std::string folder_;
  std::vector<Output> outputs_;
};

void tell_of(const prediction::Writes& writes) {
  TouchedFiles files;
  files.add(writes);
  tell_of_files(kCommand, files, "without --writes=discard");
  if (writes.refusals.empty()) return;
  const prediction::Refusal& first = writes.refusals.front();
  const size_t more = writes.refusals.size() - 1;
  tell({kCommand,
        ": a call on files was not answered as it is without --writes=discard: ", first.what, ", ",
        printable(first.path), more == 0 ? "" : absl::StrCat(", and ", more, " more")});
}

int become(RunOptions options, const HeldRun& run, const std::string& outputs,
           const std::vector<std::pair<std::string, std::string>>& variables) {
  setenv(prediction::kNotesVariable, run.folder.c_str(), /*overwrite=*/1);
  options.outputs_folder = outputs;
  for (const auto& [name, value] : variables) setenv(name.c_str(), value.c_str(), /*overwrite=*/1);
  return run_program(options);
}

}  // namespace

int run_discarding(const RunOptions& options) {
  // Within a run whose writes are held this one's are.
  for (const char* const variable : {prediction::kMeasureVariable, prediction::kNotesVariable}) {
    if (std::getenv(variable) != nullptr) return run_program(options);
  }
  std::optional<ScratchFolder> scratch(std::in_place);
  const std::string outputs = scratch->path() + "/out";
  HeldRun run;
  run.folder = scratch->path() + "/run";
  run.program = options.program;
  run.writable = {outputs};
  std::error_code error;
  if (!scratch->path().empty())
    fs::create_directory(outputs, error) && fs::create_directory(run.folder, error);
  if (scratch->path().empty() || error) {
    tell({kCommand,
          ": no temporary folder: ", error ? error.message() : std::string(std::strerror(errno))});
    return kCannotRun;
  }
  WriteHoldOptions hold_options;
  hold_options.writes = options.writes;
  hold_options.scratch = scratch->path();
  const absl::StatusOr<WriteHold> hold = WriteHold::choose(hold_options);
  if (!hold.ok()) {
    tell_error(kCommand, hold.status());
    return kCannotRun;
  }
  const KeptOutputs kept(options, outputs);
  const auto variables = hold->variables(run);
  const absl::StatusOr<int> status =
      hold->run_in_foreground(run, [&] { return become(options, run, outputs, variables); });
  if (!status.ok()) {
    tell_error(kCommand, status.status());
    return kCannotRun;
  }
  const absl::StatusOr<prediction::Writes> writes = hold->writes(run);
  if (!writes.ok()) {
    tell_error(kCommand, writes.status());
    return kCannotRun;
  }
  kept.deliver();
  if (!options.quiet) tell_of(*writes);
  scratch.reset();
  end_as(*status);
}

}  // namespace memledger::runner
