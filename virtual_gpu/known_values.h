#pragma once

#include <cstddef>
#include <cstdint>

// The interface to a library that knows the content of device memory (virtual_gpu/values): what the
// answers report to it and ask it. It sees LibTorch's operators; the answers see NVIDIA's
// functions.
extern "C" {

// Work that writes somewhere.
struct memledger_virtual_gpu_work {
  const void* kernel;  // its stub on the host, or the CUfunction; nullptr for a copy or a fill
  unsigned blocks;     // that a kernel is launched with; 0 where that is not known
  unsigned threads;    // of a block
  bool is_queued;      // behind what has not run: it is not done now
  // A kernel's arguments, as the launch has them: each points to one. Or all of them in one piece.
  // Both nullptr where it shows nothing of them. Valid during the call.
  void* const* arguments;
  const void* argument_bytes;
  size_t argument_byte_count;
};

// May be called by any thread at any time, without a lock held.
struct memledger_virtual_gpu_values {
  // Puts what is known into a copy from the device to the host, and leaves the other bytes as they
  // are. Returns how many these are.
  size_t (*read)(void* destination, uintptr_t address, size_t bytes);
  // The host wrote to device memory, or device memory was copied: what it has now, nullptr where
  // that is not known.
  void (*wrote)(uintptr_t address, const void* content, size_t bytes);
  // Work was submitted that is done now, or queued.
  void (*worked)(const memledger_virtual_gpu_work* work);
  // A function of a library worked that reports no details.
  void (*library_worked)();
  // Work was captured into a graph. Returns what `launched` gets at each launch of it, and
  // `dropped` when no graph has it any more.
  void* (*captured)(const memledger_virtual_gpu_work* work);
  // A node of a graph is done now, and all before it are; nullptr: of which nothing is known.
  void (*launched)(void* captured);
  void (*dropped)(void* captured);
  // All nodes of a launch are done.
  void (*ended_launch)();
  // All of device memory may have been written.
  void (*wrote_anywhere)();
};

// Sets the listener, for ever. Returns the maximum bytes of a storage whose content is to be known;
// 0 where the specification says none, or there is a listener already: then the caller is not
// added. Found by name (dlsym): where it is not, there is no virtual GPU.
__attribute__((visibility("default"))) uint64_t memledger_virtual_gpu_know(
    const memledger_virtual_gpu_values* values);

// Other processes can write to the range from now on, or no longer. Called with the machine's lock
// held, at any time, by any thread.
typedef void (*memledger_virtual_gpu_on_shared)(uintptr_t address, size_t bytes, bool is_shared);

// Sets the listener for that, for ever: the one that memledger_virtual_gpu_know() has accepted.
__attribute__((visibility("default"))) void memledger_virtual_gpu_know_shared(
    memledger_virtual_gpu_on_shared told);
// Whether any stream captures, or has work that waits for a function of the host.
__attribute__((visibility("default"))) bool memledger_virtual_gpu_defers();
// Whether it is LibTorch's kernel that lets the device wait (torch.cuda._sleep), and writes
// nothing.
__attribute__((visibility("default"))) bool memledger_virtual_gpu_only_waits(const void* kernel);

}  // extern "C"

namespace memledger::virtual_gpu {

// Returns what was set; before that, functions that do nothing and know nothing.
const memledger_virtual_gpu_values& known_values();

// Reports memory that other processes can write to.
void note_shared(uintptr_t address, size_t bytes, bool is_shared);

}  // namespace memledger::virtual_gpu
