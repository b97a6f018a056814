#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace memledger::virtual_gpu {

// What a program can ask of a device. The sources of the figures are next to them in profiles.cc.
// profile_json.cc lists the members again, for devices of one's own.
struct Profile {
  std::string name;         // as the user writes it
  std::string device_name;  // as CUDA reports it
  int major;
  int minor;
  int multiprocessors;
  uint64_t total_memory_bytes;    // what the CUDA runtime can give, less than what is soldered on
  uint64_t nominal_memory_bytes;  // what NVML reports
  uint64_t sure_memory_bytes;     // what is there whatever `memory_note` says; else the total
  // What a process holds beyond LibTorch's reserved bytes: the maximum and the minimum seen.
  uint64_t context_bytes;
  uint64_t least_context_bytes;
  int l2_cache_bytes;
  int persisting_l2_cache_bytes;
  int shared_memory_per_block_optin;
  int shared_memory_per_multiprocessor;
  int reserved_shared_memory_per_block;
  int max_threads_per_multiprocessor;
  int max_blocks_per_multiprocessor;
  int clock_khz;
  int memory_clock_khz;
  int memory_bus_bits;
  int async_engines;
  int single_to_double_ratio;
  bool error_correction;
  int pci_device_id;           // device in the upper, vendor in the lower 16 bits
  std::string source;          // of total_memory_bytes, for people
  std::string memory_note;     // why a device may have less: "with ECC on, …"; empty if none does
  std::string context_source;  // of both contexts

  int compute_capability() const { return major * 10 + minor; }
};

// The same for every device of compute capability 7.0 to 12.0.
inline constexpr int kSharedMemoryPerBlock = 48 << 10;
inline constexpr int kRegistersPerMultiprocessor = 64 << 10;
inline constexpr int kRegistersPerBlock = 64 << 10;
inline constexpr int kMaxThreadsPerBlock = 1024;
inline constexpr int kWarpSize = 32;

// Whether the driver lets two such devices read each other's memory: GeForce cards do not.
bool have_peers(const Profile& device, const Profile& peer);

// The devices that are known, in the order in which messages name them.
const std::vector<Profile>& profiles();

// nullptr for an unknown name.
const Profile* find_profile(std::string_view name);

// By the name that CUDA gives a device, else by the longest part of it that is a profile's: an "RTX
// 4090 D" is taken for the rtx4090. `nominal_bytes`, if not 0, is the memory that NVML reports,
// which has to be about the profile's. nullptr where none is like it.
const Profile* find_profile_of_device(std::string_view device_name, uint64_t nominal_bytes = 0);

// "b200, h200, h100, … (`memledger gpus` lists 52)", for messages: the first dozen.
std::string profile_names();

}  // namespace memledger::virtual_gpu
