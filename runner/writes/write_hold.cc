#include "runner/writes/write_hold.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <system_error>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "prediction/measure_variables.h"
#include "prediction/run_files.h"
#include "runner/inside/memory_limits.h"
#include "runner/path_search.h"
#include "runner/program_kind.h"
#include "runner/writes/foreground.h"
#include "runner/writes/inherited_files.h"
#include "runner/writes/mount_table.h"
#include "runner/writes/private_root.h"
#include "runner/writes/redirected_run.h"
#include "runner/writes/refusals.h"
#include "runner/writes/supervised.h"
#include "text/file_text.h"

namespace memledger::runner {
namespace {

namespace fs = std::filesystem;
using prediction::Writes;
using prediction::WritesHeldBy;

// MemAvailable of /proc/meminfo.
uint64_t free_memory_of_machine() {
  std::ifstream file("/proc/meminfo");
  constexpr char kName[] = "MemAvailable:";
  for (std::string line; std::getline(file, line);) {
    uint64_t kib = 0;
    if (!absl::StartsWith(line, kName)) continue;
    std::string number = line.substr(sizeof kName - 1);
    number = number.substr(0, number.rfind(' '));
    if (absl::SimpleAtoi(number, &kib)) return kib << 10;
  }
  return uint64_t{4} << 30;
}

uint64_t free_memory() {
  const uint64_t machine = free_memory_of_machine();
  const auto use = inside::MemoryLimits().nearest();
  if (!use) return machine;
  const int64_t room = std::max<int64_t>(use->limit_bytes - use->used_bytes, 0);
  return std::min(machine, static_cast<uint64_t>(room));
}

// Half of what is free, for all runs that are made side by side.
uint64_t default_limit(int runs_at_once) {
  constexpr uint64_t kLeast = uint64_t{64} << 20;
  return std::max(kLeast, free_memory() / 2 / static_cast<uint64_t>(std::max(runs_at_once, 1)));
}

std::string working_folder() {
  std::error_code error;
  return fs::current_path(error).string();
}

// What cuDNN answered is kept there, by us, as each answer takes seconds.
void add_own_cache(std::vector<std::string>& writable) {
  const char* const cache = std::getenv("XDG_CACHE_HOME");
  const char* const home = std::getenv("HOME");
  std::string folder;
  if (cache != nullptr && *cache == '/') {
    folder = cache;
  } else if (home != nullptr && *home == '/') {
    folder = absl::StrCat(home, "/.cache");
  }
  folder += "/memledger/cudnn";
  struct stat found {};
  const bool is_ours = lstat(folder.c_str(), &found) == 0 && S_ISDIR(found.st_mode) &&
                       found.st_uid == geteuid() && (found.st_mode & 022) == 0;
  // Without links, as mounts are made by paths of the new root.
  std::error_code error;
  const fs::path real = fs::canonical(folder, error);
  if (is_ours && !error) writable.push_back(real);
}

std::vector<std::string> expected_paths(const HeldRun& run) {
  std::vector<std::string> paths = {working_folder()};
  for (const char* const name : {"HOME", "TMPDIR"}) {
    if (const char* const path = std::getenv(name)) paths.emplace_back(path);
  }
  for (const std::string& word : run.program) {
    // --save=PATH, too.
    const std::string path =
        word.substr(word.find('=') == std::string::npos ? 0 : word.find('=') + 1);
    if (path.empty()) continue;
    paths.push_back(path);
    if (const fs::path parent = fs::path(path).parent_path(); !parent.empty())
      paths.push_back(parent);
  }
  return paths;
}

std::vector<std::string> writable_folders(const HeldRun& run) {
  std::vector<std::string> folders = run.writable;
  folders.push_back(run.folder);
  add_own_cache(folders);
  return folders;
}

absl::StatusOr<PrivateRoot> plan_root(const WriteHoldOptions& options, const HeldRun& run) {
  PrivateRootOptions root;
  root.scratch = run.folder;
  root.writable = writable_folders(run);
  root.working_folder = working_folder();
  root.expected = expected_paths(run);
  root.limit_bytes = options.writes.limit_bytes != 0 ? options.writes.limit_bytes
                                                     : default_limit(options.runs_at_once);
  return PrivateRoot::plan(root);
}

struct Supervised {
  PrivateRoot root;
  InheritedFiles files;
};

absl::StatusOr<Supervised> supervised(const WriteHoldOptions& options, const HeldRun& run) {
  absl::StatusOr<PrivateRoot> root = plan_root(options, run);
  if (!root.ok()) return root.status();
  absl::StatusOr<InheritedFiles> files = InheritedFiles::read();
  if (!files.ok()) return files.status();
  return Supervised{*std::move(root), *std::move(files)};
}

absl::StatusOr<ChildProcess> start_in_root(const WriteHoldOptions& options, const HeldRun& run,
                                           const std::function<int()>& become) {
  absl::StatusOr<Supervised> with = supervised(options, run);
  if (!with.ok()) return with.status();
  return ChildProcess::start(run.folder + "/input", run.tag, /*ends_itself=*/true, [&] {
    return run_supervised(with->root, with->files, run.folder, become);
  });
}

absl::StatusOr<RedirectedRun> redirected(const WriteHoldOptions& options, const HeldRun& run) {
  return RedirectedRun::prepare(run.folder, writable_folders(run), options.writes.limit_bytes);
}

int become_redirected(const RedirectedRun& redirected, const HeldRun& run,
                      const std::function<int()>& become) {
  const absl::Status held = redirected.hold();
  return held.ok() ? become() : note_failure(run.folder, std::string(held.message()));
}

absl::StatusOr<ChildProcess> start_redirected(const WriteHoldOptions& options, const HeldRun& run,
                                              const std::function<int()>& become) {
  const absl::StatusOr<RedirectedRun> with = redirected(options, run);
  if (!with.ok()) return with.status();
  return ChildProcess::start(run.folder + "/input", run.tag, /*ends_itself=*/true, [&] {
    return run_beside([&] { return become_redirected(*with, run, become); });
  });
}

// Links and `..` on the way to a file may lead to another file system.
std::vector<prediction::Refusal> with_real_paths(std::vector<prediction::Refusal> refusals) {
  for (prediction::Refusal& refusal : refusals) {
    std::error_code error;
    const fs::path path = refusal.path;
    const fs::path parent = fs::weakly_canonical(path.parent_path(), error);
    if (!error && !parent.empty()) refusal.path = (parent / path.filename()).string();
  }
  return refusals;
}

// Includes those of the first program, which this process starts: nobody notes what that does where
// the libraries cannot go into it.
Writes redirected_writes(const HeldRun& run) {
  Writes writes = RedirectedRun::writes_of(run.folder);
  char room[4096];
  const char* const path =
      run.program.empty() ? nullptr : find_in_path(run.program.front().c_str(), room);
  const char* const what =
      path == nullptr ? nullptr : writes_not_redirected(kind_of_program(path), path, nullptr);
  if (what != nullptr) writes.refusals.push_back({what, fs::absolute(path).string()});
  return writes;
}

// Makes the mounts in a child that does nothing else.
absl::Status try_root(const WriteHoldOptions& options) {
  HeldRun run;
  run.folder = options.scratch + "/try";
  std::error_code error;
  fs::create_directory(run.folder, error);
  if (error) return absl::UnavailableError(absl::StrCat(run.folder, ": ", error.message()));
  auto child = start_in_root(options, run, [] { return EXIT_SUCCESS; });
  if (!child.ok()) return child.status();
  while (!child->poll()) ChildProcess::wait_for_any({&*child}, std::chrono::milliseconds(20));
  const SupervisorsRecord record = read_supervisors_record(run.folder);
  if (!record.failure.empty()) return absl::UnavailableError(record.failure);
  if (child->end().status != EXIT_SUCCESS)
    return absl::UnavailableError(absl::StrCat("it ended with ", child->end().status));
  return absl::OkStatus();
}

}  // namespace

WriteHold::WriteHold(const WriteHoldOptions& options) : options_(options) {}

absl::StatusOr<WriteHold> WriteHold::choose(const WriteHoldOptions& options) {
  WriteHold hold(options);
  if (options.writes.policy == WritePolicy::kAllow) return hold;
  if (std::getenv(prediction::kRedirectVariable) != nullptr)
    return absl::FailedPreconditionError(
        "this is within a run that is redirected, where no second one can be: --writes=allow lets "
        "the program write into the first one's private folder");
  static const auto* const root = new absl::Status(try_root(options));
  if (root->ok()) {
    hold.held_by_ = WritesHeldBy::kNamespace;
    return hold;
  }
  if (absl::IsFailedPrecondition(*root)) return *root;
  // There, shared memory stays as it is.
  constexpr char kShared[] = "/dev/shm";
  for (const std::string& folder : {working_folder(), options.scratch}) {
    if (is_within(folder, kShared))
      return absl::FailedPreconditionError(
          absl::StrCat("no mounts of its own (", std::string(root->message()), "), and ", folder,
                       " is in shared memory, which nothing else keeps from the program: use "
                       "another folder"));
  }
  static const auto* const redirected = new absl::Status(try_redirected_run(options.scratch));
  if (redirected->ok()) {
    hold.held_by_ = WritesHeldBy::kLandlock;
    return hold;
  }
  return absl::FailedPreconditionError(
      absl::StrCat("nothing here keeps the program from writing: no mounts of its own (",
                   std::string(root->message()), "), and ", std::string(redirected->message()),
                   "; --writes=allow lets it write for real, values from the GPU as zeros"));
}

std::vector<std::pair<std::string, std::string>> WriteHold::variables(const HeldRun& run) const {
  if (held_by_ != WritesHeldBy::kLandlock) return {};
  return {{prediction::kRedirectVariable, RedirectedRun::redirect_folder(run.folder)}};
}

absl::StatusOr<ChildProcess> WriteHold::start(const HeldRun& run,
                                              const std::function<int()>& become) const {
  if (held_by_ == WritesHeldBy::kNamespace) return start_in_root(options_, run, become);
  if (held_by_ == WritesHeldBy::kLandlock) return start_redirected(options_, run, become);
  return ChildProcess::start(run.folder + "/input", run.tag, /*ends_itself=*/false, become);
}

absl::StatusOr<int> WriteHold::run_in_foreground(const HeldRun& run,
                                                 const std::function<int()>& become) const {
  if (held_by_ == WritesHeldBy::kNamespace) {
    absl::StatusOr<Supervised> with = supervised(options_, run);
    if (!with.ok()) return with.status();
    return runner::run_in_foreground([&](const Foreground& foreground) {
      return run_supervised(with->root, with->files, run.folder, become, &foreground);
    });
  }
  const absl::StatusOr<RedirectedRun> with = redirected(options_, run);
  if (!with.ok()) return with.status();
  return runner::run_in_foreground([&](const Foreground& foreground) {
    return run_beside([&] { return become_redirected(*with, run, become); }, &foreground);
  });
}

absl::StatusOr<Writes> WriteHold::writes(const HeldRun& run) const {
  SupervisorsRecord record = read_supervisors_record(run.folder);
  if (!record.failure.empty())
    return absl::UnavailableError(
        absl::StrCat("the program could not be kept from writing: ", record.failure));
  if (held_by_ == WritesHeldBy::kLandlock) return redirected_writes(run);
  if (held_by_ == WritesHeldBy::kNamespace) {
    record.writes.held_by = held_by_;
    record.writes.refusals = refusals_of_layers(
        with_real_paths(prediction::read_refusals(run.folder)), record.writes,
        visible_mounts(file_text("/proc/self/mountinfo")), file_text("/proc/net/unix"));
    return std::move(record.writes);
  }
  Writes writes;
  const prediction::WrittenFiles written = prediction::read_written_files(run.folder);
  writes.written_count = written.count;
  for (const std::string& path : written.paths) {
    if (absl::StartsWith(path, run.folder + "/")) {
      --writes.written_count;
      continue;
    }
    std::error_code error;
    const auto bytes = static_cast<int64_t>(fs::file_size(path, error));
    writes.files.push_back({path, error ? 0 : bytes, false});
    if (!error) writes.bytes += bytes;
  }
  return writes;
}

}  // namespace memledger::runner
