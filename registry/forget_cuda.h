#pragma once

namespace memledger {

// From now on nothing of CUDA is asked, and its devices print `?`: for those who run so late at exit that the static objects of
// LibTorch's CUDA library may have been destroyed. Thread-safe.
void forget_cuda() noexcept;

}  // namespace memledger
