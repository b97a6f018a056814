#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>
#include <c10/util/DimVector.h>
#include <c10/util/intrusive_ptr.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>

namespace memledger::virtual_gpu {

// Where a CUDA tensor lies, without a reference to it.
struct Place {
  c10::StorageImpl* storage = nullptr;
  uintptr_t begin = 0;  // of the storage
  size_t storage_bytes = 0;
  c10::DimVector sizes;
  c10::DimVector strides;
  int64_t offset = 0;
  caffe2::TypeMeta dtype;

  // A tensor that is a plain view of memory on a CUDA device.
  static std::optional<Place> of(const at::Tensor& tensor);
  // Where any tensor's bytes lie, whatever they mean: for what is written to it.
  static std::optional<Place> of_bytes(const at::Tensor& tensor);
  int64_t numel() const;
  size_t item_bytes() const { return dtype.itemsize(); }
};

// A CPU tensor with what is known of a CUDA tensor.
struct Value {
  at::Tensor data;     // what is not known is 0
  at::Tensor unknown;  // of bool and the same shape; undefined where all is known

  bool is_known() const { return !unknown.defined(); }
};

// Host memory with the bytes of small storages on the device, and which of them are known. Keeps no
// storage alive, and forgets those that have ended, but for those that a graph's recording still
// refers to: a launch writes to them and reads from them. Thread-safe; calls nothing of LibTorch's
// with its lock held.
class Shadows {
 public:
  static Shadows& get();

  // Sets the maximum bytes of a storage that is held; floating point has the limit kMostFloats as
  // well.
  void set_limit(size_t most_bytes) { most_bytes_ = most_bytes; }
  bool may_hold(const Place& place) const;

  // Nothing where no byte of it is known.
  std::optional<Value> find(const Place& place);
  // `value` has the shape and the type of `place`, and is contiguous.
  void set(const Place& place, const Value& value);

  void forget(const Place& place);
  void forget(uintptr_t address, size_t bytes);
  // Forgets the storage at the address, and those at addresses that it is known to hold: what a
  // kernel can reach that is given the address.
  void forget_reached(uintptr_t address);
  void forget_all();
  void write(uintptr_t address, const void* content, size_t bytes);
  // Nothing of a range that other processes can write to is known, as long as they can.
  void set_shared(uintptr_t address, size_t bytes, bool is_shared);
  // Returns how many bytes are not known.
  size_t read(void* destination, uintptr_t address, size_t bytes);

  // At most how many different values the place's whole storage has, read as the place's type.
  // Nothing where that is not noted, or something else may be there now. Storages of any size.
  std::optional<uint64_t> find_distinct(const Place& place);
  void set_distinct(const Place& place, uint64_t count);

  bool is_empty() const { return count_.load(std::memory_order_relaxed) == 0; }

 private:
  struct Entry {
    size_t bytes = 0;
    c10::weak_intrusive_ptr<c10::StorageImpl> owner;
    c10::Storage content;
    c10::Storage unknown;  // a byte for each: 1 where it is not known; none where all are

    bool is_alive(uintptr_t begin) const;
    bool is_kept() const;
  };
  using Entries = std::map<uintptr_t, Entry>;
  struct DistinctValues {
    size_t bytes = 0;  // of the storage
    c10::weak_intrusive_ptr<c10::StorageImpl> owner;
    caffe2::TypeMeta dtype;
    uint64_t count = 0;
  };

  static constexpr int64_t kMostFloats = 1024;
  static constexpr size_t kMostBytesInAll = size_t{256} << 20;
  static constexpr size_t kMaxDistinct = 4096;  // storages of which it is noted

  bool is_shared(const Place& place) const;
  Entries::iterator find_locked(const Place& place);
  Entries::iterator first_overlap(uintptr_t address);
  Entries::iterator erase(Entries::iterator entry);
  void sweep();
  void sweep_distinct();
  void forget_distinct(uintptr_t begin, uintptr_t end);
  void note_count();
  static void make_own(c10::Storage& storage);

  size_t most_bytes_ = 0;
  std::atomic<size_t> count_{0};
  std::atomic<size_t> shared_count_{0};
  mutable std::mutex mutex_;
  Entries entries_;
  std::map<uintptr_t, DistinctValues> distinct_;  // by where they begin; none overlaps another
  std::map<uintptr_t, size_t> shared_;  // bytes by where they begin; none overlaps another
  size_t total_bytes_ = 0;
  size_t sweep_at_ = 256;
};

// A new storage on the host that no allocator of the program's knows of.
c10::Storage make_host_storage(size_t bytes, unsigned char byte = 0);
// A CPU tensor at `place`'s geometry in another storage.
at::Tensor tensor_in(const c10::Storage& storage, const Place& place);

}  // namespace memledger::virtual_gpu
