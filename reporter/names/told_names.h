#pragma once

// Names of the modules and optimizers that hooks register one by one, as Python's do
// (runner/inside/python_names.py).
//
//   memledger::ToldNames& told = memledger::ToldNames::global();
//   told.add_module(1, "Net");
//   told.add_module(2, "Linear");
//   told.add_tensor(2, "weight", memledger::Role::kParameter, weight);
//   told.add_part(1, "fc", 2);  // from now on the tensor is fc.weight

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "reporter/names/program_name.h"

namespace memledger {

// Paths, types and numbers of roots are as in ProgramNames. Wrappers have no place in a path:
// `_orig_mod`, `_fsdp_wrapped_module`, `_checkpoint_wrapped_module`, and `module` where it is all
// that the wrapper has. A tensor in several places has the name that named_parameters() gives it.
//
// Thread-safe. Holds weak references to tensors only. If memory runs out, names are missing, and
// living() and kept() throw std::bad_alloc. None waits for Python's lock with a lock of its own.
class ToldNames {
 public:
  // A number that the caller uses for one module only. Those it has not added are ignored.
  using Module = uint64_t;

  // Returns that of the process. Never destroyed.
  static ToldNames& global();

  void add_module(Module module, std::string_view type) noexcept;
  // What had the name in `whole` is no longer part of it.
  void add_part(Module whole, std::string_view name, Module part) noexcept;
  // Adds a parameter or buffer, or notes the storage that it has now.
  void add_tensor(Module module, std::string_view name, Role role, const at::Tensor& tensor,
                  bool is_part = false) noexcept;
  // What a module had keeps its names as long as it lives, or had its storage at a peak.
  void end_module(Module module) noexcept;
  // Adds a parameter's gradient where LibTorch has it in several tensors (DTensor's).
  void add_gradient(const at::Tensor& parameter, const at::Tensor& gradient) noexcept;
  // Adds a parameter that may be no module's, and then is `place`: param0.1.
  void add_trained(std::string_view place, const at::Tensor& parameter,
                   bool is_part = false) noexcept;
  void add_state(std::string_view optimizer, const at::Tensor& parameter, std::string_view slot,
                 const at::Tensor& state) noexcept;

  bool empty() const noexcept;
  // Returns what lives, in order of first sight.
  std::vector<LivingName> living() const;
  // Returns the names of storages, by id.
  std::vector<KeptName> kept() const;

 private:
  ToldNames();
  struct Table;
  std::unique_ptr<Table> table_;
};

// Returns the ids of storages that live, or lived at the peak of their device. Takes two snapshots
// of each device. Throws std::bad_alloc.
std::unordered_set<uint64_t> storages_that_matter();

}  // namespace memledger
