#pragma once

#include <cstddef>
#include <new>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "registry/core/huge_pages.h"

namespace memledger::core {

// A flat_hash_map that survives a lack of memory. Abseil's own takes its new capacity before it has
// the memory, and is broken when the allocator throws. Here the memory for the next growth is taken
// ahead, where a failure can be answered. Large tables are in huge pages.
template <typename Key, typename Value>
class GrowingMap {
  struct Spare {
    void* memory = nullptr;
    size_t bytes = 0;
  };

  template <typename T>
  struct Allocator {
    using value_type = T;
    explicit Allocator(Spare* its_spare) : spare(its_spare) {}
    template <typename U>
    Allocator(const Allocator<U>& other)
        : spare(other.spare) {}  // NOLINT(google-explicit-constructor): as allocators do
    T* allocate(size_t count) {
      static_assert(alignof(T) <= alignof(std::max_align_t));
      if (spare->memory == nullptr || spare->bytes < count * sizeof(T))
        return static_cast<T*>(::operator new(count * sizeof(T)));
      void* const memory = spare->memory;
      *spare = {};
      return static_cast<T*>(memory);
    }
    void deallocate(T* memory, size_t) noexcept { ::operator delete(static_cast<void*>(memory)); }
    friend bool operator==(const Allocator& a, const Allocator& b) { return a.spare == b.spare; }
    friend bool operator!=(const Allocator& a, const Allocator& b) { return a.spare != b.spare; }
    Spare* spare;
  };
  using Pairs = Allocator<std::pair<const Key, Value>>;

  using Map = absl::flat_hash_map<Key, Value, typename absl::flat_hash_map<Key, Value>::hasher,
                                  typename absl::flat_hash_map<Key, Value>::key_equal, Pairs>;

 public:
  GrowingMap() : map_(Pairs(&spare_)) {}
  ~GrowingMap() { ::operator delete(spare_.memory); }
  GrowingMap(const GrowingMap&) = delete;
  GrowingMap& operator=(const GrowingMap&) = delete;

  // These throw std::bad_alloc without memory, and the map is as it was.
  template <typename... Args>
  auto try_emplace(const Key& key, Args&&... args) {
    make_room();
    return map_.try_emplace(key, std::forward<Args>(args)...);
  }
  template <typename... Args>
  auto emplace(Args&&... args) {
    make_room();
    return map_.emplace(std::forward<Args>(args)...);
  }
  Value& operator[](const Key& key) {
    make_room();
    return map_[key];
  }

  // Makes room for `count` in all.
  void reserve(size_t count) {
    if (count <= map_.size()) return;
    take_ahead(2 * (count + count / 7 + 1));
    map_.reserve(count);
  }

  void prefetch(const Key& key) const { map_.prefetch(key); }
  bool contains(const Key& key) const { return map_.contains(key); }
  auto find(const Key& key) { return map_.find(key); }
  auto find(const Key& key) const { return map_.find(key); }
  auto begin() { return map_.begin(); }
  auto begin() const { return map_.begin(); }
  auto end() { return map_.end(); }
  auto end() const { return map_.end(); }
  template <typename What>
  auto erase(const What& what) {
    return map_.erase(what);
  }
  size_t size() const { return map_.size(); }

 private:
  void make_room() {
    const size_t capacity = map_.capacity();
    // Abseil grows at 7/8 full, but where many were erased only with 25/32 alive; small maps grow
    // earlier.
    if (capacity > 32 && map_.size() < capacity / 32 * 24) return;
    take_ahead(2 * capacity + 1);
  }

  void take_ahead(size_t capacity) {
    const size_t bytes = capacity * (sizeof(std::pair<const Key, Value>) + 1) + 128;
    if (spare_.bytes >= bytes) return;
    ::operator delete(spare_.memory);
    spare_ = {};
    spare_ = {::operator new(bytes), bytes};
    prefer_huge_pages(spare_.memory, bytes);
  }

  Spare spare_;
  Map map_;
};

}  // namespace memledger::core
