#include "runner/inside/memory_limits.h"

#include <doctest/doctest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

namespace memledger::inside {
namespace {

class Groups {
 public:
  explicit Groups(const std::string& name)
      : folder_(std::string(std::getenv("TEST_TMPDIR")) + "/" + name) {}
  void write(const std::string& path, const std::string& text) const {
    const std::filesystem::path file = folder_ + "/" + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  std::optional<MemoryUse> nearest() const {
    return MemoryLimits(folder_, folder_ + "/of_process").nearest();
  }

 private:
  const std::string folder_;
};

TEST_CASE("version 2: the group with the least room, without the cache of files") {
  const Groups groups("second");
  groups.write("of_process", "0::/job/task\n");
  groups.write("job/task/memory.max", "max\n");
  groups.write("job/task/memory.current", "700\n");
  groups.write("job/memory.max", "1000\n");
  groups.write("job/memory.current", "900\n");
  groups.write("job/memory.stat", "anon 600\nfile 300\ninactive_file 200\nactive_file 100\n");
  const auto nearest = groups.nearest();
  REQUIRE(nearest);
  CHECK(nearest->limit_bytes == 1000);
  CHECK(nearest->used_bytes == 600);
  groups.write("job/task/memory.max", "800\n");
  CHECK(groups.nearest()->used_bytes == 700);
}

TEST_CASE("version 1, in a container that sees its own part only") {
  const Groups groups("first");
  groups.write("of_process", "7:cpu:/x\n4:cpuset,memory:/docker/1d7a\n");
  CHECK(!groups.nearest());
  groups.write("memory/memory.limit_in_bytes", "9223372036854771712\n");
  groups.write("memory/memory.usage_in_bytes", "500\n");
  CHECK(!groups.nearest());
  groups.write("memory/memory.limit_in_bytes", "512\n");
  groups.write("memory/memory.stat", "total_inactive_file 30\ntotal_active_file 4\n");
  REQUIRE(groups.nearest());
  CHECK(groups.nearest()->limit_bytes == 512);
  CHECK(groups.nearest()->used_bytes == 466);
}

TEST_CASE("where nothing is told there is no limit") {
  const Groups groups("none");
  CHECK(!groups.nearest());
  groups.write("of_process", "nonsense\n0::\n");
  CHECK(!groups.nearest());
}

}  // namespace
}  // namespace memledger::inside
