#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <vector>

#include "virtual_gpu/address_space.h"
#include "virtual_gpu/device_use.h"
#include "virtual_gpu/exchanged_bytes.h"
#include "virtual_gpu/kept_bytes.h"
#include "virtual_gpu/profiles.h"
#include "virtual_gpu/shared_devices.h"
#include "virtual_gpu/specification.h"
#include "virtual_gpu/use_file.h"

extern "C" {

// What `keep` remembers of the range is forgotten. LibTorch gives memory of a freed tensor to the
// next without a call of CUDA: code that sees this may call the function, so that a new tensor
// reads as zeros. Found by name (dlsym), like all that is exported.
__attribute__((visibility("default"))) void memledger_virtual_gpu_forget(const void* pointer,
                                                                         size_t bytes);

}  // extern "C"

namespace memledger::virtual_gpu {

enum class MemoryKind { kDevice, kManaged, kPinned, kRegistered };

// A range of addresses that CUDA knows of.
struct Region {
  uintptr_t begin;
  size_t bytes;
  int device;
  MemoryKind kind;

  uintptr_t end() const { return begin + bytes; }
};

struct MemoryInfo {
  size_t free_bytes;
  size_t total_bytes;
};

// Stream-ordered memory: what is freed stays reserved up to a threshold, as in CUDA.
struct MemoryPool {
  int device;
  size_t release_threshold = 0;
  size_t used = 0;
  size_t used_high = 0;
  size_t reserved = 0;
  size_t reserved_high = 0;
  bool destroyed = false;  // by the program, which still has blocks of it
  // Addresses of small blocks; the memory is charged in steps.
  std::map<uintptr_t, AddressSpace> small_pages;
};

// Physical memory of the driver's virtual memory management: it has no address until it is mapped.
struct PhysicalMemory {
  int device;
  size_t bytes;
  int references;  // by the program
  int mappings;
  bool is_imported = false;  // counted where it was exported
  uint64_t export_number = 0;
};

// The devices of this process and all memory that CUDA knows of. Made at the first CUDA call, never
// destroyed. Thread-safe; a fork waits for the calls of other threads.
class Machine {
 public:
  // The granularity of physical memory.
  static constexpr size_t kPage = DeviceAddresses::kPage;
  static constexpr size_t kSmallAlignment = 512;

  static Machine& get();
  // Whether get() was called: before, nothing has asked for a device.
  static bool is_made();

  // `visible` is what CUDA_VISIBLE_DEVICES says, nullptr where it says nothing.
  explicit Machine(const Specification& specification, const char* visible = nullptr);

  // The devices that CUDA shows, by CUDA's number.
  int device_count() const { return visible_count_; }
  bool is_device(int device) const { return device >= 0 && device < visible_count_; }
  // The profile of h200 where there is no such device.
  const Profile& profile(int device) const;
  size_t capacity(int device) const { return at(device).capacity; }
  // Whether NCCL takes on the device what virtual_gpu/nccl_memory.h says.
  bool has_nccl_model(int device) const { return at(device).has_nccl_model; }
  const Specification& specification() const { return specification_; }
  MemoryInfo memory_info(int device);
  memledger_virtual_gpu_use use(int device);
  // Restarts the peak of use().
  void reset_peak(int device);

  // All devices, as NVML counts them, also those that CUDA_VISIBLE_DEVICES hides. A hidden one has
  // a number, too: one from device_count() on, for profile() and memory_info().
  int machine_count() const { return static_cast<int>(devices_.size()); }
  int machine_number(int device) const { return at(device).machine_number; }
  int device_of_machine(int machine_number) const;

  // The context of a device exists from the first call that needs it on. False where the memory
  // for it is no longer there, as other processes have it.
  bool make_context(int device);
  bool has_context(int device) const {
    return contexts_.load(std::memory_order_acquire) >> device & 1;
  }
  // Frees all memory of the device, and forgets its reservations and peers.
  void reset(int device);
  // How often that was done, for who keeps addresses.
  uint64_t resets(int device);

  // False where the device had access already, or has none to be taken.
  bool enable_peer(int device, int peer);
  bool disable_peer(int device, int peer);

  // Memory that a library takes for itself: in all `bytes` for this owner, or what it has already
  // where that is more. Returns false, and changes nothing, if less is left.
  bool hold(int device, const void* owner, size_t bytes);
  void release_held(const void* owner);
  // Addresses that a library takes for itself, whose memory is in the context's. 0: none.
  uintptr_t take_addresses(int device, size_t bytes);
  void give_addresses(int device, uintptr_t begin, size_t bytes);

  // nullptr: no memory left. `bytes` must not be 0.
  void* allocate(int device, size_t bytes);
  // For who does not ask again: a failure is one of the program's.
  void* allocate_once(int device, size_t bytes);
  void* allocate_managed(int device, size_t bytes);
  bool free(void* pointer);

  void* allocate_host(int device, size_t bytes);
  bool free_host(void* pointer);
  bool register_host(int device, void* pointer, size_t bytes);
  bool unregister_host(void* pointer);

  // The region that `pointer` is in.
  std::optional<Region> find(const void* pointer);
  // Whether there has been memory of the host that devices can write to: pinned, registered or
  // managed. And whether the address is in such memory.
  bool has_host_memory() const { return has_host_memory_.load(std::memory_order_relaxed); }
  bool is_host_memory(uintptr_t address);
  // Whether all of the range is device memory. Mappings next to each other count as one.
  bool is_device_range(const void* pointer, size_t bytes);

  // The address on a device of a variable of the program's device code, by its stand-in on the
  // host. A large one takes memory of its own, the others lie in what the context takes. nullptr:
  // no memory left.
  void* symbol_address(int device, const void* host_variable, size_t bytes);
  static bool takes_memory_of_its_own(size_t variable_bytes) {
    return variable_bytes > (size_t{256} << 10);
  }
  // The variable is gone from all devices.
  void drop_symbol(const void* host_variable);

  MemoryPool* default_pool(int device);
  // Where the nodes of graphs take their memory from. Kept until trim().
  MemoryPool* graph_pool(int device);
  MemoryPool* make_pool(int device);
  bool destroy_pool(MemoryPool* pool);
  // What is no pool, or no longer one: nullptr, false.
  void* allocate_from(MemoryPool* pool, size_t bytes);
  // Gives the memory of a pool's block back, but keeps its address until it is freed.
  void give_up_memory(void* pointer);
  bool trim(MemoryPool* pool, size_t keep_bytes);
  bool is_pool(const MemoryPool* pool);
  // Calls with the machine locked, for the pool's figures.
  template <typename F>
  bool with_pool(MemoryPool* pool, F function) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!is_pool_locked(pool)) return false;
    function(*pool);
    return true;
  }

  // Addresses for mappings, which go when `device` is reset.
  uintptr_t reserve(size_t bytes, size_t alignment, int device = 0);
  bool release_reservation(uintptr_t address, size_t bytes);
  PhysicalMemory* create_physical(int device, size_t bytes);
  bool release_physical(PhysicalMemory* memory);
  bool retain_physical(PhysicalMemory* memory);
  std::optional<PhysicalMemory> physical(PhysicalMemory* memory);
  bool map(uintptr_t address, size_t bytes, PhysicalMemory* memory);
  bool unmap(uintptr_t address, size_t bytes);
  PhysicalMemory* mapped_at(const void* pointer);

  // Memory that several processes see, where they share devices (virtual_gpu/machine_sharing.cc).
  bool is_shared() const { return shared_ != nullptr; }
  // All processes that have memory of a device, this one alone where devices are not shared.
  std::vector<SharedDevices::Process> processes(int device);
  std::optional<SharedDevices::Ticket> export_memory(const void* pointer);
  enum class ImportError { kNone, kInvalid, kSameProcess, kNoDevice, kNoAddresses };
  ImportError import_memory(const SharedDevices::Ticket& ticket, void** pointer);
  // Whether that was the last use of it here.
  bool close_import(void* pointer);
  std::optional<SharedDevices::Ticket> export_physical(PhysicalMemory* memory);
  ImportError import_physical(const SharedDevices::Ticket& ticket, PhysicalMemory** memory);
  // Stands for the shared devices alone.
  SharedDevices::Ticket ticket();
  bool is_valid(const SharedDevices::Ticket& ticket);

  // The content of device memory, as far as it is known.
  void copy_to_device(uintptr_t address, const void* source, size_t bytes);
  void copy_on_device(uintptr_t destination, uintptr_t source, size_t bytes);
  void copy_to_host(void* destination, uintptr_t address, size_t bytes);
  void fill(uintptr_t address, unsigned char value, size_t bytes);
  void forget(uintptr_t address, size_t bytes);

  // Notes that the program is one of several ranks. Ranks check each other's sizes by small copies
  // that they read back at once. So until the next kernel, which could write anything, copies are
  // read back unchanged, even without `keep`. Collectives of integers are followed for longer.
  void note_ranks();
  void note_exchange(void* destination, const void* source, size_t bytes, int ranks,
                     ExchangedBytes::Content content);
  bool is_as_sent(uintptr_t address, size_t bytes) const {
    return messages_.is_as_sent(address, bytes);
  }
  void note_kernel() {
    recent_.clear();
    messages_.note_kernel();
  }

 private:
  struct Device {
    Profile profile;
    size_t capacity = 0;
    size_t context_bytes = 0;
    bool has_nccl_model = false;
    int machine_number = 0;
    size_t used = 0;
    size_t used_high = 0;
    size_t inherited = 0;  // of what is used, from the parent of a fork
    uint64_t unretried_failures = 0;
    uintptr_t begin = 0;  // of the addresses; 0 until the first allocation
    std::optional<DeviceAddresses> addresses;
    uintptr_t symbols_begin = 0;  // behind the addresses of blocks
    std::map<uintptr_t, AddressSpace> small_pages;
    std::map<const void*, uintptr_t> symbols;
    MemoryPool pool;
    MemoryPool graph_pool;
    uint64_t resets = 0;
  };

  struct Entry {
    Region region;
    MemoryPool* pool = nullptr;
    PhysicalMemory* physical = nullptr;
    uint64_t export_number = 0;    // other processes can map it
    uint64_t imported_number = 0;  // it is another process's
    int opened = 0;                // how often it was imported
    bool has_memory = true;
  };

  struct Held {
    int device;
    size_t bytes;
  };

  struct Reservation {
    size_t bytes;
    int device;
  };

  const Device& at(int device) const { return devices_[static_cast<size_t>(device)]; }
  bool make_context_locked(int device);
  bool charge(int device, size_t bytes);
  bool take_memory(int device, size_t bytes);
  memledger_virtual_gpu_use use_locked(int device) const;
  void note_use(int device);
  void forget_uses_of_parent();
  void give_memory(int device, size_t bytes);
  void give_physical(const PhysicalMemory& memory);
  bool join_shared(const std::vector<DeviceSpecification>& devices);
  void leave_shared();
  bool has_addresses(int device);
  void* allocate_locked(int device, size_t bytes);
  void* allocate_small(int device, size_t bytes);
  std::optional<uintptr_t> take_small(std::map<uintptr_t, AddressSpace>& pages, size_t bytes);
  void* take_from(MemoryPool& pool, size_t bytes);
  std::optional<uintptr_t> take_for_pool(MemoryPool& pool, size_t bytes);
  bool give_small(std::map<uintptr_t, AddressSpace>& pages, const Region& region);
  void give_for_pool(MemoryPool& pool, const Region& region);
  void erase_if_done(MemoryPool* pool);
  bool is_pool_locked(const MemoryPool* pool) const;
  void drop_reservations(int device);
  void give_back(const Entry& entry);
  void drop_mapping(const Entry& entry);
  void shrink(MemoryPool& pool, size_t keep_bytes);
  void release_if_unused(PhysicalMemory* memory);
  std::map<uintptr_t, Entry>::iterator find_locked(uintptr_t address);
  void* map_host(int device, size_t bytes, MemoryKind kind);
  void add_host_memory(const Region& region);

  const Specification specification_;
  std::unique_ptr<SharedDevices> shared_;
  UseFile use_file_;
  KeptBytes kept_;    // by `keep`
  KeptBytes recent_;  // without it, of ranks: since the last kernel
  ExchangedBytes messages_;

  std::atomic<bool> has_host_memory_{false};
  std::atomic<unsigned> contexts_{0};  // a bit for each device that has one
  std::mutex mutex_;
  std::vector<Device> devices_;  // the visible ones first
  int visible_count_ = 0;
  std::atomic<uint64_t> peers_{0};  // a bit for each pair of devices
  std::map<uintptr_t, Entry> entries_;
  std::map<uintptr_t, Reservation> reservations_;
  std::map<const void*, Held> held_;  // by owner
  std::map<PhysicalMemory*, std::unique_ptr<PhysicalMemory>> physical_;
  std::map<MemoryPool*, std::unique_ptr<MemoryPool>> pools_;
};

// Whether CUDA is to load all device code at once (CUDA_MODULE_LOADING=EAGER).
bool loads_eagerly();

// Takes the memory of code that a library of NVIDIA loads into a context, once for each owner. It
// is not in a profile's context, and how much it is was seen on one device: the low end of a dry
// run has nothing of it. False where it is not there.
bool hold_library_code(int device, const void* owner, size_t bytes);

// A library wrote to a device.
void note_library_work();

// The device that the thread's calls are for.
int current_device();
void set_current_device(int device);

}  // namespace memledger::virtual_gpu
