#pragma once

namespace memledger::inside {

// Reads how many devices the virtual GPU has. Call it once, at load.
void begin_device_files();

// Where `path` is a file that CUDA's driver makes for a device which the virtual GPU has, returns
// that of a device that is there, which a program may be shown in its place; else null. Some
// programs, such as JAX, look for /dev/nvidia0 before they ask the driver. Can be called in signal
// handlers.
const char* device_file(const char* path);

}  // namespace memledger::inside
