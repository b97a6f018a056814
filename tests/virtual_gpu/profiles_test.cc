#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "virtual_gpu/profiles.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <limits>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "tests/support/text_matchers.h"
#include "virtual_gpu/profile_json.h"

namespace memledger::virtual_gpu {
namespace {

using testing::contains;
using Row = std::map<std::string, std::string>;

std::vector<std::string> parts_of(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::istringstream rest(text);
  for (std::string part; std::getline(rest, part, separator);) parts.push_back(part);
  return parts;
}

// What was published of each device, by the names of the columns.
const std::vector<Row>& published() {
  static const std::vector<Row> rows = [] {
    std::ifstream file("tests/virtual_gpu/profiles.tsv");
    std::vector<Row> read;
    std::vector<std::string> columns;
    for (std::string line; std::getline(file, line);) {
      const std::vector<std::string> values = parts_of(line, '\t');
      if (columns.empty()) {
        columns = values;
        continue;
      }
      Row row;
      for (size_t i = 0; i < std::min(columns.size(), values.size()); ++i)
        row[columns[i]] = values[i];
      read.push_back(row);
    }
    return read;
  }();
  return rows;
}

int64_t number(const Row& row, const char* column) { return std::stoll(row.at(column)); }

// The system takes its part of a memory that is the host's.
bool is_of_host(const Profile& profile) { return contains(profile.memory_note, "the host's"); }

TEST_CASE("each profile has the figures that were published of its device") {
  REQUIRE(published().size() == profiles().size());
  for (size_t i = 0; i < profiles().size(); ++i) {
    const Row& row = published()[i];
    const Profile& profile = profiles()[i];
    CAPTURE(profile.name);
    CHECK(profile.name == row.at("name"));
    CHECK(profile.device_name == row.at("device_name"));
    CHECK(std::to_string(profile.major) + "." + std::to_string(profile.minor) ==
          row.at("capability"));
    CHECK(profile.multiprocessors == number(row, "multiprocessors"));
    CHECK(int64_t(profile.total_memory_bytes >> 10) == (number(row, "total_mib") << 10));
    CHECK(int64_t(profile.nominal_memory_bytes >> 10) == (number(row, "nvml_mib") << 10));
    CHECK(profile.l2_cache_bytes == (number(row, "l2_kib") << 10));
    CHECK(profile.memory_bus_bits == number(row, "bus_bits"));
    CHECK((profile.pci_device_id >> 16) == std::stoi(row.at("pci_id"), nullptr, 16));
  }
}

TEST_CASE("each figure has its source, and no device more memory than a program saw on it") {
  for (const Row& row : published()) {
    CAPTURE(row.at("name"));
    for (const char* column : {"memory_source", "nvml_source", "chip_source"})
      CHECK_FALSE(row.at(column).empty());
    const Profile* const profile = find_profile(row.at("name"));
    REQUIRE(profile != nullptr);
    int64_t least = std::numeric_limits<int64_t>::max();
    for (const std::string& printed : parts_of(row.at("printed_mib"), ' '))
      least = std::min<int64_t>(least, std::stoll(printed));
    const auto total = static_cast<int64_t>(profile->total_memory_bytes >> 20);
    CHECK(total <= least);
    // Less than was printed is what another device of the same memory has, or what a host takes.
    CHECK(total >= least - least * (is_of_host(*profile) ? 3 : 1) / 100 - 256);
  }
}

TEST_CASE("profiles agree with themselves") {
  for (const Profile& profile : profiles()) {
    CAPTURE(profile.name);
    CHECK(find_profile(profile.name) == &profile);
    CHECK(profile.context_bytes < profile.total_memory_bytes / 8);
    CHECK(profile.least_context_bytes > 0);
    CHECK(profile.least_context_bytes <= profile.context_bytes);
    CHECK_FALSE(profile.source.empty());
    CHECK_FALSE(profile.context_source.empty());
    CHECK(profile.total_memory_bytes <= profile.nominal_memory_bytes);
    CHECK(profile.total_memory_bytes > profile.nominal_memory_bytes / 100 * 93);
    CHECK(profile.sure_memory_bytes <= profile.total_memory_bytes);
    CHECK((profile.sure_memory_bytes < profile.total_memory_bytes) == !profile.memory_note.empty());
    CHECK(profile.shared_memory_per_block_optin + profile.reserved_shared_memory_per_block <=
          profile.shared_memory_per_multiprocessor);
    CHECK(profile.max_threads_per_multiprocessor % kWarpSize == 0);
    CHECK(profile.max_threads_per_multiprocessor >= kMaxThreadsPerBlock);
    CHECK(profile.persisting_l2_cache_bytes <= profile.l2_cache_bytes);
    // The vendor of all of them.
    CHECK((profile.pci_device_id & 0xffff) == 0x10de);
  }
  CHECK(find_profile("h300") == nullptr);
  CHECK(find_profile("") == nullptr);
}

// `62`, `126.5`.
std::string mebibytes(int kib) {
  std::ostringstream text;
  text << kib / 1024.0;
  return text.str();
}

// The row of the page's table.
std::string page_row(const Profile& profile) {
  std::ostringstream row;
  row << "| `" << profile.name << "` | " << profile.device_name << " | " << profile.major << "."
      << profile.minor << " | " << profile.multiprocessors << " | "
      << (profile.total_memory_bytes >> 20) << " | " << (profile.least_context_bytes >> 20)
      << " to " << (profile.context_bytes >> 20) << " | " << mebibytes(profile.l2_cache_bytes >> 10)
      << " | " << (profile.shared_memory_per_multiprocessor >> 10) << " / "
      << (profile.shared_memory_per_block_optin >> 10) << " | "
      << profile.max_threads_per_multiprocessor << " / " << profile.max_blocks_per_multiprocessor
      << " | " << profile.memory_bus_bits << " | " << profile.source << " |";
  return row.str();
}

TEST_CASE("the page lists every device with its figures") {
  std::ifstream file("docs/virtual_gpu.md");
  const std::string page((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  for (const Profile& profile : profiles())
    CHECK_MESSAGE(contains(page, page_row(profile) + "\n"), "missing: " << page_row(profile));
}

TEST_CASE("a device's file may say that it can have less memory") {
  const Profile& orin = *find_profile("orin");
  ParsedProfile again = parse_profile_json(profile_json(orin));
  REQUIRE(again.profile);
  CHECK(again.profile->sure_memory_bytes == 0);
  CHECK(again.profile->memory_note == orin.memory_note);
  std::string text = profile_json(orin);
  const std::string field = "\"sure_memory_bytes\":0,";
  const size_t at = text.find(field);
  REQUIRE(at != std::string::npos);
  again = parse_profile_json(text.erase(at, field.size()));
  REQUIRE(again.profile);
  CHECK(again.profile->sure_memory_bytes == orin.total_memory_bytes);
}

}  // namespace
}  // namespace memledger::virtual_gpu
