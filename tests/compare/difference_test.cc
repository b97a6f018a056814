// Differences of files made by hand, with sums worked out by hand, and of random ones.

#include "compare/difference.h"

#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "compare/difference_formats.h"
#include "compare/read_saved.h"
#include "tests/compare/made_files.h"
#include "text/json.h"

namespace memledger::compare {
namespace {

SavedFile saved(const std::string& name, const std::string& text) {
  auto file = read_saved(name, text, Moment::kPeak);
  REQUIRE_MESSAGE(file.ok(), file.status().message());
  return *std::move(file);
}

// Keeps the files that its rows point into.
struct Compared {
  SavedFile before, after;
  Difference difference;

  Compared(const std::string& old, const std::string& now)
      : before(saved("before.json", old)), after(saved("after.json", now)) {
    auto result = compare_files(before, after);
    REQUIRE_MESSAGE(result.ok(), result.status().message());
    difference = *std::move(result);
  }
  std::string text() const { return difference_text(difference, {}); }
};

std::string error_of(const std::string& old, const std::string& now) {
  SavedFile before = saved("before.json", old), after = saved("after.json", now);
  const auto result = compare_files(before, after);
  return result.ok() ? "" : std::string(result.status().message());
}

const std::vector<MadeRow> kBefore{
    {"fc.weight", 64, "parameter", "fc", "aten::empty", "[4,4]", "torch.float32", "net.py:3 init"},
    {"fc.bias", 16, "parameter", "fc", "aten::empty", "[4]"},
    {"old.weight", 1000, "parameter", "old", "aten::empty", "[250]"},
    {"", 512, "tensor", "body", "aten::relu", "[8,16]"},
};
const std::vector<MadeRow> kAfter{
    {"fc.weight", 128, "parameter", "fc", "aten::empty", "[8,4]", "torch.float32", "net.py:3 init"},
    {"fc.bias", 16, "parameter", "fc", "aten::empty", "[4]"},
    {"", 256, "tensor", "body", "aten::relu", "[4,16]"},
    {"", 300, "tensor", "head", "aten::mm", "[75]"},
};

// Rows: 1592 before, 700 after. The totals have 8 and 300 bytes besides.
TEST_CASE("what came, went, grew and shrank, and the rest, sum up to the difference") {
  const Compared compared(report("cuda:0", 1600, kBefore), report("cuda:0", 1000, kAfter));
  REQUIRE(compared.difference.accounts.size() == 1);
  const AccountChange& account = compared.difference.accounts[0];
  CHECK(account.change() == -600);
  CHECK(account.rows_change == 64 - 1000 - 256 + 300);
  CHECK(account.rest_before == 8);
  CHECK(account.rest_after == 300);
  CHECK(account.same == 1);
  REQUIRE(account.rows.size() == 4);
  CHECK(account.rows[0].before->name == "old.weight");
  CHECK(account.rows[0].after == nullptr);
  CHECK(account.rows[1].change() == 300);
  CHECK(account.rows[2].change() == -256);
  CHECK(account.rows[3].change() == 64);
  REQUIRE(account.by_layer.size() == 4);
  CHECK(account.by_layer[0].name == "old");
  CHECK(account.by_layer[0].change == -1000);
  CHECK(account.by_role[0].name == "parameter");
  CHECK(account.by_role[0].change == 64 - 1000);
  CHECK(compared.difference.differs());
  const std::string text = compared.text();
  CHECK(absl::StrContains(text, "-1000  went    old.weight"));
  CHECK(absl::StrContains(text, "+64  grew    fc.weight  (4 \xe2\x86\x92 8, 4) float32"));
  CHECK(absl::StrContains(text, "+292  the rest, in no row"));
  CHECK(absl::StrContains(text, "-600  in all, to the byte"));
}

TEST_CASE("a file does not differ from itself") {
  const std::string text = run_report({1592, kBefore});
  const Compared compared(text, text);
  CHECK_FALSE(compared.difference.differs());
  CHECK(absl::StrContains(compared.text(), "no difference"));
}

TEST_CASE("names that got a prefix are said, even if no byte differs") {
  std::vector<MadeRow> now = kBefore;
  for (MadeRow& row : now) {
    if (!row.name.empty()) row.name = "net." + row.name;
    row.layer = "net." + row.layer;
  }
  const Compared compared(run_report({1592, kBefore}), run_report({1592, now}));
  CHECK_FALSE(compared.difference.differs());
  CHECK(absl::StrContains(compared.text(),
                          "3 by name without prefix; 1 by layer, operator and "
                          "shape; without `net.` of after"));
  // A layer has one sum, whatever the file calls it.
  now[0].bytes = 100;
  now.erase(now.begin() + 1);
  const Compared other(report("cpu", 1592, kBefore), report("cpu", 1612, now));
  REQUIRE(other.difference.accounts[0].by_layer.size() == 1);
  CHECK(other.difference.accounts[0].by_layer[0].name == "fc");
  CHECK(other.difference.accounts[0].by_layer[0].change == 36 - 16);
}

TEST_CASE("reasons come before rows") {
  MadeRun before{1592, kBefore}, after{1592, kBefore};
  before.rows[0].line = "net.cc:3 Net";
  after.rows[0].dtype = "torch.bfloat16";
  after.unused_graph = 512;
  after.gpu = "l4";
  const Compared compared(run_report(before), run_report(after));
  const std::string text = compared.text();
  for (const char* reason :
       {"language: C++ before, Python after", "cuda:0: GPU: h100 before, l4 after",
        "dtype: torch.float32 before, torch.bfloat16 after, in 1 row, such as fc.weight",
        "after, autograd holds up to 512.00B for a backward pass that never began"}) {
    CAPTURE(reason);
    CHECK(absl::StrContains(text, reason));
    CHECK(text.find(reason) < text.find("peak "));
  }
}

TEST_CASE("a total that is not known is a question mark, and its rows are summed") {
  const std::string now = report("cuda:0", 1000, kAfter);
  std::string old = report("cuda:0", 1600, kBefore);
  old.replace(old.find("1600"), 4, "null");
  const Compared compared(old, now);
  CHECK_FALSE(compared.difference.accounts[0].change());
  CHECK(absl::StrContains(compared.text(), "peak ? \xe2\x86\x92 1000.00B"));
  CHECK(absl::StrContains(compared.text(), "-892  in all rows; a total is not known"));
  CHECK(first_above(compared.difference, {0, 1 << 30}) != nullptr);
}

TEST_CASE("two devices of one type are compared, whatever their numbers") {
  const Compared compared(report("cuda:0", 64, {{"w", 64}}), report("cuda:1", 80, {{"w", 80}}));
  REQUIRE(compared.difference.accounts.size() == 1);
  CHECK(compared.difference.accounts[0].device == "cuda:0, now cuda:1");
  CHECK(compared.difference.accounts[0].change() == 16);
}

TEST_CASE("ranks are compared with ranks, and one that is gone went whole") {
  const auto rank = [](int number, int64_t bytes) {
    MadeRun run{bytes, {{"w", bytes, "parameter"}}};
    run.rank = number;
    return saved("rank.json", run_report(run));
  };
  auto before = joined("before", {rank(1, 64), rank(0, 32)});
  auto after = joined("after", {rank(0, 48)});
  REQUIRE(before.ok());
  REQUIRE(after.ok());
  const auto difference = compare_files(*before, *after);
  REQUIRE(difference.ok());
  REQUIRE(difference->accounts.size() == 2);
  CHECK(difference->accounts[0].rank == 0);
  CHECK(difference->accounts[0].change() == 16);
  CHECK(difference->accounts[1].rank == 1);
  CHECK(difference->accounts[1].change() == -64);
  CHECK(title_of(difference->accounts[1]) == "rank 1, cuda:0");
  CHECK_FALSE(joined("empty", {}).ok());
}

std::string prediction(int64_t total, const std::string& layers, int64_t no_layer) {
  return absl::StrCat(
      R"({"schema":"memledger.prediction/1","verdict":"fits","specification":"l4","program":{},)",
      R"("real_libraries":null,"devices":[{"device":"cuda:0","gpu":"l4","specification":"l4",)",
      R"("capacity_bytes":99}],"peak":{"parts":[],"by_layer":)", layers,
      R"(,"without_layer_bytes":)", no_layer, R"(,"total_bytes":)", total, "}}");
}

TEST_CASE("a report is compared with a prediction by layers") {
  // fc has 80 bytes in the report, body 512, old 1000.
  const Compared compared(run_report({1592, kBefore}),
                          prediction(700, R"({"fc":100,"body":512,"new":8})", 80));
  const AccountChange& account = compared.difference.accounts.at(0);
  CHECK(account.change() == -892);
  CHECK(account.rows_change == 20 - 1000 + 8 + 80);
  CHECK(account.rest_before == account.rest_after);
}

TEST_CASE("a layer that a prediction may have left out is no layer that went") {
  // The prediction lists 100 of 700 bytes.
  const Compared compared(run_report({1592, kBefore}), prediction(700, R"({"fc":100})", 0));
  const AccountChange& account = compared.difference.accounts.at(0);
  CHECK(account.rows.size() == 1);
  CHECK(account.rows_change == 20);
  CHECK(*account.rest_after - *account.rest_before == -912);
}

TEST_CASE("pairs that make no sense are one sentence") {
  const std::string run = run_report({16, {}});
  const std::string fit = R"({"schema":"memledger.fit/1","gpu":"t4","end":"found","tried":[]})";
  CHECK(absl::StrContains(error_of(run, fit),
                          "before.json is a report of a run and after.json is "
                          "a fit, which have nothing in common; give two"));
  CHECK(absl::StrContains(error_of(run, report("cuda:0", 1, {}, false)),
                          "shows the peak and after.json the end; choose one moment"));
}

TEST_CASE("fits are compared by values and figures") {
  const auto fit = [](const char* largest, const char* high) {
    return absl::StrCat(R"({"schema":"memledger.fit/1","gpu":"t4","end":"found","largest":)",
                        largest, R"(,"tried":[{"value":8,"verdict":"fits","allocated_peak":)",
                        R"({"low":1024,"high":)", high, "}}]}");
  };
  const Compared compared(fit("8", "2048"), fit("12", "3072"));
  CHECK(absl::StrContains(compared.text(), "largest value that fits: 8 before, 12 after"));
  CHECK(absl::StrContains(compared.text(),
                          "value 8, allocated peak 1.00K\xe2\x80\xa6"
                          "2.00K"));
}

TEST_CASE("limits are shares and sizes") {
  const Compared risen(report("cuda:0", 1000, {}), report("cuda:0", 1010, {}));
  const auto above = [&](const char* limit) {
    return first_above(risen.difference, *parse_limit(limit));
  };
  CHECK(above("1%") == nullptr);
  CHECK(above("0.9%") == &risen.difference.accounts[0]);
  CHECK(above("10B") == nullptr);
  CHECK(above("9B") != nullptr);
  CHECK(parse_limit("20MiB")->bytes == 20 << 20);
  for (const char* wrong : {"", "%", "-1%", "20", "nanB", "1e9TiB", "20 MB"}) {
    CAPTURE(wrong);
    CHECK_FALSE(parse_limit(wrong).ok());
  }
}

TEST_CASE("names cannot leave their cell or their line") {
  const std::vector<MadeRow> hostile{
      {R"(a|<b>*_`[x](y)\u001b[31m\n| c)", 64, "parameter", R"(l|\u202e)"}};
  const Compared compared(report("cuda:0", 0, {}), report("cuda:0", 64, hostile));
  const std::string markdown = difference_markdown(compared.difference, {});
  CHECK(absl::StrContains(markdown, R"(a\|&lt;b&gt;\*\_\`\[x\](y))"));
  for (const std::string& text : {compared.text(), markdown}) {
    CHECK(text.find('\x1b') == std::string::npos);
    CHECK(text.find("\xe2\x80\xae") == std::string::npos);
    CHECK(text.find("\n| c") == std::string::npos);
  }
}

// The random files have few names, layers and sizes, so that all rules of matching are met.
std::vector<MadeRow> random_rows(std::mt19937& random) {
  const auto below = [&random](int n) {
    return std::uniform_int_distribution<int>(0, n - 1)(random);
  };
  std::vector<MadeRow> rows(static_cast<size_t>(below(40)));
  for (MadeRow& row : rows) {
    const std::string layer = absl::StrCat(below(2) == 0 ? "" : "module.", "layer", below(4));
    if (below(2) == 0) row.name = absl::StrCat(layer, ".w", below(3));
    row.layer = below(3) == 0 ? "" : layer;
    row.role = below(2) == 0 ? "parameter" : "tensor";
    row.op = below(2) == 0 ? "aten::mm" : "aten::relu";
    row.bytes = below(5) == 0 ? 0 : 1 + below(3000);
    row.shape = absl::StrCat("[", below(3), "]");
    row.line = below(2) == 0 ? "" : absl::StrCat("net.py:", below(3), " f");
  }
  return rows;
}

int64_t sum_of(const Json& list) {
  int64_t sum = 0;
  for (const Json& one : list) sum += one["bytes"].get<int64_t>();
  return sum;
}

TEST_CASE("sums are exact, whatever the files") {
  std::mt19937 random(7);  // NOLINT(cert-msc32-c,cert-msc51-cpp)
  for (int round = 0; round < 300; ++round) {
    CAPTURE(round);
    const std::vector<MadeRow> before = random_rows(random), after = random_rows(random);
    int64_t rows_before = 0, rows_after = 0;
    for (const MadeRow& row : before) rows_before += row.bytes;
    for (const MadeRow& row : after) rows_after += row.bytes;
    const int64_t more = static_cast<int64_t>(random() % 2000) - 1000;
    const Compared compared(report("cpu", rows_before, before),
                            report("cpu", rows_after + more, after));
    const int64_t change = rows_after + more - rows_before;
    const Json json = difference_json(compared.difference)["devices"][0];
    const int64_t rest =
        json["rest_after_bytes"].get<int64_t>() - json["rest_before_bytes"].get<int64_t>();
    CHECK(json["bytes"].get<int64_t>() == change);
    CHECK(rest == more);
    CHECK(sum_of(json["rows"]) + rest == change);
    for (const char* by : {"by_role", "by_layer", "by_line"}) {
      if (!json[by].empty()) CHECK(sum_of(json[by]) + rest == change);
    }
    // Each row is in one pair.
    const AccountChange& account = compared.difference.accounts[0];
    const ShownAccount shown = shown_rows(account, {3});
    CHECK(shown.shown_change + shown.more_change + rest == change);
    size_t used_before = account.same, used_after = account.same;
    for (const RowPair& pair : account.rows) {
      used_before += pair.before == nullptr ? 0 : 1;
      used_after += pair.after == nullptr ? 0 : 1;
    }
    const auto has_bytes = [](const MadeRow& row) { return row.bytes > 0; };
    CHECK(used_before ==
          static_cast<size_t>(std::count_if(before.begin(), before.end(), has_bytes)));
    CHECK(used_after == static_cast<size_t>(std::count_if(after.begin(), after.end(), has_bytes)));
  }
}

}  // namespace
}  // namespace memledger::compare
