#include "virtual_gpu/nccl_memory.h"

#include <algorithm>
#include <cstdlib>
#include <limits>

namespace memledger::virtual_gpu {
namespace {

constexpr size_t kKiB = size_t{1} << 10;
constexpr size_t kMiB = size_t{1} << 20;
// What a buffer that other processes map, and every allocation of the driver's virtual memory
// management, is rounded up to.
constexpr size_t kGranularity = 2 * kMiB;
constexpr int kMaxChannels = 64;
constexpr size_t kSteps = 8;
constexpr size_t kSharedSteps = 16;
constexpr size_t kTablesPerChannel = 3;
constexpr int kUsualRanksOfANode = 8;

size_t granules(size_t bytes) { return (bytes + kGranularity - 1) / kGranularity * kGranularity; }

int power_of_two(int number) {
  int result = 1;
  while (result < number) result *= 2;
  return result;
}

struct Channels {
  int collective;
  int nvls;  // multicast of NVLink
  bool nvlink;
};

// As NCCL's logs of such devices say ("24 coll channels, … 32 p2p channels per peer", NVIDIA/nccl
// issues 964, 1672, 1781, 2363).
Channels channels_of(const Profile& profile) {
  switch (profile.compute_capability()) {
    case 70:
      return {12, 0, true};
    case 80:
      return {24, 0, true};
    case 90:
      return {24, 16, true};
    case 100:
    case 103:
      return {kMaxChannels, 32, true};
    default:
      return {4, 0, false};  // PCIe, or two devices with a bridge
  }
}

// A number that NCCL reads from the environment; the other where it is not one.
int64_t number_of(const char* name, int64_t otherwise) {
  const char* const text = std::getenv(name);
  if (text == nullptr || *text == '\0') return otherwise;
  char* end = nullptr;
  const long long value = std::strtoll(text, &end, 0);
  const bool is_number = *end == '\0' && value >= 0 && value <= std::numeric_limits<int>::max();
  return is_number ? value : otherwise;
}

size_t bytes_of(const char* name, size_t otherwise) {
  return static_cast<size_t>(number_of(name, static_cast<int64_t>(otherwise)));
}

int channels_of(const char* name, int otherwise) {
  return static_cast<int>(std::min<int64_t>(kMaxChannels, number_of(name, otherwise)));
}

}  // namespace

NcclSettings NcclSettings::from_environment() {
  NcclSettings s;
  // The older names hold where the newer ones are not given.
  s.min_channels = channels_of("NCCL_MIN_NCHANNELS", channels_of("NCCL_MIN_NRINGS", 0));
  s.max_channels = channels_of("NCCL_MAX_NCHANNELS", channels_of("NCCL_MAX_NRINGS", kMaxChannels));
  s.min_channels = std::max(s.min_channels, channels_of("NCCL_MIN_CTAS", 0));
  s.max_channels = std::min(s.max_channels, channels_of("NCCL_MAX_CTAS", kMaxChannels));
  s.min_p2p_channels = channels_of("NCCL_MIN_P2P_NCHANNELS", s.min_p2p_channels);
  s.max_p2p_channels = channels_of("NCCL_MAX_P2P_NCHANNELS", s.max_p2p_channels);
  s.simple_buffer = bytes_of("NCCL_BUFFSIZE", s.simple_buffer);
  s.ll_buffer = bytes_of("NCCL_LL_BUFFSIZE", s.ll_buffer);
  s.ll128_buffer = bytes_of("NCCL_LL128_BUFFSIZE", s.ll128_buffer);
  s.p2p_chunk =
      std::max({bytes_of("NCCL_P2P_NVL_CHUNKSIZE", 0), bytes_of("NCCL_P2P_PCI_CHUNKSIZE", 0),
                bytes_of("NCCL_P2P_NET_CHUNKSIZE", 0)});
  s.nvls = number_of("NCCL_NVLS_ENABLE", 2) != 0;
  s.nvls_chunk = bytes_of("NCCL_NVLS_CHUNKSIZE", s.nvls_chunk);
  s.local_ranks = static_cast<int>(number_of("LOCAL_WORLD_SIZE", 0));
  return s;
}

NcclMemory::NcclMemory(const Profile& profile, int ranks, const NcclSettings& settings)
    : settings_(settings), ranks_(ranks) {
  const Channels usual = channels_of(profile);
  local_ranks_ =
      std::min(ranks, settings.local_ranks > 0 ? settings.local_ranks : kUsualRanksOfANode);
  reads_ = profile.compute_capability() == 80;
  // A communicator of one rank finds no limit to its channels.
  channels_ = ranks == 1 ? kMaxChannels : usual.collective;
  channels_ =
      std::max(1, std::max(settings.min_channels, std::min(settings.max_channels, channels_)));
  p2p_channels_ = power_of_two(
      std::max({1, settings.min_p2p_channels, std::min(channels_, settings.max_p2p_channels)}));
  const bool multicast = settings.nvls && local_ranks_ > 1;
  nvls_channels_ = multicast ? std::min(usual.nvls, std::max(1, settings.max_channels)) : 0;
  p2p_chunk_ = settings.p2p_chunk != 0 ? settings.p2p_chunk : (usual.nvlink ? 512 : 128) * kKiB;
  p2p_chunk_ = std::min(p2p_chunk_, settings.simple_buffer / kSteps);
}

// The buffers at this rank of one channel's connection to a peer of the node.
size_t NcclMemory::connection(bool sends, bool receives) const {
  const size_t head = 4 * kKiB;
  const size_t at_sender = head + (reads_ ? settings_.simple_buffer : 0);
  const size_t at_receiver =
      head + settings_.ll_buffer + settings_.ll128_buffer + (reads_ ? 0 : settings_.simple_buffer);
  return (sends ? granules(at_sender) : 0) + (receives ? granules(at_receiver) : 0);
}

// The same, in both directions, to a peer that a network is between.
size_t NcclMemory::network_connection() const {
  return 2 * granules(4 * kKiB + settings_.ll_buffer + settings_.ll128_buffer +
                      settings_.simple_buffer);
}

// A channel's ring or tree leaves the node at one of its ranks.
size_t NcclMemory::rings() const {
  if (ranks_ == 1) return 0;
  const auto channels = static_cast<size_t>(channels_);
  const auto local = static_cast<size_t>(local_ranks_);
  const size_t leaving = ranks_ > local_ranks_ ? (channels + local - 1) / local : 0;
  return channels * connection(true, true) + leaving * network_connection();
}

// Neighbours in the tree are those in the ring, with the other direction; between nodes there are
// up to two children and a parent.
size_t NcclMemory::trees() const {
  if (ranks_ <= 2) return 0;
  const auto channels = static_cast<size_t>(channels_);
  const auto local = static_cast<size_t>(local_ranks_);
  const size_t leaving = ranks_ > local_ranks_ ? (channels + local - 1) / local : 0;
  return channels * connection(true, true) + leaving * 3 * network_connection();
}

size_t NcclMemory::network_pool() const {
  return granules(static_cast<size_t>(p2p_channels_) * kSharedSteps * p2p_chunk_);
}

size_t NcclMemory::bytes(const NcclUse& use) const {
  const auto p2p = static_cast<size_t>(p2p_channels_);
  const auto nvls = static_cast<size_t>(nvls_channels_);
  const size_t peers = p2p * (static_cast<size_t>(use.sends) * connection(true, false) +
                              static_cast<size_t>(use.receives) * connection(false, true));
  const size_t received_over_network = use.remote_receives ? network_pool() : 0;

  const size_t at_creation = network_pool() + rings() + trees() + peers + received_over_network;

  const size_t all = static_cast<size_t>(std::max(channels_, p2p_channels_));
  size_t at_use = all * kTablesPerChannel * kGranularity + peers + received_over_network;
  if (use.remote_sends) at_use += network_pool();
  if (use.ring) at_use += rings();
  if (use.tree) at_use += trees();
  if (nvls != 0) at_use += nvls * kGranularity + kGranularity;  // its tables, and credits
  if (use.nvls) {
    at_use +=
        granules(nvls * 2 * kSteps * settings_.nvls_chunk * static_cast<size_t>(local_ranks_));
  }
  return std::max(at_creation, at_use);
}

}  // namespace memledger::virtual_gpu
