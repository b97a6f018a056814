#include "runner/writes/redirected_run.h"

#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "prediction/run_files.h"
#include "runner/writes/landlock_rules.h"
#include "runner/writes/redirect_folder.h"

namespace memledger::runner {

absl::Status try_redirected_run(const std::string& folder) {
  if (absl::Status status = can_hold_by_landlock(); !status.ok()) return status;
  LandlockRules rules;
  rules.private_folders = {folder};
  const pid_t child = fork();
  if (child < 0) return absl::UnimplementedError(absl::StrCat("fork: ", std::strerror(errno)));
  if (child == 0) {
    // Descriptors are each run's own matter.
    const absl::Status status = hold_by_landlock(rules);
    _exit(status.ok() || !unheld_descriptors(rules).empty() ? 0 : 1);
  }
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) continue;
  if (status != 0) return absl::UnimplementedError("Landlock or seccomp is refused");
  return absl::OkStatus();
}

absl::StatusOr<RedirectedRun> RedirectedRun::prepare(const std::string& folder,
                                                     std::vector<std::string> writable) {
  RedirectedRun run;
  run.folder_ = folder;
  run.redirect_folder_ = absl::StrCat(folder, "/redirected");
  run.private_folders_ = std::move(writable);
  run.private_folders_.push_back(folder);
  LandlockRules rules;
  rules.private_folders = run.private_folders_;
  for (const UnheldDescriptor& unheld : unheld_descriptors(rules)) {
    return absl::FailedPreconditionError(
        absl::StrCat("descriptor ", unheld.number, " is open for writing to ", unheld.path));
  }
  if (mkdir(run.redirect_folder_.c_str(), 0700) != 0)
    return absl::UnavailableError(absl::StrCat(run.redirect_folder_, ": ", std::strerror(errno)));
  absl::StatusOr<uint64_t> key = make_redirect_folder(run.redirect_folder_);
  if (!key.ok()) return key.status();
  run.key_ = *key;
  return run;
}

absl::Status RedirectedRun::hold() const {
  LandlockRules rules;
  rules.private_folders = private_folders_;
  rules.attribute_key = key_;
  return hold_by_landlock(rules);
}

prediction::Writes RedirectedRun::writes() const {
  prediction::Writes writes = read_redirect_folder(redirect_folder_);
  writes.held_by = prediction::WritesHeldBy::kLandlock;
  writes.refusals = prediction::read_refusals(folder_);
  return writes;
}

}  // namespace memledger::runner
