// Any bytes as a log: read or refused, within bounds, and what is shown of it is plain.

#include "tests/fuzz/fuzz.h"
#include "tracker/log/log_digest.h"
#include "tracker/log/log_parser.h"
#include "tracker/log_reader.h"

namespace memledger::fuzz {

const std::vector<std::string_view> kTokens = {
    "GPU Memory Track | d | Total Tensor Used Memory:0.0    Mb Total Allocated Memory:0.0    Mb\n",
    "At a.cc line 1: f [l]  Total Tensor Used Memory:1.0    Mb Total Allocated Memory:?      Mb\n",
    "+ | 3 * Size:(256, 256, 3, 3)     | Memory: 6.75 M | Parameter            | torch.float32 | "
    "features.5.weight\n",
    "- | 1 * Size:(?) | Memory: 4.0 M | Tensor | ? | aten::ones\n",
    "  3 blocks are missing here: the file could not be written\n",
    "Total Tensor Used Memory:",
    "Mb",
    " | ",
    " * Size:",
    "Memory: ",
    "torch.float64",
    "1e300",
    "-1",
    "nan",
    "99999999999999999999",
    "1000000000",
    "9999999.9",
    "\r\n",
    "\n",
    "\x1b[2J",
    "\xc2\x9b",
    "\xe2\x80\xae",
    "\xff",
    "<&>\"'",
    std::string_view("\0", 1)};

namespace {

void check(std::string_view text) {
  const absl::StatusOr<MemoryLog> log = parse_log(text, std::string(text.substr(0, 20)));
  LogDigest digest(std::string(text.substr(0, 20)), size_t{1} << 20);
  const absl::StatusOr<int64_t> unread = visit_log_text(text, digest.name, digest);
  FUZZ_CHECK(log.ok() == unread.ok(), "one way to read it refuses");
  if (!log.ok()) return;
  digest.unread_lines = *unread;
  int64_t rows = 0;
  for (const LogRunDigest& run : digest.runs) {
    int64_t visits = 0;
    for (const LogPlace& place : run.places) visits += place.visits;
    FUZZ_CHECK(visits == run.blocks, "places and blocks");
    for (const auto& [name, kind] : run.kinds) {
      FUZZ_CHECK(kind.alive.count() >= 0 && kind.alive.bytes() >= 0, name);
      FUZZ_CHECK((kind.alive.count() == 0) == (kind.alive.places() == 0), name);
    }
    FUZZ_CHECK(is_plain_text(log_plot(run)), "plot");
  }
  for (const LogRun& run : log->runs) {
    for (const LogBlock& block : run.blocks) {
      FUZZ_CHECK(block.born_bytes() >= 0 && block.died_bytes() >= 0, block.where);
      rows += static_cast<int64_t>(block.rows.size());
    }
  }
  FUZZ_CHECK(rows <= static_cast<int64_t>(text.size()), "more rows than bytes");

  const std::string summary = log_summary(digest);
  FUZZ_CHECK(summary == log_summary(*log), summary + "\nis not\n" + log_summary(*log));
  FUZZ_CHECK(is_plain_text(summary), summary);
  const std::string svg = log_svg(digest);
  FUZZ_CHECK(is_xml(svg), svg);
  const std::string same = log_comparison(*log, *log);
  FUZZ_CHECK(is_plain_text(same), same);
  FUZZ_CHECK(same.find("Alive at the end: the same in both\n") != std::string::npos, same);
}

}  // namespace
}  // namespace memledger::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  memledger::fuzz::check(std::string_view(reinterpret_cast<const char*>(data), size));
  return 0;
}
