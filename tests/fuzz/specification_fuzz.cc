// Any bytes as the specification of a virtual GPU: one that can be made, or a sentence that says
// why not.

#include "virtual_gpu/specification.h"

#include "tests/fuzz/fuzz.h"
#include "virtual_gpu/profiles.h"

namespace memledger::fuzz {

const std::vector<std::string_view> kTokens = {
    "h200",    "h100",     "t4",  "+",   ":",   ",",  "=",    "count=",
    "keep=",   "context=", "8",   "0",   "9",   ".5", ".999", "1024",
    "1099",    "64",       "GiB", "MiB", "KiB", "GB", "B",    "18446744073709551616",
    "\x1b[2J", "\xff",     "\n",  " ",   "-1",  "1e3"};

namespace {

constexpr uint64_t kMostMemory = uint64_t{1} << 40;

void check(std::string_view text) {
  using namespace virtual_gpu;
  const ParsedSpecification parsed = parse_specification(text);
  FUZZ_CHECK(parsed.specification.has_value() == parsed.error.empty(), parsed.error);
  if (!parsed.specification) {
    // A sentence of one line that no terminal obeys.
    FUZZ_CHECK(parsed.error.back() == '.', parsed.error);
    FUZZ_CHECK(is_plain_text(parsed.error) && parsed.error.find('\n') == std::string::npos,
               parsed.error);
    FUZZ_CHECK(parsed.error.size() < 512, parsed.error);
    return;
  }
  const Specification& asked = *parsed.specification;
  const size_t count = asked.all_devices().size();
  FUZZ_CHECK(count >= 1 && count <= 8, std::to_string(count));
  FUZZ_CHECK(asked.keep_bytes <= kMostMemory, "keep");
  std::string again;
  for (const DeviceSpecification& device : asked.devices) {
    const uint64_t memory = device.capacity_bytes();
    FUZZ_CHECK(memory >= uint64_t{64} << 20 && memory <= kMostMemory, std::to_string(memory));
    FUZZ_CHECK(asked.context_bytes_of(device) < memory, "context");
    again += (again.empty() ? "" : "+") + device.profile.name;
    if (device.memory_bytes) again += ":" + std::to_string(*device.memory_bytes) + "B";
  }
  again += ",count=" + std::to_string(asked.count) + ",keep=" + std::to_string(asked.keep_bytes);
  again += "B";
  if (asked.context_bytes) again += ",context=" + std::to_string(*asked.context_bytes) + "B";
  const ParsedSpecification same = parse_specification(again);
  FUZZ_CHECK(same.specification && same.specification->devices.size() == asked.devices.size() &&
                 same.specification->count == asked.count &&
                 same.specification->keep_bytes == asked.keep_bytes &&
                 same.specification->context_bytes == asked.context_bytes,
             again + ": " + same.error);
}

}  // namespace
}  // namespace memledger::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  memledger::fuzz::check(std::string_view(reinterpret_cast<const char*>(data), size));
  return 0;
}
