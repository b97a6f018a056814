#pragma once

#include <cstddef>

// Writes NVIDIA's own libraries in a program on a virtual GPU (libraries=real), with their
// releases, and those that it lacks, `cuBLAS 13.1.0, cuDNN 9.19.0; not found: cuFile`, as far as
// the room allows, and a zero. Empty without any, as with stand-ins for all of them. Takes the
// loader's lock. Found by name (dlsym): nullptr where no virtual GPU is there.
extern "C" __attribute__((visibility("default"))) void memledger_virtual_gpu_real_libraries(
    char* text, size_t room);
