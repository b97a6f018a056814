#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/xattr.h>

#include <iostream>
#include <optional>
#include <string>
#include <vector>

#include "tests/support/text_matchers.h"
#include "tests/text/faults.h"
#include "text/bytes.h"
#include "text/csv.h"
#include "text/dtype.h"
#include "text/html.h"
#include "text/json.h"
#include "text/names.h"
#include "text/output.h"
#include "text/places.h"
#include "text/shape.h"

namespace memledger {
namespace {

using testing::contains;
using testing::fresh_folder;
using testing::harm_in;
using testing::names_in;
using testing::read_file;
using testing::status_of_child;
namespace fs = std::filesystem;

using Names = std::vector<std::string>;

std::string message(const absl::Status& status) { return std::string(status.message()); }
void write_text(const fs::path& file, std::string_view text) { std::ofstream(file) << text; }

TEST_CASE("JSON strings are UTF-8, whatever bytes a name has") {
  CHECK(json_string("a\"b\\\n\x01") == "\"a\\\"b\\\\\\n\\u0001\"");
  const std::string good =
      "\x7f \xc3\xa9 \xe2\x82\xac \xed\x9f\xbf \xf0\x9f\x98\x80 \xf4\x8f\xbf\xbf";
  CHECK(json_string(good) == "\"" + good + "\"");
  CHECK(valid_utf8(good) == good);
  const std::string no = "\xef\xbf\xbd";
  CHECK(json_string("caf\xe9!") == "\"caf" + no + "!\"");
  CHECK(valid_utf8("\x80") == no);
  CHECK(valid_utf8("\xc0\xaf") == no + no);                    // overlong
  CHECK(valid_utf8("\xe0\x9f\xbf") == no + no + no);           // the same, longer
  CHECK(valid_utf8("\xed\xa0\x80") == no + no + no);           // half of a surrogate pair
  CHECK(valid_utf8("\xf4\x90\x80\x80") == no + no + no + no);  // beyond the last character
  CHECK(valid_utf8("\xe2\x82") == no + no);                    // cut
  CHECK(valid_utf8("\xe2\x82x") == no + no + "x");
}

TEST_CASE("a JSON row is one object, in the order of its members") {
  const std::optional<std::vector<int64_t>> shape = std::vector<int64_t>{3, -1},
                                            scalar = std::vector<int64_t>{}, unknown;
  CHECK(to_text(JsonRow()
                    .add("z", "caf\xe9")
                    .add("bytes", or_null(std::optional<int64_t>()))
                    .add("a", shape_json(shape))
                    .add("scalar", shape_json(scalar))
                    .add("unknown", shape_json(unknown))
                    .end()) ==
        "{\"z\":\"caf\xef\xbf\xbd\",\"bytes\":null,\"a\":[3,null],\"scalar\":[],\"unknown\":null}");
}

TEST_CASE("sizes, shapes and dtypes have one spelling each") {
  CHECK(readable_size(512) == "512.00B");
  CHECK(readable_size(10506764) == "10.02M");
  CHECK(readable_size(-1536) == "-1.50K");
  CHECK(size_in_words(4194304) == "4.0 MiB");
  CHECK(size_in_words(1048550) == "1.0 MiB");  // not 1024.0 KiB
  CHECK(size_in_words(0.004) == "0.004 B");
  using Shape = std::optional<std::vector<int64_t>>;
  CHECK(shape_text(Shape{{3, 5}}) == "(3, 5)");
  CHECK(shape_text(Shape{std::vector<int64_t>{5}}) == "(5,)");
  CHECK(shape_text(Shape{{-1, 5}}) == "(?, 5)");
  CHECK(shape_text(Shape{std::vector<int64_t>{}}) == "()");
  CHECK(shape_text(Shape{}) == "(?)");
  CHECK_FALSE(known_shape(Shape{}).has_value());
  CHECK(dtype_text(c10::ScalarType::Float) == "torch.float32");
  CHECK(dtype_text(c10::ScalarType::Undefined) == "?");
  CHECK_FALSE(known_dtype(c10::ScalarType::Undefined).has_value());
}

TEST_CASE("a line of CSV, with nothing for what is unknown") {
  CHECK(CsvLine()
            .text("=1")
            .text(std::string("a,b"))
            .text(std::optional<std::string>())
            .number(-3)
            .number(uint64_t{1} << 63)
            .number(std::optional<int64_t>())
            .flag(true)
            .end() == "'=1,\"a,b\",,-3,9223372036854775808,,1\n");
}

TEST_CASE("ordinary names stay as they are, byte for byte") {
  for (const std::string name :
       {"encoder.layers.0.self_attn.in_proj_weight", "a+b", "größe.重み", "C:\\x", "x - y", "😀"}) {
    CHECK(printable(name) == name);
    CHECK(table_name(name) == name);
    CHECK(csv_field(name) == name);
    CHECK(html_text(name) == name);
  }
}

TEST_CASE("what a terminal would obey is shown instead") {
  CHECK(printable("a\nb\tc\rd") == "a\\nb\\tc\\x0dd");
  CHECK(printable("\x1b[31m\x7f") == "\\x1b[31m\\x7f");
  CHECK(printable("\xc2\x9b") == "\\u009b");
  CHECK(printable("\xe2\x80\xae\xe2\x81\xa9\xe2\x80\xa8") == "\\u202e\\u2069\\u2028");
  CHECK(printable("\x9b\xff") == "\\x9b\\xff");
  CHECK(printable("\xef\xbf\xbf\xf0\x9f\xbf\xbe") == "\\uffff\\U0001fffe");
  for (const testing::HostileName& one : testing::hostile_names()) {
    CAPTURE(one.what);
    for (const std::string& text : {printable(one.name), table_name(one.name), csv_field(one.name),
                                    html_text(one.name), dot_text(one.name)}) {
      CHECK(harm_in(text) == "");
      CHECK(text.find_first_of("\n\t") == std::string::npos);
    }
  }
}

TEST_CASE("a function's plain name has no arguments") {
  for (const auto& [name, plain] : std::vector<std::pair<std::string, std::string>>{
           {"main", "main"},
           {"forward", "forward"},
           {"<module>", "<module>"},
           {"Net.forward.<locals>.<lambda>", "Net.forward.<locals>.<lambda>"},
           {"Net::forward(at::Tensor const&) const", "Net::forward"},
           {"at::Tensor (anonymous namespace)::run<std::vector<float>, (Kind)3>(int, Net<int>&)",
            "run"},
           {"std::enable_if<(2 > 1), void>::type f<&Net<int>::g>() [clone .part.0]", "f"},
           {"main::{lambda(at::Tensor)#1}::operator()(at::Tensor) const",
            "main::{lambda#1}::operator()"},
           {"auto main::{lambda(auto:1)#1}::operator()<unsigned long>(unsigned long) const",
            "main::{lambda#1}::operator()"},
           {"auto f()::{lambda(auto:1)#1}::operator()<std::vector<float, std::allocator<float> > >("
            "std::vector<float, std::allocator<float> >) const",
            "f::{lambda#1}::operator()"},
           {"Net::forward(int) const &", "Net::forward"},
           {"Net::forward(int) const &&", "Net::forward"},
           {"Net::forward(int) volatile const & noexcept", "Net::forward"},
           {"Net::forward(int) &&", "Net::forward"},
           {"Net::operator_of(int)", "Net::operator_of"},
           {"bool operator<< <char>(std::ostream&, char)", "operator<<"},
           {"bool operator< <int>(Box<int> const&, int)", "operator<"},
           {"Box<int>& Box<int>::operator+=<long>(long) &", "Box::operator+="},
           {"int* Box<int>::operator-><long>() const", "Box::operator->"},
           {"int& Box<int>::operator[]<long>(long)", "Box::operator[]"},
           {"Box<int>::operator&()", "Box::operator&"},
           {"Box<int>::operator bool() const", "Box::operator"},
           {"operator\"\" _bytes(unsigned long long)", "operator"},
           {"unbalanced<int", "unbalanced"},
           {"", ""}}) {
    CAPTURE(name);
    CHECK(plain_function(name) == plain);
  }
}

TEST_CASE("of a long name the table shows both ends") {
  const std::string name = "begin" + std::string(10000, '.') + "weight";
  const std::string shown = table_name(name);
  CHECK(shown.size() == 199 + 3);  // the ellipsis has three bytes
  CHECK(shown.substr(0, 5) == "begin");
  CHECK(shown.substr(shown.size() - 6) == "weight");
  // Characters are never cut.
  std::string wide;
  for (int i = 0; i < 300; ++i) wide += "重";
  CHECK(harm_in(table_name(wide)) == "");
  CHECK(table_name(wide).size() == 200 * 3);
  CHECK(table_name(wide.substr(0, 600)) == wide.substr(0, 600));
}

TEST_CASE("no field of CSV is a formula, and none breaks its row") {
  for (const std::string sign : {"=", "+", "-", "@", "＝", "＋", "－", "＠"})
    CHECK(csv_field(sign + "1") == "'" + sign + "1");
  CHECK(csv_field("=a,\"b\"") == "\"'=a,\"\"b\"\"\"");
  CHECK(csv_field("a,b") == "\"a,b\"");
  CHECK(csv_field("a;b") == "\"a;b\"");
  CHECK(csv_field("\t=1") == "\\t=1");
  CHECK(csv_field("") == "");
  CHECK(csv_field("a=b") == "a=b");
}

TEST_CASE("mark-up in names is text") {
  CHECK(html_text("<a b='c'>&\"\x01") == "&lt;a b=&#39;c&#39;&gt;&amp;&quot;\\x01");
  CHECK(json_for_script("\"</script><!--\"") == "\"\\u003c/script>\\u003c!--\"");
  CHECK(dot_text("a\"\\\n") == "a\\\"\\\\\\\\n");
}

TEST_CASE("a file that the user named is replaced whole, and keeps its mode") {
  const fs::path folder = fresh_folder("whole");
  CHECK(write_file(folder / "new.txt", "report", "one").ok());
  CHECK(read_file(folder / "new.txt") == "one");
  fs::permissions(folder / "new.txt", fs::perms::owner_read | fs::perms::owner_write);
  std::ifstream reader(folder / "new.txt");
  CHECK(write_file(folder / "new.txt", "report", "two").ok());
  CHECK(read_file(folder / "new.txt") == "two");
  CHECK(fs::status(folder / "new.txt").permissions() ==
        (fs::perms::owner_read | fs::perms::owner_write));
  // A reader that had it open goes on with the old one.
  CHECK((std::ostringstream() << reader.rdbuf()).str() == "one");
  CHECK(names_in(folder) == Names{"new.txt"});
}

TEST_CASE("links on the user's path are followed, the ones that lead nowhere yet as well") {
  const fs::path folder = fresh_folder("links");
  fs::create_directories(folder / "elsewhere");
  write_text(folder / "elsewhere/there.txt", "old");
  fs::create_symlink("elsewhere/there.txt", folder / "link.txt");
  fs::create_symlink("elsewhere/not_yet.txt", folder / "dangling.txt");
  CHECK(write_file(folder / "link.txt", "report", "new").ok());
  CHECK(write_file(folder / "dangling.txt", "report", "made").ok());
  CHECK(fs::is_symlink(folder / "link.txt"));
  CHECK(read_file(folder / "elsewhere/there.txt") == "new");
  CHECK(read_file(folder / "elsewhere/not_yet.txt") == "made");
  fs::create_symlink("loop", folder / "loop");
  CHECK(contains(message(write_file(folder / "loop", "report", "x")),
                 "Too many levels of symbolic links"));
}

TEST_CASE("devices, pipes and descriptors are written in place") {
  const fs::path folder = fresh_folder("in_place");
  CHECK(write_file("/dev/null", "report", "x").ok());
  CHECK(fs::is_character_file("/dev/null"));
  fs::create_symlink("/dev/null", folder / "null");
  CHECK(write_file(folder / "null", "report", "x").ok());
  CHECK(fs::is_character_file("/dev/null"));

  int pipe_ends[2];
  REQUIRE(pipe(pipe_ends) == 0);
  char text[8] = {};
  CHECK(write_file("/dev/fd/" + std::to_string(pipe_ends[1]), "report", "piped").ok());
  CHECK(read(pipe_ends[0], text, sizeof text) == 5);
  CHECK(std::string(text) == "piped");

  // What was written to the same open file before stays.
  const int file = open((folder / "out.txt").c_str(), O_RDWR | O_CREAT, 0600);
  REQUIRE(write(file, "before ", 7) == 7);
  CHECK(write_file("/proc/self/fd/" + std::to_string(file), "report", "behind").ok());
  CHECK(read_file(folder / "out.txt") == "before behind");
  const fs::path fifo = folder / "fifo";
  REQUIRE(mkfifo(fifo.c_str(), 0600) == 0);
  const int reader = open(fifo.c_str(), O_RDONLY | O_NONBLOCK);
  CHECK(write_file(fifo, "report", "fifo").ok());
  CHECK(read(reader, text, sizeof text) == 4);
  CHECK(fs::is_fifo(fifo));
  for (const int descriptor : {pipe_ends[0], pipe_ends[1], file, reader}) close(descriptor);
}

TEST_CASE("what cannot be written is told with path and reason, and nothing is left behind") {
  const fs::path folder = fresh_folder("failures");
  write_text(folder / "occupied", "file");
  CHECK(message(write_file("/dev/full", "report", "x")) ==
        "memledger: cannot write the report /dev/full: No space left on device");
  CHECK(contains(message(write_file(folder / "occupied/x.txt", "report", "x")),
                 "occupied/x.txt: Not a directory"));
  CHECK(contains(message(write_file(folder / "none/x.txt", "report", "x")),
                 "none/x.txt: No such file or directory"));
  CHECK(contains(message(write_file(folder, "report", "x")), "Is a directory"));
  CHECK(contains(message(write_file("", "report", "x")), "Is a directory"));
  CHECK(contains(message(write_file("/dev/fd/987", "report", "x")), "Bad file descriptor"));
  CHECK(contains(message(write_file("/nowhere/\x1b[2J", "report", "x")), "/nowhere/\\x1b[2J"));
  write_text(folder / "kept.txt", "old");
  CHECK(contains(message(write_file(folder / "kept.txt", "report",
                                    [](std::ostream&) { throw std::runtime_error("no data"); })),
                 "kept.txt: no data"));
  CHECK(read_file(folder / "kept.txt") == "old");
  CHECK(names_in(folder) == Names{"kept.txt", "occupied"});
}

TEST_CASE("a file that grows beyond the limit is told, not ended by a signal; the old one stays") {
  const fs::path folder = fresh_folder("limit");
  write_text(folder / "kept.txt", "old");
  CHECK(status_of_child([&] {
          const rlimit limit{1000, 1000};
          setrlimit(RLIMIT_FSIZE, &limit);
          const absl::Status status =
              write_file(folder / "kept.txt", "report", std::string(300000, 'x'));
          return contains(message(status), "kept.txt: File too large") ? 0 : 1;
        }) == 0);
  CHECK(read_file(folder / "kept.txt") == "old");
  CHECK(names_in(folder) == Names{"kept.txt"});
}

TEST_CASE("names that we choose follow no link and replace nothing") {
  const fs::path folder = fresh_folder("chosen");
  const std::string stem = folder / "exit";
  write_text(folder / "victim", "precious");
  fs::create_symlink("victim", folder / "exit.txt");
  fs::create_symlink("nowhere", folder / "exit-2.txt");
  write_text(folder / "exit-3.txt", "of others");
  const auto written = write_new_file(stem, ".txt", "report", "ours");
  REQUIRE(written.ok());
  CHECK(*written == stem + "-4.txt");
  CHECK(read_file(*written) == "ours");
  CHECK(read_file(folder / "victim") == "precious");
  CHECK(read_file(folder / "exit-3.txt") == "of others");
  CHECK_FALSE(fs::exists(folder / "nowhere"));
  CHECK(contains(message(write_new_file(folder / "victim/x", ".txt", "report", "x").status()),
                 "victim/x.txt: Not a directory"));
  CHECK_FALSE(write_new_file(stem, ".csv", "report", [](std::ostream&) {
                throw std::runtime_error("no data");
              }).ok());
  CHECK_FALSE(fs::exists(stem + ".csv"));
}

TEST_CASE("what another user prepared in a folder of everybody's leads nowhere") {
  if (geteuid() != 0) {
    MESSAGE("SKIPPED: only root can play another user");
    return;
  }
  const fs::path folder = fresh_folder("squatted"), mine = fresh_folder("mine");
  constexpr uid_t kNobody = 65534;
  write_text(mine / "key.txt", "precious");
  const auto give_away = [&](const std::string& name) {
    REQUIRE(lchown((folder / name).c_str(), kNobody, kNobody) == 0);
  };
  fs::create_symlink(mine / "key.txt", folder / "link.txt");
  fs::create_symlink(mine / "new.txt", folder / "dangling.txt");
  fs::create_symlink(mine, folder / "out");
  fs::create_symlink("out", folder / "twice");
  write_text(folder / "file.txt", "nobody's");
  REQUIRE(chmod((folder / "file.txt").c_str(), 0666) == 0);
  REQUIRE(mkfifo((folder / "fifo.txt").c_str(), 0666) == 0);
  for (const char* const name :
       {"link.txt", "dangling.txt", "out", "twice", "file.txt", "fifo.txt"})
    give_away(name);
  // With the sticky bit, as /tmp has it, and without.
  for (const mode_t mode : {0777, 01777}) {
    REQUIRE(chmod(folder.c_str(), mode) == 0);
    CAPTURE(mode);
    for (const char* const name : {"link.txt", "dangling.txt", "file.txt", "fifo.txt", "out/x.txt",
                                   "twice/x.txt", "out/../squatted/x.txt"}) {
      INFO(name);
      const std::string path = folder / name;
      CHECK(contains(message(write_file(path, "report", "x")), "Permission denied"));
      CHECK(contains(message(RunFile(path).write("report", [](std::ostream&) {}).status()),
                     "Permission denied"));
      CHECK(open_to_append(path) == -1);
      CHECK(errno == EACCES);
      CHECK(why_not_writable(path, /*makes_folders=*/false) == EACCES);
      CHECK(why_not_writable(path, /*makes_folders=*/true) == EACCES);
    }
  }
  CHECK(contains(message(write_new_file(folder / "twice/x", ".txt", "report", "x").status()),
                 "Permission denied"));
  CHECK(why_folder_not_writable(folder / "out") == EACCES);
  CHECK(why_folder_not_writable(folder / "twice/logs") == EACCES);
  CHECK(read_file(mine / "key.txt") == "precious");
  CHECK(names_in(mine) == Names{"key.txt"});
  CHECK(read_file(folder / "file.txt") == "nobody's");

  // One's own, and what the folder's owner made, is followed as ever.
  for (const char* const name : {"link.txt", "out", "file.txt"})
    REQUIRE(lchown((folder / name).c_str(), 0, 0) == 0);
  CHECK(write_file(folder / "link.txt", "report", "mine").ok());
  CHECK(read_file(mine / "key.txt") == "mine");
  CHECK(write_file(folder / "out/new.txt", "report", "mine").ok());
  CHECK(write_file(folder / "file.txt", "report", "mine").ok());
  // So are others' in a folder that only they and we can write to.
  REQUIRE(chmod(folder.c_str(), 0755) == 0);
  give_away("link.txt");
  CHECK(write_file(folder / "link.txt", "report", "shared").ok());
  CHECK(read_file(mine / "key.txt") == "shared");
}

TEST_CASE("whether a file can be written is known without making it") {
  const fs::path folder = fresh_folder("checked");
  write_text(folder / "occupied", "file");
  fs::create_symlink("no/x.txt", folder / "dangling");
  CHECK(why_not_writable(folder / "x.txt", false) == 0);
  CHECK(why_not_writable(folder / "occupied", false) == 0);
  CHECK(why_not_writable(folder / "occupied/x.txt", true) == ENOTDIR);
  CHECK(why_not_writable(folder / "none/x.txt", false) == ENOENT);
  CHECK(why_not_writable(folder / "none/below/x.txt", true) == 0);
  CHECK(why_not_writable(folder / "dangling/x.txt", true) == ENOENT);
  CHECK(why_not_writable(folder, false) == EISDIR);
  CHECK(why_not_writable(folder / std::string(300, 'x'), false) == ENAMETOOLONG);
  CHECK(why_not_writable("/dev/full", false) == 0);
  CHECK(why_not_writable("/dev/fd/987", false) == EBADF);
  const int reader = open((folder / "occupied").c_str(), O_RDONLY);
  CHECK(why_not_writable("/dev/fd/" + std::to_string(reader), false) == EBADF);
  close(reader);
  CHECK(why_folder_not_writable(folder / "a/b") == 0);
  CHECK(why_folder_not_writable(folder / "occupied") == ENOTDIR);
  CHECK(names_in(folder) == Names{"dangling", "occupied"});
  CHECK(read_file(folder / "occupied") == "file");
}

TEST_CASE("the ending of a file's name") {
  for (const auto& [path, ending] :
       std::vector<std::pair<std::string, std::string>>{{"r.json", ".json"},
                                                        {"a.b/R.JSON", ".json"},
                                                        {"a.b/r", ""},
                                                        {"r", ""},
                                                        {"", ""},
                                                        {"r.json.gz", ".gz"},
                                                        {".json", ".json"},
                                                        {"r.", "."}})
    CHECK(file_ending(path) == ending);
}

TEST_CASE("nothing of ours takes the number of a standard stream that is closed") {
  const fs::path folder = fresh_folder("closed");
  CHECK(status_of_child([&] {
          for (const int descriptor : {0, 1, 2}) close(descriptor);
          NewFile file;
          if (make_new_file(folder / "log", ".txt", file) != 0 || file.descriptor <= 2) return 1;
          if (open_to_append(folder / "other.txt") <= 2) return 2;
          tell({"nobody hears this"});
          if (!write_file(folder / "x.txt", "report", "x").ok()) return 3;
          if (write_standard_output("x").ok()) return 4;
          return write_to(std::cout, "x", "x") ? 5 : 0;
        }) == 0);
  CHECK(read_file(folder / "log.txt") == "");
  CHECK(read_file(folder / "other.txt") == "");
}

TEST_CASE("messages to a full disk, a broken pipe or nobody are silence") {
  const auto told_to = [](int descriptor) {
    return status_of_child([descriptor] {
      dup2(descriptor, STDERR_FILENO);
      tell({"memledger: ", std::string(100000, 'x')});
      write_standard_error("x");
      return 7;
    });
  };
  const int full = open("/dev/full", O_WRONLY);
  CHECK(told_to(full) == 7);
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  close(ends[0]);
  CHECK(told_to(ends[1]) == 7);
  // A signal that was blocked and waiting before is still there afterwards.
  CHECK(status_of_child([&] {
          sigset_t pipe_signal, pending;
          sigemptyset(&pipe_signal);
          sigaddset(&pipe_signal, SIGPIPE);
          sigprocmask(SIG_BLOCK, &pipe_signal, nullptr);
          raise(SIGPIPE);
          dup2(ends[1], STDERR_FILENO);
          tell({"x"});
          sigpending(&pending);
          return sigismember(&pending, SIGPIPE) == 1 ? 0 : 1;
        }) == 0);
  close(ends[1]);
  close(full);
}

TEST_CASE("a message is one line") {
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  CHECK(status_of_child([&] {
          dup2(ends[1], STDERR_FILENO);
          tell({"memledger: ", "a\nb\x1b[2J", " c"});
          return 0;
        }) == 0);
  close(ends[1]);
  char text[100] = {};
  CHECK(read(ends[0], text, sizeof text - 1) > 0);
  close(ends[0]);
  CHECK(std::string(text) == "memledger: a\\nb\\x1b[2J c\n");
}

TEST_CASE("a pipe that does not block gets all of a long text") {
  int ends[2];
  REQUIRE(pipe2(ends, O_NONBLOCK) == 0);
  const std::string text(300000, 'x');
  const pid_t writer = fork();
  if (writer == 0) {
    close(ends[0]);
    _exit(write_all(ends[1], text) == 0 ? 0 : 1);
  }
  close(ends[1]);
  std::string got;
  std::array<char, 4096> piece;
  for (;;) {
    const ssize_t count = read(ends[0], piece.data(), piece.size());
    if (count == 0) break;
    if (count > 0) got.append(piece.data(), static_cast<size_t>(count));
  }
  int status = 0;
  waitpid(writer, &status, 0);
  CHECK(WEXITSTATUS(status) == 0);
  CHECK(got == text);
  close(ends[0]);
}

TEST_CASE("of an appended text that does not fit nothing stays") {
  const fs::path folder = fresh_folder("append");
  const std::string file = folder / "log.txt";
  CHECK(status_of_child([&] {
          const int descriptor = open_to_append(file);
          const rlimit limit{1000, 1000};
          setrlimit(RLIMIT_FSIZE, &limit);
          if (append_whole(descriptor, std::string(600, 'a')) != 0) return 1;
          return append_whole(descriptor, std::string(600, 'b')) == EFBIG ? 0 : 2;
        }) == 0);
  CHECK(read_file(file) == std::string(600, 'a'));
}

TEST_CASE("a stream of the program's is told about once") {
  std::ostringstream broken;
  broken.setstate(std::ios::badbit);
  CHECK_FALSE(write_to(broken, "x", "x"));
  std::ostringstream loud;
  loud.exceptions(std::ios::badbit | std::ios::failbit);
  CHECK(write_to(loud, "x", "x"));
  CHECK(loud.str() == "x");
  std::ofstream full("/dev/full");
  full.exceptions(std::ios::badbit | std::ios::failbit);
  CHECK_FALSE(write_to(full, std::string(100000, 'x'), "echo"));
  full.exceptions(std::ios::goodbit);
}

TEST_CASE("the first process of a run has the path, later ones a name beside it") {
  const fs::path folder = fresh_folder("run");
  const std::string file = folder / "t.json";
  write_text(folder / "t.json", "of an earlier run");
  const auto one_process = [&](const std::string& text) {
    const pid_t child = fork();
    if (child == 0) {
      const RunFile run_file(file);
      const auto written = run_file.write("timeline", [&](std::ostream& out) { out << text; });
      _exit(written.ok() && read_file(written->path) == text ? 0 : 1);
    }
    int status = 0;
    waitpid(child, &status, 0);
    CHECK(WEXITSTATUS(status) == 0);
    return child;
  };
  usleep(20000);  // two ticks of the clock that stamps files
  setenv(kRunVariable, run_that_begins_now().c_str(), 1);
  one_process("first");
  CHECK(read_file(file) == "first");
  const pid_t second = one_process("second");
  CHECK(read_file(file) == "first");
  CHECK(read_file(folder / ("t." + std::to_string(second) + ".json")) == "second");
  CHECK(names_in(folder).size() == 2);

  // The next run replaces it.
  usleep(20000);
  setenv(kRunVariable, run_that_begins_now().c_str(), 1);
  one_process("third");
  CHECK(read_file(file) == "third");
  unsetenv(kRunVariable);
}

TEST_CASE("of processes that end at the same moment none loses its file") {
  const fs::path folder = fresh_folder("crowd");
  const std::string file = folder / "t";
  usleep(20000);
  setenv(kRunVariable, run_that_begins_now().c_str(), 1);
  std::vector<pid_t> children;
  for (int i = 0; i < 16; ++i) {
    const pid_t child = fork();
    if (child == 0) {
      const RunFile run_file(file);
      usleep(50000);
      _exit(run_file.write("timeline", [](std::ostream& out) { out << getpid(); }).ok() ? 0 : 1);
    }
    children.push_back(child);
  }
  for (const pid_t child : children) {
    int status = 0;
    waitpid(child, &status, 0);
    CHECK(status == 0);
  }
  unsetenv(kRunVariable);
  std::vector<std::string> told, made;
  for (const std::string& name : names_in(folder)) told.push_back(read_file(folder / name));
  for (const pid_t child : children) made.push_back(std::to_string(child));
  std::sort(told.begin(), told.end());
  std::sort(made.begin(), made.end());
  CHECK(told == made);
}

TEST_CASE("without a runner, what changed since the process began is another's") {
  const fs::path folder = fresh_folder("alone");
  const RunFile parents(folder / "t.json");
  const RunFile childs(folder / "t.json");
  const auto text = [](std::ostream& out) { out << "x"; };
  CHECK(childs.write("timeline", text)->path == folder / "t.json");
  const auto second = parents.write("timeline", text);
  CHECK(second->path == (folder / ("t." + std::to_string(getpid()) + ".json")).string());
  CHECK(second->taker == RunFile::Taker::kUnknown);  // of one program, or of two
  CHECK(RunFile(folder / "t.json").write("timeline", text)->path == folder / "t.json");
  CHECK(RunFile("/dev/null").write("timeline", text)->path == "/dev/null");
  CHECK(contains(message(RunFile("/dev/full").write("timeline", text).status()),
                 "/dev/full: No space left"));
}

// Clocks that a test sets.
RunTime set_time;
RunTime time_that_was_set() { return set_time; }
void pass(int64_t ns) {
  set_time.wall_ns += ns;
  set_time.file_ns += ns;
  set_time.boot_ns += ns;
}
void set_back(int64_t ns) {
  set_time.wall_ns -= ns;
  set_time.file_ns -= ns;
}

constexpr int64_t kSecond = 1000000000;

// A run whose processes write to one path.
class Run {
 public:
  Run() : variable_(run_that_begins_now(&time_that_was_set)) { pass(kSecond); }
  RunFile process(const std::string& path) const {
    setenv(kRunVariable, variable_.c_str(), 1);
    RunFile file(path, &time_that_was_set);
    unsetenv(kRunVariable);
    pass(kSecond);
    return file;
  }

 private:
  std::string variable_;
};

RunFile::Taker taker_at_end_of(const RunFile& process) {
  const auto written = process.write("report", [](std::ostream& out) { out << "x"; });
  pass(kSecond);
  REQUIRE(written.ok());
  CHECK((written->path == process.path()) == (written->taker == RunFile::Taker::kNobody));
  return written->taker;
}

bool has_attributes(const fs::path& folder) {
  write_text(folder / "probe", "");
  const bool has = setxattr((folder / "probe").c_str(), kRunAttribute, "x", 1, 0) == 0;
  fs::remove(folder / "probe");
  if (!has) MESSAGE("SKIPPED: this file system has no extended attributes");
  return has;
}

TEST_CASE("who has taken the path of a run is said as it is") {
  const fs::path folder = fresh_folder("takers");
  if (!has_attributes(folder)) return;
  const std::string file = folder / "report.json";
  set_time = run_time();
  using Taker = RunFile::Taker;

  SUBCASE("two runs at once") {
    const Run one, other;
    const RunFile ones = one.process(file), others = other.process(file);
    const RunFile ones_second = one.process(file);
    CHECK(taker_at_end_of(ones) == Taker::kNobody);
    CHECK(taker_at_end_of(others) == Taker::kAnotherRun);
    CHECK(taker_at_end_of(ones_second) == Taker::kThisRun);
    // A process that begins later finds what the other run has written since.
    CHECK(taker_at_end_of(other.process(file)) == Taker::kAnotherRun);
    CHECK(taker_at_end_of(one.process(file)) == Taker::kThisRun);
    CHECK(taker_at_end_of(Run().process(file)) == Taker::kNobody);
  }
  SUBCASE("a process replaces what it has written itself") {
    const Run one;
    const RunFile process = one.process(file);
    CHECK(taker_at_end_of(process) == Taker::kNobody);
    CHECK(taker_at_end_of(process) == Taker::kNobody);
    CHECK(names_in(folder).size() == 1);
  }
  SUBCASE("the clock is set back between runs, and within one") {
    CHECK(taker_at_end_of(Run().process(file)) == Taker::kNobody);
    set_back(3600 * kSecond);
    for (int i = 0; i < 3; ++i) CHECK(taker_at_end_of(Run().process(file)) == Taker::kNobody);
    const Run one, other;
    const RunFile ones = one.process(file), others = other.process(file);
    set_back(3600 * kSecond);
    CHECK(taker_at_end_of(ones) == Taker::kNobody);
    CHECK(taker_at_end_of(others) == Taker::kAnotherRun);
    CHECK(taker_at_end_of(one.process(file)) == Taker::kThisRun);
    CHECK(names_in(folder).size() == 3);
  }
  SUBCASE("somebody else wrote it") {
    const Run one;
    const RunFile process = one.process(file);
    write_text(file, "a letter");
    CHECK(taker_at_end_of(process) == Taker::kUnknown);
    CHECK(read_file(file) == "a letter");
    CHECK(taker_at_end_of(Run().process(file)) == Taker::kNobody);
  }
  SUBCASE("somebody else changed what an earlier run wrote") {
    CHECK(taker_at_end_of(Run().process(file)) == Taker::kNobody);
    const Run one;
    const RunFile process = one.process(file);
    usleep(20000);  // a tick of the clock that stamps files
    write_text(file, "a letter");
    CHECK(taker_at_end_of(process) == Taker::kUnknown);
  }
  SUBCASE("a run on another machine") {
    CHECK(taker_at_end_of(Run().process(file)) == Taker::kNobody);
    const std::string stamp = "1-0123456789abcdef-5-7 7-6 0123456789abcdef 8";
    const Run one;
    const RunFile early = one.process(file);
    usleep(20000);
    REQUIRE(setxattr(file.c_str(), kRunAttribute, stamp.data(), stamp.size(), 0) == 0);
    CHECK(taker_at_end_of(early) == Taker::kAnotherRun);
    CHECK(taker_at_end_of(one.process(file)) == Taker::kNobody);
  }
  SUBCASE("an attribute that means nothing") {
    CHECK(taker_at_end_of(Run().process(file)) == Taker::kNobody);
    for (const std::string stamp : {"", "x", "1 2 3", "    "}) {
      REQUIRE(setxattr(file.c_str(), kRunAttribute, stamp.data(), stamp.size(), 0) == 0);
      set_time = run_time();
      pass(kSecond);
      CHECK(taker_at_end_of(Run().process(file)) == Taker::kNobody);
    }
  }
}

// What a RunFile asks for its time just before it stamps its file.
fs::path watched_folder;
RunTime time_of_a_swap() {
  for (const fs::directory_entry& entry : fs::directory_iterator(watched_folder)) {
    if (entry.path().extension() != ".part" || entry.is_symlink()) continue;
    const fs::path& temporary = entry.path();
    fs::rename(temporary, watched_folder / "away");
    fs::create_symlink("victim", temporary);
  }
  return run_time();
}

TEST_CASE("a link in the place of a file that is being written is not followed") {
  watched_folder = fresh_folder("swapped");
  if (!has_attributes(watched_folder)) return;
  write_text(watched_folder / "victim", "precious");
  const RunFile file(watched_folder / "report.json", &time_of_a_swap);
  file.write("report", [](std::ostream& out) { out << "{}"; }).IgnoreError();
  CHECK(read_file(watched_folder / "away") == "{}");
  CHECK(getxattr((watched_folder / "away").c_str(), kRunAttribute, nullptr, 0) > 0);
  CHECK(getxattr((watched_folder / "victim").c_str(), kRunAttribute, nullptr, 0) == -1);
  CHECK(read_file(watched_folder / "victim") == "precious");
}

TEST_CASE("without extended attributes a run goes by the file's time") {
  const fs::path folder = fresh_folder("times");
  const std::string file = folder / "report.json";
  const auto without_attribute = [&] { removexattr(file.c_str(), kRunAttribute); };
  using Taker = RunFile::Taker;
  set_time = run_time();
  const Run one;
  usleep(20000);  // two ticks of the clock that stamps files
  const RunFile early = one.process(file), late = one.process(file);
  CHECK(taker_at_end_of(early) == Taker::kNobody);
  without_attribute();
  CHECK(taker_at_end_of(late) == Taker::kUnknown);
  pass(kSecond);
  CHECK(taker_at_end_of(one.process(file)) == Taker::kUnknown);
  CHECK(taker_at_end_of(Run().process(file)) == Taker::kNobody);
  // What comes from the future was there before the clock was set back.
  for (int i = 0; i < 3; ++i) {
    without_attribute();
    set_time = run_time();
    set_back(3600 * kSecond);
    CHECK(taker_at_end_of(Run().process(file)) == Taker::kNobody);
  }
}

}  // namespace
}  // namespace memledger
