#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "runner/environment.h"

#include <doctest/doctest.h>

#include <map>
#include <string>

namespace memledger::environment {
namespace {

using Variables = std::map<std::string, std::string>;

Lookup lookup_in(const Variables& variables) {
  return [&variables](const char* name) -> const char* {
    const auto variable = variables.find(name);
    return variable == variables.end() ? nullptr : variable->second.c_str();
  };
}

void change(const std::vector<Variable>& changes, Variables& variables) {
  for (const Variable& variable : changes) {
    if (variable.value) {
      variables[variable.name] = *variable.value;
    } else {
      variables.erase(variable.name);
    }
  }
}

void check_round_trip(const Settings& settings, Variables variables = {}) {
  change(format(settings), variables);
  const Settings result = parse(lookup_in(variables));
  CHECK(result.report == settings.report);
  CHECK(result.full_report == settings.full_report);
  CHECK(result.quiet == settings.quiet);
  CHECK(result.log_folder == settings.log_folder);
  CHECK(result.saved_report == settings.saved_report);
  CHECK(result.timeline == settings.timeline);
  CHECK(result.stacks == settings.stacks);
  CHECK(result.detail == settings.detail);
  CHECK(result.report_on == settings.report_on);
  CHECK(result.report_near == settings.report_near);
  CHECK(result.training_paused == settings.training_paused);
  CHECK(result.process == settings.process);
  CHECK(result.folder == settings.folder);
  CHECK(result.lines.functions == settings.lines.functions);
  CHECK(result.lines.columns == settings.lines.columns);
  CHECK(result.lines.gpu == settings.lines.gpu);
  CHECK(result.lines.text_file == settings.lines.text_file);
  CHECK(result.lines.json_file == settings.lines.json_file);
  CHECK(result.lines.html_file == settings.lines.html_file);
}

Settings all_settings() {
  Settings settings;
  settings.report = true;
  settings.full_report = true;
  settings.quiet = true;
  settings.log_folder = "logs/%r-%p";
  settings.saved_report = "r=%r.html";
  settings.timeline = "t=1.json";
  settings.stacks = "sampled";
  settings.detail = "names";
  settings.lines = {{"f", "a::operator()(int, int)"}, {"line.left", "x"}, 3, "t", "j", "h"};
  settings.report_on = "SIGUSR2";
  settings.report_near = 80;
  settings.training_paused = true;
  settings.process = 17;
  settings.folder = "/a folder";
  return settings;
}

}  // namespace

TEST_CASE("what the command asks for is what the program reads") {
  check_round_trip({});
  check_round_trip(all_settings());
  Settings lines;
  lines.lines.functions = {"f"};
  check_round_trip(lines);
  Settings quiet;
  quiet.quiet = true;
  check_round_trip(quiet);
}

TEST_CASE("what an outer run asked for is taken back, but for its paths") {
  Variables outer;
  change(format(all_settings()), outer);
  Variables inner = outer;
  change(format({}), inner);
  const Settings settings = parse(lookup_in(inner));
  CHECK_FALSE(settings.report);
  CHECK_FALSE(settings.quiet);
  CHECK(settings.lines.functions.empty());
  CHECK(settings.lines.html_file.empty());
  CHECK(settings.log_folder == "logs/%r-%p");
  CHECK(settings.saved_report == "r=%r.html");
  CHECK(settings.timeline == "t=1.json");
  Settings few;
  few.lines.functions = {"g"};
  change(format(few), outer);
  CHECK(parse(lookup_in(outer)).lines.html_file.empty());
  CHECK_FALSE(parse(lookup_in(outer)).lines.gpu);
}

TEST_CASE("the default is asked for as well, so that it wins over an outer variable") {
  Settings settings;
  settings.report_near = kDefaultReportNear;
  Variables variables = {{kReportNear, "50"}};
  change(format(settings), variables);
  CHECK(variables[kReportNear] == "95");
  variables = {{kReportNear, "50"}};
  change(format({}), variables);
  CHECK(variables[kReportNear] == "50");
}

TEST_CASE("a variable with a wrong value has its default, and is named") {
  const Variables wrong = {{kStacks, "some"},      {kDetail, "few"},     {kReportOn, "SIGKILL"},
                           {kReportNear, "abc"},   {kLines, "f"},        {kLinesGpu, "one"},
                           {kSaveReport, "r.xyz"}, {kTimeline, "t.PKL"}, {kQuiet, "1"}};
  const Settings settings = parse(lookup_in(wrong));
  CHECK(settings.stacks.empty());
  CHECK(settings.detail.empty());
  CHECK(settings.report_on.empty());
  CHECK_FALSE(settings.report_near);
  CHECK_FALSE(settings.lines.gpu);
  CHECK(settings.saved_report == "r.xyz");
  const std::vector<std::string> lines = wrong_variables(lookup_in(wrong));
  CHECK(lines.size() == 6);
  for (const std::string& line : lines) CHECK(line.rfind("MEMLEDGER_", 0) == 0);
  CHECK(lines.back() == "MEMLEDGER_LINES_GPU=one: a GPU is a number from 0 to 127");
  CHECK(wrong_variables(lookup_in({{kReportNear, "0"}, {kStacks, ""}, {kSaveReport, "r.HTM"}}))
            .empty());
}

TEST_CASE("a variable is on unless it is empty or 0") {
  for (const char* const value : {"1", "yes", "00"})
    CHECK(parse(lookup_in({{kReport, value}})).report);
  for (const char* const value : {"", "0"})
    CHECK_FALSE(parse(lookup_in({{kReport, value}})).report);
  CHECK_FALSE(parse(lookup_in({})).report);
}

TEST_CASE("the rank is the first variable that holds a number") {
  CHECK(rank(lookup_in({})) == 0);
  CHECK(rank(lookup_in({{"SLURM_PROCID", "5"}})) == 5);
  CHECK(rank(lookup_in({{"RANK", "x"}, {"PMI_RANK", "2"}, {"SLURM_PROCID", "5"}})) == 2);
}

TEST_CASE("%r is the rank, %p the process, %% a percent sign") {
  CHECK(expand("logs/%r-%p", 3, 42) == "logs/3-42");
  CHECK(expand("%%r%x%", 3, 42) == "%r%x%");
  CHECK(expand("", 3, 42).empty());
}

}  // namespace memledger::environment
