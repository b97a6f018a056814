#pragma once

#include <c10/core/Device.h>

#include <optional>

namespace memledger {

// Returns the one device that is meant, as reports spell it: `cpu` for cpu:0, cuda:0 for `cuda`.
inline c10::Device exact_device(c10::Device device) {
  if (device.is_cpu() || device.is_meta()) return c10::Device(device.type());
  return device.has_index() ? device : c10::Device(device.type(), 0);
}

// Returns whether an option takes a device in. Nothing takes in all, `cuda` all CUDA devices.
inline bool takes_in(const std::optional<c10::Device>& wanted, c10::Device device) {
  if (!wanted.has_value()) return true;
  return device.type() == wanted->type() &&
         (device.is_cpu() || !wanted->has_index() || device.index() == wanted->index());
}

}  // namespace memledger
