// memledger: the command.
//
//   memledger run [--virtual-gpu=SPECIFICATION] -- PROGRAM [ARGUMENT]…
//   memledger log FILE [FILE2]

#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "runner/log_command.h"
#include "runner/run_command.h"
#include "text/output.h"

namespace {

constexpr int kUsageError = 2;

constexpr char kUsage[] = R"(memledger keeps the books of a LibTorch program's tensor memory.

  memledger run [OPTION]… [--] PROGRAM [ARGUMENT]…   runs an unmodified program and reports its memory when it ends
  memledger log [--svg=FILE] FILE [FILE2]            sums up a log of MemTracker, or compares two
  memledger help                                     this text

Options of run:
  --virtual-gpu=GPU[:CAPACITY][,count=N]   on N virtual GPUs instead of real ones: h200, h100, a100, l4, rtx4090, t4;
                                           for instance --virtual-gpu=h200:24GiB,count=2. Kernels do not run: values are zeros.
  --log=FOLDER                             reports go to files in FOLDER instead of standard error; %r is the rank, %p the process
  --quiet, -q                              no reports on standard error; what goes to files is written all the same
  -f FUNCTION, --function=FUNCTION         the memory of each line of that function, by the end of its qualified name; again for
                                           more. The report then comes only with --report
  -c COLUMN, --column=COLUMN               a column of the line profile, as torch.cuda.memory_stats() names it; again for more
  -D, --no-default-columns                 without active_bytes.all.peak and reserved_bytes.all.peak
  -g GPU, --gpu=GPU                        the GPU that the line profile is of; 0 without, the CPU where there is none
  -T FILE, --text=FILE                     the line profile as text; in names of files %r is the rank, %p the process
  -r FILE, --json=FILE                     as JSON
  --html=FILE                              as a page with bars beside the source
  --report                                 the report beside the line profile
  --timeline=FILE                          births and deaths of all storages with their times, for ui.perfetto.dev (a .json file)
                                           or pytorch.org/memory_viz (a .pickle file); %r and %p as in FOLDER

Options of log:
  --svg=FILE                               draws the totals into FILE; - is standard output, and then nothing else goes there

Without --virtual-gpu the program uses the GPUs that are there. Exit status, signals and standard streams are the program's own.
)";

// `bazel run` starts programs in a folder of its own; paths on the command line mean the caller's.
void return_to_callers_folder() {
  const char* const folder = std::getenv("BUILD_WORKING_DIRECTORY");
  if (folder == nullptr) return;
  char here[4096];
  if (getcwd(here, sizeof here) == nullptr || !absl::StrContains(here, "memledger.runfiles"))
    return;
  if (chdir(folder) != 0) memledger::tell({"memledger: ", folder, ": ", std::strerror(errno)});
}

int print_usage() {
  const absl::Status status = memledger::write_standard_output(kUsage);
  if (!status.ok()) memledger::tell({std::string(status.message())});
  return status.ok() ? EXIT_SUCCESS : EXIT_FAILURE;
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  const std::string_view command = arguments.empty() ? "" : std::string_view(arguments[0]);
  if (command == "help" || command == "--help" || command == "-h") {
    return print_usage();
  }
  if (command.empty()) {
    memledger::write_standard_error(kUsage);
    return kUsageError;
  }
  if (command != "run" && command != "log") {
    memledger::tell(
        {"memledger: there is no command `", command, "`; `memledger help` lists them"});
    return kUsageError;
  }
  return_to_callers_folder();
  if (command == "log")
    return memledger::runner::log_command({arguments.begin() + 1, arguments.end()});
  const auto parsed =
      memledger::runner::parse_run_arguments({arguments.begin() + 1, arguments.end()});
  if (!parsed.ok()) {
    memledger::tell({"memledger run: ", std::string(parsed.status().message())});
    return kUsageError;
  }
  if (parsed->help) {
    return print_usage();
  }
  return memledger::runner::run_program(*parsed);
}
