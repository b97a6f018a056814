#include "virtual_gpu/profiles.h"

#include <cctype>

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
// Derived: the part of L2 that can persist (sixteenths of it, as on other devices of the
// capability; 10.0 and 12.0 as 9.0), and engine counts.
//
// Total memory is what the CUDA runtime says: less than what is on the board, and some MiB
// different from driver to driver. Each is the least that was printed by a program on such a
// device; for a figure such as 79.15 GiB, the least that rounds to it. The contexts are the most
// and the least that published out-of-memory messages show of a process beyond LibTorch's reserved
// bytes, without NCCL and other libraries that take memory of their own: the process less
// allocated and reserved, 16 MiB more and less, which is what rounding three figures to 0.01 GiB
// may hide. What is not measured is taken from the nearest device, the most in proportion to the
// multiprocessors where that is more.
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
constexpr Capability k89 = {8, 9, 99, 100, 1, 1536, 24, 11};
constexpr Capability k90 = {9, 0, 227, 228, 1, 2048, 32, 10};
constexpr Capability k100 = {10, 0, 227, 228, 1, 2048, 32, 10};
constexpr Capability k120 = {12, 0, 99, 100, 1, 1536, 24, 10};

struct Memory {
  uint64_t total_mib;
  uint64_t nominal_mib;
  const char* source;
};

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
              {143156, 143771, "143156 MiB, github.com/weedge/achatbot"},
              {784, 507, "0.75 GiB, training on h100; 0.51 after a model's load on h200"},
              {132, 60 << 10, 3, 2, true, 0x2335}, {1980, 3201, 6144}),
      // [hopper], the SXM5 board of 80 GB
      profile("h100", "NVIDIA H100 80GB HBM3", k90, {80994, 81559, "79.10 GiB, messages of h100"},
              {784, 507, "0.75 GiB, messages of h100 in training; the least as h200"},
              {132, 50 << 10, 3, 2, true, 0x2330}, {1980, 2619, 5120}),
      // [nvl] [hopper]
      profile("h100-nvl", "NVIDIA H100 NVL", k90,
              {95227, 95830, "93.00 GiB, github.com/ali-vilab/VACE/issues/56"},
              {784, 507, "as h100, not measured"}, {132, 50 << 10, 3, 2, true, 0x2321},
              {1785, 2619, 6016}),
      // [ampere], the SXM4 board of 80 GB
      profile("a100", "NVIDIA A100-SXM4-80GB", k80, {81045, 81920, "79.15 GiB, messages of a100"},
              {539, 496, "0.50 to 0.51 GiB, messages of a100"}, {108, 40 << 10, 3, 2, true, 0x20b2},
              {1410, 1593, 5120}),
      // [ampere], the SXM4 board of 40 GB
      profile("a100-40", "NVIDIA A100-SXM4-40GB", k80,
              {40320, 40960, "39.38 GiB, messages of a100-40"}, {539, 496, "as a100, not measured"},
              {108, 40 << 10, 3, 2, true, 0x20b0}, {1410, 1215, 5120}),
      // [l40s] [ada]
      profile(
          "l40s", "NVIDIA L40S", k89,
          {45481, 46068, "44.42 GiB, github.com/stepfun-ai/Step-Video-T2V/issues/8"},
          {664, 410,
           "0.416 GiB, query of memory on an RTX 6000 Ada; the most rtx4090's by multiprocessors"},
          {142, 96 << 10, 2, 64, true, 0x26b9}, {2520, 9001, 384}),
      // [l4] [ada]
      profile("l4", "NVIDIA L4", k89, {22554, 23034, "22.03 GiB, messages of l4"},
              {374, 271, "0.28 to 0.35 GiB, messages of cards with 22 GiB"},
              {58, 48 << 10, 2, 64, true, 0x27b8}, {2040, 6251, 192}),
      // [a10g] [ga102]
      profile("a10g", "NVIDIA A10G", k86,
              {22472, 23028, "21.95 GiB, messages of cards with 22 GiB; a10g 21.98"},
              {374, 271, "0.28 to 0.35 GiB, messages of cards with 22 GiB"},
              {80, 6 << 10, 2, 64, true, 0x2237}, {1710, 6251, 384}),
      // [5090] [tuning]
      profile(
          "rtx5090", "NVIDIA GeForce RTX 5090", k120,
          {32117, 32607, "33677180928 B, github.com/aikitoria/open-gpu-kernel-modules/issues/1"},
          {795, 291,
           "0.30 to 0.60 GiB, messages of rtx5090; the most rtx4090's by multiprocessors"},
          {170, 96 << 10, 2, 64, false, 0x2b85}, {2407, 14001, 512}),
      // [ada]
      profile("rtx4090", "NVIDIA GeForce RTX 4090", k89,
              {24070, 24564, "23.51 GiB, messages of rtx4090"},
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
      profile("v100", "Tesla V100-SXM2-32GB", k70, {32487, 32768, "31.73 GiB, messages of v100"},
              {539, 496, "as a100, not measured"}, {80, 6 << 10, 5, 2, true, 0x1db5},
              {1530, 877, 4096}),
      // [turing]
      profile("t4", "Tesla T4", k75, {14912, 15360, "14.563 GiB, messages of t4"},
              {160, 117, "0.13 to 0.14 GiB, messages of t4"}, {40, 4 << 10, 3, 32, true, 0x1eb8},
              {1590, 5001, 256}),
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

const Profile* find_profile_of_device(std::string_view device_name) {
  // Lower case, words between single spaces: "nvidia h100 pcie", "rtx 4090".
  const auto words_of = [](std::string_view text) {
    std::string words = " ";
    for (size_t i = 0; i < text.size(); ++i) {
      const char c = text[i] == '-' ? ' ' : static_cast<char>(std::tolower(text[i] & 0x7f));
      words += c;
    }
    return words + " ";
  };
  const std::string words = words_of(device_name);
  const Profile* similar = nullptr;
  for (const Profile& profile : profiles()) {
    if (device_name == profile.device_name) return &profile;
    std::string spoken = words_of(profile.name);
    if (spoken.compare(0, 4, " rtx") == 0) spoken.insert(4, " ");
    if (words.find(spoken) != std::string::npos) similar = &profile;
  }
  return similar;
}

std::string profile_names() {
  std::string names;
  for (const Profile& profile : profiles()) {
    if (!names.empty()) names += ", ";
    names += profile.name;
  }
  return names;
}

}  // namespace memledger::virtual_gpu
