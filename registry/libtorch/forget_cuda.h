#pragma once

namespace memledger {

// Asks nothing of CUDA from now on, so that its devices print `?`. For those who run so late at
// exit that the static objects of LibTorch's CUDA library may have been destroyed. Thread-safe.
void forget_cuda() noexcept;

// Makes device_memory() ask the driver's management library, and not LibTorch, from now on. For all
// who run at exit: LibTorch makes the static objects that it takes for that when a program first
// needs them, so they are destroyed before a handler that was registered when main began. And for
// copies of the process, in which CUDA refuses every call. Thread-safe.
void forget_device_memory() noexcept;

}  // namespace memledger
