#include "virtual_gpu/values/shadows.h"

#include <c10/core/CPUAllocator.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/TensorImpl.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <limits>
#include <new>
#include <utility>
#include <vector>

namespace memledger::virtual_gpu {
namespace {

uintptr_t address_of(const c10::StorageImpl& storage) {
  return reinterpret_cast<uintptr_t>(
      const_cast<c10::StorageImpl&>(storage)._mutable_data_ptr_no_checks().get());
}

unsigned char* bytes_of(const c10::Storage& storage) {
  return static_cast<unsigned char*>(
      storage.unsafeGetStorageImpl()->_mutable_data_ptr_no_checks().get());
}

// Calls with the byte offset of each run of elements that lie next to each other, in the order of
// the elements.
template <typename F>
void for_each_run(const Place& place, F visit) {
  const int64_t item = static_cast<int64_t>(place.item_bytes());
  const size_t dims = place.sizes.size();
  int64_t run = 1;
  size_t outer = dims;
  while (outer > 0 && (place.strides[outer - 1] == run || place.sizes[outer - 1] == 1))
    run *= place.sizes[--outer];
  int64_t count = 1;
  for (size_t d = 0; d < outer; ++d) count *= place.sizes[d];
  if (run == 0 || count == 0) return;
  c10::DimVector index(outer, 0);
  int64_t offset = place.offset;
  for (int64_t i = 0; i < count; ++i) {
    visit(static_cast<size_t>(offset * item), static_cast<size_t>(run * item));
    for (size_t d = outer; d-- > 0;) {
      offset += place.strides[d];
      if (++index[d] < place.sizes[d]) break;
      offset -= place.strides[d] * place.sizes[d];
      index[d] = 0;
    }
  }
}

// The first byte behind the last element.
size_t end_of(const Place& place) {
  int64_t last = place.offset;
  for (size_t d = 0; d < place.sizes.size(); ++d) {
    if (place.sizes[d] == 0) return 0;
    last += (place.sizes[d] - 1) * place.strides[d];
  }
  return static_cast<size_t>(last + 1) * place.item_bytes();
}

}  // namespace

c10::Storage make_host_storage(size_t bytes, unsigned char byte) {
  void* const memory = std::malloc(std::max<size_t>(bytes, 1));
  if (memory == nullptr) throw std::bad_alloc();
  std::memset(memory, byte, bytes);
  return c10::Storage(c10::Storage::use_byte_size_t(), bytes,
                      c10::DataPtr(memory, memory, &std::free, c10::Device(c10::kCPU)),
                      /*allocator=*/nullptr, /*resizable=*/false);
}

at::Tensor tensor_in(const c10::Storage& storage, const Place& place) {
  at::Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(storage), c10::DispatchKeySet(c10::DispatchKey::CPU), place.dtype);
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(place.sizes, place.strides, place.offset);
  return tensor;
}

std::optional<Place> Place::of(const at::Tensor& tensor) {
  using c10::DispatchKey;
  const c10::DispatchKeySet keys = tensor.unsafeGetTensorImpl()->key_set();
  constexpr c10::DispatchKeySet kOther(
      {DispatchKey::Python, DispatchKey::Conjugate, DispatchKey::Negative, DispatchKey::ZeroTensor,
       DispatchKey::FuncTorchBatched, DispatchKey::FuncTorchGradWrapper, DispatchKey::Batched,
       DispatchKey::Functionalize});
  if (keys.has_any(kOther) || !keys.has(DispatchKey::CUDA)) return {};
  return of_bytes(tensor);
}

std::optional<Place> Place::of_bytes(const at::Tensor& tensor) {
  const c10::TensorImpl* const impl = tensor.unsafeGetTensorImpl();
  if (!impl->is_cuda() || impl->layout() != at::kStrided || !impl->has_storage() ||
      impl->has_symbolic_sizes_strides() || tensor.is_nested()) {
    return {};
  }
  c10::StorageImpl* const storage = impl->unsafe_storage().unsafeGetStorageImpl();
  if (storage == nullptr || storage->device_type() != c10::kCUDA) return {};
  Place place;
  place.storage = storage;
  place.begin = address_of(*storage);
  if (place.begin == 0) return {};
  place.storage_bytes = storage->nbytes();
  place.sizes = impl->sizes();
  place.strides = impl->strides();
  place.offset = impl->storage_offset();
  place.dtype = impl->dtype();
  return place;
}

int64_t Place::numel() const {
  int64_t result = 1;
  for (const int64_t size : sizes) result *= size;
  return result;
}

Shadows& Shadows::get() {
  static auto* const shadows = new Shadows;  // others may outlive it
  return *shadows;
}

bool Shadows::may_hold(const Place& place) const {
  if (place.storage_bytes > most_bytes_ || end_of(place) > place.storage_bytes) return false;
  const size_t item = place.item_bytes();
  if (item == 0 || static_cast<size_t>(place.numel()) * item > most_bytes_) return false;
  if (is_shared(place)) return false;
  const c10::ScalarType type = c10::typeMetaToScalarType(place.dtype);
  return c10::isIntegralType(type, /*includeBool=*/true) ||
         place.storage_bytes <= static_cast<size_t>(kMostFloats) * item;
}

bool Shadows::is_shared(const Place& place) const {
  if (shared_count_.load(std::memory_order_relaxed) == 0) return false;
  std::lock_guard<std::mutex> lock(mutex_);
  const auto next = shared_.lower_bound(place.begin + std::max<size_t>(place.storage_bytes, 1));
  if (next == shared_.begin()) return false;
  const auto& [begin, bytes] = *std::prev(next);
  return begin + bytes > place.begin;
}

void Shadows::set_shared(uintptr_t address, size_t bytes, bool is_shared) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (is_shared) {
    shared_[address] = bytes;
  } else {
    shared_.erase(address);
  }
  shared_count_.store(shared_.size(), std::memory_order_relaxed);
  forget_distinct(address, address + bytes);
  for (auto entry = first_overlap(address);
       entry != entries_.end() && entry->first < address + bytes;) {
    entry = erase(entry);
  }
}

bool Shadows::Entry::is_alive(uintptr_t begin) const {
  return !owner.expired() && address_of(*owner._unsafe_get_target()) == begin;
}

// Ended, and held by a recording, too.
bool Shadows::Entry::is_kept() const { return owner.expired() && owner.weak_use_count() > 1; }

Shadows::Entries::iterator Shadows::erase(Entries::iterator entry) {
  total_bytes_ -= entry->second.bytes;
  const auto next = entries_.erase(entry);
  note_count();
  return next;
}

// The first entry that ends behind the address, if there is one.
Shadows::Entries::iterator Shadows::first_overlap(uintptr_t address) {
  auto entry = entries_.upper_bound(address);
  if (entry != entries_.begin()) {
    const auto before = std::prev(entry);
    if (before->first + before->second.bytes > address) return before;
  }
  return entry;
}

Shadows::Entries::iterator Shadows::find_locked(const Place& place) {
  const auto entry = entries_.find(place.begin);
  if (entry == entries_.end()) return entry;
  if (entry->second.owner._unsafe_get_target() == place.storage &&
      entry->second.bytes == place.storage_bytes &&
      (entry->second.is_alive(place.begin) || entry->second.is_kept())) {
    return entry;
  }
  return entries_.end();
}

void Shadows::make_own(c10::Storage& storage) {
  if (!storage || storage.use_count() == 1) return;
  c10::Storage copy = make_host_storage(storage.nbytes());
  std::memcpy(bytes_of(copy), bytes_of(storage), storage.nbytes());
  storage = std::move(copy);
}

std::optional<Value> Shadows::find(const Place& place) {
  if (is_empty()) return {};
  c10::Storage content, unknown;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto entry = find_locked(place);
    if (entry == entries_.end() || end_of(place) > place.storage_bytes) return {};
    content = entry->second.content;
    unknown = entry->second.unknown;
  }
  Value value;
  if (unknown) {
    Place dense = place;
    dense.dtype = caffe2::TypeMeta::Make<bool>();
    dense.offset = 0;
    int64_t stride = 1;
    for (size_t d = dense.sizes.size(); d-- > 0;) {
      dense.strides[d] = stride;
      stride *= std::max<int64_t>(dense.sizes[d], 1);
    }
    const c10::Storage mask = make_host_storage(static_cast<size_t>(place.numel()));
    unsigned char* out = bytes_of(mask);
    const size_t item = place.item_bytes();
    bool any_unknown = false, any_known = false;
    for_each_run(place, [&](size_t offset, size_t bytes) {
      const unsigned char* const at = bytes_of(unknown) + offset;
      for (size_t i = 0; i < bytes; i += item) {
        const bool is_unknown = std::memchr(at + i, 1, item) != nullptr;
        *out++ = is_unknown;
        (is_unknown ? any_unknown : any_known) = true;
      }
    });
    if (any_unknown && !any_known) return {};
    if (any_unknown) value.unknown = tensor_in(mask, dense);
  }
  value.data = tensor_in(content, place);
  return value;
}

void Shadows::set(const Place& place, const Value& value) {
  if (!may_hold(place)) return forget(place);
  std::lock_guard<std::mutex> lock(mutex_);
  auto entry = find_locked(place);
  const size_t all = place.storage_bytes;
  forget_distinct(place.begin, place.begin + all);
  if (entry == entries_.end()) {
    for (auto old = first_overlap(place.begin);
         old != entries_.end() && old->first < place.begin + all;) {
      old = erase(old);
    }
    if (entries_.size() >= sweep_at_ || total_bytes_ + all > kMostBytesInAll) sweep();
    if (total_bytes_ + all > kMostBytesInAll) return;
    c10::raw::weak_intrusive_ptr::incref(place.storage);
    Entry made{all, c10::weak_intrusive_ptr<c10::StorageImpl>::reclaim(place.storage),
               make_host_storage(all), make_host_storage(all, 1)};
    entry = entries_.emplace(place.begin, std::move(made)).first;
    total_bytes_ += all;
    note_count();
  }
  Entry& e = entry->second;
  make_own(e.content);
  if (!e.unknown && !value.is_known()) e.unknown = make_host_storage(all);
  make_own(e.unknown);
  const auto* in = static_cast<const unsigned char*>(value.data.const_data_ptr());
  const bool* in_unknown = value.is_known() ? nullptr : value.unknown.const_data_ptr<bool>();
  const size_t item = place.item_bytes();
  for_each_run(place, [&](size_t offset, size_t bytes) {
    std::memcpy(bytes_of(e.content) + offset, in, bytes);
    in += bytes;
    if (!e.unknown) return;
    unsigned char* const mask = bytes_of(e.unknown) + offset;
    if (in_unknown == nullptr) {
      std::memset(mask, 0, bytes);
      return;
    }
    for (size_t i = 0; i < bytes; i += item) {
      const bool is_unknown = *in_unknown++;
      std::memset(mask + i, is_unknown, item);
      if (is_unknown) std::memset(bytes_of(e.content) + offset + i, 0, item);
    }
  });
  if (!e.unknown) return;
  const unsigned char* const mask = bytes_of(e.unknown);
  if (std::memchr(mask, 1, all) == nullptr) {
    e.unknown = c10::Storage();
  } else if (std::memchr(mask, 0, all) == nullptr) {
    erase(entry);
  }
}

void Shadows::forget(const Place& place) {
  if (is_empty()) return;
  std::lock_guard<std::mutex> lock(mutex_);
  const auto entry = find_locked(place);
  const size_t end = end_of(place);
  if (end == 0) return;
  forget_distinct(place.begin, place.begin + std::max(end, place.storage_bytes));
  if (entry == entries_.end() || end > place.storage_bytes) {
    // Another storage at the same place, or one that overlaps.
    for (auto old = first_overlap(place.begin);
         old != entries_.end() && old->first < place.begin + std::max(end, place.storage_bytes);) {
      old = erase(old);
    }
    return;
  }
  Entry& e = entry->second;
  if (!e.unknown) e.unknown = make_host_storage(e.bytes);
  make_own(e.unknown);
  make_own(e.content);
  for_each_run(place, [&](size_t offset, size_t bytes) {
    std::memset(bytes_of(e.unknown) + offset, 1, bytes);
    std::memset(bytes_of(e.content) + offset, 0, bytes);
  });
  if (std::memchr(bytes_of(e.unknown), 0, e.bytes) == nullptr) erase(entry);
}

void Shadows::forget(uintptr_t address, size_t bytes) { write(address, nullptr, bytes); }

void Shadows::write(uintptr_t address, const void* content, size_t bytes) {
  if (is_empty() || bytes == 0) return;
  std::lock_guard<std::mutex> lock(mutex_);
  const uintptr_t end = address + bytes;
  forget_distinct(address, end);
  for (auto entry = first_overlap(address); entry != entries_.end() && entry->first < end;) {
    Entry& e = entry->second;
    if (!e.is_alive(entry->first) && !e.is_kept()) {
      entry = erase(entry);
      continue;
    }
    const uintptr_t from = std::max(address, entry->first);
    const size_t count = std::min(end, entry->first + e.bytes) - from;
    const size_t offset = from - entry->first;
    if (content == nullptr && !e.unknown) e.unknown = make_host_storage(e.bytes);
    make_own(e.unknown);
    make_own(e.content);
    if (content == nullptr) {
      std::memset(bytes_of(e.content) + offset, 0, count);
    } else {
      std::memcpy(bytes_of(e.content) + offset,
                  static_cast<const unsigned char*>(content) + (from - address), count);
    }
    if (e.unknown) std::memset(bytes_of(e.unknown) + offset, content == nullptr, count);
    if (e.unknown && std::memchr(bytes_of(e.unknown), 0, e.bytes) == nullptr) {
      entry = erase(entry);
    } else {
      ++entry;
    }
  }
}

void Shadows::forget_reached(uintptr_t address) {
  if (is_empty()) return;
  std::vector<uintptr_t> reached = {address};
  std::lock_guard<std::mutex> lock(mutex_);
  constexpr uintptr_t kNone = std::numeric_limits<uintptr_t>::max();
  const uintptr_t least = std::min(entries_.empty() ? kNone : entries_.begin()->first,
                                   distinct_.empty() ? kNone : distinct_.begin()->first);
  while (!reached.empty()) {
    const uintptr_t at = reached.back();
    reached.pop_back();
    forget_distinct(at, at + 1);
    const auto entry = first_overlap(at);
    if (entry == entries_.end() || entry->first > at) continue;
    const unsigned char* const bytes = bytes_of(entry->second.content);
    for (size_t i = 0; i + sizeof(uintptr_t) <= entry->second.bytes; i += sizeof(uintptr_t)) {
      uintptr_t word = 0;
      std::memcpy(&word, bytes + i, sizeof word);
      if (word >= least) reached.push_back(word);
    }
    erase(entry);
  }
}

size_t Shadows::read(void* destination, uintptr_t address, size_t bytes) {
  if (is_empty()) return bytes;
  size_t known = 0;
  std::lock_guard<std::mutex> lock(mutex_);
  const uintptr_t end = address + bytes;
  for (auto entry = first_overlap(address); entry != entries_.end() && entry->first < end;
       ++entry) {
    const Entry& e = entry->second;
    if (!e.is_alive(entry->first)) continue;
    const uintptr_t from = std::max(address, entry->first);
    const size_t count = std::min(end, entry->first + e.bytes) - from;
    const size_t offset = from - entry->first;
    auto* const to = static_cast<unsigned char*>(destination) + (from - address);
    if (!e.unknown) {
      std::memcpy(to, bytes_of(e.content) + offset, count);
      known += count;
      continue;
    }
    for (size_t i = 0; i < count; ++i) {
      if (bytes_of(e.unknown)[offset + i]) continue;
      to[i] = bytes_of(e.content)[offset + i];
      ++known;
    }
  }
  return bytes - known;
}

void Shadows::forget_all() {
  if (is_empty()) return;
  std::lock_guard<std::mutex> lock(mutex_);
  entries_.clear();
  distinct_.clear();
  total_bytes_ = 0;
  note_count();
}

std::optional<uint64_t> Shadows::find_distinct(const Place& place) {
  if (is_empty()) return {};
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = distinct_.find(place.begin);
  if (found == distinct_.end()) return {};
  const DistinctValues& values = found->second;
  const bool is_same = values.owner._unsafe_get_target() == place.storage &&
                       values.bytes == place.storage_bytes && values.dtype == place.dtype;
  if (!is_same) return {};
  return values.count;
}

void Shadows::set_distinct(const Place& place, uint64_t count) {
  if (is_shared(place)) return;
  std::lock_guard<std::mutex> lock(mutex_);
  forget_distinct(place.begin, place.begin + place.storage_bytes);
  if (distinct_.size() >= kMaxDistinct) sweep_distinct();
  c10::raw::weak_intrusive_ptr::incref(place.storage);
  distinct_.emplace(
      place.begin, DistinctValues{place.storage_bytes,
                                  c10::weak_intrusive_ptr<c10::StorageImpl>::reclaim(place.storage),
                                  place.dtype, count});
  note_count();
}

void Shadows::forget_distinct(uintptr_t begin, uintptr_t end) {
  if (distinct_.empty()) return;
  auto values = distinct_.upper_bound(begin);
  if (values != distinct_.begin()) {
    const auto before = std::prev(values);
    if (before->first + before->second.bytes > begin) values = before;
  }
  while (values != distinct_.end() && values->first < end) values = distinct_.erase(values);
  note_count();
}

// Forgets those that have ended or, where most are alive, all: so sweeps are rare.
void Shadows::sweep_distinct() {
  for (auto values = distinct_.begin(); values != distinct_.end();)
    values = values->second.owner.expired() ? distinct_.erase(values) : std::next(values);
  if (distinct_.size() > kMaxDistinct / 2) distinct_.clear();
  note_count();
}

void Shadows::note_count() {
  count_.store(entries_.size() + distinct_.size(), std::memory_order_relaxed);
}

// Forgets those that have ended.
void Shadows::sweep() {
  for (auto entry = entries_.begin(); entry != entries_.end();) {
    const bool stays = entry->second.is_alive(entry->first) || entry->second.is_kept();
    entry = stays ? std::next(entry) : erase(entry);
  }
  sweep_at_ = std::max<size_t>(256, 2 * entries_.size());
}

}  // namespace memledger::virtual_gpu
