// What tables of many rows stand on: their order and their memory.

#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "registry/core/ascending.h"
#include "registry/core/huge_pages.h"

namespace memledger::core {
namespace {

void check_sorted(const std::vector<uint64_t>& keys) {
  LargeVector<Keyed> keyed;
  std::vector<uint32_t> expected;
  for (const uint64_t key : keys) {
    expected.push_back(static_cast<uint32_t>(keyed.size()));
    keyed.push_back({key, expected.back()});
  }
  std::stable_sort(expected.begin(), expected.end(),
                   [&](uint32_t a, uint32_t b) { return keys[a] < keys[b]; });
  sort_ascending(keyed);
  std::vector<uint32_t> places;
  bool keys_stayed = true;
  for (const Keyed& one : keyed) {
    places.push_back(one.place);
    keys_stayed = keys_stayed && keys[one.place] == one.key;
  }
  REQUIRE(keys_stayed);
  REQUIRE(places == expected);
}

// What /proc/self/smaps says of the mapping after the name.
std::string said_of_mapping(const void* address, const std::string& name) {
  std::ifstream maps("/proc/self/smaps");
  std::string line;
  bool here = false;
  while (std::getline(maps, line)) {
    char* after = nullptr;
    const unsigned long begin = std::strtoul(line.c_str(), &after, 16);
    if (*after == '-') {
      const unsigned long end = std::strtoul(after + 1, nullptr, 16);
      const auto wanted = reinterpret_cast<unsigned long>(address);
      here = begin <= wanted && wanted < end;
    } else if (here && line.rfind(name, 0) == 0) {
      return line.substr(name.size());
    }
  }
  return "";
}

// hg is what madvise(MADV_HUGEPAGE) leaves.
bool prefers_huge_pages(const void* address) {
  std::istringstream flags(said_of_mapping(address, "VmFlags:"));
  for (std::string flag; flags >> flag;) {
    if (flag == "hg") return true;
  }
  return false;
}

TEST_CASE("rows are sorted as std::stable_sort would, whatever the keys") {
  check_sorted({});
  check_sorted({7});
  check_sorted({5, 5, 5});
  check_sorted({~uint64_t{0}, 0, uint64_t{1} << 63, 1});
  std::mt19937_64 random(42);
  for (int round = 0; round < 300; ++round) {
    const uint64_t mask = ~uint64_t{0} >> random() % 64;
    const uint64_t offset = random() >> random() % 64;
    std::vector<uint64_t> keys(random() % 5000);
    for (uint64_t& key : keys) key = (random() & mask) + offset;
    if (round % 3 == 0) std::sort(keys.begin(), keys.end());
    if (round % 3 == 1)
      std::transform(keys.begin(), keys.end(), keys.begin(), [](uint64_t key) { return ~key; });
    check_sorted(keys);
  }
}

TEST_CASE("large tables ask for huge pages, small ones do not, and nobody's errno changes") {
  if (!std::ifstream("/sys/kernel/mm/transparent_hugepage/enabled")) {
    MESSAGE("NOT CHECKED: this system has no transparent huge pages");
    return;
  }
  errno = ENOENT;
  LargeVector<char> large(size_t{64} << 20);
  CHECK(errno == ENOENT);
  CHECK(prefers_huge_pages(large.data() + large.size() / 2));
  LargeVector<char> small(size_t{1} << 20);
  CHECK(!prefers_huge_pages(small.data() + small.size() / 2));
  prefer_huge_pages(nullptr, size_t{64} << 20);
  prefer_huge_pages(large.data() + 1, 1);
  large[12345678] = 'x';
  take_page_faults(large.data(), large.size());
  take_page_faults(nullptr, size_t{64} << 20);
  CHECK(errno == ENOENT);
  CHECK(large[12345678] == 'x');
}

TEST_CASE("memory whose page faults were taken is there before it is written") {
  constexpr size_t kBytes = size_t{8} << 20;
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  // The memory lies between two pages that nobody can use, so that it is a mapping of its own.
  const size_t all = kBytes + 2 * page;
  void* const mapped = mmap(nullptr, all, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  REQUIRE(mapped != MAP_FAILED);
  if (mapped == MAP_FAILED) return;  // as clang-tidy does not know REQUIRE
  char* const bytes = static_cast<char*>(mapped) + page;
  REQUIRE(mprotect(bytes, kBytes, PROT_READ | PROT_WRITE) == 0);
  // Pages of zeros that a read would map do not count.
  const auto resident = [&] {
    return size_t{1024} * std::strtoul(said_of_mapping(bytes, "Rss:").c_str(), nullptr, 10);
  };
  CHECK(resident() == 0);
  SUBCASE("all of it") {
    take_page_faults(bytes, kBytes);
    CHECK(resident() == kBytes);
  }
  SUBCASE("the two pages that two bytes lie in, and no others") {
    madvise(bytes, kBytes, MADV_NOHUGEPAGE);
    take_page_faults(bytes + page - 1, 2);
    CHECK(resident() == 2 * page);
    take_page_faults(bytes + 3 * page + 1, 0);
    CHECK(resident() == 2 * page);
  }
  std::fill(bytes, bytes + kBytes, 'x');
  errno = ENOENT;
  give_back_pages(bytes + 1, kBytes - 2);  // the whole pages in between
  CHECK(errno == ENOENT);
  CHECK(bytes[0] == 'x');
  CHECK(bytes[page] == 0);
  CHECK(bytes[kBytes - page - 1] == 0);
  CHECK(bytes[kBytes - 1] == 'x');
  give_back_pages(bytes, kBytes);
  CHECK(resident() == 0);
  munmap(mapped, all);
}

}  // namespace
}  // namespace memledger::core
