#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "virtual_gpu/values/read_list_text.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <vector>

namespace memledger::virtual_gpu {
namespace {

ReadRow row(const std::string& op, ReadKind kind, uint64_t count, uint64_t bytes,
            const std::string& where) {
  ReadRow row;
  row.op = op;
  row.kind = kind;
  row.count = count;
  row.dependent_bytes = bytes;
  row.where = where;
  return row;
}

TEST_CASE("nothing to say") { CHECK(read_list_text({}, 1000000).empty()); }

TEST_CASE("sizes and scalars") {
  const std::vector<ReadRow> rows = {
      row("aten::nonzero", ReadKind::kAssumedSize, 3, 3 << 20, "moe.py:84 forward"),
      row("aten::bincount", ReadKind::kUnboundedSize, 1, 8, ""),
      row("aten::item", ReadKind::kScalar, 2, 0, "train.py:3 step"),
      row("aten::item", ReadKind::kNumber, 1, 0, ""),
  };
  CHECK(
      read_list_text(rows, 1000000) ==
      "memledger virtual GPU: the host read what only the device knows; sizes 4 times (reads=all: "
      "the largest possible); values that may steer the program 3 times:\n"
      "  aten::nonzero, 3 times: 3.0 MiB of results, first at moe.py:84 forward\n"
      "  aten::bincount, once: 8.0 B of results, no largest size is known\n"
      "  aten::item, 2 times: a value, read as 0, first at train.py:3 step\n"
      "  aten::item, once: a whole number, read as 0\n"
      "  The peak of allocated bytes is an upper end but for what has no largest size; a run with "
      "reads=none gives the lower one.\n");
  const std::string none = read_list_text({rows[0]}, 0);
  CHECK(none.find("reads=none: none of them") != std::string::npos);
  CHECK(none.find("upper end") == std::string::npos);
  CHECK(read_list_text({rows[0]}, 62500).find("reads=0.0625: that share") != std::string::npos);
  // A share gives neither end.
  CHECK(read_list_text({rows[0]}, 62500).find("upper end") == std::string::npos);
  CHECK(read_list_text({rows[0]}, 1000001).find("reads=varied: of each tensor") !=
        std::string::npos);
  CHECK(read_list_text({rows[2]}, 1000000).find("sizes") == std::string::npos);
}

TEST_CASE("ten rows are enough") {
  const std::vector<ReadRow> rows(13, row("aten::item", ReadKind::kScalar, 1, 0, ""));
  const std::string text = read_list_text(rows, 1000000);
  CHECK(text.find("  and 3 more\n") != std::string::npos);
  CHECK(std::count(text.begin(), text.end(), '\n') == 12);
}

}  // namespace
}  // namespace memledger::virtual_gpu
