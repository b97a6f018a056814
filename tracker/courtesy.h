#pragma once

// Lends GPU memory back for a while: moves the storages of live tensors to host memory or to a
// file, in place under the storages, and later brings them back, to the same devices, bit for bit.
//
//   {
//     memledger::ScopedCourtesy away;                    // everything on CUDA devices is on the
//     host, their caches are empty run_somebody_elses_job();
//   }                                                    // and back
//
//   memledger::Courtesy courtesy(net);      // or: only a module's parameters, buffers, gradients,
//   courtesy.add_optimizer(adam);           // and an optimizer's state
//   if (absl::Status status = courtesy.yield_memory(); !status.ok()) ...
//   for (const memledger::Unmoved& one : courtesy.unmoved()) ...
//   courtesy.restore().IgnoreError();
//
// Views, tied weights, gradients, optimizer state and tensors saved for backward survive, as it is
// the storage that moves, not the tensor. Moved is what the registry knows the storage of: what an
// operator has made or read while it was active. The rest is listed by unmoved() with its bytes and
// the reason.
//
// While yielded a tensor has its shape, device and strides, but no data: what asks for it (any
// operator, data_ptr(), item()) throws c10::Error that says so. Addresses taken before are
// dangling, and LibTorch cannot catch their use: raw pointers, from_blob() on another tensor's
// data, captured CUDA graphs. Resizing or replacing a yielded storage's data is respected:
// restore() leaves it.
//
// Units: bytes. Errors: yield_memory() moves all or, if it fails, nothing. restore() brings back
// what it can; if the device or the host is full the rest stays yielded, the message says how much,
// and it can be called again. Ownership: no tensor is kept alive; what dies while yielded is not
// brought back. Thread-safety: one thread at a time, while no other uses tensors that are moved.
// Cost: the copies; the peak is on the host, where all is copied before anything is freed. Storages
// get new ids in the registry, and addresses.
//
// The context that the CUDA driver keeps for the process (some 500 MB) stays.

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
  Place place = Place::kPageable;
  // Of the file, which has no name there and is gone with the process; empty: $TMPDIR, else /tmp.
  std::string folder;
  // Only of this device; kCUDA without an index: all CUDA devices. Nothing: all CUDA devices. The
  // CPU's storages can be moved, too, to a file.
  std::optional<c10::Device> device;
  // Called some times a second. Without it, moves that take longer than a second are told on
  // standard error if it is a terminal.
  std::function<void(const CourtesyProgress&)> progress;
  // Give back the workspaces that LibTorch keeps for cuBLAS, some 32 MiB for each thread that has
  // used it, autograd's too; LibTorch makes new ones where they are needed. A CUDA graph that was
  // captured with one would go on writing to it. They stay where another device, which is not
  // yielded, has some. Nothing: yes, but no once something was added.
  std::optional<bool> workspaces;
};

// Stays where it is.
struct Unmoved {
  c10::Device device = c10::Device(c10::DeviceType::CPU);
  int64_t nbytes = 0;
  uint64_t id = 0;  // of the registry; 0: not a storage it knows
  std::string reason;
};

class Courtesy {
 public:
  // Activates the registry, for as long as it lives.
  explicit Courtesy(CourtesyOptions options = {});
  // Of a module (or holder, or anything that has parameters() and buffers()): only its parameters,
  // buffers and their gradients.
  template <typename Module,
            typename = std::enable_if_t<!std::is_same_v<std::decay_t<Module>, CourtesyOptions> &&
                                        !std::is_same_v<std::decay_t<Module>, Courtesy>>>
  explicit Courtesy(const Module& module, CourtesyOptions options = {})
      : Courtesy(std::move(options)) {
    add_module(module);
  }
  // Restores; what cannot be restored is told on standard error, and throws when used.
  ~Courtesy();
  Courtesy(const Courtesy&) = delete;
  Courtesy& operator=(const Courtesy&) = delete;

  // Once something was added, only what was added moves, with its gradient.
  Courtesy& add_tensor(const at::Tensor& tensor);
  template <typename Module>
  Courtesy& add_module(const Module& module);
  // Its parameters, and what it keeps for them at yield_memory(): until then it must live. The
  // state of optimizers that LibTorch does not bring is not known, and stays.
  Courtesy& add_optimizer(const torch::optim::Optimizer& optimizer);

  // InvalidArgument: options that do not fit. ResourceExhausted, with everything as it was: no room
  // on the host or in the file. Again, while yielded: what is new on the devices goes, too.
  absl::Status yield_memory();
  // ResourceExhausted: see above. Nothing yielded: does nothing.
  absl::Status restore();

  int64_t yielded_bytes() const;
  // As of the last yield_memory().
  std::vector<Unmoved> unmoved() const;

 private:
  void only_added();

  struct State;
  std::unique_ptr<State> state_;
};

// Yields, and restores at the end of the scope. Throws c10::Error if it cannot yield.
class ScopedCourtesy {
 public:
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
