#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
// Loops that an assumed size drives, found from the order of what is read.
#include "virtual_gpu/values/size_loops.h"

#include <doctest/doctest.h>

#include <string>

namespace memledger::virtual_gpu {
namespace {

using std::chrono::milliseconds;

// Reads that take a millisecond each.
class Reader {
 public:
  // Whether a loop was found by then; only the first is kept.
  Reader& read(const std::string& site, uint64_t value = 0, bool is_capped = false) {
    now_ += milliseconds(1);
    const std::optional<SizeLoop> loop = loops_.note({site, value, is_capped}, now_);
    if (loop && !found_) found_ = loop;
    return *this;
  }
  void step() { loops_.forget(); }
  const std::optional<SizeLoop>& found() const { return found_; }

 private:
  SizeLoops loops_;
  SizeLoops::Clock::time_point now_;
  std::optional<SizeLoop> found_;
};

TEST_CASE("a size that is read once, before others again and again, drives their loop") {
  Reader reader;
  reader.read("unique", 180'000);
  for (int i = 0; i < 2000; ++i) reader.read("where", 180'000).read("nonzero", 180'000);
  REQUIRE(reader.found());
  CHECK(reader.found()->driver == "unique");
  CHECK_FALSE(reader.found()->is_same);
}

TEST_CASE("what is read in each round drives no loop around it") {
  Reader reader;
  for (int i = 0; i < 5000; ++i) reader.read("nonzero", 180'000).read("unique", 180'000);
  CHECK_FALSE(reader.found());
}

TEST_CASE("a loop of the inner kind is found in one of the outer, which is not one") {
  Reader reader;
  for (int batch = 0; batch < 3; ++batch) {
    reader.read("mask", 500'000).read("unique", 180'000);
    for (int i = 0; i < 1100; ++i) reader.read("where", 180'000);
  }
  REQUIRE(reader.found());
  CHECK(reader.found()->driver == "unique");
}

TEST_CASE("a loop that ends in time is left alone") {
  Reader reader;
  reader.read("unique", 10'000);
  for (int i = 0; i < 10'000; ++i) reader.read("where", 180'000);
  CHECK_FALSE(reader.found());
}

TEST_CASE("a size that is too small for so many rounds does not drive them") {
  Reader reader;
  reader.read("labels", 180'000).read("few", 2000);
  for (int i = 0; i < 20'000; ++i) reader.read("where", 180'000);
  REQUIRE(reader.found());
  CHECK(reader.found()->driver == "labels");
  Reader none;
  none.read("few", 1000);
  for (int i = 0; i < 20'000; ++i) none.read("where", 180'000);
  CHECK_FALSE(none.found());
}

TEST_CASE("the loop of an optimizer's steps is none") {
  Reader reader;
  reader.read("labels", 180'000);
  for (int i = 0; i < 5000; ++i) {
    reader.read("where", 180'000);
    reader.step();
  }
  CHECK_FALSE(reader.found());
}

TEST_CASE("a loop that goes on although the size is capped has another driver") {
  Reader reader;
  reader.read("labels", kCappedSize, true);
  for (uint64_t i = 0; i <= kMinLoop; ++i) reader.read("where", 180'000);
  REQUIRE(reader.found());
  CHECK(reader.found()->driver == "labels");
  CHECK(reader.found()->is_same);
  Reader capped;
  capped.read("labels", kCappedSize, true);
  for (uint64_t i = 0; i < 4 * kCappedSize; ++i) capped.read("where", 180'000);
  CHECK_FALSE(capped.found());
}

}  // namespace
}  // namespace memledger::virtual_gpu
