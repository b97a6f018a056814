#include "reporter/assembly/memory_maps.h"

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <set>

namespace memledger {
namespace {

bool starts_with(const std::string& text, const char* beginning) {
  return text.rfind(beginning, 0) == 0;
}

}  // namespace

MemoryMaps::MemoryMaps() {
  std::ifstream maps("/proc/self/maps");
  std::set<std::string> code;
  for (std::string line; std::getline(maps, line);) {
    unsigned long begin = 0, end = 0, inode = 0;
    char rights[5] = {};
    int path_at = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx %4s %*s %*s %lu %n", &begin, &end, rights, &inode,
                    &path_at) < 4)
      continue;
    Mapping mapping;
    mapping.begin = begin;
    mapping.end = end;
    mapping.path = path_at > 0 && static_cast<size_t>(path_at) < line.size()
                       ? line.substr(static_cast<size_t>(path_at))
                       : "";
    if (mapping.path.empty() || mapping.path.front() == '[') continue;
    if (rights[2] == 'x') code.insert(mapping.path);
    // An anonymous shared mapping is called /dev/zero.
    mapping.shared_memory =
        starts_with(mapping.path, "/dev/shm/") || starts_with(mapping.path, "/memfd:") ||
        starts_with(mapping.path, "/SYSV") || starts_with(mapping.path, "/dev/zero");
    mappings_.push_back(std::move(mapping));
  }
  mappings_.erase(
      std::remove_if(mappings_.begin(), mappings_.end(),
                     [&](const Mapping& mapping) { return code.count(mapping.path) > 0; }),
      mappings_.end());
}

const MemoryMaps::Mapping* MemoryMaps::find(uintptr_t address) const {
  const auto after = std::upper_bound(
      mappings_.begin(), mappings_.end(), address,
      [](uintptr_t wanted, const Mapping& mapping) { return wanted < mapping.begin; });
  if (after == mappings_.begin()) return nullptr;
  const Mapping& candidate = *std::prev(after);
  return address < candidate.end ? &candidate : nullptr;
}

}  // namespace memledger
