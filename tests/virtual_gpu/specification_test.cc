#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "virtual_gpu/specification.h"

#include <doctest/doctest.h>

#include <string>

#include "tests/support/text_matchers.h"
#include "virtual_gpu/profiles.h"

namespace memledger::virtual_gpu {
namespace {

using testing::contains;

Specification parsed(std::string_view text) {
  const ParsedSpecification result = parse_specification(text);
  INFO("specification: " << std::string(text) << ", error: " << result.error);
  REQUIRE(result.specification);
  CHECK(result.error.empty());
  return *result.specification;
}

std::string error(std::string_view text) {
  const ParsedSpecification result = parse_specification(text);
  INFO("specification: " << std::string(text));
  CHECK_FALSE(result.specification);
  // A sentence.
  REQUIRE_FALSE(result.error.empty());
  CHECK(result.error.back() == '.');
  return result.error;
}

TEST_CASE("a name alone") {
  for (const char* name : {"h200", "h100", "a100", "l4", "rtx4090", "t4"}) {
    const Specification specification = parsed(name);
    CHECK(specification.profile == name);
    CHECK_FALSE(specification.memory_bytes);
    CHECK(specification.count == 1);
    CHECK(specification.keep_bytes == 0);
    CHECK(specification.context_bytes == 0);
  }
}

TEST_CASE("memory and options") {
  CHECK(*parsed("h200:24GiB").memory_bytes == 24ULL << 30);
  CHECK(*parsed("h200:80GB").memory_bytes == 80000000000);
  CHECK(*parsed("h200:512MiB").memory_bytes == 512ULL << 20);
  CHECK(*parsed("h200:500MB").memory_bytes == 500000000);
  CHECK(*parsed("h200:1048576KiB").memory_bytes == 1ULL << 30);
  CHECK(*parsed("h200:100000KB").memory_bytes == 100000000);
  CHECK(*parsed("h200:100000001B").memory_bytes == 100000001);
  CHECK(*parsed("h200:1.5GiB").memory_bytes == 3ULL << 29);
  CHECK(*parsed("h200:0.125GiB").memory_bytes == 1ULL << 27);
  CHECK_FALSE(parsed("h200").late_events);
  CHECK_FALSE(parsed("h200,events=once").late_events);
  CHECK(parsed("h200,events=late").late_events);
  CHECK(contains(error("h200,events=never"), "events=never is neither once nor late."));
  const Specification all = parsed("h100:80GiB,count=8,keep=4KiB,context=300MiB");
  CHECK(all.profile == "h100");
  CHECK(*all.memory_bytes == 80ULL << 30);
  CHECK(all.count == 8);
  CHECK(all.keep_bytes == 4096);
  CHECK(all.context_bytes == 300ULL << 20);
  CHECK(parsed("a100,count=2").count == 2);
  CHECK(parsed("a100,keep=0B,count=3").count == 3);
}

TEST_CASE("errors name the thing and what is known") {
  for (const char* text : {"", "v100", "H200", " h200", ":24GiB", "h200 "}) {
    CHECK(contains(error(text),
                   "is not a known device. Known are: h200, h100, a100, l4, rtx4090, t4."));
  }
  CHECK(contains(error("v100:24GiB"), "\"v100\""));
  for (const char* amount : {"", "GiB", "24", "24G", "24gib", "-1GiB", "1e3MiB", "1.GiB",
                             "1.2345GiB", "1.2.3GiB", "24 GiB", ".5GiB"}) {
    CHECK(contains(error("h200:" + std::string(amount)),
                   "\"" + std::string(amount) + "\" is not an amount of memory"));
  }
  CHECK(contains(error("h200:63MiB"), "at least 64MiB"));
  CHECK(contains(error("h200:99999GiB"), "more memory than a virtual GPU can have"));
  CHECK(contains(error("h200:99999999999999999999999GiB"), "is not an amount of memory"));
  for (const char* count : {"0", "9", "-1", "two", "", "1.5", "99999999999999999999"}) {
    CHECK(contains(error("h200,count=" + std::string(count)),
                   "is not a number of devices from 1 to 8"));
  }
  for (const char* option : {"", "count", "cuont=2", "=2", "COUNT=2"}) {
    CHECK(contains(error("h200," + std::string(option)),
                   "is not a known option. Known are: count=1..8, keep=BYTES, context=BYTES, "
                   "events=once|late."));
  }
  CHECK(contains(error("h200,count=2,count=2"), "given twice"));
  CHECK(contains(error("h200,keep=many"), "keep="));
  CHECK(contains(error("h200:1GiB,context=1GiB"), "all of the device's memory"));
}

TEST_CASE("profiles agree with themselves") {
  for (const char* name : {"h200", "h100", "a100", "l4", "rtx4090", "t4"}) {
    INFO(std::string(name));
    const Profile* profile = find_profile(name);
    REQUIRE(profile);
    CHECK(std::string(profile->name) == name);
    CHECK(profile->total_memory_bytes <= profile->nominal_memory_bytes);
    CHECK(profile->shared_memory_per_block_optin + profile->reserved_shared_memory_per_block <=
          profile->shared_memory_per_multiprocessor);
    CHECK(profile->max_threads_per_multiprocessor % kWarpSize == 0);
    CHECK(profile->max_threads_per_multiprocessor >= kMaxThreadsPerBlock);
    CHECK(profile->persisting_l2_cache_bytes <= profile->l2_cache_bytes);
    // The vendor of all of them.
    CHECK((profile->pci_device_id & 0xffff) == 0x10de);
  }
  CHECK(find_profile("h300") == nullptr);
  CHECK(find_profile("") == nullptr);
}

TEST_CASE(
    "an amount just above the most is refused, and a message shows no terminal what it obeys") {
  CHECK(parsed("h200:1024GiB").memory_bytes == uint64_t{1} << 40);
  CHECK(contains(error("h200:1024.5GiB"), "more memory than a virtual GPU can have"));
  CHECK(contains(error("h200,keep=1099.999GB"), "more memory than a virtual GPU can have"));
  CHECK(contains(error("\x1b[2J\xff\n"), "\"?[2J??\" is not a known device"));
  CHECK(contains(error("h200,count=\x1b[2J"), "count=?[2J is not a number"));
  CHECK(error(std::string(100000, 'x')).size() < 200);
}

}  // namespace
}  // namespace memledger::virtual_gpu
