#include "virtual_gpu/kept_bytes.h"

#include <algorithm>
#include <cstring>
#include <iterator>

namespace memledger::virtual_gpu {

void KeptBytes::write(uintptr_t address, const void* source, size_t bytes) {
  if (!most_bytes_per_copy_ || !bytes) return;
  std::lock_guard<std::mutex> lock(mutex_);
  forget_locked(address, bytes);
  if (bytes > most_bytes_per_copy_) return;
  const auto* first = static_cast<const unsigned char*>(source);
  keep_locked(address, std::vector<unsigned char>(first, first + bytes), next_order_++);
}

void KeptBytes::fill(uintptr_t address, unsigned char value, size_t bytes) {
  if (!most_bytes_per_copy_ || !bytes) return;
  std::lock_guard<std::mutex> lock(mutex_);
  forget_locked(address, bytes);
  // Zero is what unknown bytes mostly read as.
  if (bytes <= most_bytes_per_copy_ && value)
    keep_locked(address, std::vector<unsigned char>(bytes, value), next_order_++);
}

void KeptBytes::copy(uintptr_t destination, uintptr_t source, size_t bytes) {
  if (!most_bytes_per_copy_ || !bytes || destination == source) return;
  std::lock_guard<std::mutex> lock(mutex_);
  if (bytes > most_bytes_per_copy_) return forget_locked(destination, bytes);
  std::vector<unsigned char> content(bytes);
  read_locked(content.data(), source, bytes);
  forget_locked(destination, bytes);
  if (std::any_of(content.begin(), content.end(), [](unsigned char byte) { return byte != 0; })) {
    keep_locked(destination, std::move(content), next_order_++);
  }
}

void KeptBytes::read(void* destination, uintptr_t address, size_t bytes) const {
  if (!most_bytes_per_copy_) return;
  std::lock_guard<std::mutex> lock(mutex_);
  read_locked(static_cast<unsigned char*>(destination), address, bytes);
}

void KeptBytes::forget(uintptr_t address, size_t bytes) {
  if (!most_bytes_per_copy_ || !bytes) return;
  std::lock_guard<std::mutex> lock(mutex_);
  forget_locked(address, bytes);
}

void KeptBytes::clear() {
  if (is_empty_.load(std::memory_order_relaxed)) return;
  std::lock_guard<std::mutex> lock(mutex_);
  runs_.clear();
  by_age_.clear();
  total_ = 0;
  is_empty_.store(true, std::memory_order_relaxed);
}

void KeptBytes::forget_locked(uintptr_t address, size_t bytes) {
  const uintptr_t end = address + bytes;
  auto run = runs_.upper_bound(address);
  if (run != runs_.begin()) --run;
  while (run != runs_.end() && run->first < end) {
    const uintptr_t run_begin = run->first;
    const uintptr_t run_end = run_begin + run->second.bytes.size();
    if (run_end <= address) {
      ++run;
      continue;
    }
    Run old = std::move(run->second);
    total_ -= old.bytes.size();
    run = runs_.erase(run);
    // What sticks out on either side stays known.
    if (run_begin < address) {
      keep_locked(run_begin, {old.bytes.begin(), old.bytes.begin() + (address - run_begin)},
                  old.order);
    }
    if (run_end > end) {
      keep_locked(end, {old.bytes.end() - (run_end - end), old.bytes.end()}, old.order);
      return;
    }
  }
}

void KeptBytes::keep_locked(uintptr_t address, std::vector<unsigned char> bytes, uint64_t order) {
  is_empty_.store(false, std::memory_order_relaxed);
  total_ += bytes.size();
  runs_[address] = Run{std::move(bytes), order};
  by_age_.emplace_back(order, address);
  while (total_ > kMostBytes && !by_age_.empty()) {
    const auto [oldest, at] = by_age_.front();
    by_age_.pop_front();
    const auto found = runs_.find(at);
    if (found == runs_.end() || found->second.order != oldest) continue;
    total_ -= found->second.bytes.size();
    runs_.erase(found);
  }
  // A program that writes one address for ever must not make the list grow.
  if (by_age_.size() > 1024 && by_age_.size() > 4 * runs_.size()) {
    by_age_.clear();
    for (const auto& [at, run] : runs_) by_age_.emplace_back(run.order, at);
    std::sort(by_age_.begin(), by_age_.end());
  }
}

// Writes what is known over zeros.
void KeptBytes::read_locked(unsigned char* destination, uintptr_t address, size_t bytes) const {
  const uintptr_t end = address + bytes;
  auto run = runs_.upper_bound(address);
  if (run != runs_.begin()) --run;
  for (; run != runs_.end() && run->first < end; ++run) {
    const uintptr_t begin = std::max(address, run->first);
    const uintptr_t stop = std::min(end, run->first + run->second.bytes.size());
    if (begin < stop)
      std::memcpy(destination + (begin - address), run->second.bytes.data() + (begin - run->first),
                  stop - begin);
  }
}

}  // namespace memledger::virtual_gpu
