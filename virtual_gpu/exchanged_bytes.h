#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

namespace memledger::virtual_gpu {

// Small messages between ranks: what the host copied to a device, and a collective took from there.
// Sizes are computed with before they are read back, so kernels do not end what is known here; each
// message is known for some kernels only, as one of them may have written over it. Thread-safe.
class ExchangedBytes {
 public:
  static constexpr size_t kMostBytesPerCopy = size_t{4} << 20;
  static constexpr size_t kMostBytes = size_t{64} << 20;

  // Until then nothing is known, at no cost.
  void turn_on() { is_on_.store(true, std::memory_order_relaxed); }
  bool is_on() const { return is_on_.load(std::memory_order_relaxed); }

  void note_kernel() { kernels_.fetch_add(1, std::memory_order_relaxed); }
  void write(uintptr_t address, const void* source, size_t bytes);
  void copy(uintptr_t destination, uintptr_t source, size_t bytes);
  void forget(uintptr_t address, size_t bytes);
  // What a collective does with what the ranks send.
  enum class Content : uint8_t { kAsSent, kReduced };

  // Notes that a collective of `ranks` ranks copied it.
  void exchange(uintptr_t destination, uintptr_t source, size_t bytes, int ranks, Content content);
  // Writes what a collective brought over `destination`, and leaves the rest.
  void read(void* destination, uintptr_t address, size_t bytes) const;
  // Returns whether a collective brought all of it and reduced none: it is what each rank sends, if
  // all send what this one does.
  bool is_as_sent(uintptr_t address, size_t bytes) const;

  std::mutex& mutex() const { return mutex_; }

 private:
  using Bytes = std::shared_ptr<const std::vector<unsigned char>>;

  struct Run {
    Bytes content;
    size_t offset;
    size_t bytes;
    uint64_t kernel;  // before which it was written
    uint64_t window;  // kernels for which it can be read; 0 where no collective brought it
    bool is_reduced;  // by any of the collectives that brought it
  };

  Bytes make_content(std::vector<unsigned char> bytes);
  void forget_locked(uintptr_t address, size_t bytes);
  void copy_locked(uintptr_t destination, uintptr_t source, size_t bytes, uint64_t window,
                   bool is_reduced);
  void add_locked(uintptr_t address, Run run);
  template <typename F>
  void for_each_locked(uintptr_t address, size_t bytes, F function) const;

  std::atomic<bool> is_on_{false};
  std::atomic<uint64_t> kernels_{0};
  mutable std::mutex mutex_;
  std::shared_ptr<size_t> total_ = std::make_shared<size_t>(0);  // of all content
  std::map<uintptr_t, Run> runs_;
};

}  // namespace memledger::virtual_gpu
