#include "runner/writes/redirected_run.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "prediction/measure_variables.h"
#include "prediction/run_files.h"
#include "runner/writes/redirect_folder.h"

namespace memledger::runner {
namespace {

// Is there where the kernel refused to hold the run.
std::string failure_file(const std::string& folder) { return folder + "/unheld"; }

std::string redirect_folder(const std::string& folder) {
  return absl::StrCat(folder, "/", prediction::kRedirectFolder);
}

}  // namespace

absl::Status try_redirected_run(const std::string& folder) {
  LandlockRules rules;
  rules.private_folders = {folder};
  const absl::StatusOr<LandlockHold> hold = LandlockHold::prepare(rules);
  if (!hold.ok()) return absl::UnimplementedError(std::string(hold.status().message()));
  const pid_t child = fork();
  if (child < 0) return absl::UnimplementedError(absl::StrCat("fork: ", std::strerror(errno)));
  if (child == 0) _exit(hold->apply() ? 0 : errno);
  int status = 0;
  while (waitpid(child, &status, 0) < 0) {
    if (errno != EINTR)
      return absl::UnimplementedError(absl::StrCat("waitpid: ", std::strerror(errno)));
  }
  if (status == 0) return absl::OkStatus();
  const int error = WIFEXITED(status) ? WEXITSTATUS(status) : ECANCELED;
  return absl::UnimplementedError(
      absl::StrCat("Landlock and seccomp are refused: ", std::strerror(error)));
}

absl::StatusOr<RedirectedRun> RedirectedRun::prepare(const std::string& folder,
                                                     std::vector<std::string> writable) {
  LandlockRules rules;
  rules.private_folders = std::move(writable);
  rules.private_folders.push_back(folder);
  for (const UnheldDescriptor& unheld : unheld_descriptors(rules)) {
    return absl::FailedPreconditionError(
        absl::StrCat("descriptor ", unheld.number, " is open for writing to ", unheld.path));
  }
  const std::string redirected = redirect_folder(folder);
  if (mkdir(redirected.c_str(), 0700) != 0)
    return absl::UnavailableError(absl::StrCat(redirected, ": ", std::strerror(errno)));
  const absl::StatusOr<uint64_t> key = make_redirect_folder(redirected);
  if (!key.ok()) return key.status();
  rules.attribute_key = *key;
  absl::StatusOr<LandlockHold> hold = LandlockHold::prepare(rules);
  if (!hold.ok()) return hold.status();
  return RedirectedRun(*std::move(hold), failure_file(folder));
}

bool RedirectedRun::hold() const {
  if (hold_.apply()) return true;
  const int error = errno;
  const int file = open(failure_file_.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
  if (file >= 0) close(file);
  errno = error;
  return false;
}

absl::StatusOr<prediction::Writes> RedirectedRun::writes(const std::string& folder) {
  struct stat found;
  if (stat(failure_file(folder).c_str(), &found) == 0)
    return absl::UnavailableError("the kernel refused Landlock or seccomp");
  prediction::Writes writes = read_redirect_folder(redirect_folder(folder));
  writes.held_by = prediction::WritesHeldBy::kLandlock;
  writes.refusals = prediction::read_refusals(folder);
  return writes;
}

}  // namespace memledger::runner
