#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace memledger {

// What NVIDIA's management library (NVML) says of a CUDA device; of an instance (MIG) where the
// device is split into some. CUDA itself refuses every call in
// a copy of the process (fork), where reports at the end are written; NVML answers there.
struct DriverMemory {
  std::string name;  // "NVIDIA H200"
  // What programs can have of the device: without what the driver reserves for itself. In bytes,
  // both as cudaMemGetInfo() counts them.
  int64_t total_bytes = 0;
  int64_t used_bytes = 0;
  // What the process that noted the device holds of it, its context included. Empty where the
  // driver knows processes by other numbers, as in containers.
  std::optional<int64_t> process_bytes;
};

// Notes where a device is on the bus, so that driver_memory() finds it later. Call it when the
// process has memory of the device: asking CUDA earlier would initialize it, and a child that is
// forked afterwards could not use it. Does nothing for a device that is noted already (one load).
// Takes the loader's lock the first time, so the caller holds no lock. Thread-safe.
void note_device_in_use(int device) noexcept;

// Empty for a device that was not noted, where NVML is missing or refuses, and where it does not
// know the instance of a device that is split. Asks nothing of
// LibTorch or CUDA, so it may be called at exit and in a copy of the process. Costs about a
// millisecond; the first call loads NVML, some ten milliseconds. Thread-safe.
std::optional<DriverMemory> driver_memory(int device);

}  // namespace memledger
