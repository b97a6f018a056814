#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "runner/run_specification.h"

#include <doctest/doctest.h>

#include <cstdlib>
#include <fstream>
#include <string>

#include "prediction/prediction.h"
#include "runner/allocator_setting.h"
#include "virtual_gpu/profile_json.h"
#include "virtual_gpu/specification.h"

namespace memledger::runner {
namespace {

using End = prediction::Run::End;
using Addresses = prediction::Run::Addresses;

constexpr uint64_t kGiB = uint64_t{1} << 30;

std::string variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

std::string temporary_folder() { return variable("TEST_TMPDIR"); }

virtual_gpu::Specification parsed(const std::string& text) {
  const auto result = virtual_gpu::parse_specification(text);
  REQUIRE_MESSAGE(result.specification, result.error);
  return *result.specification;
}

TEST_CASE("the ends of a specification differ in what the user has not said") {
  const auto low = parsed(on_end("h100", End::kLow, Addresses::kDown));
  CHECK_FALSE(low.late_events);
  CHECK(low.assumed_millionths == 0);
  CHECK(low.workspaces == virtual_gpu::WorkspaceEnd::kLeast);
  CHECK_FALSE(low.ascending_addresses);
  CHECK(low.least_context);
  CHECK(low.nccl_bytes == 0);
  const auto high = parsed(on_end("h100,reads=0.5,count=2", End::kHigh, Addresses::kUp));
  CHECK(high.late_events);
  CHECK(high.assumed_millionths == virtual_gpu::kMillion / 2);
  CHECK(high.workspaces == virtual_gpu::WorkspaceEnd::kUpper);
  CHECK(high.ascending_addresses);
  CHECK_FALSE(high.least_context);
  CHECK_FALSE(high.nccl_bytes);
  CHECK(parsed(on_end("h100,context=1GiB", End::kLow, Addresses::kDown)).context_bytes == kGiB);
  CHECK(high.count == 2);
  // Four runs, four boards.
  CHECK(low.unevenness == 0);
  CHECK(parsed(on_end("h100", End::kLow, Addresses::kUp)).unevenness == 1);
  CHECK(parsed(on_end("h100", End::kHigh, Addresses::kDown)).unevenness == 2);
  CHECK(high.unevenness == 3);
}

TEST_CASE("a machine without a limit is the same but for its memory") {
  for (const char* const text : {"h100", "h100:24GiB", "h100:64MiB", "l4+h100,count=2",
                                 "h100:64MiB,context=8MiB", "a100,context=0B,nccl=1MiB"}) {
    CAPTURE(text);
    const auto larger = without_limit(text, temporary_folder());
    REQUIRE(larger.ok());
    const virtual_gpu::Specification before = parsed(text), after = parsed(*larger);
    REQUIRE(after.devices.size() == before.devices.size());
    CHECK(after.count == before.count);
    for (size_t i = 0; i < after.devices.size(); ++i) {
      CHECK(after.devices[i].capacity_bytes() == 1024 * kGiB);
      CHECK(after.devices[i].profile.device_name == before.devices[i].profile.device_name);
      CHECK(after.context_bytes_of(after.devices[i]) == before.context_bytes_of(before.devices[i]));
      CHECK(after.has_nccl_model(after.devices[i]) == before.has_nccl_model(before.devices[i]));
    }
  }
}

TEST_CASE("a machine with less has its own memory, of which its context takes more") {
  for (const char* const text :
       {"h100", "h100:24GiB,count=2", "h100:300MiB", "h100:64MiB,context=8MiB", "l4+h100",
        "a100,context=0B,reads=all", "a100,context=least"}) {
    CAPTURE(text);
    const auto less = with_less(text, int64_t{32} << 20, temporary_folder());
    REQUIRE(less.ok());
    const virtual_gpu::Specification before = parsed(text), after = parsed(*less);
    REQUIRE(after.devices.size() == before.devices.size());
    CHECK(after.count == before.count);
    CHECK(after.assumed_millionths == before.assumed_millionths);
    // A context that is said is all that is charged: the code of libraries is in it.
    const bool is_small = before.context_bytes_of(before.devices[0]) == 0;
    CHECK(after.context_bytes.has_value() == (before.context_bytes.has_value() || is_small));
    for (size_t i = 0; i < after.devices.size(); ++i) {
      CHECK(after.devices[i].capacity_bytes() == before.devices[i].capacity_bytes());
      CHECK(after.context_bytes_of(after.devices[i]) ==
            before.context_bytes_of(before.devices[i]) + (uint64_t{32} << 20));
    }
  }
}

TEST_CASE("a device of a file has no limit either") {
  virtual_gpu::Profile profile = *virtual_gpu::find_profile("l4");
  profile.name = "mine";
  profile.device_name = "NVIDIA Mine";
  profile.total_memory_bytes = 3 * kGiB;
  const std::string path = temporary_folder() + "/mine.json";
  std::ofstream(path) << virtual_gpu::profile_json(profile);
  const auto larger = without_limit("@" + path + ",reads=all", temporary_folder());
  REQUIRE(larger.ok());
  const virtual_gpu::Specification after = parsed(*larger);
  CHECK(after.devices[0].capacity_bytes() == 1024 * kGiB);
  CHECK(after.devices[0].profile.device_name == "NVIDIA Mine");
  CHECK(after.context_bytes_of(after.devices[0]) == profile.context_bytes);
  CHECK(after.assumed_millionths == virtual_gpu::kMillion);
  CHECK_FALSE(without_limit("@/nowhere.json", temporary_folder()).ok());
}

TEST_CASE("a device that may have less memory is named where a program might not fit then") {
  prediction::DevicePrediction device;
  device.device = "cuda:1";
  device.gpu = "a6000";
  device.capacity_bytes = 47 * kGiB;
  const auto notes = [&](const char* specification, uint64_t peak) {
    device.process_peak.high = static_cast<int64_t>(peak);
    return notes_on_memory(specification, {device});
  };
  CHECK(notes("l4+a6000", 46 * kGiB) == "cuda:1 may have less: with ECC on there are 44.43 GiB.");
  CHECK(notes("l4+a6000", 44 * kGiB).empty());
  CHECK(notes("l4+a6000", 48 * kGiB).empty());     // it does not fit in any case
  CHECK(notes("a6000:47GiB", 46 * kGiB).empty());  // the user knows
  CHECK(notes("@/nowhere.json", 46 * kGiB).empty());
  device.gpu = "orin";
  CHECK(notes("orin", kGiB).find("cuda:1 may have less: the memory is the host's") == 0);
}

TEST_CASE("the caller's settings of the allocator are kept beside new ones") {
  CHECK(with_allocator_setting("", "a:1") == "a:1");
  CHECK(with_allocator_setting("a:1,b:2", "c:3") == "a:1,b:2,c:3");
  CHECK(with_allocator_setting("a:1, b:2", "b:3") == "a:1,b:3");
  CHECK(with_allocator_setting("roundup_power2_divisions:[256:1,512:2,>:4],a:1", "a:2") ==
        "roundup_power2_divisions:[256:1,512:2,>:4],a:2");

  setenv("PYTORCH_ALLOC_CONF", "a:1", 1);
  setenv("PYTORCH_CUDA_ALLOC_CONF", "b:2", 1);
  add_to_allocator_variable("");
  CHECK(variable("PYTORCH_CUDA_ALLOC_CONF") == "b:2");
  add_to_allocator_variable("c:3");
  CHECK(variable("PYTORCH_ALLOC_CONF") == "a:1,b:2,c:3");
  CHECK(variable("PYTORCH_CUDA_ALLOC_CONF") == "a:1,b:2,c:3");
}

}  // namespace
}  // namespace memledger::runner
