#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "registry/libtorch/driver_memory.h"

#include <dlfcn.h>
#include <doctest/doctest.h>

#include <cstdlib>
#include <optional>

namespace memledger {
namespace {

TEST_CASE("of a GPU that is split, the memory is that of the process's instance") {
  // The library is preloaded.
  const auto know_instance = reinterpret_cast<void (*)(bool)>(dlsym(RTLD_DEFAULT, "know_instance"));
  REQUIRE((know_instance != nullptr));
  CHECK(!driver_memory(0).has_value());  // not noted yet

  note_device_in_use(0);
  const std::optional<DriverMemory> memory = driver_memory(0);
  REQUIRE(memory.has_value());
  CHECK(memory->name == "H100 MIG 1g.10gb");
  CHECK(memory->total_bytes == 9'990);
  CHECK(memory->used_bytes == 3'000);
  CHECK(!memory->process_bytes.has_value());

  know_instance(false);
  CHECK_MESSAGE(!driver_memory(0).has_value(), "the whole GPU's memory is not the instance's");

  // CUDA does not say which instance the second device is.
  know_instance(true);
  note_device_in_use(1);
  CHECK(!driver_memory(1).has_value());
}

}  // namespace
}  // namespace memledger
