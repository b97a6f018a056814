// Logs read back: ours, and the Python tool's own from its README.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "tracker/log_reader.h"

#include <doctest/doctest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <random>
#include <string>

#include "tests/support/text_matchers.h"
#include "tracker/log/log_digest.h"
#include "tracker/log/log_parser.h"

namespace memledger {
namespace {

using testing::contains;

constexpr int64_t kMiB = 1 << 20;

MemoryLog parsed(const std::string& text) {
  absl::StatusOr<MemoryLog> log = parse_log(text, "log.txt");
  REQUIRE_MESSAGE(log.ok(), std::string(log.status().message()));
  return *std::move(log);
}

template <typename Value>
std::string message_of(const absl::StatusOr<Value>& value) {
  return std::string(value.status().message());
}

const char kOurs[] =
    "GPU Memory Track | 30-Apr-21-20:25:29 | Total Tensor Used Memory:1.0    Mb Total Allocated "
    "Memory:2.0    Mb\n"
    "\n"
    "\n"
    "At main.cpp line 10: main                             Total Tensor Used Memory:1.0    Mb "
    "Total Allocated Memory:2.0    Mb\n"
    "\n"
    "+ | 3 * Size:(256, 256, 3, 3)     | Memory: 6.75 M | Parameter            | torch.float32 | "
    "features.5.weight …\n"
    "+ | 2 * Size:(1024, 1024)         | Memory: 8.0 M | Tensor               | torch.float32 | "
    "aten::randn [warm | up]\n"
    "\n"
    "At main.cpp line 12: main [step 1]                    Total Tensor Used Memory:15.8   Mb "
    "Total Allocated Memory:17.8   Mb\n"
    "  hooks: 0 unknown frees, 0 dropped records, 0 swallowed exceptions\n"
    "\n"
    "- | 1 * Size:(1024, 1024)         | Memory: 4.0 M | Tensor               | torch.float32 | "
    "aten::randn\n"
    "\n"
    "At main.cpp line 14: main                             Total Tensor Used Memory:11.8   Mb "
    "Total Allocated Memory:?      Mb\n"
    "\n";

TEST_SUITE_BEGIN("log reader");

TEST_CASE("header, rows, At lines and notes of our log") {
  const MemoryLog log = parsed(kOurs);
  REQUIRE(log.runs.size() == 1);
  CHECK(log.unread_lines == 0);
  const LogRun& run = log.runs[0];
  CHECK(run.date == "30-Apr-21-20:25:29");
  CHECK(run.tensor_mib == 1.0);
  CHECK(run.allocated_mib == 2.0);
  REQUIRE(run.blocks.size() == 3);
  CHECK(run.blocks[0].where == "main.cpp line 10: main");
  const LogBlock& second = run.blocks[1];
  CHECK(second.where == "main.cpp line 12: main [step 1]");
  CHECK(second.tensor_mib == 15.8);
  REQUIRE(second.rows.size() == 2);
  CHECK(second.rows[0].count == 3);
  CHECK(second.rows[0].bytes == 3 * 256 * 256 * 9 * 4);
  CHECK(second.rows[0].exact);
  CHECK(second.rows[0].size == "(256, 256, 3, 3)");
  CHECK(second.rows[0].role == "Parameter");
  CHECK(second.rows[1].last == "aten::randn [warm | up]");
  CHECK(second.born_bytes() == 3 * 256 * 256 * 9 * 4 + 8 * kMiB);
  REQUIRE(second.notes.size() == 1);
  CHECK(run.blocks[2].died_bytes() == 4 * kMiB);
  CHECK_FALSE(run.blocks[2].allocated_mib.has_value());
  CHECK(run.cut_rows == 0);
}

TEST_CASE("the log of Pytorch-Memory-Utils' README adds up, rows against totals") {
  const absl::StatusOr<MemoryLog> log = read_log("tests/tracker/python_gpu_mem_track.txt");
  REQUIRE(log.ok());
  REQUIRE(log->runs.size() == 1);
  CHECK(log->unread_lines == 0);
  const LogRun& run = log->runs[0];
  REQUIRE(run.blocks.size() == 5);
  CHECK(run.allocated_mib == 0.0);  // that header says Total Used Memory
  CHECK(run.blocks[1].rows.size() == 12);
  CHECK(run.blocks[1].rows[0].role == "Parameter");
  CHECK(run.blocks[2].rows[0].role == "Tensor");
  int64_t bytes = 0;
  for (const LogBlock& block : run.blocks) {
    bytes += block.born_bytes() - block.died_bytes();
    REQUIRE(block.tensor_mib.has_value());
    // 76.387 is shown as 76.4.
    CHECK(std::abs(static_cast<double>(bytes) / kMiB - *block.tensor_mib) <= 0.05);
  }
  CHECK(bytes == 80097536 + (90 + 180 + 240) * kMiB);

  const std::string summary = log_summary(*log);
  CHECK(contains(summary, "5 blocks"));
  CHECK(contains(
      summary,
      "Total Tensor Used Memory: from 0.0 to 586.4 MiB, highest 1066.4 at main.py line 23: "
      "<module>"));
  CHECK(
      contains(summary,
               "Biggest step: +600.0 MiB, of 600.0 MiB born and 0.0 MiB gone, at main.py line 23: "
               "<module>"));
  CHECK(contains(summary, "What never came back: 586.4 MiB born in this log and alive at its end"));
  CHECK(contains(
      summary,
      "  240.0 MiB, 1 * Tensor (80, 3, 512, 512) torch.float32, born before main.py line 23: "
      "<module>"));
  CHECK_FALSE(contains(summary, "(40, 3, 512, 512) torch.float32, born"));
}

TEST_CASE(
    "bytes are exact where size and dtype agree with the column, else they are the column's") {
  const auto row = [](const std::string& text) {
    const MemoryLog log = parsed(
        std::string("GPU Memory Track | x | Total Tensor Used Memory:0.0    Mb Total Allocated "
                    "Memory:0.0    Mb\n") +
        text +
        "\nAt a line 1: f  Total Tensor Used Memory:0.0    Mb Total Allocated Memory:0.0    Mb\n");
    REQUIRE(log.runs[0].blocks.size() == 1);
    REQUIRE(log.runs[0].blocks[0].rows.size() == 1);
    return log.runs[0].blocks[0].rows[0];
  };
  CHECK(row("+ | 1 * Size:(10,)                | Memory: 3.815e-05 M | Tensor               | "
            "torch.float32 | a")
            .bytes == 40);
  CHECK(row("+ | 1 * Size:()                   | Memory: 3.815e-06 M | Tensor               | "
            "torch.float32 | a")
            .bytes == 4);
  CHECK(row("+ | 2 * Size:(64,)                | Memory: 0.0004 M | Parameter            | "
            "torch.float32 | a")
            .bytes == 512);
  CHECK(row("+ | 1 * Size:(1000003,)           | Memory: 3.8147 M | Tensor               | "
            "torch.float32 | a")
            .bytes == 4000012);
  // A view was described, the storage is larger.
  const LogRow larger =
      row("+ | 1 * Size:(10,)                | Memory: 16.0 M | Tensor               | "
          "torch.float32 | a");
  CHECK(larger.bytes == 16 * kMiB);
  CHECK_FALSE(larger.exact);
  CHECK(row("+ | 1 * Size:(?)                  | Memory: 2.0 M | Tensor               | ? | a")
            .bytes == 2 * kMiB);
  CHECK(row("+ | 1 * Size:(99999999999, 99999999999, 99) | Memory: 1.0 M | Tensor               | "
            "torch.float32 | a")
            .bytes == kMiB);
}

TEST_CASE("several runs in one file, a cut block, windows line ends and lines of another kind") {
  std::string text(kOurs);
  text +=
      "+ | 1 * Size:(1024, 1024)         | Memory: 4.0 M | Tensor               | torch.float32 | "
      "aten::ra";
  text += "\n";
  text += kOurs;
  text += "something else\n";
  MemoryLog log = parsed(text);
  REQUIRE(log.runs.size() == 2);
  CHECK(log.runs[0].cut_rows == 1);
  CHECK(log.runs[1].cut_rows == 0);
  CHECK(log.unread_lines == 1);
  const std::string summary = log_summary(log);
  CHECK(contains(summary, "The log ends within a block: 1 row without"));
  CHECK(contains(summary, "1 line of it could not be read"));

  std::string windows;
  for (const char c : std::string(kOurs))
    windows += c == '\n' ? std::string("\r\n") : std::string(1, c);
  CHECK(parsed(windows).runs[0].blocks.size() == 3);

  // Cut anywhere, it is read as far as it goes.
  const std::string ours(kOurs);
  for (size_t length = ours.find("\n\n") + 2; length < ours.size(); ++length) {
    const absl::StatusOr<MemoryLog> part = parse_log(ours.substr(0, length), "part");
    REQUIRE(part.ok());
    REQUIRE(part->runs[0].blocks.size() <= 3);
    REQUIRE_FALSE(log_summary(*part).empty());
  }
}

TEST_CASE("whatever bytes stand in a log, it is read or refused") {
  std::mt19937 random(7);
  const std::string pieces[] = {
      "1e300", "-1", "99999999999999999999", " | ", "Size:(", "Memory: ", "\n", "nan", "(", "inf",
      "?",     "At "};
  for (int round = 0; round < 3000; ++round) {
    std::string text(kOurs);
    for (int change = 0; change < 4; ++change) {
      const size_t at = random() % text.size();
      switch (random() % 3) {
        case 0:
          text[at] = static_cast<char>(random());
          break;
        case 1:
          text.erase(at, random() % 40);
          break;
        default:
          text.insert(at, pieces[random() % std::size(pieces)]);
      }
      if (text.empty()) text = "x";
    }
    const absl::StatusOr<MemoryLog> log = parse_log(text, "noise");
    if (!log.ok()) continue;
    REQUIRE_FALSE(log_summary(*log).empty());
    REQUIRE_FALSE(log_svg(*log).empty());
    REQUIRE_FALSE(log_comparison(*log, parsed(kOurs)).empty());
    for (const LogRun& run : log->runs) log_plot(run);
  }
}

TEST_CASE("what is no log is an error that names the file") {
  CHECK_FALSE(parse_log("", "empty.txt").ok());
  const absl::StatusOr<MemoryLog> other = parse_log("hello\nworld\n", "other.txt");
  REQUIRE_FALSE(other.ok());
  CHECK(contains(std::string(other.status().message()), "other.txt: this is no log"));
  const absl::StatusOr<MemoryLog> missing = read_log("/no/such/log.txt");
  REQUIRE_FALSE(missing.ok());
  CHECK(contains(std::string(missing.status().message()), "/no/such/log.txt"));
  CHECK(message_of(read_log("/")) == "/: a folder; expected a log of MemTracker or gpu_mem_track");
}

TEST_CASE(
    "a line, a block and what comes before the log have a limit, and the error names the line") {
  const std::string expected = "; expected a log of MemTracker or gpu_mem_track";
  CHECK(message_of(read_log("/dev/zero")) ==
        "/dev/zero: line 1: longer than 1048576 bytes" + expected);
  CHECK(message_of(parse_log(kOurs + std::string(size_t{3} << 20, 'x'), "long")) ==
        "long: line 16: longer than 1048576 bytes" + expected);

  std::string rows(kOurs);
  const std::string row = "+ | 1 * Size:(10,) | Memory: 1.0 M | Tensor | torch.float32 | ";
  const std::string wide_row = row + std::string(1 << 19, 'x') + "\n";
  for (size_t size = 0; size <= kMostBytesOfBlock; size += wide_row.size()) rows += wide_row;
  const std::string too_many = message_of(parse_log(rows, "rows"));
  CHECK(contains(
      too_many,
      "rows: line 271: a block of more than 134217728 bytes, and its At line has not come yet" +
          expected));

  std::string other;
  while (other.size() <= kMostBytesBeforeLog) other += "loss 0.1\n";
  CHECK(contains(message_of(parse_log(other, "other")),
                 ": neither a header nor an At line in 16777216 bytes" + expected));
  CHECK(parse_log(other.substr(0, 1 << 20) + kOurs, "mixed").ok());
}

TEST_CASE("a pipe is read where somebody writes to it, and refused where nobody does") {
  const std::string path = std::string(std::getenv("TEST_TMPDIR")) + "/pipe";
  REQUIRE(::mkfifo(path.c_str(), 0600) == 0);
  CHECK(message_of(read_log(path)) ==
        path + ": a pipe that nobody writes to; expected a log of MemTracker or gpu_mem_track");
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  REQUIRE(::write(ends[1], kOurs, sizeof kOurs - 1) == sizeof kOurs - 1);
  ::close(ends[1]);
  const absl::StatusOr<MemoryLog> log = read_log("/dev/fd/" + std::to_string(ends[0]));
  REQUIRE(log.ok());
  CHECK(log->runs[0].blocks.size() == 3);
  ::close(ends[0]);
}

// Rows that leak one tensor a block, each from a place of its own.
std::string block_at(int place) {
  return "+ | 1 * Size:(1024, 256) | Memory: 1.0 M | Tensor | torch.float32 | x\n\nAt a.cc line " +
         std::to_string(place) + ": f  Total Tensor Used Memory:" + std::to_string(place) +
         ".0    Mb Total Allocated Memory:?      Mb\n\n";
}

TEST_CASE("what differs in a log has a limit") {
  std::string text;
  for (int place = 1; place <= 1000; ++place) text += block_at(place);
  LogDigest enough("log", 1 << 20);
  CHECK(visit_log_text(text, "log", enough).ok());
  LogDigest small("log", 1 << 16);
  const absl::StatusOr<int64_t> refused = visit_log_text(text, "log", small);
  CHECK(refused.status().code() == absl::StatusCode::kResourceExhausted);
  CHECK(contains(std::string(refused.status().message()), "log: line "));
  CHECK(contains(std::string(refused.status().message()),
                 "expected a log whose lines repeat themselves"));

  // What repeats itself takes nothing.
  LogDigest same("log", 1 << 20);
  std::string again;
  for (int i = 0; i < 10000; ++i) again += block_at(7);
  CHECK(visit_log_text(again, "log", same).ok());
  CHECK(same.runs[0].size() < 10000 * sizeof(LogPoint) + 4096);
}

TEST_CASE("of millions of blocks the picture shows the highest of each few") {
  constexpr int64_t kBlocks = (int64_t{1} << 21) + 11;
  LogDigest digest("log");
  REQUIRE(digest.begin_run({}).ok());
  LogBlock block;
  block.where = "a.cc line 1: f";
  LogBlock high;
  high.where = "a.cc line 2: f";
  high.tensor_mib = 77.0;
  for (int64_t i = 0; i < kBlocks; ++i) {
    block.tensor_mib = static_cast<double>(i % 7);
    REQUIRE(digest.add_block(i == 1000001 ? high : block).ok());
  }
  const LogRunDigest& run = digest.runs[0];
  CHECK(run.blocks == kBlocks);
  CHECK(run.blocks_per_point == 2);
  REQUIRE(run.points.size() == (size_t{1} << 20) + 6);
  CHECK(run.points[1000001 / 2].tensor_mib == 77.0);
  CHECK(run.points[1000001 / 2].place == 1);
  CHECK(run.highest->first == 77.0);
  CHECK(contains(log_plot(run), "      77.0 |"));
  const std::string svg = log_svg(digest);
  CHECK(contains(svg, "a.cc line 2: f: 77.0 MiB"));
  CHECK(contains(svg, ">2097163 blocks<"));
  CHECK(svg.size() < size_t{20} << 20);
  CHECK(contains(std::string(log_comparison(digest, digest).status().message()),
                 "log: 2097163 blocks; expected at most "));
}

TEST_CASE(
    "names in a log forge no line and obey no terminal, and a long one is cut in the picture") {
  std::string text(kOurs);
  text.replace(text.find("main.cpp line 12: main [step 1]"), 31,
               "main.cpp line 12: \x1b[2J\r\xff<&> [\xc2\x9b"
               "1m]");
  text.replace(text.find("aten::randn [warm | up]"), 23, "aten::\x1b]0;x\x07");
  const MemoryLog log = parsed(text);
  for (const std::string& shown :
       {log_summary(log), log_comparison(log, log), log_plot(log.runs[0]), log_svg(log)}) {
    for (const char c : shown) REQUIRE((static_cast<unsigned char>(c) >= 0x20 || c == '\n'));
    CHECK_FALSE(contains(shown, "\xc2\x9b"));
    CHECK_FALSE(contains(shown, "\xff"));
  }
  CHECK(contains(log_summary(log), "main.cpp line 12: \\x1b[2J\\x0d\\xff<&> [\\u009b1m]"));
  CHECK(contains(log_svg(log), "\\x1b[2J\\x0d\\xff&lt;&amp;&gt;"));
  MemoryLog wide = log;
  wide.runs[0].blocks[0].where = std::string(100000, 'w');
  CHECK(log_svg(wide).size() < 10000);
}

TEST_CASE("what grew is summed by line; what has gone is taken from the oldest births") {
  std::string text =
      "GPU Memory Track | d | Total Tensor Used Memory:0.0    Mb Total Allocated Memory:0.0    "
      "Mb\n\n\n";
  for (int step = 1; step <= 4; ++step) {
    text +=
        "+ | 2 * Size:(1024, 256)          | Memory: 2.0 M | Tensor               | torch.float32 "
        "| aten::ones\n";
    if (step > 1)
      text +=
          "- | 1 * Size:(1024, 256)          | Memory: 1.0 M | Tensor               | "
          "torch.float32 | aten::ones\n";
    text += "\nAt loop.cc line 7: main   Total Tensor Used Memory:" + std::to_string(step + 1) +
            ".0    Mb Total Allocated Memory:9.0    Mb\n\n";
  }
  const MemoryLog log = parsed(text);
  const std::string summary = log_summary(log);
  CHECK(contains(summary, "  +5.0 MiB in 4 blocks, 4 of which grew: loop.cc line 7: main\n"));
  CHECK(contains(summary, "What never came back: 5.0 MiB born"));
  CHECK(
      contains(summary,
               "  5.0 MiB, 5 * Tensor (1024, 256) torch.float32, born before loop.cc line 7: main: "
               "aten::ones\n"));
}

TEST_CASE("what never came back: deaths from before the log undo nothing, and roles may change") {
  const std::string header =
      "GPU Memory Track | d | Total Tensor Used Memory:9.0    Mb Total Allocated Memory:9.0    "
      "Mb\n\n\n";
  const auto block = [](const std::string& rows) {
    return rows +
           "\nAt a.cc line 1: f   Total Tensor Used Memory:9.0    Mb Total Allocated Memory:9.0    "
           "Mb\n\n";
  };
  const auto row = [](char sign, int count, const std::string& role, const std::string& size) {
    return std::string(1, sign) + " | " + std::to_string(count) + " * Size:" + size +
           " | Memory: " + std::to_string(count) + ".0 M | " + role + " | torch.float32 | x\n";
  };
  const std::string size = "(1024, 256)";
  const std::string before_the_log = log_summary(
      parsed(header + block(row('-', 2, "Tensor", size)) + block(row('+', 1, "Tensor", size))));
  CHECK(
      contains(before_the_log,
               "  1.0 MiB, 1 * Tensor (1024, 256) torch.float32, born before a.cc line 1: f: x\n"));

  const std::string became = log_summary(
      parsed(header + block(row('+', 1, "Tensor", size)) + block(row('-', 1, "Parameter", size))));
  CHECK(contains(became, "What never came back: nothing\n"));

  // Its own role first; what is of another size stays.
  const std::string both =
      log_summary(parsed(header +
                         block(row('+', 2, "Tensor", size) + row('+', 2, "Parameter", size) +
                               row('+', 1, "Tensor", "(256, 1024)")) +
                         block(row('-', 3, "Parameter", size))));
  CHECK(contains(both, "What never came back: 2.0 MiB born"));
  CHECK(contains(both, "  1.0 MiB, 1 * Tensor (1024, 256) torch.float32"));
  CHECK(contains(both, "  1.0 MiB, 1 * Tensor (256, 1024) torch.float32"));
  CHECK_FALSE(contains(both.substr(both.find("What never came back")), "* Parameter"));

  const MemoryLog none = parsed(header + block(""));
  CHECK(contains(log_comparison(none, parsed(header + block(row('-', 1, "Tensor", size)))),
                 "Alive at the end: the same in both\n"));
}

TEST_CASE("the plot's columns are as high as the totals") {
  const MemoryLog log = parsed(kOurs);
  const std::string plot = log_plot(log.runs[0], 52, 10);
  CHECK(contains(plot, "      17.8 |"));
  CHECK(contains(plot, "       0.0 |"));
  // Four values (the header's is the first) in forty columns: ten each. 15.8 of 17.8 in ten lines
  // are nine, 11.8 seven.
  size_t tall = 0, medium = 0, line_number = 0;
  size_t at = 0;
  for (size_t end = plot.find('\n'); end != std::string::npos;
       at = end + 1, end = plot.find('\n', at), ++line_number) {
    const std::string line = plot.substr(at, end - at);
    if (line_number >= 10) break;
    tall += line.size() > 12 + 25 && line[12 + 25] == '#';
    medium += line.size() > 12 + 35 && line[12 + 35] == '#';
  }
  CHECK(line_number == 10);
  CHECK(tall == 9);
  CHECK(medium == 7);
  CHECK(log_plot(LogRun()).empty());
}

TEST_CASE("the SVG has a point for each block, and escapes names") {
  MemoryLog log = parsed(kOurs);
  log.runs[0].blocks[0].where = "a<b>&\"c\" line 1: f";
  const std::string svg = log_svg(log);
  CHECK(svg.rfind("<svg ", 0) == 0);
  CHECK(contains(svg, "a&lt;b&gt;&amp;&quot;c&quot; line 1: f: 1.0 MiB"));
  size_t points = 0;
  for (size_t at = svg.find("<circle"); at != std::string::npos; at = svg.find("<circle", at + 1))
    ++points;
  CHECK(points == 3);
  CHECK(contains(svg, "<polyline"));
}

TEST_CASE(
    "two logs: the same places side by side, what is only in one, and what is left at the end") {
  const MemoryLog before = parsed(kOurs);
  std::string changed(kOurs);
  const std::string freed = "- | 1 * Size:(1024, 1024)         | Memory: 4.0 M ";
  changed.replace(changed.find(freed), freed.size(),
                  "- | 2 * Size:(1024, 1024)         | Memory: 8.0 M ");
  changed.replace(changed.find("Memory:11.8"), 11, "Memory:7.8 ");
  changed +=
      "At other.cpp line 3: g   Total Tensor Used Memory:7.8    Mb Total Allocated Memory:9.0    "
      "Mb\n";
  const MemoryLog after = parsed(changed);
  const std::string text = log_comparison(before, after);
  CHECK(contains(text, "        15.8        15.8        +0.0  main.cpp line 12: main [step 1]\n"));
  CHECK(contains(text, "        11.8         7.8        -4.0  main.cpp line 14: main\n"));
  CHECK(contains(text, "           -         7.8              other.cpp line 3: g\n"));
  CHECK(contains(text,
                 "Alive at the end, B - A:\n  -4.0 MiB, -1 * Tensor (1024, 1024) torch.float32\n"));
  CHECK(contains(log_comparison(before, before), "Alive at the end: the same in both\n"));

  // Lines that moved are matched by function and label.
  std::string moved(kOurs);
  for (const char* line : {"line 10", "line 12", "line 14"})
    moved.replace(moved.find(line), 7, std::string("line 9") + line[6]);
  CHECK(contains(log_comparison(before, parsed(moved)),
                 "main.cpp line 12: main [step 1] | main.cpp line 92: main [step 1]\n"));
}

TEST_SUITE_END();

}  // namespace
}  // namespace memledger
