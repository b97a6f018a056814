#include "runner/writes/redirected_run.h"

#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "prediction/run_files.h"
#include "runner/writes/redirect_folder.h"

namespace memledger::runner {
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
                                                     std::vector<std::string> writable,
                                                     uint64_t max_file_bytes) {
  LandlockRules rules;
  rules.private_folders = std::move(writable);
  rules.private_folders.push_back(folder);
  for (const UnheldDescriptor& unheld : unheld_descriptors(rules)) {
    return absl::FailedPreconditionError(
        absl::StrCat("descriptor ", unheld.number, " is open for writing on ", unheld.path,
                     ", which cannot be kept from the program: close it"));
  }
  const std::string redirected = redirect_folder(folder);
  if (mkdir(redirected.c_str(), 0700) != 0)
    return absl::UnavailableError(absl::StrCat(redirected, ": ", std::strerror(errno)));
  const absl::StatusOr<uint64_t> key = make_redirect_folder(redirected, rules.private_folders);
  if (!key.ok()) return key.status();
  rules.attribute_key = *key;
  rules.max_file_bytes = max_file_bytes;
  absl::StatusOr<LandlockHold> hold = LandlockHold::prepare(rules);
  if (!hold.ok()) return hold.status();
  return RedirectedRun(*std::move(hold));
}

std::string RedirectedRun::redirect_folder(const std::string& folder) {
  return absl::StrCat(folder, "/redirected");
}

absl::Status RedirectedRun::hold() const {
  if (hold_.apply()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("Landlock and seccomp are refused: ", std::strerror(errno)));
}

prediction::Writes RedirectedRun::writes_of(const std::string& folder) {
  prediction::Writes writes = read_redirect_folder(redirect_folder(folder));
  writes.held_by = prediction::WritesHeldBy::kLandlock;
  writes.refusals = prediction::read_refusals(folder);
  return writes;
}

}  // namespace memledger::runner
