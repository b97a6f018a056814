#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace memledger::virtual_gpu {

// The environment variable that carries a specification into a program.
inline constexpr char kSpecificationVariable[] = "MEMLEDGER_VIRTUAL_GPU";

// What the user asked for, as `h200`, `a100:24GiB`, `h100:80GiB,count=8,keep=4KiB`.
struct Specification {
  std::string profile = "h200";
  // Memory of each device; the profile's where not given.
  std::optional<uint64_t> memory_bytes;
  int count = 1;
  // Copies of up to this many bytes are remembered and read back, see docs/virtual_gpu.md.
  uint64_t keep_bytes = 0;
  // Memory that the context of each device takes when it is made.
  uint64_t context_bytes = 0;
  // When work is done: at once, or only when the host has waited for it (virtual_gpu/streams.h).
  bool late_events = false;
};

struct ParsedSpecification {
  std::optional<Specification> specification;
  // A sentence that names what is wrong, where there is no specification.
  std::string error;
};

ParsedSpecification parse_specification(std::string_view text);

}  // namespace memledger::virtual_gpu
