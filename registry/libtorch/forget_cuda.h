#pragma once

namespace memledger {

// From now on nothing of CUDA is asked, and its devices print `?`: for those who run so late at
// exit that the static objects of LibTorch's CUDA library may have been destroyed. Thread-safe.
void forget_cuda() noexcept;

// From now on device_memory() knows nothing: for all who run at exit. LibTorch makes the static
// objects that it takes for that when a program first needs them, so they are destroyed before a
// handler that was registered when main began. Thread-safe.
void forget_device_memory() noexcept;

}  // namespace memledger
