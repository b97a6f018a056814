// The log, byte for byte.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "tracker/log/log_writer.h"

#include <c10/util/Exception.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <clocale>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "tests/support/doctest_beside_torch.h"
#include "tests/support/temporary_folder.h"
#include "tracker/log/log_text.h"

namespace memledger {
namespace {

using testing::TemporaryFolder;

namespace fs = std::filesystem;

constexpr int64_t kMiB = 1 << 20;

// 30 April 2021, 20:25:29 UTC.
std::chrono::system_clock::time_point sample_time() {
  ::setenv("TZ", "UTC", 1);
  ::tzset();
  return std::chrono::system_clock::from_time_t(1619814329);
}

std::string contents(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

// What goes to stderr while it lives.
class StderrCapture {
 public:
  StderrCapture() : saved_(::dup(2)), file_(std::tmpfile()) {
    std::fflush(stderr);
    ::dup2(::fileno(file_), 2);
  }
  ~StderrCapture() { restore(); }
  std::string text() {
    restore();
    std::string result(static_cast<size_t>(std::ftell(file_)), '\0');
    std::rewind(file_);
    result.resize(std::fread(result.data(), 1, result.size(), file_));
    return result;
  }

 private:
  void restore() {
    std::fflush(stderr);
    std::fseek(file_, 0, SEEK_END);
    if (saved_ >= 0) {
      ::dup2(saved_, 2);
      ::close(saved_);
    }
    saved_ = -1;
  }
  int saved_;
  std::FILE* file_;
};

size_t occurrences(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + part.size()))
    ++count;
  return count;
}

DiffRow parameter_row() {
  DiffRow row;
  row.count = 3;
  row.bytes = 3 * 256 * 256 * 9 * 4;
  row.shape = c10::DimVector{256, 256, 3, 3};
  row.dtype = at::kFloat;
  row.role = Role::kParameter;
  row.names = {"features.5.weight", "features.7.weight", "features.9.weight"};
  row.op = "aten::empty";
  return row;
}

DiffRow tensor_row() {
  DiffRow row;
  row.sign = '-';
  row.count = 1;
  row.bytes = 40 * 3 * 512 * 512 * 4;
  row.shape = c10::DimVector{40, 3, 512, 512};
  row.dtype = at::kFloat;
  row.op = "aten::randn";
  return row;
}

SnapshotDiff at_line_10() {
  SnapshotDiff diff;
  diff.where = SourceLocation::current("/home/somebody/src/main.cpp", "main", 10);
  return diff;
}

LogWriter::Options options_in(const TemporaryFolder& folder) {
  LogWriter::Options options;
  options.folder = folder.path();
  options.time = sample_time();
  return options;
}

TEST_SUITE_BEGIN("log");

TEST_CASE("the sample of the design") {
  const TemporaryFolder folder;
  LogWriter writer(options_in(folder));
  CHECK(writer.path() == folder / "30-Apr-21-20:25:29-gpu_mem_track.txt");
  writer.write_header(0, 0);
  writer.write(at_line_10());
  SnapshotDiff next = at_line_10();
  next.rows = {parameter_row(), tensor_row()};
  next.where = SourceLocation::current("main.cpp", "main", 12);
  next.tensor_bytes = 80097536;
  next.allocated_bytes = 80097536 + kMiB;
  writer.write(next);
  CHECK(contents(writer.path()) ==
        "GPU Memory Track | 30-Apr-21-20:25:29 | Total Tensor Used Memory:0.0    Mb Total "
        "Allocated Memory:0.0    Mb\n"
        "\n"
        "\n"
        "At main.cpp line 10: main                             Total Tensor Used Memory:0.0    Mb "
        "Total Allocated Memory:0.0    "
        "Mb\n"
        "\n"
        "+ | 3 * Size:(256, 256, 3, 3)     | Memory: 6.75 M | Parameter            | torch.float32 "
        "| features.5.weight …\n"
        "- | 1 * Size:(40, 3, 512, 512)    | Memory: 120.0 M | Tensor               | "
        "torch.float32 | aten::randn\n"
        "\n"
        "At main.cpp line 12: main                             Total Tensor Used Memory:76.4   Mb "
        "Total Allocated Memory:77.4   "
        "Mb\n"
        "\n");
}

TEST_CASE("a first block with rows stands two empty lines below the header, too") {
  SnapshotDiff diff = at_line_10();
  diff.rows = {tensor_row()};
  const std::string row = to_string(tensor_row());
  CHECK(log_block(diff, {}, true) == row + "\n\n" + diff.at_line() + "\n\n");
  CHECK(log_block(diff, {}, false) == row + "\n\n" + diff.at_line() + "\n\n");
  diff.rows.clear();
  CHECK(log_block(diff, {}, true) == diff.at_line() + "\n\n");
  CHECK(log_block(diff, {}, false) == "\n" + diff.at_line() + "\n\n");
}

TEST_CASE("memory is cut to six characters, never rounded, never inside the integer part") {
  using log_text::memory;
  CHECK(memory(0) == "0.0");
  CHECK(memory(4) == "3.815e-06");
  CHECK(memory(1) == "9.537e-07");
  CHECK(memory(104) == "9.918e-05");
  CHECK(memory(105) == "0.0001");
  CHECK(memory(2 * 64 * 4) == "0.0004");
  CHECK(memory(8 * 512 * 4) == "0.0156");
  CHECK(memory(64 * 3 * 9 * 4) == "0.0065");
  CHECK(memory(64 * 64 * 9 * 4) == "0.1406");
  CHECK(memory(128 * 128 * 9 * 4) == "0.5625");
  CHECK(memory(256 * 128 * 9 * 4) == "1.125");
  CHECK(memory(kMiB - 1) == "0.9999");
  CHECK(memory(7 * 512 * 512 * 9 * 4) == "63.0");
  CHECK(memory(360 * kMiB) == "360.0");
  CHECK(memory(1234 * kMiB + kMiB / 4) == "1234.2");
  CHECK(memory(99999 * kMiB) == "99999.");
  CHECK(memory(100000 * kMiB) == "100000");
  CHECK(memory(12345678 * kMiB + 5) == "12345678");
}

TEST_CASE("totals are MiB in seven columns, rounded to one place, half to even") {
  using log_text::total;
  CHECK(total(0) == "0.0    ");
  CHECK(total(80097536) == "76.4   ");
  CHECK(total(kMiB / 4) == "0.2    ");
  CHECK(total(kMiB * 3 / 4) == "0.8    ");
  CHECK(total(1066 * kMiB + kMiB * 2 / 5) == "1066.4 ");
  CHECK(total(1234567 * kMiB) == "1234567.0");
}

TEST_CASE("sizes and dtypes as Python writes them") {
  const auto size = [](c10::DimVector shape) {
    DiffRow row;
    row.shape = std::move(shape);
    const std::string text = to_string(row);
    return text.substr(13, text.find(')') - 12);
  };
  const auto dtype = [](std::optional<at::ScalarType> type) {
    DiffRow row;
    row.dtype = type;
    const std::string text = to_string(row);
    const size_t begin = text.find("Tensor               | ") + 23;
    return text.substr(begin, text.find(" | ", begin) - begin);
  };
  CHECK(size({}) == "()");
  CHECK(size({512}) == "(512,)");
  CHECK(size({0, 3}) == "(0, 3)");
  CHECK(dtype(at::kFloat) == "torch.float32");
  CHECK(dtype(at::kDouble) == "torch.float64");
  CHECK(dtype(at::kHalf) == "torch.float16");
  CHECK(dtype(at::kBFloat16) == "torch.bfloat16");
  CHECK(dtype(at::kLong) == "torch.int64");
  CHECK(dtype(at::kByte) == "torch.uint8");
  CHECK(dtype(at::kBool) == "torch.bool");
  CHECK(dtype(at::kComplexFloat) == "torch.complex64");
  CHECK(dtype(at::kQInt8) == "torch.qint8");
  CHECK(dtype(at::ScalarType::Float8_e4m3fn) == "torch.float8_e4m3fn");
  CHECK(dtype(std::nullopt) == "?");
  for (int type = 0; type < static_cast<int>(at::ScalarType::NumOptions); ++type) {
    CHECK_FALSE(dtype(static_cast<at::ScalarType>(type)).empty());
  }
}

std::string from_role(const DiffRow& row) {
  return to_string(row).substr(to_string(row).find("Tensor "));
}

TEST_CASE("odd rows") {
  DiffRow row;
  row.count = 1;
  SUBCASE("nothing is known") {
    CHECK(to_string(row) ==
          "+ | 1 * Size:(?)                  | Memory: 0.0 M | Tensor               | ? | ?");
  }
  SUBCASE("a scalar with its label") {
    row.bytes = 4;
    row.shape = c10::DimVector{};
    row.dtype = at::kFloat;
    row.op = "aten::sum";
    row.label = "epoch 3/loss";
    CHECK(to_string(row) ==
          "+ | 1 * Size:()                   | Memory: 3.815e-06 M | Tensor               | "
          "torch.float32 | aten::sum [epoch "
          "3/loss]");
  }
  SUBCASE("a size and a role wider than their columns") {
    row.bytes = 8 * kMiB;
    row.shape = c10::DimVector{1024, 1024, 1, 1, 1, 1, 1, 1};
    row.dtype = at::kDouble;
    row.role = Role::kOptimizerState;
    row.names = {"Adam.weight.exp_avg"};
    CHECK(to_string(row) ==
          "+ | 1 * Size:(1024, 1024, 1, 1, 1, 1, 1, 1) | Memory: 8.0 M | OptimizerState       | "
          "torch.float64 | "
          "Adam.weight.exp_avg");
  }
  SUBCASE("found now, born before tracking") {
    row.adopted = true;
    row.op = "ignored";
    CHECK(from_role(row) == "Tensor               | ? | before tracking");
    row.names = {"a", "b"};
    CHECK(from_role(row) == "Tensor               | ? | a … (before tracking)");
  }
  SUBCASE("a name with a line end in it stays on its line") {
    row.names = {"two\nlines\x1b[0m\t"};
    CHECK(from_role(row) == "Tensor               | ? | two\\nlines\\x1b[0m\\t");
  }
}

TEST_CASE("a label stands in brackets; the location is padded by characters, not bytes") {
  SnapshotDiff diff = at_line_10();
  diff.label = "after warm-up";
  CHECK(diff.at_line().substr(0, 56) == "At main.cpp line 10: main [after warm-up]             To");
  diff.label = "näch";
  CHECK(diff.at_line().substr(0, 57) == "At main.cpp line 10: main [näch]                      To");
  diff.label = std::string(60, 'x');
  CHECK(diff.at_line().substr(0, 91) ==
        "At main.cpp line 10: main [" + std::string(60, 'x') + "] To");
}

// Made from its sources where the system has none ready.
bool speak_german(const TemporaryFolder& folder) {
  if (std::setlocale(LC_ALL, "de_DE.UTF-8") != nullptr ||
      std::setlocale(LC_ALL, "de_DE.utf8") != nullptr)
    return true;
  const std::string make =
      "localedef -i de_DE -f UTF-8 --no-archive '" + (folder / "de_DE.UTF-8") + "' >/dev/null 2>&1";
  if (std::system(make.c_str()) == -1) return false;
  ::setenv("LOCPATH", folder.path().c_str(), 1);
  return std::setlocale(LC_ALL, "de_DE.UTF-8") != nullptr;
}

TEST_CASE("months are English and points are points whatever the locale") {
  const TemporaryFolder folder;
  if (!speak_german(folder)) {
    MESSAGE("skipped: there is no locale de_DE here, and none can be made");
    return;
  }
  CHECK(std::string(std::localeconv()->decimal_point) == ",");
  SnapshotDiff diff = at_line_10();
  diff.rows = {parameter_row()};
  diff.tensor_bytes = diff.allocated_bytes = kMiB * 9 / 4;
  const std::string german = log_block(diff, {}, false);
  const std::time_t december = 1639000000;
  sample_time();
  CHECK(log_text::date(std::chrono::system_clock::from_time_t(december)) == "08-Dec-21-21:46:40");
  CHECK(log_text::memory(kMiB * 9 / 4) == "2.25");
  CHECK(log_text::total(kMiB * 9 / 4) == "2.2    ");
  std::setlocale(LC_ALL, "C");
  ::unsetenv("LOCPATH");
  CHECK(german == log_block(diff, {}, false));
  CHECK(german.find("Memory: 6.75 M") != std::string::npos);
}

TEST_CASE("without detail there are At lines only") {
  SnapshotDiff diff = at_line_10();
  diff.rows = {tensor_row()};
  LogDetail detail;
  detail.rows = false;
  CHECK(log_block(diff, detail, true) == diff.at_line() + "\n\n");
  CHECK(log_block(diff, detail, false) == "\n" + diff.at_line() + "\n\n");
}

TEST_CASE("verbose adds hook health and what could not be read") {
  SnapshotDiff diff = at_line_10();
  diff.health = {1, 2, 3};
  LogDetail detail;
  detail.verbose = true;
  const std::string health =
      diff.at_line() + "\n  hooks: 1 unknown frees, 2 dropped records, 3 swallowed exceptions\n";
  CHECK(log_block(diff, detail, true) == health + "\n");
  diff.unseen_before_tracking = true;
  diff.tracking_was_off = true;
  diff.unread = {"a", "b", "c", "d"};
  CHECK(log_block(diff, detail, true) ==
        health +
            "  before tracking: ?\n"
            "  tracking was off: ?\n"
            "  not LibTorch's memory, or not to be seen: a, b, c … (4 tensors)\n"
            "\n");
}

TEST_CASE("rows that are everything alive say so, as they do not add up to the change") {
  SnapshotDiff diff = at_line_10();
  diff.from_snapshot = true;
  CHECK(log_block(diff, {}, true) ==
        "  no earlier instant to compare with: the rows are everything alive\n\n" + diff.at_line() +
            "\n\n");
}

TEST_CASE("logs of the same second have names of their own") {
  const TemporaryFolder folder;
  const LogWriter first(options_in(folder));
  const LogWriter second(options_in(folder));
  const LogWriter third(options_in(folder));
  CHECK(first.path() == folder / "30-Apr-21-20:25:29-gpu_mem_track.txt");
  CHECK(second.path() == folder / "30-Apr-21-20:25:29-gpu_mem_track-2.txt");
  CHECK(third.path() == folder / "30-Apr-21-20:25:29-gpu_mem_track-3.txt");
}

TEST_CASE("a given file name is appended to") {
  const TemporaryFolder folder;
  LogWriter::Options options = options_in(folder);
  options.file_name = "mine.txt";
  { LogWriter(options).write_header(0, 0); }
  { LogWriter(options).write_header(0, 0); }
  const std::string header = log_header(sample_time(), 0, 0);
  CHECK(contents(folder / "mine.txt") == header + header);
}

TEST_CASE("folders are made; a folder that cannot be is an error that names it") {
  const TemporaryFolder folder;
  LogWriter::Options options = options_in(folder);
  options.folder = folder / "a/b/";
  CHECK(LogWriter(options).path() == folder / "a/b/30-Apr-21-20:25:29-gpu_mem_track.txt");
  std::ofstream(folder / "file") << "not a folder";
  options.folder = folder / "file/logs";
  CHECK_THROWS_WITH_AS(LogWriter{options}, doctest::Contains((folder / "file/logs").c_str()),
                       c10::Error);
  CHECK_THROWS_WITH_AS(LogWriter{options}, doctest::Contains("Not a directory"), c10::Error);
  options.folder = folder / "file";
  CHECK_THROWS_WITH_AS(LogWriter{options}, doctest::Contains("Not a directory"), c10::Error);
}

TEST_CASE("under `bazel run`, paths are relative to where the user stands") {
  ::setenv("BUILD_WORKING_DIRECTORY", "/somewhere/else", 1);
  CHECK(resolved_folder("") == "/somewhere/else/");
  CHECK(resolved_folder("logs") == "/somewhere/else/logs");
  CHECK(resolved_folder("/abs") == "/abs");
  ::unsetenv("BUILD_WORKING_DIRECTORY");
  CHECK(resolved_folder("logs") == (fs::current_path() / "logs").string());
}

TEST_CASE("a full disk is reported once, and the program goes on") {
  const TemporaryFolder folder;
  LogWriter::Options options = options_in(folder);
  options.file_name = "/dev/full";
  StderrCapture capture;
  LogWriter writer(options);
  writer.write_header(0, 0);
  for (int i = 0; i < 3; ++i) writer.write(at_line_10());
  const std::string text = capture.text();
  CHECK(occurrences(text, "\n") == 1);
  CHECK(occurrences(text, "memledger: cannot write the log /dev/full: No space left on device.") ==
        1);
}

TEST_CASE("when there is room again, the log goes on and says what is missing") {
  // A symbolic link that is turned from the full device to a file cannot be followed by an open
  // file, so the room is a size limit.
  const TemporaryFolder folder;
  LogWriter writer(options_in(folder));
  writer.write_header(0, 0);
  writer.write(at_line_10());
  const std::string before = contents(writer.path());
  ::signal(SIGXFSZ, SIG_IGN);
  struct rlimit old;
  ::getrlimit(RLIMIT_FSIZE, &old);
  struct rlimit tight = old;
  tight.rlim_cur = before.size() + 10;  // less than a block: the part that fits must not stay
  StderrCapture capture;
  ::setrlimit(RLIMIT_FSIZE, &tight);
  writer.write(at_line_10());
  writer.write(at_line_10());
  ::setrlimit(RLIMIT_FSIZE, &old);
  CHECK(occurrences(capture.text(), "File too large") == 1);
  CHECK(contents(writer.path()) == before);
  writer.write(at_line_10());
  const std::string at_line = at_line_10().at_line();
  CHECK(contents(writer.path()) ==
        before + "\n  2 blocks are missing here: the file could not be written\n\n" + at_line +
            "\n\n");
  writer.write(at_line_10());
  CHECK(occurrences(contents(writer.path()), "missing here") == 1);
}

TEST_CASE("a deleted log is reported once") {
  const TemporaryFolder folder;
  LogWriter writer(options_in(folder));
  writer.write_header(0, 0);
  fs::remove(writer.path());
  StderrCapture capture;
  writer.write(at_line_10());
  writer.write(at_line_10());
  CHECK(occurrences(capture.text(), "was deleted") == 1);
}

TEST_CASE("a moved log goes on in its new place, and that is told once") {
  const TemporaryFolder folder;
  LogWriter writer(options_in(folder));
  writer.write_header(0, 0);
  writer.write(at_line_10());
  const std::string moved = folder / "moved.txt";
  fs::rename(writer.path(), moved);
  StderrCapture capture;
  writer.write(at_line_10());
  writer.write(at_line_10());
  CHECK(occurrences(capture.text(), "was moved. It goes on in its new place.") == 1);
  CHECK(occurrences(contents(moved), at_line_10().at_line()) == 3);
}

TEST_CASE("a clock that is set back meets a log of that name: another is begun, the first stays") {
  const TemporaryFolder folder;
  LogWriter::Options options = options_in(folder);
  LogWriter first(options);
  first.write_header(0, 0);
  first.write(at_line_10());
  const std::string before = contents(first.path());
  options.time += std::chrono::seconds(1);
  LogWriter second(options);
  options.time -= std::chrono::seconds(1);
  LogWriter third(options);
  third.write_header(0, 0);
  CHECK(third.path() == folder / "30-Apr-21-20:25:29-gpu_mem_track-2.txt");
  CHECK(contents(first.path()) == before);
}

TEST_CASE("a name without colons") {
  const TemporaryFolder folder;
  LogWriter::Options options = options_in(folder);
  options.colons = false;
  LogWriter writer(options);
  CHECK(writer.path() == folder / "30-Apr-21-20-25-29-gpu_mem_track.txt");
  writer.write_header(0, 0);
  CHECK(occurrences(contents(writer.path()), "| 30-Apr-21-20:25:29 |") == 1);
}

TEST_CASE("an echo gets all that the log gets, also what the disk has no room for") {
  const TemporaryFolder folder;
  std::ostringstream echo;
  LogWriter::Options options = options_in(folder);
  options.echo = &echo;
  {
    LogWriter writer(options);
    writer.write_header(0, 0);
    writer.write(at_line_10());
    CHECK(echo.str() == contents(writer.path()));
  }
  echo.str("");
  options.file_name = "/dev/full";
  StderrCapture capture;
  LogWriter writer(options);
  writer.write_header(0, 0);
  writer.write(at_line_10());
  CHECK(occurrences(echo.str(), at_line_10().at_line()) == 1);
}

TEST_CASE("a full tmpfs takes no block in half") {
  const TemporaryFolder folder;
  // Mounted in a namespace of the child's own; where that is not allowed, the case is skipped.
  int pipe_ends[2];
  REQUIRE(::pipe(pipe_ends) == 0);
  const pid_t child = ::fork();
  if (child == 0) {
    ::close(pipe_ends[0]);
    const std::string user = "0 " + std::to_string(::geteuid()) + " 1";
    bool mounted = ::unshare(CLONE_NEWNS) == 0;
    if (!mounted && ::unshare(CLONE_NEWUSER | CLONE_NEWNS) == 0) {
      std::ofstream("/proc/self/uid_map") << user;
      mounted = true;
    }
    mounted = mounted && ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
              ::mount("none", folder.path().c_str(), "tmpfs", 0, "size=8k") == 0;
    if (!mounted) ::_exit(42);
    ::dup2(pipe_ends[1], 2);
    LogWriter writer(options_in(folder));
    writer.write_header(0, 0);
    for (int i = 0; i < 200; ++i) writer.write(at_line_10());
    const std::string log = contents(writer.path());
    const std::string end = at_line_10().at_line() + "\n\n";
    const bool whole =
        log.size() > 2000 && log.size() <= 8192 && log.substr(log.size() - end.size()) == end;
    ::_exit(whole ? 0 : 1);
  }
  ::close(pipe_ends[1]);
  std::string told(10000, '\0');
  size_t size = 0;
  for (ssize_t count = 1; count > 0; size += static_cast<size_t>(count)) {
    count = ::read(pipe_ends[0], told.data() + size, told.size() - size);
    if (count < 0) break;
  }
  told.resize(size);
  ::close(pipe_ends[0]);
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  REQUIRE(WIFEXITED(status));
  if (WEXITSTATUS(status) == 42) {
    MESSAGE("SKIPPED: no tmpfs may be mounted here");
    return;
  }
  CHECK(WEXITSTATUS(status) == 0);
  CHECK(occurrences(told, "No space left on device") == 1);
}

TEST_CASE("a forked child's blocks go to a log of its own; the parent's is untouched by them") {
  const TemporaryFolder folder;
  LogWriter writer(options_in(folder));
  writer.write_header(0, 0);
  writer.write(at_line_10());
  const std::string before = contents(writer.path());
  SnapshotDiff diff = at_line_10();
  diff.time = sample_time();
  diff.rows = {parameter_row()};
  diff.tensor_bytes = diff.allocated_bytes = parameter_row().bytes + kMiB;
  StderrCapture capture;
  const pid_t child = ::fork();
  if (child == 0) {
    writer.write(diff);
    writer.write(at_line_10());
    std::fflush(stderr);
    ::_exit(0);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(contents(writer.path()) == before);
  const std::string own = folder / "30-Apr-21-20:25:29-gpu_mem_track-2.txt";
  CHECK(occurrences(capture.text(),
                    "process " + std::to_string(child) + " was forked; its log is " + own) == 1);
  const std::string log = contents(own);
  CHECK(log.substr(0, log.find('\n')) ==
        "GPU Memory Track | 30-Apr-21-20:25:29 | Total Tensor Used Memory:1.0    Mb Total "
        "Allocated Memory:1.0    Mb");
  CHECK(occurrences(log, "\nAt main.cpp line 10: main ") == 2);
  writer.write(at_line_10());
  CHECK(occurrences(contents(writer.path()), "\nAt main.cpp line 10: main ") == 2);
}

TEST_CASE(
    "two processes with the same path have a log each; with the same given file their blocks stay "
    "whole") {
  const TemporaryFolder folder;
  const std::string shared = folder / "shared.txt";
  std::vector<pid_t> children;
  constexpr int kBlocks = 300;
  for (int process = 0; process < 2; ++process) {
    const pid_t child = ::fork();
    if (child == 0) {
      LogWriter own(options_in(folder));
      LogWriter::Options options = options_in(folder);
      options.file_name = "shared.txt";
      LogWriter both(options);
      own.write_header(0, 0);
      both.write_header(0, 0);
      SnapshotDiff diff = at_line_10();
      diff.label = "process " + std::to_string(process);
      diff.rows = {parameter_row(), tensor_row()};
      for (int i = 0; i < kBlocks; ++i) {
        own.write(diff);
        both.write(diff);
      }
      ::_exit(0);
    }
    children.push_back(child);
  }
  for (const pid_t child : children) {
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    CHECK(status == 0);
  }
  for (const char* name :
       {"30-Apr-21-20:25:29-gpu_mem_track.txt", "30-Apr-21-20:25:29-gpu_mem_track-2.txt"}) {
    const std::string log = contents(folder / name);
    const bool first = log.find("[process 0]") != std::string::npos;
    CHECK(occurrences(log, first ? "[process 0]" : "[process 1]") == kBlocks);
    CHECK(occurrences(log, first ? "[process 1]" : "[process 0]") == 0);
  }
  const std::string log = contents(shared);
  const std::string rows = to_string(parameter_row()) + "\n" + to_string(tensor_row()) +
                           "\n\nAt main.cpp line 10: main [process ";
  CHECK(occurrences(log, rows) == 2 * kBlocks);
}

TEST_CASE(
    "SIGKILL in the middle of a block takes at most that block, and the next run goes on below "
    "it") {
  const TemporaryFolder folder;
  LogWriter::Options options = options_in(folder);
  options.file_name = "log.txt";
  SnapshotDiff big = at_line_10();
  for (int i = 0; i < 20000; ++i) big.rows.push_back(parameter_row());
  const std::string block = log_block(big, {}, false);
  for (int round = 0; round < 5; ++round) {
    const std::string path = folder / "log.txt";
    fs::remove(path);
    const pid_t child = ::fork();
    if (child == 0) {
      LogWriter writer(options);
      writer.write_header(0, 0);
      for (;;) writer.write(big);
    }
    std::error_code error;
    while (fs::file_size(path, error) < (3 + static_cast<size_t>(round)) * block.size() || error)
      ::usleep(300);
    ::kill(child, SIGKILL);
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    REQUIRE(WIFSIGNALED(status));
    std::string log = contents(path);
    const std::string first = log_block(big, {}, true);
    REQUIRE(log.find(first) != std::string::npos);
    size_t at = log.find(first) + first.size();
    size_t whole = 1;
    while (log.compare(at, block.size(), block) == 0) {
      at += block.size();
      ++whole;
    }
    CHECK(whole >= 2);
    // What follows is the beginning of one more.
    CHECK(block.compare(0, log.size() - at, log, at, log.size() - at) == 0);
    fs::resize_file(path, at + 5);
    LogWriter next(options);
    next.write_header(0, 0);
    next.write(at_line_10());
    log = contents(path);
    CHECK(log.substr(at + 5, 18) == "\nGPU Memory Track ");
    CHECK(occurrences(log, block) == whole);
  }
}

TEST_SUITE_END();

}  // namespace
}  // namespace memledger
