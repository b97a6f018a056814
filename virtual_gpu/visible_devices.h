#pragma once

#include <array>
#include <string>
#include <vector>

namespace memledger::virtual_gpu {

// The UUID of the machine's device of that number, whatever CUDA_VISIBLE_DEVICES leaves of them.
std::array<unsigned char, 16> uuid_of(int machine_number);

// As c10 and nvidia-smi write it: "GPU-6d656d6c-6564-…".
std::string uuid_text(int machine_number);

// The machine's numbers of the devices that CUDA counts as 0, 1, …, of `count` that there are.
// `setting` is the value of CUDA_VISIBLE_DEVICES, nullptr where it is not set: numbers, or the
// beginnings of UUIDs, up to the first that stands for no device; none where one is named twice.
std::vector<int> visible_devices(const char* setting, int count);

}  // namespace memledger::virtual_gpu
