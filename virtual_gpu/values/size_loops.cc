#include "virtual_gpu/values/size_loops.h"

#include <algorithm>

namespace memledger::virtual_gpu {
namespace {

constexpr size_t kMaxOpen = 64;

bool can_drive(const SiteRead& read) { return read.is_capped || read.value > kMinLoop; }

}  // namespace

bool SizeLoops::has_driver() const {
  return std::any_of(open_.begin(), open_.end(),
                     [](const Open& open) { return can_drive(open.last); });
}

// The last one before it that is large enough.
const SizeLoops::Open* SizeLoops::driver_of(size_t reader) const {
  for (size_t i = reader; i-- > 0;) {
    const SiteRead& read = open_[i].last;
    if (read.is_capped || (can_drive(read) && read.value >= open_[reader].reads)) return &open_[i];
  }
  return nullptr;
}

std::optional<SizeLoop> SizeLoops::note(const SiteRead& read, Clock::time_point now) {
  const auto known = std::find_if(open_.begin(), open_.end(),
                                  [&](const Open& open) { return open.last.site == read.site; });
  if (known == open_.end()) {
    if (open_.size() == kMaxOpen) open_.erase(open_.begin());
    open_.push_back({read, 1, now});
    return {};
  }
  open_.erase(known + 1, open_.end());
  Open& reader = open_.back();
  reader.last = read;
  if (++reader.reads % kMinLoop != 0) return {};
  const Open* const driver = driver_of(open_.size() - 1);
  if (driver == nullptr) return {};
  // A loop that it drives would have ended, unless a round reads the same many times.
  if (driver->last.is_capped) return SizeLoop{driver->last.site, "", true};
  const double rounds = static_cast<double>(driver->last.value) / static_cast<double>(reader.reads);
  if ((now - reader.since) * rounds <= kMaxLoop) return {};
  return SizeLoop{driver->last.site, "", false};
}

}  // namespace memledger::virtual_gpu
