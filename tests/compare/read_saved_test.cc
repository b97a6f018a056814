// Saved files: what they say, and what a bad one is answered.

#include "compare/read_saved.h"

#include <doctest/doctest.h>

#include <string>

#include "absl/strings/match.h"
#include "tests/compare/made_files.h"

namespace memledger::compare {
namespace {

std::string error_of(const std::string& text, Moment moment = Moment::kPeak) {
  const auto saved = read_saved("f.json", text, moment);
  return saved.ok() ? "" : std::string(saved.status().message());
}

TEST_CASE("a bad file is one sentence that says what to do") {
  struct Case {
    std::string text, answer;
  };
  const std::string whole = run_report({16, {{"w", 16}}});
  for (const Case& bad : std::vector<Case>{
           {"", "f.json: it is empty; its program may have been killed"},
           {" \n", "f.json: it is empty"},
           {whole.substr(0, whole.size() / 2), "f.json: its JSON is not whole"},
           {"{", "not whole"},
           {"<!DOCTYPE html>", "it is a page; save the report as .json"},
           {"moment,schema_version,device\n", "it is CSV"},
           {"\x80\x02}q", "it is a pickle"},
           {"hello", "it is no file that can be compared; give a report"},
           {"{}", "its JSON is not memledger's"},
           {"[1]", "its JSON is not memledger's"},
           {"17", "its JSON is not memledger's"},
           {R"({"schema":7})", "its JSON is not memledger's"},
           {R"({"schema":"memledger.gpus/1"})", "memledger.gpus/1, which cannot be compared"},
           {R"({"schema":"memledger.report/9","devices":[]})",
            "it is memledger.report/9, and this memledger reads memledger.report/2"},
           {R"({"schema":"memledger.report/2"})", "`devices` is missing"},
           {R"({"schema":"memledger.report/2","devices":{}})", "`devices` is no list"},
           {R"({"schema":"memledger.report/2","devices":[3]})", "`devices[0].` is no object"},
           {R"({"schema":"memledger.fit/1","gpu":"t4","end":"found","tried":[{}]})",
            "`tried[0].value` is missing"},
       }) {
    CAPTURE(bad.text);
    const std::string error = error_of(bad.text);
    CHECK(absl::StrContains(error, bad.answer));
    CHECK(error.find('\n') == std::string::npos);
  }
}

TEST_CASE("bytes that are no whole number, below 0 or too large are refused") {
  for (const char* bytes : {"-1", "1.5", "\"16\"", "1e300", "18446744073709551615", "[]"}) {
    CAPTURE(bytes);
    const std::string text = absl::StrCat(
        R"({"schema":"memledger.report/2","devices":[{"device":"cpu","items":[],"rows":[)"
        R"({"name":"w","bytes":)",
        bytes, "}]}]}");
    CHECK(absl::StrContains(error_of(text), "`devices[0].rows[0].bytes` is"));
  }
  const int64_t half = kMaxBytes / 2 + 1;
  CHECK(absl::StrContains(error_of(report("cpu", 0, {{"a", half}, {"b", half}})), "too large"));
}

TEST_CASE("every cut of a file is refused, and none crashes") {
  const std::string whole = run_report({16, {{"w", 16, "parameter", "fc"}}});
  REQUIRE(error_of(whole).empty());
  for (size_t i = 0; i < whole.size(); ++i) {
    if (error_of(whole.substr(0, i)).empty()) FAIL("cut at " << i);
  }
}

TEST_CASE("a run without steps has none to show, and a timeline never has") {
  CHECK(absl::StrContains(error_of(run_report({16, {}}), Moment::kStep), "leave out --at=step"));
  CHECK(absl::StrContains(
      error_of(R"({"traceEvents":[],"otherData":{"schema":"memledger.timeline/2"}})",
               Moment::kStep),
      "a timeline does not know steps"));
}

// Storage 1 is there from the beginning. 2 and 3 are alive together at 2 us: 100 + 20 + 30.
std::string event(const char* what, double time, int id, int bytes, bool survives) {
  return absl::StrCat(R"({"ph":")", what, R"(","pid":1,"ts":)", time, R"(,"name":"x","id":")", id,
                      R"(","args":{"bytes":)", bytes, R"(,"alive_at_the_end":)",
                      survives ? "true" : "false", "}}");
}
std::string counter(double time, int bytes) {
  return absl::StrCat(R"({"ph":"C","pid":1,"ts":)", time, R"(,"name":"all","args":{"bytes":)",
                      bytes, "}}");
}

TEST_CASE("a timeline has the blocks of its peak, those from before it included") {
  const std::string text = absl::StrCat(
      R"({"traceEvents":[{"ph":"M","pid":1,"ts":0,"name":"process_name","args":{"name":"cpu"}},)",
      counter(0, 100), ",", counter(1, 120), ",", counter(2, 150), ",", counter(3, 130), ",",
      event("b", 0, 1, 100, true), ",", event("e", 9, 1, 0, false), ",",
      event("b", 1, 2, 20, false), ",", event("e", 3, 2, 0, false), ",", event("b", 2, 3, 30, true),
      ",", event("e", 9, 3, 0, false),
      R"(],"otherData":{"schema":"memledger.timeline/2","dropped_events":0}})");
  const auto peak = read_saved("t.json", text, Moment::kPeak);
  REQUIRE(peak.ok());
  REQUIRE(peak->accounts.size() == 1);
  CHECK(peak->accounts[0].total == 150);
  CHECK(peak->accounts[0].rows.size() == 3);
  const auto end = read_saved("t.json", text, Moment::kEnd);
  REQUIRE(end.ok());
  CHECK(end->accounts[0].total == 130);
  REQUIRE(end->accounts[0].rows.size() == 2);
  CHECK(end->accounts[0].rows[0].bytes + end->accounts[0].rows[1].bytes == 130);
}

TEST_CASE("a log is known by its first lines, and JSON is none") {
  CHECK(is_log("GPU Memory Track | 30-Apr-21-20:25:29 | Total"));
  CHECK(is_log("\nAt a.cc line 3: main   Total Tensor Used Memory:0.0    Mb"));
  CHECK_FALSE(is_log(R"({"name":"Total Tensor Used Memory:"})"));
  CHECK_FALSE(is_log(""));
}

}  // namespace
}  // namespace memledger::compare
