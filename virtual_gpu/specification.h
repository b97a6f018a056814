#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "virtual_gpu/calibration.h"
#include "virtual_gpu/profiles.h"

namespace memledger::virtual_gpu {

// The environment variable that carries a specification into a program.
inline constexpr char kSpecificationVariable[] = "MEMLEDGER_VIRTUAL_GPU";

// One device of a specification, as `a100:24GiB` or `@mydevice.json`.
struct DeviceSpecification {
  Profile profile;
  // The profile's memory where not given.
  std::optional<uint64_t> memory_bytes;

  uint64_t capacity_bytes() const { return memory_bytes.value_or(profile.total_memory_bytes); }
};

// Views of a storage may be smaller: what is computed has 32 768 elements at most.
inline constexpr uint64_t kValueBytes = uint64_t{1} << 20;
inline constexpr uint32_t kMillion = 1000000;

// What is taken of a size of cuDNN's workspaces that is known within bounds.
enum class WorkspaceEnd { kLeast, kExpected, kUpper };

// Which libraries of NVIDIA's a program on a virtual GPU runs with.
enum class LibraryChoice {
  kAsFound,   // not said: kReal where the runner finds all that the program needs, else kStandIns
  kStandIns,  // answers of memledger's own
  kReal,      // those that the program finds; memledger is the driver below them
};

// What the user asked for, as `h200`, `a100:24GiB`, `h100+l4:16GiB,count=2,keep=4KiB`.
struct Specification {
  std::vector<DeviceSpecification> devices = {{*find_profile("h200"), std::nullopt}};
  // How many there are of each device; at most eight in all.
  int count = 1;
  // Copies of up to this many bytes are remembered and read back, see docs/virtual_gpu.md.
  uint64_t keep_bytes = 0;
  // Memory that the context of each device takes when it is made. Where not given the profile's,
  // and nothing of less than 2 GiB, where programs look for what tensors take.
  std::optional<uint64_t> context_bytes;
  // Takes the smaller of the profile's two contexts, the minimum seen on such devices.
  bool least_context = false;
  // Memory that each communicator of NCCL takes. Where not given what virtual_gpu/nccl_memory.h
  // says, and nothing of devices of less than 2 GiB.
  std::optional<uint64_t> nccl_bytes;
  // The order in which blocks get addresses: that of devices, or upwards (address_space.h).
  bool ascending_addresses = false;
  // When work is done: at once, or only when the host has waited for it (virtual_gpu/streams.h).
  bool late_events = false;
  // Processes that give the same name share the devices' memory; empty: each has its own.
  std::string share;
  // The values of storages of up to this many bytes are followed, where a program of LibTorch can
  // know them; 0: of none (virtual_gpu/values).
  uint64_t value_bytes = kValueBytes;
  // What to assume of a size that only the device knows, in millionths of the largest possible one;
  // above 1 000 000: of each another (reads.h).
  uint32_t assumed_millionths = kMillion;
  // Whole numbers that the program reads and that are not known are 1 instead of 0. A run that
  // allocates the same then does not depend on them.
  bool numbers_are_one = false;
  // How uneven the GPCs of each device are (gpc_layout.h).
  int unevenness = 0;
  LibraryChoice libraries = LibraryChoice::kAsFound;
  // What was measured of such a device: contexts and workspaces of cuDNN are as they were there.
  std::optional<Calibration> calibration;
  // Workspaces of cuDNN: the minimum, the expected size or the maximum (workspace_model.h).
  WorkspaceEnd workspaces = WorkspaceEnd::kExpected;

  uint64_t context_bytes_of(const DeviceSpecification& device) const;
  // Whether NCCL's memory on the device is what virtual_gpu/nccl_memory.h says.
  bool has_nccl_model(const DeviceSpecification& device) const;
  // Each device as often as it is there: `h100+l4,count=2` has two h100, then two l4.
  std::vector<DeviceSpecification> all_devices() const;
};

struct ParsedSpecification {
  std::optional<Specification> specification;
  // A sentence that names what is wrong, where there is no specification.
  std::string error;
};

// Reads the files of devices that begin with `@`.
ParsedSpecification parse_specification(std::string_view text);

// Returns an amount of memory in bytes, as `23.5GiB`; nothing for another text, and above 1024GiB.
std::optional<uint64_t> parse_bytes(std::string_view text);

// The same devices for a program that starts in another folder: the paths of files are absolute.
std::string with_absolute_paths(std::string_view specification);

}  // namespace memledger::virtual_gpu
