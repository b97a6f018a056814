#pragma once

#include <cstddef>
#include <cstdint>

#include "virtual_gpu/profiles.h"

namespace memledger::virtual_gpu {

// What a program can say of NCCL's channels and buffers: the variables of its environment, and what
// it gives at a communicator's creation.
struct NcclSettings {
  int min_channels = 0;
  int max_channels = 64;
  int min_p2p_channels = 1;
  int max_p2p_channels = 64;
  size_t simple_buffer = size_t{4} << 20;  // NCCL_BUFFSIZE
  size_t ll_buffer = size_t{512} << 10;
  size_t ll128_buffer = 4915200;
  size_t p2p_chunk = 0;  // 0: by what joins the devices
  bool nvls = true;
  size_t nvls_chunk = size_t{128} << 10;
  int local_ranks = 0;  // of this node; 0: not known

  // From NCCL_BUFFSIZE, NCCL_MAX_NCHANNELS … and LOCAL_WORLD_SIZE.
  static NcclSettings from_environment();
};

// What a communicator has been used for, which is when NCCL takes most of its memory.
struct NcclUse {
  bool ring = false;
  bool tree = false;
  bool nvls = false;
  // Ranks of this node that it sent to and received from, and whether there were others.
  int sends = 0;
  int receives = 0;
  bool remote_sends = false;
  bool remote_receives = false;
};

// The memory that a communicator of NCCL takes on its device in addition to LibTorch's. It is an
// upper bound for what the sources of NCCL 2.28 allocate (transport/p2p.cc, net.cc, nvls.cc,
// channel.cc). It assumes the topology with the most channels that logs of such devices show.
//
// A connection to a peer has, for each channel, a buffer of 10 MiB at the receiver and one of 2 at
// the sender: LL, LL128 and simple buffers, 512 KiB + 4.7 MiB + 4 MiB, rounded up to 2 MiB. Ring
// and tree need one in each direction of the ring; ncclSend and ncclRecv one for each peer. The
// channels themselves, the pool for sends over a network and the buffers of NVLink's multicast are
// added. If NCCL can use the driver's virtual memory management, it connects at first use, and each
// of a channel's three tables takes 2 MiB. Otherwise it connects at creation. Which of the two
// applies is not known, so the larger counts.
//
// Published figures (NVIDIA/nccl issues 964, 1685) and the model's: all-reduce between two of four
// A100s 544 and 544 MiB, between three or four 688 and 832 MiB. For all-to-all of eight H100s 3.28
// GB and 3520 MiB.
class NcclMemory {
 public:
  NcclMemory(const Profile& profile, int ranks, const NcclSettings& settings);

  size_t bytes(const NcclUse& use) const;

  int channels() const { return channels_; }
  int p2p_channels() const { return p2p_channels_; }
  int local_ranks() const { return local_ranks_; }

 private:
  size_t connection(bool sends, bool receives) const;
  size_t network_connection() const;
  size_t rings() const;
  size_t trees() const;
  size_t network_pool() const;

  NcclSettings settings_;
  int ranks_;
  int local_ranks_;
  bool reads_;  // Ampere's NVLink: the receiver reads, so the simple buffer is the sender's
  int channels_;
  int p2p_channels_;
  int nvls_channels_;
  size_t p2p_chunk_;
};

}  // namespace memledger::virtual_gpu
