#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "absl/base/thread_annotations.h"
#include "registry/core/lock.h"
#include "registry/core/name_table.h"
#include "registry/core/storage_record.h"

namespace memledger::core {

// Knows the labels whose peaks are kept. A label holds what is born under it: `encoder` all of
// `encoder`, `epoch 3/encoder` and `encoder/attention`, as a label is one or more whole parts of a
// path. Labels are never forgotten, so a bit always means the same one. Thread-safe; of() reads an
// array once a path is known.
class PeakLabels {
 public:
  // Returns the label's bit, nothing when kMaxPeakLabels are kept already. Throws std::bad_alloc.
  std::optional<size_t> keep(std::string_view label);
  std::optional<size_t> find(std::string_view label) const noexcept;
  // Returns the labels that hold the path with that id, with kUnknownPath where it stands for paths
  // for which there was no room. Never throws.
  LabelSet of(NameId path, const NameTable& names) const noexcept {
    return count_.load(std::memory_order_acquire) == 0 ? 0 : kept_of(path, names);
  }

  // Called around fork, so that no other thread holds the lock in the child.
  void lock_for_fork() ABSL_NO_THREAD_SAFETY_ANALYSIS { lock_.lock(); }
  void unlock_after_fork() ABSL_NO_THREAD_SAFETY_ANALYSIS { lock_.unlock(); }

 private:
  LabelSet kept_of(NameId path, const NameTable& names) const noexcept;

  // By path: its labels, and next to them how many labels there were when that was found out.
  static constexpr int kCountShift = 24;
  using Known = std::array<std::atomic<uint32_t>, NameTable::kMaxNames + 2>;

  mutable Lock lock_;
  std::array<std::string, kMaxPeakLabels> labels_ ABSL_GUARDED_BY(lock_);
  std::atomic<uint32_t> count_{0};
  std::unique_ptr<Known> known_;  // made with the first label, before count_ says so
};

}  // namespace memledger::core
