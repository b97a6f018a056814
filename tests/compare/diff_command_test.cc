// The command on files: what it returns and writes.

#include "runner/diff_command.h"

#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "tests/compare/made_files.h"
#include "text/file_text.h"
#include "text/json.h"

namespace memledger::runner {
namespace {

using compare::MadeRun;

std::string folder() {
  const char* const temporary = std::getenv("TEST_TMPDIR");
  return temporary == nullptr ? "/tmp" : temporary;
}

std::string file(const std::string& name, const std::string& text) {
  const std::string path = folder() + "/" + name;
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  std::ofstream(path, std::ios::binary) << text;
  return path;
}

DiffOptions diff(const std::string& before, const std::string& after) {
  DiffOptions options;
  options.files = {before, after};
  return options;
}

MadeRun run_of(int64_t bytes) { return {bytes, {{"w", bytes, "parameter", "fc"}}}; }

TEST_CASE("the status is 0, and 1 only where it was asked for") {
  const std::string small = file("small.json", run_report(run_of(1000)));
  const std::string large = file("large.json", run_report(run_of(1010)));
  CHECK(diff_command(diff(small, large)) == 0);
  DiffOptions options = diff(small, large);
  options.exit_code = true;
  CHECK(diff_command(options) == 1);
  options.files = {small, small};
  CHECK(diff_command(options) == 0);
  options = diff(small, large);
  options.limit = compare::Limit{0.01, 0};
  CHECK(diff_command(options) == 0);
  options.limit = compare::Limit{0, 9};
  CHECK(diff_command(options) == 1);
  options.files = {large, small};
  CHECK(diff_command(options) == 0);
}

TEST_CASE("the status is 2 for what cannot be read, compared or written") {
  const std::string run = file("run.json", run_report(run_of(1000)));
  const std::string log = file("log.txt", "GPU Memory Track | 30-Apr-21-20:25:29 | Total\n");
  CHECK(diff_command(diff(run, folder() + "/none.json")) == 2);
  CHECK(diff_command(diff(run, file("empty.json", ""))) == 2);
  CHECK(diff_command(diff(run, log)) == 2);
  CHECK(diff_command(diff(log, run)) == 2);
  DiffOptions options = diff(log, log);
  options.markdown = true;
  CHECK(diff_command(options) == 2);
  options = diff(run, run);
  options.json = true;
  options.json_file = folder() + "/no/such/folder/d.json";
  CHECK(diff_command(options) == 2);
}

TEST_CASE("two logs are compared as memledger log does") {
  const std::string text =
      "GPU Memory Track | 30-Apr-21-20:25:29 | Total Tensor Used Memory:0.0    Mb Total Allocated "
      "Memory:0.0    Mb\n\n\nAt main.cpp line 10: main                             Total Tensor "
      "Used Memory:1.0    Mb Total Allocated Memory:2.0    Mb\n";
  CHECK(diff_command(diff(file("a.txt", text), file("b.txt", text))) == 0);
}

TEST_CASE("folders are runs of several processes, and JSON has all of them") {
  for (const int rank : {0, 1}) {
    MadeRun old = run_of(64), now = run_of(64 + 8 * rank);
    old.rank = now.rank = rank;
    file("old/" + std::to_string(rank) + ".json", run_report(old));
    file("now/" + std::to_string(rank) + ".json", run_report(now));
  }
  DiffOptions options = diff(folder() + "/old", folder() + "/now");
  options.json = true;
  options.json_file = folder() + "/diff.json";
  CHECK(diff_command(options) == 0);
  const Json json = Json::parse(file_text(options.json_file));
  CHECK(json["schema"] == "memledger.diff/1");
  REQUIRE(json["devices"].size() == 2);
  CHECK(json["devices"][1]["rank"] == 1);
  CHECK(json["devices"][1]["bytes"] == 8);
  std::filesystem::create_directories(folder() + "/nothing");
  options.files[0] = folder() + "/nothing";
  CHECK(diff_command(options) == 2);
}

}  // namespace
}  // namespace memledger::runner
