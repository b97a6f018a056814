#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

namespace memledger::virtual_gpu {

// The bytes of small copies to a device, by address, so that they can be read back. Thread-safe.
class KeptBytes {
 public:
  // All that is kept at one time; the oldest is dropped first.
  static constexpr size_t kMostBytes = size_t{64} << 20;

  // Copies of more than `most_bytes_per_copy` are not kept; with 0 nothing is.
  explicit KeptBytes(size_t most_bytes_per_copy) : most_bytes_per_copy_(most_bytes_per_copy) {}

  bool is_on() const { return most_bytes_per_copy_ != 0; }

  void write(uintptr_t address, const void* source, size_t bytes);
  void fill(uintptr_t address, unsigned char value, size_t bytes);
  void copy(uintptr_t destination, uintptr_t source, size_t bytes);
  // Writes what is known over `destination`, and leaves the rest; bytes that are zero may be of it.
  void read(void* destination, uintptr_t address, size_t bytes) const;
  void forget(uintptr_t address, size_t bytes);
  void clear();

  std::mutex& mutex() const { return mutex_; }

 private:
  struct Run {
    std::vector<unsigned char> bytes;
    uint64_t order;
  };

  void forget_locked(uintptr_t address, size_t bytes);
  void keep_locked(uintptr_t address, std::vector<unsigned char> bytes, uint64_t order);
  void read_locked(unsigned char* destination, uintptr_t address, size_t bytes) const;

  const size_t most_bytes_per_copy_;
  mutable std::mutex mutex_;
  std::atomic<bool> is_empty_{true};  // so that clearing nothing costs nothing
  std::map<uintptr_t, Run> runs_;
  std::deque<std::pair<uint64_t, uintptr_t>> by_age_;  // may name runs that are gone
  size_t total_ = 0;
  uint64_t next_order_ = 0;
};

}  // namespace memledger::virtual_gpu
