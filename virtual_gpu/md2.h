#pragma once

#include <array>
#include <vector>

namespace memledger::virtual_gpu {

using Md2Digest = std::array<unsigned char, 16>;

// The hash MD2 (RFC 1319), and its form with a key (RFC 2104), here of one block of MD2.
Md2Digest md2(std::vector<unsigned char> message);
Md2Digest keyed_md2(const Md2Digest& key, const std::vector<unsigned char>& message);

}  // namespace memledger::virtual_gpu
