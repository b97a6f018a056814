// Runs a program whose writes are redirected, and writes to FOLDER/writes what it would have
// written and what it was refused. Usage: FOLDER PROGRAM ARGUMENT…

#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "prediction/measure_variables.h"
#include "runner/writes/redirected_run.h"

namespace {

using memledger::runner::RedirectedRun;
namespace prediction = memledger::prediction;

int fail(const absl::Status& status) {
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return absl::IsUnimplemented(status) ? 4 : 3;
}

void write_down(const std::string& path, const prediction::Writes& writes) {
  FILE* const file = std::fopen(path.c_str(), "w");
  if (file == nullptr) std::abort();
  for (const prediction::LayerFile& written : writes.files) {
    const std::string what = written.is_removed ? "removed" : std::to_string(written.bytes);
    std::fprintf(file, "%s %s\n", written.path.c_str(), what.c_str());
  }
  std::fprintf(file, "%lld written, %lld removed, %lld bytes\n",
               static_cast<long long>(writes.written_count),
               static_cast<long long>(writes.removed_count), static_cast<long long>(writes.bytes));
  for (const prediction::Refusal& refusal : writes.refusals)
    std::fprintf(file, "refused %s %s\n", refusal.what.c_str(), refusal.path.c_str());
  std::fclose(file);
}

}  // namespace

int main(int count, char** arguments) {
  if (count < 3) return 2;
  const std::string folder = arguments[1], run_folder = folder + "/run";
  mkdir(folder.c_str(), 0755);
  mkdir(run_folder.c_str(), 0755);
  mkdir((folder + "/allowed").c_str(), 0755);
  if (const absl::Status status = memledger::runner::try_redirected_run(folder); !status.ok())
    return fail(status);
  const char* const limit = std::getenv("MAX_FILE_BYTES");
  const absl::StatusOr<RedirectedRun> run = RedirectedRun::prepare(
      run_folder, {folder + "/allowed"}, limit == nullptr ? 0 : std::strtoull(limit, nullptr, 10));
  if (!run.ok()) return fail(run.status());
  const pid_t child = fork();
  if (child == 0) {
    setenv(prediction::kMeasureVariable, run_folder.c_str(), 1);
    setenv(prediction::kRedirectVariable, RedirectedRun::redirect_folder(run_folder).c_str(), 1);
    if (const absl::Status status = run->hold(); !status.ok()) _exit(fail(status));
    execv(arguments[2], arguments + 2);
    _exit(127);
  }
  int status = 0;
  if (child < 0 || waitpid(child, &status, 0) != child) return 1;
  write_down(folder + "/writes", RedirectedRun::writes_of(run_folder));
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
