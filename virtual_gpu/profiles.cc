#include "virtual_gpu/profiles.h"

// clang-format off
// Sources.
//   [guide]  CUDA programming guide, table "Technical Specifications per Compute Capability": threads, blocks and shared memory.
//            https://docs.nvidia.com/cuda/cuda-c-programming-guide/#features-and-technical-specifications
//   [hopper] H100 architecture whitepaper: multiprocessors, L2, bus width. https://resources.nvidia.com/en-us-tensor-core
//   [h200]   H200 datasheet: memory and its speed. https://www.nvidia.com/en-us/data-center/h200/
//   [ampere] A100 architecture whitepaper.
//            https://images.nvidia.com/aem-dam/en-zz/Solutions/data-center/nvidia-ampere-architecture-whitepaper.pdf
//   [ada]    Ada architecture whitepaper: AD102, and AD104 of the L4.
//            https://images.nvidia.com/aem-dam/Solutions/geforce/ada/nvidia-ada-gpu-architecture.pdf
//   [l4]     L4 datasheet. https://www.nvidia.com/en-us/data-center/l4/
//   [turing] Turing architecture whitepaper.
//            https://images.nvidia.com/aem-dam/en-zz/Solutions/design-visualization/technologies/turing-architecture/NVIDIA-Turing-Architecture-Whitepaper.pdf
//   [t4]     deviceQuery of a T4. https://chiemon.github.io/2024/12/25/%E6%98%BE%E5%8D%A1%E4%BF%A1%E6%81%AF.html
// Total memory is what the CUDA runtime says, less than what is on the board and a few MiB different from driver to driver. Printed by
// programs on such devices:
//   h200     143156 MiB, weedge/achatbot, notes in src/llm/vllm/vlm/skywork_r1v.py
//   h100     81089 MiB, stas00/ml-engineering, network benchmarks with torch 2.7 (others there: 81082 to 81090)
//   a100     79.25 GiB, https://github.com/levihsu/OOTDiffusion/issues/235
//   rtx4090  23.64 GiB, https://github.com/ali-vilab/VGen/issues/104
//   t4       14.56 GiB, https://github.com/AlphaGPU/leetgpu-challenges/issues/52
//   l4       derived: 1.5 % less than the 23034 MiB that nvidia-smi shows, https://github.com/lmstudio-ai/lmstudio-bug-tracker/issues/1638
// Clocks are the boost clocks of the datasheets. Parts of L2 that can persist are derived (62.5, 75 and 69 % of it), as are engine counts.
// clang-format on

namespace memledger::virtual_gpu {
namespace {

constexpr uint64_t mib(uint64_t n) { return n << 20; }

constexpr Profile kProfiles[] = {
    {
        // [h200] [hopper] [guide]
        /*name=*/"h200",
        /*device_name=*/"NVIDIA H200",
        /*major=*/9,
        /*minor=*/0,
        /*multiprocessors=*/132,
        /*total_memory_bytes=*/mib(143156),
        /*nominal_memory_bytes=*/mib(143771),
        /*l2_cache_bytes=*/60 << 20,
        /*persisting_l2_cache_bytes=*/(60 << 20) / 8 * 5,
        /*shared_memory_per_block_optin=*/227 << 10,
        /*shared_memory_per_multiprocessor=*/228 << 10,
        /*reserved_shared_memory_per_block=*/1 << 10,
        /*max_threads_per_multiprocessor=*/2048,
        /*max_blocks_per_multiprocessor=*/32,
        /*clock_khz=*/1980000,
        /*memory_clock_khz=*/3201000,
        /*memory_bus_bits=*/6144,
        /*async_engines=*/3,
        /*single_to_double_ratio=*/2,
        /*error_correction=*/true,
        /*pci_device_id=*/0x233510de,
    },
    {
        // [hopper] [guide], the SXM5 board of 80 GB
        /*name=*/"h100",
        /*device_name=*/"NVIDIA H100 80GB HBM3",
        /*major=*/9,
        /*minor=*/0,
        /*multiprocessors=*/132,
        /*total_memory_bytes=*/mib(81089),
        /*nominal_memory_bytes=*/mib(81559),
        /*l2_cache_bytes=*/50 << 20,
        /*persisting_l2_cache_bytes=*/(50 << 20) / 8 * 5,
        /*shared_memory_per_block_optin=*/227 << 10,
        /*shared_memory_per_multiprocessor=*/228 << 10,
        /*reserved_shared_memory_per_block=*/1 << 10,
        /*max_threads_per_multiprocessor=*/2048,
        /*max_blocks_per_multiprocessor=*/32,
        /*clock_khz=*/1980000,
        /*memory_clock_khz=*/2619000,
        /*memory_bus_bits=*/5120,
        /*async_engines=*/3,
        /*single_to_double_ratio=*/2,
        /*error_correction=*/true,
        /*pci_device_id=*/0x233010de,
    },
    {
        // [ampere] [guide], the SXM4 board of 80 GB
        /*name=*/"a100",
        /*device_name=*/"NVIDIA A100-SXM4-80GB",
        /*major=*/8,
        /*minor=*/0,
        /*multiprocessors=*/108,
        /*total_memory_bytes=*/mib(81153),
        /*nominal_memory_bytes=*/mib(81920),
        /*l2_cache_bytes=*/40 << 20,
        /*persisting_l2_cache_bytes=*/(40 << 20) / 4 * 3,
        /*shared_memory_per_block_optin=*/163 << 10,
        /*shared_memory_per_multiprocessor=*/164 << 10,
        /*reserved_shared_memory_per_block=*/1 << 10,
        /*max_threads_per_multiprocessor=*/2048,
        /*max_blocks_per_multiprocessor=*/32,
        /*clock_khz=*/1410000,
        /*memory_clock_khz=*/1593000,
        /*memory_bus_bits=*/5120,
        /*async_engines=*/3,
        /*single_to_double_ratio=*/2,
        /*error_correction=*/true,
        /*pci_device_id=*/0x20b210de,
    },
    {
        // [l4] [ada] [guide]
        /*name=*/"l4",
        /*device_name=*/"NVIDIA L4",
        /*major=*/8,
        /*minor=*/9,
        /*multiprocessors=*/58,
        /*total_memory_bytes=*/mib(22693),
        /*nominal_memory_bytes=*/mib(23034),
        /*l2_cache_bytes=*/48 << 20,
        /*persisting_l2_cache_bytes=*/(48 << 20) / 16 * 11,
        /*shared_memory_per_block_optin=*/99 << 10,
        /*shared_memory_per_multiprocessor=*/100 << 10,
        /*reserved_shared_memory_per_block=*/1 << 10,
        /*max_threads_per_multiprocessor=*/1536,
        /*max_blocks_per_multiprocessor=*/24,
        /*clock_khz=*/2040000,
        /*memory_clock_khz=*/6251000,
        /*memory_bus_bits=*/192,
        /*async_engines=*/2,
        /*single_to_double_ratio=*/64,
        /*error_correction=*/true,
        /*pci_device_id=*/0x27b810de,
    },
    {
        // [ada] [guide]
        /*name=*/"rtx4090",
        /*device_name=*/"NVIDIA GeForce RTX 4090",
        /*major=*/8,
        /*minor=*/9,
        /*multiprocessors=*/128,
        /*total_memory_bytes=*/mib(24209),
        /*nominal_memory_bytes=*/mib(24564),
        /*l2_cache_bytes=*/72 << 20,
        /*persisting_l2_cache_bytes=*/(72 << 20) / 16 * 11,
        /*shared_memory_per_block_optin=*/99 << 10,
        /*shared_memory_per_multiprocessor=*/100 << 10,
        /*reserved_shared_memory_per_block=*/1 << 10,
        /*max_threads_per_multiprocessor=*/1536,
        /*max_blocks_per_multiprocessor=*/24,
        /*clock_khz=*/2520000,
        /*memory_clock_khz=*/10501000,
        /*memory_bus_bits=*/384,
        /*async_engines=*/2,
        /*single_to_double_ratio=*/64,
        /*error_correction=*/false,
        /*pci_device_id=*/0x268410de,
    },
    {
        // [turing] [t4] [guide]
        /*name=*/"t4",
        /*device_name=*/"Tesla T4",
        /*major=*/7,
        /*minor=*/5,
        /*multiprocessors=*/40,
        /*total_memory_bytes=*/mib(14913),
        /*nominal_memory_bytes=*/mib(15360),
        /*l2_cache_bytes=*/4 << 20,
        /*persisting_l2_cache_bytes=*/0,
        /*shared_memory_per_block_optin=*/64 << 10,
        /*shared_memory_per_multiprocessor=*/64 << 10,
        /*reserved_shared_memory_per_block=*/0,
        /*max_threads_per_multiprocessor=*/1024,
        /*max_blocks_per_multiprocessor=*/16,
        /*clock_khz=*/1590000,
        /*memory_clock_khz=*/5001000,
        /*memory_bus_bits=*/256,
        /*async_engines=*/3,
        /*single_to_double_ratio=*/32,
        /*error_correction=*/true,
        /*pci_device_id=*/0x1eb810de,
    },
};

}  // namespace

const Profile* find_profile(std::string_view name) {
  for (const Profile& profile : kProfiles) {
    if (profile.name == name) return &profile;
  }
  return nullptr;
}

std::string profile_names() {
  std::string names;
  for (const Profile& profile : kProfiles) {
    if (!names.empty()) names += ", ";
    names += profile.name;
  }
  return names;
}

}  // namespace memledger::virtual_gpu
