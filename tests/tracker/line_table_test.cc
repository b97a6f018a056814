#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "tracker/line_table.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "tracker/lines/function_source.h"
#include "tracker/lines/program_functions.h"

namespace {

using memledger::LineColumn;
using memledger::LineFigures;
using memledger::LineProfile;
using memledger::LineRow;
using memledger::LineTable;

constexpr int64_t kKiB = 1024;

LineFigures figures(int64_t active, int64_t reserved) {
  LineFigures result;
  result.peak[LineColumn::parse("active_bytes.all.peak")->stat] = active;
  result.peak[LineColumn::parse("reserved_bytes.all.peak")->stat] = reserved;
  result.events = 1;
  return result;
}

LineRow row(int64_t line, std::string code, int64_t active, int64_t reserved) {
  LineRow result;
  result.line = line;
  result.code = std::move(code);
  result.figures = figures(active, reserved);
  return result;
}

// The README of pytorch_memlab.
LineTable readme() {
  LineTable table;
  table.function = "outer";
  table.file = "a<b>.py";
  table.rows = {row(7, "def outer():", 0, 0),
                row(8, "    linear = torch.nn.Linear(100, 100).cuda()", 40 * kKiB, 2048 * kKiB),
                row(9, "    linear2 = torch.nn.Linear(100, 100).cuda()", 80 * kKiB, 2048 * kKiB),
                row(10, "    inner()", 120 * kKiB, 2048 * kKiB)};
  return table;
}

TEST_CASE("the text is the original's") {
  std::ostringstream out;
  write_text(out, readme(), memledger::default_line_columns());
  CHECK(out.str() ==
        "## outer\n"
        "\n"
        "active_bytes reserved_bytes line  code\n"
        "         all            all\n"
        "        peak           peak\n"
        "       0.00B          0.00B    7  def outer():\n"
        "      40.00K          2.00M    8      linear = torch.nn.Linear(100, 100).cuda()\n"
        "      80.00K          2.00M    9      linear2 = torch.nn.Linear(100, 100).cuda()\n"
        "     120.00K          2.00M   10      inner()\n"
        "allocated 0.00B, freed 0.00B, left behind 0.00B\n");
}

TEST_CASE("the sums add up, wherever what was allocated has been freed") {
  const auto last_line = [](int64_t allocated, int64_t freed, int64_t left) {
    LineTable table;
    table.total.line_allocated = allocated * kKiB;
    table.total.line_freed = freed * kKiB;
    table.total.line_left = left * kKiB;
    std::ostringstream out;
    write_text(out, table, memledger::default_line_columns());
    const std::string text = out.str();
    return text.substr(text.rfind('\n', text.size() - 2) + 1);
  };
  CHECK(last_line(10, 6, 4) == "allocated 10.00K, freed 6.00K, left behind 4.00K\n");
  CHECK(last_line(112, 73, 0) ==
        "allocated 112.00K, freed 73.00K, freed elsewhere or later 39.00K, left behind 0.00B\n");
  CHECK(last_line(10, 13, 1) ==
        "allocated 10.00K, freed 13.00K (4.00K of it allocated elsewhere), left behind 1.00K\n");
}

TEST_CASE(
    "a line without events is blank, an unknown figure is ?, control characters are shown, not "
    "sent") {
  LineTable table = readme();
  table.rows[1].figures.reset();
  const size_t stat = LineColumn::parse("active_bytes.all.peak")->stat;
  table.rows[2].figures->current[stat] = LineFigures::kUnknown;
  table.rows[3].code = "\tx(\"\x1b[31m\");";
  std::ostringstream out;
  write_text(out, table, {*LineColumn::parse("active_bytes.all.peak")});
  CHECK(out.str().find("\n                8      linear = ") != std::string::npos);
  CHECK(out.str().find("\n           ?    9  ") != std::string::npos);
  CHECK(out.str().find("10      x(\"\\x1b[31m\");\n") != std::string::npos);
}

TEST_CASE("every column has a name that is read back") {
  for (const char* const name : {"allocation.all.current", "segment.small_pool.peak",
                                 "active.large_pool.allocated", "inactive_split_bytes.all.freed",
                                 "requested_bytes.all.peak", "line.allocated", "line.left"}) {
    const auto column = LineColumn::parse(name);
    REQUIRE_MESSAGE(column, name);
    CHECK(column->name() == name);
  }
  for (const char* const name : {"", "active_bytes", "active_bytes.all", "active_bytes.all.peak.",
                                 "Active_bytes.all.peak", "line.peak"}) {
    CHECK_MESSAGE(!LineColumn::parse(name), name);
  }
  CHECK(LineColumn::parse("allocation.all.current")->is_bytes() == false);
}

TEST_CASE("folding: the highest peak with its time, sums of what was allocated") {
  LineFigures first = figures(100, 50), second = figures(300, 20);
  first.peak_time_ns = 1;
  second.peak_time_ns = 2;
  first.line_allocated = 10;
  second.line_allocated = 5;
  second.line_freed = 3;
  first.fold(second);
  CHECK(first.value(*LineColumn::parse("active_bytes.all.peak")) == 300);
  CHECK(first.value(*LineColumn::parse("reserved_bytes.all.peak")) == 50);
  CHECK(first.peak_time_ns == 2);
  CHECK(first.line_allocated == 15);
  CHECK(first.line_freed == 3);
  CHECK(first.events == 2);
}

TEST_CASE("HTML and JSON escape what the program wrote") {
  LineProfile profile;
  profile.device = "cuda:0";
  profile.tables = {readme()};
  profile.tables[0].function = "f<\"&>";
  profile.tables[0].rows[3].code = "if (a < b && c > \"d\\n\")  // </td><script>alert(1)</script>";
  std::ostringstream html, json;
  write_html(html, profile, memledger::default_line_columns());
  CHECK(html.str().find("<script") == std::string::npos);
  CHECK(html.str().find("&lt;/td&gt;&lt;script&gt;") != std::string::npos);
  CHECK(html.str().find("f&lt;&quot;&amp;&gt;") != std::string::npos);
  CHECK(html.str().find("http") == std::string::npos);
  CHECK(html.str().find("background-size:33.3% 100%\">40.00K") != std::string::npos);
  write_json(json, profile, memledger::default_line_columns());
  CHECK(json.str().find("\"function\":\"f<\\\"&>\"") != std::string::npos);
  CHECK(json.str().find("\\\"d\\\\n\\\"") != std::string::npos);
  CHECK(json.str().find("\"active_bytes.all.peak\":122880") != std::string::npos);
}

TEST_CASE("JSON has every figure once, and null where nothing was seen") {
  LineProfile profile;
  profile.device = "cpu";
  LineTable table;
  table.function = "f";
  table.rows = {row(0, "(not in its lines)", 300, 400), LineRow()};
  table.rows[0].figures->line_allocated = 20;
  table.rows[1].line = 8;
  profile.tables = {table};
  std::ostringstream out;
  write_json(out, profile,
             {*LineColumn::parse("line.allocated"), *LineColumn::parse("active_bytes.all.peak"),
              *LineColumn::parse("active_bytes.all.peak")});
  CHECK(out.str() ==
        "{\"schema\":\"memledger.line_profile/2\",\"device\":\"cpu\",\"functions\":[\n"
        "{\"function\":\"f\",\"file\":null,\"total\":null,\"lines\":[\n"
        "  {\"line\":null,\"code\":\"(not in its lines)\",\"allocated_bytes\":20,"
        "\"freed_bytes\":0,\"left_bytes\":0,\"active_bytes.all.peak\":300},\n"
        "  {\"line\":8,\"code\":\"\",\"allocated_bytes\":null,\"freed_bytes\":null,"
        "\"left_bytes\":null,\"active_bytes.all.peak\":null}],\"notes\":[]}],\"notes\":[]}\n");
}

TEST_CASE("names without results, parameters and template arguments") {
  using memledger::qualified_name;
  CHECK(qualified_name("main") == "main");
  CHECK(qualified_name("Net::forward(at::Tensor const&)") == "Net::forward");
  CHECK(qualified_name("Net::size() const") == "Net::size");
  CHECK(qualified_name("std::vector<int, std::allocator<int> > app::make<int>(long)") ==
        "app::make");
  CHECK(qualified_name("at::Tensor (anonymous namespace)::make<int>(long)") ==
        "(anonymous namespace)::make");
  CHECK(qualified_name("train(int)::{lambda(auto:1)#2}::operator()(long) const") ==
        "train::{lambda#2}");
  CHECK(qualified_name("Functor::operator()(int) const") == "Functor::operator()");
  CHECK(qualified_name("Functor::operator<(Functor const&)") == "Functor::operator<");
  CHECK(qualified_name("app::names[abi:cxx11](int)") == "app::names");
  CHECK(qualified_name("Box<(Color)1>::open()") == "Box::open");
}

TEST_CASE("functions of this program, by name and by address") {
  const memledger::ProgramFunctions functions = memledger::ProgramFunctions::read();
  const auto found = functions.named("memledger::qualified_name");
  REQUIRE(!found.empty());
  CHECK_FALSE(found.front()->part);
  for (size_t i = 1; i < found.size(); ++i) CHECK(found[i]->part);
  CHECK(functions.named("qualified_name") == found);
  CHECK(functions.named("ualified_name").empty());
  CHECK(memledger::is_named("a::f", "a::f"));
  CHECK(memledger::is_named("a::f", "f"));
  CHECK_FALSE(memledger::is_named("f", "a::f"));
  CHECK_FALSE(memledger::is_named("a:f", "f"));
  const auto address = reinterpret_cast<uintptr_t>(&memledger::qualified_name);
  CHECK(found.front()->begin == address);
  CHECK(functions.at(address + 1) == found.front());
  CHECK(functions.at(0) == nullptr);
}

TEST_CASE("sources: as they are, then by the ends of their paths in MEMLEDGER_SOURCES") {
  namespace fs = std::filesystem;
  const char* const temporary = std::getenv("TEST_TMPDIR");
  const fs::path folder =
      fs::path(temporary == nullptr ? "/tmp" : temporary) / ("sources-" + std::to_string(getpid()));
  const fs::path near = folder / "near", far = folder / "far";
  fs::create_directories(near);
  fs::create_directories(far / "src");
  for (const fs::path& file : {near / "net.cc", far / "net.cc", far / "src" / "net.cc"})
    std::ofstream(file) << "int main() {}\n";
  setenv("MEMLEDGER_SOURCES", far.c_str(), 1);
  CHECK(memledger::find_source(near / "net.cc") == near / "net.cc");
  CHECK(memledger::find_source("/no/such/app/src/net.cc") == far / "src" / "net.cc");
  CHECK(memledger::find_source("/no/such/app/other/net.cc") == far / "net.cc");
  CHECK(memledger::find_source("../app/src/net.cc") == far / "src" / "net.cc");
  CHECK(memledger::find_source("/no/such/app/none.cc").empty());
  setenv("MEMLEDGER_SOURCES", (near.string() + ":" + far.string()).c_str(), 1);
  CHECK(memledger::find_source("/no/such/app/src/net.cc") == near / "net.cc");
  unsetenv("MEMLEDGER_SOURCES");
  CHECK(memledger::find_source("/no/such/app/src/net.cc").empty());
  fs::remove_all(folder);
}

TEST_CASE("a function ends at its brace, not at one in a string or comment") {
  const std::vector<std::string> lines = {
      "void f(int a,",                     // 1
      "       int b) {",                   // 2
      "  // }",                            // 3
      "  const char* text = \"}\\\"}\";",  // 4
      "  char c = '}'; int n = 1'000;",    // 5
      "  /* } */ if (a) { b(); }",         // 6
      "  auto raw = R\"x( } )\" } )x\";",  // 7
      "}",                                 // 8
      "void g();",                         // 9
      "void h() { }",                      // 10
  };
  CHECK(memledger::last_line_of_function(lines, 1) == 8);
  CHECK(memledger::last_line_of_function(lines, 9) == 9);
  CHECK(memledger::last_line_of_function(lines, 10) == 10);
  CHECK(memledger::last_line_of_function(lines, 77) == 77);
  CHECK_FALSE(memledger::has_code(lines[7]));
  CHECK_FALSE(memledger::has_code(lines[2]));
  CHECK(memledger::has_code(lines[4]));
}

}  // namespace
