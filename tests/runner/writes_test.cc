// What keeps a dry run from writing, piece by piece. dry_run_files_test.sh has the whole.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "prediction/writes.h"
#include "runner/child_process.h"
#include "runner/scratch_folder.h"
#include "runner/writes/inherited_files.h"
#include "runner/writes/layer_files.h"
#include "runner/writes/mount_table.h"
#include "runner/writes/private_root.h"
#include "runner/writes/refusals.h"

namespace memledger::runner {
namespace {

namespace fs = std::filesystem;
using prediction::Refusal;
using prediction::Writes;

std::vector<std::string> paths_of(const std::vector<Mount>& mounts) {
  std::vector<std::string> paths;
  for (const Mount& mount : mounts) paths.push_back(mount.path);
  return paths;
}

TEST_CASE("mounts that others cover are not visible") {
  const std::vector<Mount> mounts = visible_mounts(
      "20 1 8:1 / / rw - ext4 /dev/sda rw\n"
      "21 20 0:5 / /proc rw - proc proc rw\n"
      "no mount\n"
      // Mounted before /data was, and so below it.
      "22 20 0:6 / /data/inner rw - tmpfs tmpfs rw\n"
      "23 20 0:7 / /data rw,relatime shared:1 master:2 - xfs /dev/sdb rw\n"
      "24 23 0:8 / /data/a\\040b rw - tmpfs tmpfs rw\n"
      // One on top of the other.
      "25 20 0:9 / /twice rw - tmpfs lower rw\n"
      "26 25 0:10 / /twice rw - ext4 upper rw\n");
  CHECK(paths_of(mounts) == std::vector<std::string>{"/", "/proc", "/data", "/data/a b", "/twice"});
  CHECK(mounts.back().type == "ext4");
  CHECK(mounts[2].type == "xfs");
}

TEST_CASE("a new root covers the one before it") {
  const std::vector<Mount> mounts = visible_mounts(
      "1 1 0:2 / / rw - rootfs rootfs rw\n"
      "20 1 8:1 / / rw - ext4 /dev/sda rw\n"
      "21 20 0:5 / /tmp rw - tmpfs tmpfs rw\n");
  CHECK(paths_of(mounts) == std::vector<std::string>{"/", "/tmp"});
  CHECK(mounts[0].type == "ext4");
  CHECK(visible_mounts("").empty());
}

TEST_CASE("a path is within its folder, and not within one whose name begins alike") {
  CHECK(is_within("/a/b", "/a"));
  CHECK(is_within("/a", "/a"));
  CHECK(is_within("/a", "/"));
  CHECK_FALSE(is_within("/ab", "/a"));
  CHECK_FALSE(is_within("/", "/a"));
}

TEST_CASE("a record of files comes back as it was, whatever the paths hold") {
  Writes writes;
  writes.files = {{"/a b\n", 12, false}, {"/D9 x", 0, true}};
  writes.written_count = 2000;
  writes.removed_count = 1;
  writes.bytes = int64_t{1} << 40;
  writes.read_only = {"/boot dir"};
  writes.host_files = {"/run/socket"};
  const Writes read = writes_of_record(to_record(writes));
  REQUIRE(read.files.size() == 2);
  CHECK(read.files[0].path == "/a b\n");
  CHECK(read.files[0].bytes == 12);
  CHECK(read.files[1].path == "/D9 x");
  CHECK(read.files[1].is_removed);
  CHECK(read.written_count == 2000);
  CHECK(read.bytes == int64_t{1} << 40);
  CHECK(read.read_only == writes.read_only);
  CHECK(read.host_files == writes.host_files);
  CHECK(writes_of_record("").files.empty());
  CHECK(writes_of_record("cut").written_count == 0);
}

TEST_CASE("of what was refused, only what the layers are the cause of counts") {
  const std::vector<Mount> mounts = visible_mounts(
      "20 1 8:1 / / rw - ext4 /dev/sda rw\n"
      "21 20 0:5 / /tmp rw - tmpfs tmpfs rw\n");
  Writes writes;
  writes.read_only = {"/fat"};
  writes.host_files = {"/tmp/fifo", "/run/bound"};
  const auto counted = [&](const std::vector<Refusal>& noted) {
    std::string result;
    for (const Refusal& refusal :
         refusals_of_layers(noted, writes, mounts,
                            "Num RefCount Protocol Flags Type St Inode Path\n"
                            "0000: 00000002 00000000 00010000 0001 01 11 /run/listens\n"
                            "0000: 00000002 00000000 00010000 0001 01 12 @run/abstract\n"
                            "0000: 00000002 00000000 00010000 0001 01 13\n"
                            "0000: 00000002 00000000 00010000 0001 01 14 ./relative\n"))
      result += refusal.what + " " + refusal.path + ";";
    return result;
  };
  // Between two file systems it is refused everywhere.
  CHECK(counted({{"rename: EXDEV", "/tmp/a"}, {"rename to: EXDEV", "/home/a"}}).empty());
  CHECK(counted({{"rename: EXDEV", "/home/a"}, {"rename to: EXDEV", "/home/b"}}) ==
        "rename: EXDEV /home/a;");
  // Between two, there and back.
  CHECK(counted({{"rename to: EXDEV", "/home/a"},
                 {"rename: EXDEV", "/tmp/a"},
                 {"rename to: EXDEV", "/tmp/a"},
                 {"rename: EXDEV", "/home/a"}})
            .empty());
  CHECK(counted({{"link from: EXDEV", "/tmp/a"}, {"link: EXDEV", "/home/a"}}).empty());
  CHECK(counted({{"link from: EXDEV", "/home/a"}, {"link: EXDEV", "/home/b"}}) ==
        "link: EXDEV /home/b;");
  CHECK(counted({{"rename: EBUSY", "/mnt/a"}}).empty());
  CHECK(counted({{"unlink: EBUSY", "/tmp/fifo"}}) == "unlink: EBUSY /tmp/fifo;");
  CHECK(counted({{"open: EROFS", "/cdrom/a"}}).empty());
  CHECK(counted({{"open: EROFS", "/fat/a"}}) == "open: EROFS /fat/a;");
  CHECK(counted({{"open: EROFS", "/proc/sys/vm/x"}}) == "open: EROFS /proc/sys/vm/x;");
  CHECK(counted({{"open: FIFO", "/tmp/fifo"}}).empty());
  CHECK(counted({{"open: FIFO", "/tmp/other"}}) == "open: FIFO /tmp/other;");
  CHECK(counted({{"connect: socket", "/run/nobody"}}).empty());
  CHECK(counted({{"connect: socket", "/run/bound"}}).empty());
  CHECK(counted({{"connect: socket", "/run/listens"}}) == "connect: socket /run/listens;");
  CHECK(counted({{"connect: socket", "/a/relative"}}) == "connect: socket /a/relative;");
  CHECK(counted({{"connect: socket", "/run/abstract"}}).empty());
  CHECK(counted({{"write: ENOSPC", "/tmp/a"}}) == "write: ENOSPC /tmp/a;");
}

TEST_CASE("of a program's output the last lines are kept, however much there was") {
  OutputTail tail;
  CHECK(tail.last_lines(2).empty());
  tail.add("one\ntwo\nth");
  CHECK(tail.last_lines(2) == "two\nth");
  tail.add("ree\n");
  CHECK(tail.last_lines(2) == "two\nthree");
  CHECK(tail.last_lines(9) == "one\ntwo\nthree");
  const std::string long_line(100000, 'x');
  for (int i = 0; i < 50; ++i) tail.add(long_line);
  tail.add("\nlast\n");
  CHECK(tail.last_lines(1) == "last");
  CHECK(tail.last_lines(20).size() < 200000);
}

TEST_CASE("a scratch folder goes with its process, also where that is killed") {
  int pipe_of_path[2];
  REQUIRE(pipe(pipe_of_path) == 0);
  const pid_t child = fork();
  if (child == 0) {
    const ScratchFolder folder;
    std::ofstream(folder.path() + "/a file") << "text";
    const std::string& path = folder.path();
    if (write(pipe_of_path[1], path.c_str(), path.size() + 1) < 0) _exit(1);
    while (true) pause();
  }
  char path[4096] = "";
  REQUIRE(read(pipe_of_path[0], path, sizeof path) > 0);
  CHECK(fs::exists(std::string(path) + "/a file"));
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  for (int i = 0; i < 1000 && fs::exists(path); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  CHECK_FALSE(fs::exists(path));
  close(pipe_of_path[0]);
  close(pipe_of_path[1]);
}

TEST_CASE("a scratch folder's remover is no child that a program could wait for") {
  const ScratchFolder folder;
  CHECK(waitpid(-1, nullptr, WNOHANG) == -1);
}

TEST_CASE("a file that is passed on is opened again, at its place") {
  const ScratchFolder folder;
  const std::string path = folder.path() + "/log";
  std::ofstream(path) << "0123456789";
  const int file = open(path.c_str(), O_RDWR | O_APPEND);
  REQUIRE(file > 2);
  lseek(file, 4, SEEK_SET);
  auto files = InheritedFiles::read();
  REQUIRE(files.ok());
  // Another file at its path, as in a layer.
  fs::rename(path, path + ".old");
  std::ofstream(path) << "abcdefghij";
  CHECK(files->open_again());
  char byte = 0;
  CHECK(read(file, &byte, 1) == 1);
  CHECK(byte == 'e');
  CHECK((fcntl(file, F_GETFL) & O_APPEND) != 0);
  CHECK((fcntl(file, F_GETFD) & FD_CLOEXEC) == 0);
  // One without a path cannot be.
  fs::remove(path);
  auto removed = InheritedFiles::read();
  REQUIRE_FALSE(removed.ok());
  CHECK(std::string(removed.status().message())
            .find("descriptor " + std::to_string(file) + " is open for writing on " + path) == 0);
  close(file);
  CHECK(InheritedFiles::read().ok());
}

// Files that go between the plan and the mounts, in a namespace of users, where the root's entries
// are mounted one by one. Returns why the mounts failed; empty: they did not.
std::string mounts_of_what_has_gone(const std::string& scratch, const std::string& stem) {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  std::array<__user_cap_data_struct, 2> rights{};
  syscall(SYS_capget, &header, rights.data());
  rights[0].effective &= ~(uint32_t{1} << CAP_SYS_ADMIN);
  syscall(SYS_capset, &header, rights.data());
  fs::create_directory(stem + "folder");
  std::ofstream(stem + "file") << "text";
  fs::create_symlink("target", stem + "link");
  PrivateRootOptions options;
  options.scratch = scratch;
  options.working_folder = "/";
  auto root = PrivateRoot::plan(options);
  for (const char* const name : {"folder", "file", "link"}) fs::remove(stem + name);
  if (!root.ok()) return std::string(root.status().message());
  if (!root->enter_namespaces()) return std::string("namespaces: ") + root->failed();
  const pid_t first = fork();
  if (first == 0) _exit(root->make_mounts() ? 0 : 1);
  int status = 0;
  waitpid(first, &status, 0);
  return status == 0 ? "" : "mounts";
}

TEST_CASE("what has gone since the mounts were planned does not keep them from being made") {
  const std::string stem = "/memledger_gone_" + std::to_string(getpid()) + "_";
  if (access("/", W_OK) != 0) {
    MESSAGE("SKIPPED: the root folder cannot be written");
    return;
  }
  const ScratchFolder scratch;
  int told[2];
  REQUIRE(pipe(told) == 0);
  const pid_t child = fork();
  if (child == 0) {
    const std::string why = mounts_of_what_has_gone(scratch.path(), stem);
    _exit(write(told[1], why.c_str(), why.size() + 1) > 0 ? 0 : 1);
  }
  close(told[1]);
  char why[4096] = "nothing was told";
  CHECK(read(told[0], why, sizeof why - 1) > 0);
  close(told[0]);
  waitpid(child, nullptr, 0);
  if (std::string(why).rfind("namespaces: ", 0) == 0) {
    MESSAGE("SKIPPED: " << why);
  } else {
    CHECK(std::string(why).empty());
  }
}

}  // namespace
}  // namespace memledger::runner
