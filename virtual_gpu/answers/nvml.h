#pragma once

#include "virtual_gpu/machine.h"

// What the files of NVML share.
namespace memledger::virtual_gpu::nvml {

constexpr int kSuccess = 0;
constexpr int kInvalidArgument = 2;
constexpr int kNotSupported = 3;
constexpr int kNotFound = 6;
constexpr int kInsufficientSize = 7;
constexpr int kVersionMismatch = 25;

// The driver whose answers these are.
inline constexpr char kDriverVersion[] = "580.159.04";

// A device is the address of its place among these.
inline char handles[8];
using Handle = char*;

inline bool is_handle(Handle handle) {
  return handle >= handles && handle < handles + Machine::get().machine_count();
}
inline int machine_number_of(Handle handle) { return static_cast<int>(handle - handles); }
inline int device_of(Handle handle) {
  return Machine::get().device_of_machine(machine_number_of(handle));
}
inline const Profile& profile_of(Handle handle) {
  return Machine::get().profile(device_of(handle));
}

int give_text(const char* text, char* to, unsigned length);

}  // namespace memledger::virtual_gpu::nvml
