#pragma once

#include <cstddef>
#include <cstdint>

// Copies from a device to the host, for a library that knows what LibTorch reads there. The answers
// know the bytes that were copied, and nothing of operators. Found by name (dlsym): where these are
// missing there is no virtual GPU.
extern "C" {

// Called with a copy once it is done, on the thread that asked for it, with no lock held.
// `destination` has `bytes` of what is known of the device's memory, zeros else; the observer may
// write there.
typedef void (*memledger_virtual_gpu_read_observer)(void* destination, const void* source,
                                                    size_t bytes);

// Sets the one observer of this process, for good. Returns 0 where another is there already.
__attribute__((visibility("default"))) int memledger_virtual_gpu_observe_reads(
    memledger_virtual_gpu_read_observer observer);

// What the specification says of sizes that only the device knows: how many millionths of the
// largest possible one (`reads=`); kVariedMillionths: of each tensor another share.
__attribute__((visibility("default"))) uint32_t memledger_virtual_gpu_assumed_millionths();

// What whole numbers that the program reads and that are not known are to be: 0 or 1 (`numbers=`).
__attribute__((visibility("default"))) uint32_t memledger_virtual_gpu_assumed_number();

// Whether a collective between ranks brought these bytes of a device and reduced none: they are
// what the others sent if those send what this rank does.
__attribute__((visibility("default"))) int memledger_virtual_gpu_is_as_sent(const void* source,
                                                                            size_t bytes);

// The host memory at the address that kernels can write to: pinned, registered or managed. Returns
// 0 where there is none.
__attribute__((visibility("default"))) int memledger_virtual_gpu_host_range(uintptr_t address,
                                                                            uintptr_t* begin,
                                                                            size_t* bytes);

}  // extern "C"

namespace memledger::virtual_gpu {

inline constexpr uint32_t kVariedMillionths = 1000001;

// Calls the observer, if there is one.
void tell_of_read(void* destination, const void* source, size_t bytes);
bool reads_are_observed();

}  // namespace memledger::virtual_gpu
