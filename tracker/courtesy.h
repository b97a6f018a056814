#pragma once

// Lends GPU memory back for a while: moves the storages of live tensors to host memory or a file,
// in place under the tensors, and brings them back bit for bit. See docs/lend_the_gpu_back.md.
//
//   memledger::Courtesy courtesy(model);
//   courtesy.add_optimizer(optimizer);
//   absl::Status status = courtesy.yield_memory();
//   if (!status.ok()) std::cerr << status.message() << '\n';
//   status = courtesy.restore();

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/status/status.h"

namespace torch {
namespace optim {
class Optimizer;
}
}  // namespace torch

namespace memledger {

struct CourtesyProgress {
  bool restoring = false;
  int64_t done_bytes = 0;
  int64_t total_bytes = 0;
  double bytes_per_second = 0;
};

struct CourtesyOptions {
  enum class Place : uint8_t { kPageable, kPinned, kFile };
  // Where the bytes go: pageable or pinned host memory, or a file.
  Place place = Place::kPageable;
  // Folder of the file, which has no name there and is gone with the process. Empty: $TMPDIR, else
  // /tmp.
  std::string folder;
  // Device whose storages move; kCUDA without an index, or nothing, means all CUDA devices. The
  // CPU's can be moved to a file only.
  std::optional<c10::Device> device;
  // Called a few times a second. Without it, moves of more than a second are reported on standard
  // error if it is a terminal.
  std::function<void(const CourtesyProgress&)> progress;
  // Gives back the workspaces that LibTorch keeps for cuBLAS, some 32 MiB per thread that has used
  // it; LibTorch makes new ones when it needs them. Keeps them if another device that is not
  // yielded has some. A CUDA graph that was captured with one would go on writing to it. Unset:
  // true until something is added, then false.
  std::optional<bool> workspaces;
};

// Memory that stays on its device.
struct Unmoved {
  c10::Device device = c10::Device(c10::DeviceType::CPU);
  int64_t nbytes = 0;
  uint64_t id = 0;  // of the registry's storage; 0: not a storage that it knows
  std::string reason;
};

// Moves every storage that the registry knows: what an operator has made or read while the registry
// was active, and what you add. Views, tied weights, gradients, optimizer state and tensors saved
// for backward go with their storage.
//
// While yielded a tensor has its shape, strides and device, but no data: what asks for it (an
// operator, data_ptr(), item()) throws c10::Error that says so. Addresses taken before dangle, and
// LibTorch cannot catch their use: raw pointers, from_blob() on another tensor's data, captured
// CUDA graphs. A resize_() that throws has set the sizes; restore() makes room for them where the
// tensor was added, and else LibTorch would read beyond the storage.
//
// Ownership: keeps no tensor alive; what dies while yielded does not come back. Thread-safety: one
// thread at a time, while no other uses tensors that move. A child of fork has a copy of what was
// yielded and may restore the CPU's memory; CUDA's is the parent's. Cost: the copies. All is copied
// before anything is freed, so the host or the file needs room for all. Storages get new ids in the
// registry, and new addresses. The driver's context, some 500 MB, stays.
class Courtesy {
 public:
  // Activates the registry while it lives.
  explicit Courtesy(CourtesyOptions options = {});
  // Adds a module, a holder, or anything that has parameters() and buffers().
  template <typename Module,
            typename = std::enable_if_t<!std::is_same_v<std::decay_t<Module>, CourtesyOptions> &&
                                        !std::is_same_v<std::decay_t<Module>, Courtesy>>>
  explicit Courtesy(const Module& module, CourtesyOptions options = {})
      : Courtesy(std::move(options)) {
    add_module(module);
  }
  // Restores. What cannot be restored is reported on standard error, and throws when used.
  ~Courtesy();
  Courtesy(const Courtesy&) = delete;
  Courtesy& operator=(const Courtesy&) = delete;

  // Adds a tensor and its gradient. Once something was added, only that moves. Ignores an undefined
  // tensor, which still counts as something added.
  Courtesy& add_tensor(const at::Tensor& tensor);
  // Adds a module's parameters and buffers.
  template <typename Module>
  Courtesy& add_module(const Module& module);
  // Adds the optimizer's parameters, and what it keeps for them at yield_memory(): until then it
  // must live. The state of optimizers that are not LibTorch's is not known, and stays.
  Courtesy& add_optimizer(const torch::optim::Optimizer& optimizer);

  // Moves everything or, if that fails, nothing. Call it again while yielded to move what was made
  // since. InvalidArgument: options that do not fit. Unavailable: no file in `folder`.
  // ResourceExhausted: no room on the host or in the file.
  absl::Status yield_memory();
  // Brings back what it can; does nothing if nothing is yielded. Leaves alone a storage that was
  // resized to 0 or given other data meanwhile. ResourceExhausted if the device is full: the rest
  // stays yielded, the message says how much, and it can be called again.
  absl::Status restore();

  // Returns the bytes that are away, of storages still alive.
  int64_t yielded_bytes() const;
  // Returns what the last yield_memory() left on the devices, with the reasons.
  std::vector<Unmoved> unmoved() const;

 private:
  void only_added();

  struct State;
  std::unique_ptr<State> state_;
};

// Yields when made, and restores at the end of the scope.
class ScopedCourtesy {
 public:
  // Throw c10::Error if yield_memory() fails.
  explicit ScopedCourtesy(CourtesyOptions options = {});
  template <typename Module,
            typename = std::enable_if_t<!std::is_same_v<std::decay_t<Module>, CourtesyOptions> &&
                                        !std::is_same_v<std::decay_t<Module>, ScopedCourtesy>>>
  explicit ScopedCourtesy(const Module& module, CourtesyOptions options = {})
      : courtesy_(module, std::move(options)) {
    yield();
  }
  ScopedCourtesy(const ScopedCourtesy&) = delete;
  ScopedCourtesy& operator=(const ScopedCourtesy&) = delete;
  // Returns what it holds, for unmoved() and yielded_bytes().
  Courtesy& courtesy() { return courtesy_; }

 private:
  void yield();

  Courtesy courtesy_;
};

namespace internal {
template <typename Module, typename = void>
struct IsHolder : std::false_type {};
template <typename Module>
struct IsHolder<Module, std::void_t<decltype(std::declval<const Module&>()->parameters())>>
    : std::true_type {};
}  // namespace internal

template <typename Module>
Courtesy& Courtesy::add_module(const Module& module) {
  only_added();
  if constexpr (internal::IsHolder<Module>::value) {
    return add_module(*module);
  } else {
    for (const at::Tensor& tensor : module.parameters()) add_tensor(tensor);
    for (const at::Tensor& tensor : module.buffers()) add_tensor(tensor);
    return *this;
  }
}

}  // namespace memledger
