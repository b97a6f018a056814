#include "virtual_gpu/profiles.h"

#include <algorithm>
#include <cctype>
#include <limits>

// clang-format off
// Sources.
//   [guide]     CUDA programming guide, table "Technical Specifications per Compute Capability".
//               https://docs.nvidia.com/cuda/cuda-c-programming-guide/#features-and-technical-specifications
//   [tuning]    Blackwell tuning guide: shared memory and L2 of 10.0 and 12.0.
//               https://docs.nvidia.com/cuda/blackwell-tuning-guide/
//   [volta]     V100 architecture whitepaper, and deviceQuery of a V100-SXM2-32GB, which agree.
//               https://images.nvidia.com/content/volta-architecture/pdf/volta-architecture-whitepaper.pdf
//   [turing]    Turing architecture whitepaper, and deviceQuery of a T4.
//               https://chiemon.github.io/2024/12/25/%E6%98%BE%E5%8D%A1%E4%BF%A1%E6%81%AF.html
//   [ampere]    A100 architecture whitepaper; the 40 GB board's memory clock: A100 datasheet.
//               https://images.nvidia.com/aem-dam/en-zz/Solutions/data-center/nvidia-ampere-architecture-whitepaper.pdf
//   [ga102]     GA102 architecture whitepaper; deviceQuery of RTX 3090 and RTX 3060 (L2 2.25 MiB).
//               https://images.nvidia.com/aem-dam/en-zz/Solutions/geforce/ampere/pdf/NVIDIA-ampere-GA102-GPU-Architecture-Whitepaper-V1.pdf
//   [a10g]      A10 datasheet; 80 multiprocessors as deviceQuery of an A10G says.
//   [ada]       Ada architecture whitepaper: AD102, and AD104 of the L4.
//               https://images.nvidia.com/aem-dam/Solutions/geforce/ada/nvidia-ada-gpu-architecture.pdf
//   [l4]        L4 datasheet. https://www.nvidia.com/en-us/data-center/l4/
//   [l40s]      L40S datasheet. https://www.nvidia.com/en-us/data-center/l40s/
//   [hopper]    H100 architecture whitepaper. https://resources.nvidia.com/en-us-tensor-core
//   [nvl]       H100 NVL product brief: 94 GB at 3.9 TB/s, from which the bus of 6016 bits follows.
//   [h200]      H200 datasheet. https://www.nvidia.com/en-us/data-center/h200/
//   [b200]      A program's output on a B200. https://github.com/pytorch/ao/pull/4002
//   [5090]      RTX Blackwell whitepaper, and deviceQuery:
//               https://github.com/aikitoria/open-gpu-kernel-modules/issues/1
//   [ada20]     Data sheets of RTX 4080, 4070, 4060 Ti, RTX 6000 Ada, L40.
//   [ampere20]  Data sheets of A10, A30, A40, RTX A6000, RTX 3080 and 3070.
//   [blackwell20] Data sheets of RTX 5080, 5070, 5060 Ti, RTX PRO 6000, B300, GB200, GB300.
//   [mig]       MIG user guide: fractions of L2 and memory, copy engines.
//               https://docs.nvidia.com/datacenter/tesla/mig-user-guide/
//   [jetson]    deviceQuery of a Jetson AGX Orin of 64 GB and of a Thor; the memory is the host's.
//   [pci]       https://github.com/pciutils/pciids, of 2026-08-22: the devices' numbers.
// tests/virtual_gpu/profiles.tsv says of each device where its memory, NVML's figure, its
// multiprocessors, its L2 and its bus come from, with the words that were printed. Derived: the
// part of L2 that can persist (sixteenths of it, as on other devices of the capability; 10.0 and
// 12.0 as 9.0), and engine counts.
//
// Total memory is the figure of the CUDA runtime. It is less than the board has, and drivers differ
// by some MiB. Each row has the smallest figure that a program printed on such a device, on Linux;
// for a figure such as 79.15 GiB, the smallest number that rounds to it. If a device with the same
// memory printed less, the row has that.
//
// The contexts come from published out-of-memory messages: what a process holds beyond LibTorch's
// allocated and reserved bytes, without NCCL and other libraries that take memory of their own. The
// row has the smallest figure less 16 MiB and the largest plus 16 MiB, because rounding three
// figures to 0.01 GiB can hide as much. A device without measurements has those of the nearest one;
// its largest is scaled by the number of multiprocessors if that gives more.
// clang-format on

namespace memledger::virtual_gpu {
namespace {

constexpr uint64_t mib(uint64_t n) { return n << 20; }

// What devices of one compute capability have in common. [guide] [tuning]
struct Capability {
  int major;
  int minor;
  int shared_kib_per_block;
  int shared_kib_per_multiprocessor;
  int reserved_shared_kib;
  int threads;  // per multiprocessor
  int blocks;   // per multiprocessor
  int persisting_sixteenths;
};

constexpr Capability k70 = {7, 0, 96, 96, 0, 2048, 32, 0};
constexpr Capability k75 = {7, 5, 64, 64, 0, 1024, 16, 0};
constexpr Capability k80 = {8, 0, 163, 164, 1, 2048, 32, 12};
constexpr Capability k86 = {8, 6, 99, 100, 1, 1536, 16, 11};
constexpr Capability k87 = {8, 7, 163, 164, 1, 1536, 16, 11};
constexpr Capability k89 = {8, 9, 99, 100, 1, 1536, 24, 11};
constexpr Capability k90 = {9, 0, 227, 228, 1, 2048, 32, 10};
constexpr Capability k100 = {10, 0, 227, 228, 1, 2048, 32, 10};
constexpr Capability k103 = {10, 3, 227, 228, 1, 2048, 32, 10};
constexpr Capability k110 = {11, 0, 227, 228, 1, 1536, 24, 10};
constexpr Capability k120 = {12, 0, 99, 100, 1, 1536, 24, 10};

struct Memory {
  uint64_t total_mib;
  uint64_t nominal_mib;
  const char* source;
  uint64_t sure_mib = std::numeric_limits<uint64_t>::max();  // if less than the total
  const char* note = "";                                     // why it is less
};

constexpr const char* kHostMemory =
    "the memory is the host's, and what the system and other programs hold there is not counted";

struct Context {
  uint64_t most_mib, least_mib;
  const char* source;
};

struct Clocks {
  int mhz;
  int memory_mhz;
  int memory_bus_bits;
};

struct Chip {
  int multiprocessors;
  int l2_kib;
  int async_engines;
  int single_to_double_ratio;
  bool error_correction;
  int pci_device;
};

Profile profile(const char* name, const char* device_name, const Capability& capability,
                const Memory& memory, const Context& context, const Chip& chip,
                const Clocks& clocks) {
  Profile p{};
  p.name = name;
  p.device_name = device_name;
  p.major = capability.major;
  p.minor = capability.minor;
  p.multiprocessors = chip.multiprocessors;
  p.total_memory_bytes = mib(memory.total_mib);
  p.nominal_memory_bytes = mib(memory.nominal_mib);
  p.sure_memory_bytes = mib(std::min(memory.sure_mib, memory.total_mib));
  p.memory_note = memory.note;
  p.context_bytes = mib(context.most_mib);
  p.least_context_bytes = mib(context.least_mib);
  p.l2_cache_bytes = chip.l2_kib << 10;
  p.persisting_l2_cache_bytes = p.l2_cache_bytes / 16 * capability.persisting_sixteenths;
  p.shared_memory_per_block_optin = capability.shared_kib_per_block << 10;
  p.shared_memory_per_multiprocessor = capability.shared_kib_per_multiprocessor << 10;
  p.reserved_shared_memory_per_block = capability.reserved_shared_kib << 10;
  p.max_threads_per_multiprocessor = capability.threads;
  p.max_blocks_per_multiprocessor = capability.blocks;
  p.clock_khz = clocks.mhz * 1000;
  p.memory_clock_khz = clocks.memory_mhz * 1000;
  p.memory_bus_bits = clocks.memory_bus_bits;
  p.async_engines = chip.async_engines;
  p.single_to_double_ratio = chip.single_to_double_ratio;
  p.error_correction = chip.error_correction;
  p.pci_device_id = chip.pci_device << 16 | 0x10de;
  p.source = memory.source;
  p.context_source = context.source;
  return p;
}

std::vector<Profile> all_profiles() {
  return {
      // [b200] [guide] [tuning]; clocks of the board from its datasheet
      profile("b200", "NVIDIA B200", k100,
              {182626, 183359, "178.35 GiB, github.com/pytorch/ao/pull/4002"},
              {733, 507, "0.70 GiB, messages of b200; the least as h200"},
              {148, 129536, 3, 2, true, 0x2901}, {1965, 3996, 7680}),
      // [h200] [hopper]
      profile("h200", "NVIDIA H200", k90,
              {143155, 143771, "150109880320 B, measured, driver 580.159.04, 2026-11-27"},
              {784, 507, "0.75 GiB, training on h100; 0.51 after a model's load on h200"},
              {132, 60 << 10, 3, 2, true, 0x2335}, {1980, 3201, 6016}),
      // [hopper], the SXM5 board of 80 GB
      profile("h100", "NVIDIA H100 80GB HBM3", k90,
              {80994, 81559, "79.10 GiB, messages of h100; device queries 81079 to 81106 MiB"},
              {784, 507, "0.75 GiB, messages of h100 in training; the least as h200"},
              {132, 50 << 10, 3, 2, true, 0x2330}, {1980, 2619, 5120}),
      // [nvl] [hopper]
      profile("h100-nvl", "NVIDIA H100 NVL", k90,
              {95227, 95830, "93.00 GiB, github.com/ali-vilab/VACE/issues/56; others 93.02"},
              {784, 507, "as h100, not measured"}, {132, 50 << 10, 3, 2, true, 0x2321},
              {1785, 2619, 6016}),
      // [ampere], the SXM4 board of 80 GB
      profile("a100", "NVIDIA A100-SXM4-80GB", k80,
              {81045, 81920, "79.15 GiB, messages of a100; a device query 81158 MiB"},
              {539, 496, "0.50 to 0.51 GiB, messages of a100"}, {108, 40 << 10, 3, 2, true, 0x20b2},
              {1410, 1593, 5120}),
      // [ampere], the SXM4 board of 40 GB
      profile("a100-40", "NVIDIA A100-SXM4-40GB", k80,
              {40320, 40960, "39.38 GiB, messages of a100-40"}, {539, 496, "as a100, not measured"},
              {108, 40 << 10, 3, 2, true, 0x20b0}, {1410, 1215, 5120}),
      // [l40s] [ada]
      profile(
          "l40s", "NVIDIA L40S", k89,
          {45373, 46068,
           "47576711168 B, github.com/alvarobartt/cuda-device-query; others 44.39 GiB"},
          {664, 410,
           "0.416 GiB, query of memory on an RTX 6000 Ada; the most rtx4090's by multiprocessors"},
          {142, 96 << 10, 2, 64, true, 0x26b9}, {2520, 9001, 384}),
      // [l4] [ada]
      profile("l4", "NVIDIA L4", k89,
              {22518, 23034, "23612293120 B, a device query (CUDA 12.0); others 22.03 GiB"},
              {374, 271, "0.28 to 0.35 GiB, messages of cards with 22 GiB"},
              {58, 48 << 10, 2, 64, true, 0x27b8}, {2040, 6251, 192}),
      // [a10g] [ga102]
      profile("a10g", "NVIDIA A10G", k86,
              {22472, 23028, "21.95 GiB, messages of cards with 22 GiB; a10g 21.98"},
              {374, 271, "0.28 to 0.35 GiB, messages of cards with 22 GiB"},
              {80, 6 << 10, 2, 64, true, 0x2237}, {1710, 6251, 384}),
      // [5090] [tuning]
      profile("rtx5090", "NVIDIA GeForce RTX 5090", k120,
              {32088, 32607, "31.34 GiB, messages of rtx5090; device queries 32109 to 32120 MiB"},
              {795, 291,
               "0.30 to 0.60 GiB, messages of rtx5090; the most rtx4090's by multiprocessors"},
              {170, 96 << 10, 2, 64, false, 0x2b85}, {2407, 14001, 512}),
      // [ada]
      profile("rtx4090", "NVIDIA GeForce RTX 4090", k89,
              {24049, 24564, "23.49 GiB, messages of rtx4090"},
              {600, 455, "0.46 to 0.57 GiB, messages of rtx4090"},
              {128, 72 << 10, 2, 64, false, 0x2684}, {2520, 10501, 384}),
      // [ga102]
      profile(
          "rtx3090", "NVIDIA GeForce RTX 3090", k86,
          {24115, 24576, "25286672384 B, output of a device query"},
          {384, 230, "0.24 to 0.31 GiB, messages of rtx3090; the most a10g's by multiprocessors"},
          {82, 6 << 10, 2, 64, false, 0x2204}, {1695, 9751, 384}),
      // [ga102], the board of 12 GB
      profile("rtx3060", "NVIDIA GeForce RTX 3060", k86,
              {11894, 12288, "11.62 GiB, messages of rtx3060"},
              {374, 230, "as a10g and rtx3090, not measured"}, {28, 2304, 2, 64, false, 0x2504},
              {1777, 7501, 192}),
      // [volta], the SXM2 board of 32 GB
      profile("v100", "Tesla V100-SXM2-32GB", k70,
              {32487, 32768, "31.73 GiB, messages of v100; device queries 32510 MiB"},
              {539, 496, "as a100, not measured"}, {80, 6 << 10, 5, 2, true, 0x1db5},
              {1530, 877, 4096}),
      // [turing]
      profile("t4", "Tesla T4", k75,
              {14912, 15360, "14912 MiB, llama.cpp; 14.56 GiB, messages of t4"},
              {160, 117, "0.13 to 0.14 GiB, messages of t4"}, {40, 4 << 10, 3, 32, true, 0x1eb8},
              {1590, 5001, 256}),
      // [blackwell20] [ada20] [ampere20] [mig] [jetson], and the architectures' whitepapers above
      profile("b300", "NVIDIA B300 SXM6 AC", k103, {274110, 275040, "267.69 GiB, messages of b300"},
              {733, 507, "as b200, not measured"}, {148, 129536, 3, 2, true, 0x3182},
              {2032, 3996, 8192}),
      profile("gb200", "NVIDIA GB200", k100, {188729, 189471, "184.31 GiB, messages of gb200"},
              {733, 507, "as b200, not measured"}, {152, 129536, 3, 2, true, 0x2941},
              {2062, 3996, 8192}),
      profile("gb300", "NVIDIA GB300", k103,
              {283131, 284208, "276.50 GiB, github.com/stas00/ml-engineering, debug/pytorch.md"},
              {733, 507, "as b200, not measured"}, {152, 129536, 3, 2, true, 0x31c2},
              {2070, 3996, 8192}),
      profile("gh200", "NVIDIA GH200 480GB", k90,
              {96768, 97871, "101468602368 B, a device query (CUDA 12.9); 12.2: 97280 MiB"},
              {784, 507, "as h100, not measured"}, {132, 61440, 3, 2, true, 0x2342},
              {1980, 2619, 6144}),
      profile("h20", "NVIDIA H20", k90, {97285, 97871, "97285 MiB, LibTorch; others 95.1 GiB"},
              {784, 507, "as h100, not measured"}, {78, 61440, 3, 2, true, 0x2329},
              {1980, 2619, 6144}),
      profile("h100-pcie", "NVIDIA H100 PCIe", k90,
              {80994, 81559, "81008 MiB, LibTorch; the least as h100"},
              {784, 507, "as h100, not measured"}, {114, 51200, 3, 2, true, 0x2331},
              {1755, 1593, 5120}),
      profile("a100-pcie", "NVIDIA A100 80GB PCIe", k80,
              {81038, 81920, "84974239744 B, a device query (CUDA 12.4)"},
              {539, 496, "as a100, not measured"}, {108, 40960, 3, 2, true, 0x20b5},
              {1410, 1512, 5120}),
      profile("a100-pcie-40", "NVIDIA A100-PCIE-40GB", k80,
              {40320, 40960, "40326 MiB, LibTorch; the least as a100-40"},
              {539, 496, "as a100, not measured"}, {108, 40960, 3, 2, true, 0x20f1},
              {1410, 1215, 5120}),
      profile("a30", "NVIDIA A30", k80,
              {24049, 24576,
               "23.49 GiB, messages of a30; 23.53, github.com/google/RB-Modulation/issues/5"},
              {539, 257, "as a100 and by multiprocessors, not measured"},
              {56, 24576, 3, 2, true, 0x20b7}, {1440, 1215, 3072}),
      profile("l40", "NVIDIA L40", k89,
              {45373, 46068, "44.3 GiB and 45458 MiB, programs; the least as l40s"},
              {664, 410, "as l40s, not measured"}, {142, 98304, 2, 64, true, 0x26b5},
              {2490, 9001, 384}),
      profile("rtx6000ada", "NVIDIA RTX 6000 Ada Generation", k89,
              {48502, 49140, "47.37 GiB, messages of rtx6000ada; ECC off", 45373,
               "with ECC on there are 44.31 GiB"},
              {664, 410, "as l40s; 0.416 GiB, query of memory"}, {142, 98304, 2, 64, false, 0x26b1},
              {2505, 10001, 384}),
      profile("a40", "NVIDIA A40", k86,
              {45403, 46068, "47608692736 B, a device query (CUDA 12.4); others 45416 MiB"},
              {393, 230, "as rtx3090, not measured"}, {84, 6144, 2, 64, true, 0x2235},
              {1740, 7251, 384}),
      profile("a6000", "NVIDIA RTX A6000", k86,
              {48533, 49140, "47.40 GiB, a program; others 48569 to 48790 MiB; ECC off", 45493,
               "with ECC on there are 44.43 GiB"},
              {393, 230, "as rtx3090, not measured"}, {84, 6144, 2, 64, false, 0x2230},
              {1800, 8001, 384}),
      profile("a10", "NVIDIA A10", k86,
              {22472, 23028, "23609475072 B, a device query (CUDA 12.2); the least as a10g"},
              {374, 230, "as a10g and rtx3090, not measured"}, {72, 6144, 2, 64, true, 0x2236},
              {1695, 6251, 384}),
      profile("rtxpro6000", "NVIDIA RTX PRO 6000 Blackwell Workstation Edition", k120,
              {97234, 97887, "94.96 GiB, a message; llama.cpp 97249 MiB"},
              {880, 291, "as rtx5090 by multiprocessors, not measured"},
              {188, 131072, 2, 64, true, 0x2bb1}, {2617, 14001, 512}),
      profile("rtx5080", "NVIDIA GeForce RTX 5080", k120,
              {15816, 16303, "15.45 GiB, programs; others 15.46 to 15880 MiB"},
              {795, 230, "as rtx5090 and rtx3090, not measured"}, {84, 65536, 2, 64, false, 0x2c02},
              {2617, 15001, 256}),
      profile("rtx5070", "NVIDIA GeForce RTX 5070", k120,
              {11761, 12227, "11.49 GiB, a message; 11.50, a program"},
              {795, 230, "as rtx5090 and rtx3090, not measured"}, {48, 49152, 2, 64, false, 0x2f04},
              {2512, 14001, 192}),
      profile("rtx5060ti", "NVIDIA GeForce RTX 5060 Ti", k120,
              {7629, 8151, "7.5 GiB, a program; 8 GB"},
              {600, 230, "as rtx4090 and rtx3090, not measured"}, {36, 32768, 1, 64, false, 0x2d04},
              {2572, 14001, 128}),
      profile("rtx5060ti-16", "NVIDIA GeForce RTX 5060 Ti", k120,
              {15808, 16311, "15808 MiB, llama.cpp; others 15825 to 15888; 16 GB"},
              {600, 230, "as rtx4090 and rtx3090, not measured"}, {36, 32768, 1, 64, false, 0x2d04},
              {2572, 14001, 128}),
      profile("rtx4080", "NVIDIA GeForce RTX 4080", k89,
              {15939, 16376, "15.57 GiB, a program; LibTorch 16049 MiB"},
              {600, 230, "as rtx4090 and rtx3090, not measured"}, {76, 65536, 2, 64, false, 0x2704},
              {2505, 11201, 256}),
      profile("rtx4070", "NVIDIA GeForce RTX 4070", k89,
              {11833, 12282, "11.56 GiB, messages of rtx4070; llama.cpp 11866 MiB"},
              {600, 230, "as rtx4090 and rtx3090, not measured"}, {46, 36864, 2, 64, false, 0x2786},
              {2475, 10501, 192}),
      profile("rtx4060ti", "NVIDIA GeForce RTX 4060 Ti", k89,
              {7732, 8188, "7.6 GiB, a program; 8 GB"},
              {600, 230, "as rtx4090 and rtx3090, not measured"}, {34, 32768, 1, 64, false, 0x2803},
              {2535, 9001, 128}),
      profile("rtx4060ti-16", "NVIDIA GeForce RTX 4060 Ti", k89,
              {15939, 16380, "15.57 GiB, messages of rtx4060ti-16; 15948 MiB, a device query"},
              {600, 230, "as rtx4090 and rtx3090, not measured"}, {34, 32768, 1, 64, false, 0x2805},
              {2535, 9001, 128}),
      profile("rtx3080", "NVIDIA GeForce RTX 3080", k86,
              {9846, 10240, "9.62 GiB, messages of rtx3080; device queries 9984 MiB; 10 GB"},
              {384, 230, "as rtx3090, not measured"}, {68, 5120, 2, 64, false, 0x2206},
              {1710, 9501, 320}),
      profile("rtx3070", "NVIDIA GeForce RTX 3070", k86,
              {7817, 8192, "8197111808 B, a device query (CUDA 12.8)"},
              {384, 230, "as rtx3090, not measured"}, {46, 4096, 2, 64, false, 0x2484},
              {1725, 7001, 256}),
      profile("rtx2080ti", "NVIDIA GeForce RTX 2080 Ti", k75,
              {10809, 11264, "10.56 GiB, messages; 10823 MiB, a device query (CUDA 12.8)"},
              {272, 117, "as t4 by multiprocessors, not measured"},
              {68, 5632, 3, 32, false, 0x1e07}, {1545, 7000, 352}),
      profile("v100-16", "Tesla V100-SXM2-16GB", k70,
              {16128, 16384, "16911433728 B, a device query (CUDA 11.0)"},
              {539, 496, "as v100, not measured"}, {80, 6144, 5, 2, true, 0x1db1},
              {1530, 877, 4096}),
      profile("orin", "Orin", k87,
              {61440, 62841, "62827 MiB, llama.cpp, less 1.4 GiB for the system", 0, kHostMemory},
              {374, 117, "as l4 and t4, not measured"}, {16, 4096, 2, 32, false, 0x0000},
              {1300, 1300, 256}),
      profile("thor", "NVIDIA Thor", k110,
              {122880, 125772,
               "131587801088 B, a device query (CUDA 13.2), less 2.6 GiB for the system", 0,
               kHostMemory},
              {374, 117, "as l4 and t4, not measured"}, {20, 32768, 2, 32, false, 0x2b00},
              {1049, 4266, 256}),
      profile("h100-1g.10gb", "NVIDIA H100 80GB HBM3 MIG 1g.10gb", k90,
              {9728, 9984, "9.75 GiB, nvidia-smi; the least as a100-1g.10gb"},
              {784, 117, "as h100 and t4, not measured"}, {16, 6400, 1, 2, true, 0x2330},
              {1980, 2619, 640}),
      profile("h100-2g.20gb", "NVIDIA H100 80GB HBM3 MIG 2g.20gb", k90,
              {19968, 20096, "19.625 GiB, a program; the least as on an A100"},
              {784, 117, "as h100 and t4, not measured"}, {32, 12800, 2, 2, true, 0x2330},
              {1980, 2619, 1280}),
      profile("h100-3g.40gb", "NVIDIA H100 80GB HBM3 MIG 3g.40gb", k90,
              {40192, 40448, "39.25 GiB, LibTorch; 39.50, nvidia-smi with later drivers"},
              {784, 230, "as h100 and rtx3090, not measured"}, {60, 25600, 3, 2, true, 0x2330},
              {1980, 2619, 2560}),
      profile("a100-1g.10gb", "NVIDIA A100-SXM4-80GB MIG 1g.10gb", k80,
              {9728, 9728, "10200547328 B, a program"}, {539, 117, "as a100 and t4, not measured"},
              {14, 5120, 1, 2, true, 0x20b2}, {1410, 1593, 640}),
      profile("a100-3g.40gb", "NVIDIA A100-SXM4-80GB MIG 3g.40gb", k80,
              {40192, 40192, "42144366592 B, package spaces of PyPI"},
              {539, 117, "as a100 and t4, not measured"}, {42, 20480, 3, 2, true, 0x20b2},
              {1410, 1593, 2560}),
      profile("a100-1g.5gb", "NVIDIA A100-SXM4-40GB MIG 1g.5gb", k80,
              {4864, 4864, "4.75 GiB, messages of such a slice"},
              {539, 117, "as a100 and t4, not measured"}, {14, 5120, 1, 2, true, 0x20b0},
              {1410, 1215, 640}),
      profile("a100-2g.10gb", "NVIDIA A100-SXM4-40GB MIG 2g.10gb", k80,
              {9856, 9984, "10334765056 B, a program"}, {539, 117, "as a100 and t4, not measured"},
              {28, 10240, 2, 2, true, 0x20b0}, {1410, 1215, 1280}),
      profile("a100-3g.20gb", "NVIDIA A100-SXM4-40GB MIG 3g.20gb", k80,
              {19968, 20096, "19.50 GiB, nvidia-smi with later drivers; 19.62, a program"},
              {539, 117, "as a100 and t4, not measured"}, {42, 20480, 3, 2, true, 0x20b0},
              {1410, 1215, 2560}),
  };
}

}  // namespace

const std::vector<Profile>& profiles() {
  // Never destroyed: threads of the program may still call CUDA while it ends.
  static const auto* const known = new std::vector<Profile>(all_profiles());
  return *known;
}

bool have_peers(const Profile& device, const Profile& peer) {
  const auto may = [](const Profile& profile) {
    return profile.device_name.find("GeForce") == std::string::npos;
  };
  return may(device) && may(peer);
}

const Profile* find_profile(std::string_view name) {
  for (const Profile& profile : profiles()) {
    if (profile.name == name) return &profile;
  }
  return nullptr;
}

const Profile* find_profile_of_device(std::string_view device_name, uint64_t nominal_bytes) {
  // Lower case, words between single spaces: "nvidia h100 pcie", "rtx 4090".
  const auto words_of = [](std::string_view text) {
    std::string words = " ";
    for (size_t i = 0; i < text.size(); ++i) {
      const char c = text[i] == '-' ? ' ' : static_cast<char>(std::tolower(text[i] & 0x7f));
      words += c;
    }
    return words + " ";
  };
  // A board of half the memory has the same name, or nearly so.
  const auto has_memory = [nominal_bytes](const Profile& profile) {
    const uint64_t known = profile.nominal_memory_bytes;
    return nominal_bytes == 0 || (nominal_bytes > known / 4 * 3 && nominal_bytes < known / 3 * 4);
  };
  const std::string words = words_of(device_name);
  const Profile* similar = nullptr;
  for (const Profile& profile : profiles()) {
    if (!has_memory(profile)) continue;
    if (device_name == profile.device_name) return &profile;
    std::string spoken = words_of(profile.name);
    if (spoken.compare(0, 4, " rtx") == 0) spoken.insert(4, " ");
    const bool is_part = words.find(spoken) != std::string::npos;
    if (is_part && (similar == nullptr || profile.name.size() > similar->name.size()))
      similar = &profile;
  }
  return similar;
}

std::string profile_names() {
  constexpr size_t kShown = 12;
  std::string names;
  for (size_t i = 0; i < std::min(kShown, profiles().size()); ++i)
    names += profiles()[i].name + ", ";
  return names + "… (`memledger gpus` lists " + std::to_string(profiles().size()) + ")";
}

}  // namespace memledger::virtual_gpu
