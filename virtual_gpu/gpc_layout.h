#pragma once

#include <algorithm>
#include <vector>

#include "virtual_gpu/profiles.h"

namespace memledger::virtual_gpu {

// How many multiprocessors each graphics processing cluster (GPC) of a device has. Boards of one
// name can differ, because some multiprocessors are switched off. Depending on the layout, cuDNN
// chooses other plans. With four layouts of 132 multiprocessors a ResNet-18 takes 2 706 to 2 876
// MiB; an H200 took 2 752 MiB (docs/accuracy.md).
//
// The model assumes that multiprocessors come in pairs and that there are as few GPCs as can hold
// them. A GPC has at most 18 multiprocessors for compute capability 9.x, 16 for 12.x and 20 for
// others (full GPCs of GH100, GB202 and GB100 in NVIDIA's papers). With `unevenness` 0 the GPCs are
// as even as possible. Each step above moves a pair from one GPC of middle size to another, as long
// as there are two.
inline std::vector<int> multiprocessors_of_gpcs(const Profile& profile, int unevenness) {
  const int max_pairs = profile.major == 9 ? 9 : profile.major == 12 ? 8 : 10;
  const int pairs = (profile.multiprocessors + 1) / 2;
  const int gpcs = std::max(1, (pairs + max_pairs - 1) / max_pairs);
  std::vector<int> sizes;
  for (int gpc = 0; gpc < gpcs; ++gpc) sizes.push_back((pairs + gpc) / gpcs);
  const int middle = sizes.front();
  for (int i = 0; i < unevenness && middle > 1 && middle < max_pairs; ++i) {
    if (std::count(sizes.begin(), sizes.end(), middle) < 2) break;
    *std::find(sizes.begin(), sizes.end(), middle) = middle - 1;
    *std::find(sizes.begin(), sizes.end(), middle) = middle + 1;
  }
  for (int& size : sizes) size *= 2;
  // A pair may have one of its two only.
  if (profile.multiprocessors % 2 == 1) --sizes.back();
  return sizes;
}

// Returns how many clusters of `cluster` thread blocks can run at a time if a multiprocessor has
// room for `blocks` of them. A cluster lies within one GPC. cuDNN 9.1 asks for sizes from 18 down
// to find the GPCs, and never ends if the answers fit no layout.
inline int active_clusters(const Profile& profile, int unevenness, int blocks, int cluster) {
  int clusters = 0;
  for (const int multiprocessors : multiprocessors_of_gpcs(profile, unevenness))
    clusters += multiprocessors * blocks / cluster;
  return clusters;
}

}  // namespace memledger::virtual_gpu
