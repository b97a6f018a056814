#include "virtual_gpu/exchanged_bytes.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace memledger::virtual_gpu {
namespace {

// How long a message lives in kernels, before the collective that takes it and behind. A rank
// compares the sizes of all others, a kernel for each, before it uses them.
uint64_t window_of(int ranks) { return 64 + 4 * static_cast<uint64_t>(std::max(ranks, 1)); }

// When there is too much, what the host wrote longer ago goes first.
constexpr uint64_t kRecentKernels = 1024;

}  // namespace

ExchangedBytes::Bytes ExchangedBytes::make_content(std::vector<unsigned char> bytes) {
  *total_ += bytes.size();
  return Bytes(new std::vector<unsigned char>(std::move(bytes)),
               [total = total_](const std::vector<unsigned char>* content) {
                 *total -= content->size();
                 delete content;
               });
}

// Calls with each run, its first address and the part of it that is in the range.
template <typename F>
void ExchangedBytes::for_each_locked(uintptr_t address, size_t bytes, F function) const {
  auto run = runs_.upper_bound(address);
  if (run != runs_.begin()) --run;
  for (; run != runs_.end() && run->first < address + bytes; ++run) {
    const uintptr_t begin = std::max(address, run->first);
    const uintptr_t end = std::min(address + bytes, run->first + run->second.bytes);
    if (begin < end) function(run->second, run->first, begin, end);
  }
}

void ExchangedBytes::forget_locked(uintptr_t address, size_t bytes) {
  const uintptr_t end = address + bytes;
  auto run = runs_.upper_bound(address);
  if (run != runs_.begin()) --run;
  while (run != runs_.end() && run->first < end) {
    const uintptr_t run_begin = run->first;
    const Run old = run->second;
    if (run_begin + old.bytes <= address) {
      ++run;
      continue;
    }
    run = runs_.erase(run);
    // What sticks out on either side stays known.
    if (run_begin < address) {
      Run before = old;
      before.bytes = address - run_begin;
      runs_.emplace(run_begin, std::move(before));
    }
    if (run_begin + old.bytes > end) {
      Run after = old;
      after.offset += end - run_begin;
      after.bytes -= end - run_begin;
      runs_.emplace(end, std::move(after));
      return;
    }
  }
}

void ExchangedBytes::add_locked(uintptr_t address, Run run) {
  runs_[address] = std::move(run);
  if (*total_ <= kMostBytes && runs_.size() <= 65536) return;
  const uint64_t now = kernels_.load(std::memory_order_relaxed);
  for (auto at = runs_.begin(); at != runs_.end();) {
    const uint64_t window = at->second.window ? at->second.window : kRecentKernels;
    at = now - at->second.kernel > window ? runs_.erase(at) : std::next(at);
  }
  if (*total_ > kMostBytes || runs_.size() > 65536) runs_.clear();
}

void ExchangedBytes::write(uintptr_t address, const void* source, size_t bytes) {
  if (!is_on() || !bytes) return;
  std::lock_guard<std::mutex> lock(mutex_);
  forget_locked(address, bytes);
  if (bytes > kMostBytesPerCopy) return;
  const auto* first = static_cast<const unsigned char*>(source);
  add_locked(address, {make_content({first, first + bytes}), 0, bytes,
                       kernels_.load(std::memory_order_relaxed), 0, false});
}

void ExchangedBytes::copy_locked(uintptr_t destination, uintptr_t source, size_t bytes,
                                 uint64_t window, bool is_reduced) {
  const uint64_t now = kernels_.load(std::memory_order_relaxed);
  std::vector<std::pair<uintptr_t, Run>> known;
  for_each_locked(source, bytes,
                  [&](const Run& run, uintptr_t run_begin, uintptr_t begin, uintptr_t end) {
                    // After a collective the time begins again.
                    if (window && now - run.kernel > std::max(run.window, window)) return;
                    Run part = run;
                    part.offset += begin - run_begin;
                    part.bytes = end - begin;
                    if (window) {
                      part.kernel = now;
                      part.window = window;
                      part.is_reduced = part.is_reduced || is_reduced;
                    }
                    known.emplace_back(destination + (begin - source), std::move(part));
                  });
  forget_locked(destination, bytes);
  for (auto& [address, run] : known) add_locked(address, std::move(run));
}

void ExchangedBytes::copy(uintptr_t destination, uintptr_t source, size_t bytes) {
  if (!is_on() || !bytes || destination == source) return;
  std::lock_guard<std::mutex> lock(mutex_);
  copy_locked(destination, source, bytes, 0, false);
}

void ExchangedBytes::exchange(uintptr_t destination, uintptr_t source, size_t bytes, int ranks,
                              Content content) {
  if (!is_on() || !bytes) return;
  std::lock_guard<std::mutex> lock(mutex_);
  copy_locked(destination, source, bytes, window_of(ranks), content == Content::kReduced);
}

void ExchangedBytes::forget(uintptr_t address, size_t bytes) {
  if (!is_on() || !bytes) return;
  std::lock_guard<std::mutex> lock(mutex_);
  forget_locked(address, bytes);
}

void ExchangedBytes::read(void* destination, uintptr_t address, size_t bytes) const {
  if (!is_on()) return;
  std::lock_guard<std::mutex> lock(mutex_);
  const uint64_t now = kernels_.load(std::memory_order_relaxed);
  for_each_locked(
      address, bytes, [&](const Run& run, uintptr_t run_begin, uintptr_t begin, uintptr_t end) {
        if (!run.window || now - run.kernel > run.window) return;
        std::memcpy(static_cast<unsigned char*>(destination) + (begin - address),
                    run.content->data() + run.offset + (begin - run_begin), end - begin);
      });
}

bool ExchangedBytes::is_as_sent(uintptr_t address, size_t bytes) const {
  if (!is_on()) return false;
  std::lock_guard<std::mutex> lock(mutex_);
  const uint64_t now = kernels_.load(std::memory_order_relaxed);
  size_t sent = 0;
  for_each_locked(address, bytes,
                  [&](const Run& run, uintptr_t /*run_begin*/, uintptr_t begin, uintptr_t end) {
                    const bool is_alive = run.window != 0 && now - run.kernel <= run.window;
                    if (is_alive && !run.is_reduced) sent += end - begin;
                  });
  return sent == bytes;
}

}  // namespace memledger::virtual_gpu
