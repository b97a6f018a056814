#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "virtual_gpu/values/assumptions.h"

#include <ATen/ATen.h>

#include <cstdint>
#include <cstring>
#include <string>

#include "tests/support/doctest_beside_torch.h"

namespace memledger::virtual_gpu {
namespace {

TEST_CASE("what a dry-run says of lines and reads") {
  const Assumptions assumptions(
      "at\tsrc/train.py:12\t4096\nat\ta.cc:7\t0.5\n00ff\thuge\n00fd\tmillion\ntruths\tother\nno "
      "word\n\tx\n");
  CHECK(assumptions.has_lines());
  CHECK(assumptions.at("/home/me/src/train.py:12 main").value() == 4096);
  CHECK(assumptions.at("a.cc:7").value() == 0.5);
  CHECK_FALSE(assumptions.at("/home/me/src/train.py:123 main").has_value());
  CHECK_FALSE(assumptions.at("/home/me/other/train.py:12 main").has_value());
  CHECK_FALSE(assumptions.at("extra.cc:7 main").has_value());
  CHECK((assumptions.of("00ff", false) == Assumed::kHuge));
  CHECK((assumptions.of("00fd", false) == Assumed::kMillion));
  CHECK((assumptions.of("00fe", false) == Assumed::kLikely));
  CHECK((assumptions.of("00fe", true) == Assumed::kOther));
  CHECK_FALSE(Assumptions("").has_lines());
  CHECK_FALSE(assumptions.has_sizes());
  const Assumptions sizes("capped\t00ff\ta.py:3 f\nno_driver\t00fe\n");
  REQUIRE(sizes.loop_of("00ff") != nullptr);
  CHECK(*sizes.loop_of("00ff") == "a.py:3 f");
  CHECK(sizes.loop_of("00fe") == nullptr);
  CHECK(sizes.drives_nothing("00fe"));
  CHECK_FALSE(sizes.drives_nothing("00ff"));
  CHECK(Assumptions("no_driver\tall\n").drives_nothing("00ff"));
}

TEST_CASE("a read has one name in each run, and no other has it") {
  CHECK(site_of("number", "aten::item", "a.py:3 f") == site_of("number", "aten::item", "a.py:3 f"));
  CHECK(site_of("number", "aten::item", "a.py:3 f") != site_of("truth", "aten::item", "a.py:3 f"));
  CHECK(site_of("a", "b", "c") != site_of("ab", "", "c"));
  CHECK(site_of("", "", "").size() == 16);
}

TEST_CASE("the other truth comes once, twice and so on") {
  std::string truths;
  for (uint64_t i = 0; i < 12; ++i) truths += is_other_truth(i) ? '1' : '0';
  CHECK(truths == "101100111000");
}

TEST_CASE("large numbers rise from read to read, and huge ones fall") {
  for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kLong}) {
    const auto at_read = [&](Assumed assumed, uint64_t read) {
      const std::vector<unsigned char> bytes =
          element_bytes(type, assumed_number(assumed, type, true, 0, read));
      return at::from_blob(const_cast<unsigned char*>(bytes.data()), {1}, type)
          .to(at::kDouble)
          .item<double>();
    };
    for (uint64_t read = 0; read < 100; ++read) {
      CHECK(at_read(Assumed::kLarge, read) < at_read(Assumed::kLarge, read + 1));
      CHECK(at_read(Assumed::kHuge, read) > at_read(Assumed::kHuge, read + 1));
    }
    CHECK(at_read(Assumed::kHuge, 1000) > 4096 + 1000);
    if (type == at::kHalf) continue;  // its largest is less than a million
    for (uint64_t read = 0; read < 100; ++read)
      CHECK(at_read(Assumed::kMillion, read) < at_read(Assumed::kMillion, read + 1));
    CHECK(at_read(Assumed::kMillion, 0) > 990'000);
  }
}

TEST_CASE("small, one, large and huge, for each type") {
  CHECK(assumed_number(Assumed::kLikely, at::kFloat, true, 3, 0) == 3);
  CHECK(assumed_number(Assumed::kSmall, at::kLong, false, 3, 0) == 0);
  CHECK(assumed_number(Assumed::kSmall, at::kFloat, true, 3, 0) == 0);
  CHECK(assumed_number(Assumed::kSmall, at::kFloat, false, 3, 0) == -1);
  CHECK(assumed_number(Assumed::kOne, at::kInt, true, 3, 0) == 1);
  for (const at::ScalarType type : {at::kLong, at::kInt, at::kShort, at::kByte, at::kChar,
                                    at::kHalf, at::kBFloat16, at::kFloat, at::kDouble}) {
    const auto large = element_bytes(type, assumed_number(Assumed::kLarge, type, true, 0, 0));
    CHECK(large.size() == c10::elementSize(type));
    CHECK(element_bytes(type, 0) == std::vector<unsigned char>(large.size()));
    CHECK(large != element_bytes(type, 1));
  }
  int32_t number = 0;
  std::memcpy(&number, element_bytes(at::kInt, 1e12).data(), sizeof number);
  CHECK(number == 2147483647);
}

}  // namespace
}  // namespace memledger::virtual_gpu
