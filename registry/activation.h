#pragma once

#include <atomic>
#include <thread>

#include "absl/status/statusor.h"
#include "registry/registry.h"

namespace memledger {

// How often the registry is active and with which options. Only for the thread whose turn it is.
//
// A turn is no lock of ours: LibTorch and the program's allocator are called meanwhile. Other
// threads wait for its end; its own may come back from there, and goes on at once.
class Activation {
 public:
  int count = 0;
  bool observing = false;
  RegistryOptions options;

  // Waits for the turn. Returns false if it is this thread's already.
  bool begin_turn() noexcept {
    const std::thread::id mine = std::this_thread::get_id();
    if (turn_of_.load(std::memory_order_relaxed) == mine) return false;
    for (std::thread::id nobody;
         !turn_of_.compare_exchange_weak(nobody, mine, std::memory_order_acquire); nobody = {}) {
      std::this_thread::yield();
    }
    return true;
  }
  void end_turn() noexcept { turn_of_.store({}, std::memory_order_release); }

 private:
  std::atomic<std::thread::id> turn_of_{};
};

Activation& activation();

class Turn {
 public:
  Turn() noexcept : begun_(activation().begin_turn()) {}
  ~Turn() {
    if (begun_) activation().end_turn();
  }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

 private:
  const bool begun_;
};

// Returns options that serve both activations. Error: FailedPrecondition, with the option's name,
// where none do.
absl::StatusOr<RegistryOptions> wider(const RegistryOptions& present, const RegistryOptions& asked);

}  // namespace memledger
