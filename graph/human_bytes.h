#ifndef MEMLEDGER_GRAPH_HUMAN_BYTES_H_
#define MEMLEDGER_GRAPH_HUMAN_BYTES_H_

#include <cstdint>
#include <cstdio>
#include <string>

namespace memledger::graph_internal {

// 512.00B, 4.00K, 1.28G: powers of 1024.
inline std::string human_bytes(int64_t bytes) {
  const char* const units = "BKMGTP";
  auto value = static_cast<double>(bytes);
  int unit = 0;
  while ((value >= 1024 || value <= -1024) && unit < 5) {
    value /= 1024;
    ++unit;
  }
  char text[32];
  std::snprintf(text, sizeof(text), "%.2f%c", value, units[unit]);
  return text;
}

}  // namespace memledger::graph_internal

#endif  // MEMLEDGER_GRAPH_HUMAN_BYTES_H_
