#include "registry/core/peak_labels.h"

namespace memledger::core {
namespace {

bool is_in(std::string_view label, std::string_view path) {
  for (size_t at = path.find(label); at != std::string_view::npos; at = path.find(label, at + 1)) {
    const size_t end = at + label.size();
    if ((at == 0 || path[at - 1] == '/') && (end == path.size() || path[end] == '/')) return true;
  }
  return false;
}

}  // namespace

std::optional<size_t> PeakLabels::keep(std::string_view label) {
  const LockHolder hold(lock_);
  const uint32_t count = count_.load(std::memory_order_relaxed);
  for (uint32_t i = 0; i < count; ++i) {
    if (labels_[i] == label) return i;
  }
  if (count == kMaxPeakLabels) return std::nullopt;
  labels_[count] = std::string(label);
  if (known_ == nullptr) known_ = std::make_unique<Known>();
  count_.store(count + 1, std::memory_order_release);
  return count;
}

std::optional<size_t> PeakLabels::find(std::string_view label) const noexcept {
  const LockHolder hold(lock_);
  for (uint32_t i = 0; i < count_.load(std::memory_order_relaxed); ++i) {
    if (labels_[i] == label) return i;
  }
  return std::nullopt;
}

LabelSet PeakLabels::kept_of(NameId path, const NameTable& names) const noexcept {
  const uint32_t count = count_.load(std::memory_order_acquire);
  if (count == 0 || path == 0 || path >= known_->size()) return 0;
  std::atomic<uint32_t>& known = (*known_)[path];
  const uint32_t seen = known.load(std::memory_order_relaxed);
  constexpr uint32_t kLabels = kUnknownPath | (kUnknownPath - 1);
  if (seen >> kCountShift == count) return seen & kLabels;
  const std::string_view text = names.name(path);
  LabelSet set = is_in(NameTable::kOverflow, text) ? kUnknownPath : 0;
  uint32_t looked_at = 0;
  {
    const LockHolder hold(lock_);
    looked_at = count_.load(std::memory_order_relaxed);
    for (uint32_t i = 0; i < looked_at; ++i) {
      if (is_in(labels_[i], text)) set |= LabelSet{1} << i;
    }
  }
  known.store(looked_at << kCountShift | set, std::memory_order_relaxed);
  return set;
}

}  // namespace memledger::core
