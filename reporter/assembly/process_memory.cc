#include "reporter/process_memory.h"

#include <fstream>
#include <sstream>
#include <string>

namespace memledger {

std::optional<ProcessMemory> process_memory() {
  std::ifstream status("/proc/self/status");
  ProcessMemory memory;
  int found = 0;
  for (std::string line; std::getline(status, line);) {
    std::istringstream words(line);
    std::string key;
    int64_t kibibytes = 0;
    if (!(words >> key) || key.compare(0, 3, "Rss") != 0 || !(words >> kibibytes)) continue;
    int64_t* const part = key == "RssAnon:"    ? &memory.anonymous_bytes
                          : key == "RssFile:"  ? &memory.file_bytes
                          : key == "RssShmem:" ? &memory.shared_bytes
                                               : nullptr;
    if (part == nullptr) continue;
    *part = kibibytes * 1024;
    memory.resident_bytes += *part;
    ++found;
  }
  return found == 3 ? std::optional<ProcessMemory>(memory) : std::nullopt;
}

}  // namespace memledger
