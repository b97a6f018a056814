#pragma once

// Makes a report from values: named tensors, the snapshot of an instant, the allocators' figures.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "registry/live_storages.h"
#include "registry/snapshot.h"
#include "reporter/assembly/cuda_reconciliation.h"
#include "reporter/assembly/named_tensor_facts.h"
#include "reporter/report.h"

namespace memledger {

// Numbers anonymous storages. Each keeps its first number as long as it lives.
class AnonymousNumbers {
 public:
  // Both take ascending ids.
  void forget_all_but(const std::vector<uint64_t>& alive);
  void number(const std::vector<uint64_t>& anonymous);
  // Reads the numbers of ascending ids, all of which have one.
  class Reader {
   public:
    explicit Reader(const std::vector<std::pair<uint64_t, size_t>>& numbers)
        : next_(numbers.begin()) {}
    size_t of(uint64_t id);

   private:
    std::vector<std::pair<uint64_t, size_t>>::const_iterator next_;
  };
  Reader reader() const { return Reader(numbers_); }
  // Returns the id that has the number.
  std::optional<uint64_t> find(size_t number) const;

 private:
  std::vector<std::pair<uint64_t, size_t>> numbers_;  // by id
  size_t next_ = 0;
};

// What the registry and the allocators know of one instant.
struct Instant {
  Snapshot snapshot;
  std::vector<ExternalStorage> externals;
  std::map<c10::DeviceIndex, AllocatorView> views;  // of CUDA devices
  std::set<c10::DeviceIndex> moved;                 // no view: threads allocated while it was taken
  bool of_peak = false;
  bool of_past = false;                      // another moment than now
  bool active = false;                       // the registry is active
  std::function<bool(c10::Device)> follows;  // whether the registry sees a device's allocations
};

std::vector<uint64_t> ids_alive(const Snapshot& snapshot);

// Returns a report without the process's figures: pinned memory, resident memory, hook health.
Report build_report(const ReportOptions& options, const std::vector<NamedTensorFacts>& tensors,
                    const Instant& instant, AnonymousNumbers& numbers);

// Returns the parameters that belong to a module, by the ids of their storages. An operator's
// output belongs to the module whose parameter the operator read.
std::map<uint64_t, const NamedTensorFacts*> parameters_by_storage(
    const std::vector<NamedTensorFacts>& tensors);

}  // namespace memledger
