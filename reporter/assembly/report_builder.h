#pragma once

// Makes a report of values: what can be named, what was alive at an instant, and what the
// allocators say to that.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "registry/snapshot.h"
#include "reporter/assembly/cuda_reconciliation.h"
#include "reporter/assembly/named_tensor_facts.h"
#include "reporter/report.h"

namespace memledger {

// Anonymous storages keep the number that they were first shown under, as long as they live.
class AnonymousNumbers {
 public:
  // Both take ids that ascend.
  void forget_all_but(const std::vector<uint64_t>& alive);
  void number(const std::vector<uint64_t>& anonymous);
  // Reads the numbers of ids that have one, and ascend.
  class Reader {
   public:
    explicit Reader(const std::vector<std::pair<uint64_t, size_t>>& numbers)
        : next_(numbers.begin()) {}
    size_t of(uint64_t id);

   private:
    std::vector<std::pair<uint64_t, size_t>>::const_iterator next_;
  };
  Reader reader() const { return Reader(numbers_); }
  std::optional<uint64_t> find(size_t number) const;  // whose number that is

 private:
  std::vector<std::pair<uint64_t, size_t>> numbers_;  // by id
  size_t next_ = 0;
};

// What is known of one instant.
struct Instant {
  Snapshot snapshot;
  std::map<c10::DeviceIndex, AllocatorView> views;  // of CUDA devices
  std::set<c10::DeviceIndex> moved;  // without a view, as threads allocated while it was taken
  bool of_peak = false;
  bool active = false;                       // the registry watches
  std::function<bool(c10::Device)> follows;  // whether it sees a device's allocations
};

std::vector<uint64_t> ids_alive(const Snapshot& snapshot);

// Everything but what is of the whole process: pinned memory, the process's own, health.
Report build_report(const ReportOptions& options, const std::vector<Claim>& claims,
                    const Instant& instant, AnonymousNumbers& numbers);

// The module whose parameter a storage is, for the outputs of the operators that consumed it.
std::map<uint64_t, const Claim*> parameters_by_storage(const std::vector<Claim>& claims);

}  // namespace memledger
