#include "virtual_gpu/machine.h"

#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <iterator>
#include <string_view>

#include "virtual_gpu/known_values.h"
#include "virtual_gpu/library_sizes.h"
#include "virtual_gpu/unconsidered_functions.h"
#include "virtual_gpu/unwatched_reads.h"
#include "virtual_gpu/visible_devices.h"

namespace memledger::virtual_gpu {
namespace {

// Room for holes between blocks: a real device has none, as it can put any page behind any address.
// Where the process has too few addresses left (the thread sanitizer's shadow, `ulimit -v`) a
// device makes do with less, down to its own size.
constexpr size_t kAddressesPerByte = 8;
// What lies in the first chunk before the program's first block. Read off the peaks of 2 978 MLPs
// on an A100, all of which it explains (docs/accuracy.md).
constexpr size_t kBeforeFirstBlock = size_t{16} << 20;
// The step in which CUDA's stream-ordered pools take memory from the device.
constexpr size_t kPoolStep = size_t{32} << 20;
// Device code's variables lie in the last part of a device's addresses, which takes no memory.
constexpr size_t kSymbolBytes = size_t{64} << 20;

// The largest copy that an exchange between ranks is followed through: what DistributedDataParallel
// sends about a model's parameters.
constexpr size_t kRecentBytesPerCopy = size_t{1} << 20;

Machine* machine = nullptr;
std::mutex* machine_mutex = nullptr;
std::atomic<bool> machine_is_made{false};

thread_local int thread_device = 0;

Specification specification_from_environment() {
  const char* text = std::getenv(kSpecificationVariable);
  if (!text || !*text) return {};
  ParsedSpecification parsed = parse_specification(text);
  if (parsed.specification) return *parsed.specification;
  say("%s=%s: %s There is no device now.", kSpecificationVariable, text, parsed.error.c_str());
  Specification none;
  none.devices.clear();
  return none;
}

uint64_t peer_bit(int device, int peer) { return uint64_t{1} << (device * 8 + peer); }

size_t page_size() {
  static const size_t size = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return size;
}

}  // namespace

void note_library_work() {
  if (machine) machine->note_kernel();
  known_values().library_worked();
}

bool hold_library_code(int device, const void* owner, size_t bytes) {
  Machine& machine = Machine::get();
  // Programs on small devices look for what tensors take, so these have no context either.
  constexpr size_t kSmallDevice = size_t{2} << 30;
  const Specification& specification = machine.specification();
  if (specification.workspaces != WorkspaceEnd::kUpper || specification.context_bytes.has_value() ||
      machine.capacity(device) < kSmallDevice)
    return true;
  return machine.hold(device, owner, bytes);
}

bool loads_eagerly() {
  const char* const mode = std::getenv("CUDA_MODULE_LOADING");
  return mode != nullptr && std::string_view(mode) == "EAGER";
}

int current_device() { return thread_device; }
void set_current_device(int device) { thread_device = device; }

bool Machine::is_made() { return machine_is_made.load(std::memory_order_acquire); }

Machine& Machine::get() {
  static Machine* const made = [] {
    machine = new Machine(specification_from_environment(), std::getenv("CUDA_VISIBLE_DEVICES"));
    machine_mutex = &machine->mutex_;
    // Held over a fork, so that the child finds whole tables and free locks.
    pthread_atfork(
        [] {
          machine_mutex->lock();
          machine->kept_.mutex().lock();
          machine->recent_.mutex().lock();
          machine->messages_.mutex().lock();
        },
        [] {
          machine->messages_.mutex().unlock();
          machine->recent_.mutex().unlock();
          machine->kept_.mutex().unlock();
          machine_mutex->unlock();
        },
        [] {
          if (machine->shared_) machine->shared_->forked();
          machine->forget_uses_of_parent();
          machine->messages_.mutex().unlock();
          machine->recent_.mutex().unlock();
          machine->kept_.mutex().unlock();
          machine_mutex->unlock();
        });
    // Gloo is not part of CUDA, so ranks that it connects are known by this variable alone. NCCL
    // reports itself.
    if (std::getenv("WORLD_SIZE")) machine->note_ranks();
    if (machine->shared_) std::atexit([] { machine->leave_shared(); });
    machine_is_made.store(true, std::memory_order_release);
    return machine;
  }();
  return *made;
}

Machine::Machine(const Specification& specification, const char* visible)
    : specification_(specification),
      kept_(specification.keep_bytes),
      recent_(specification.keep_bytes ? 0 : kRecentBytesPerCopy) {
  if (loads_eagerly()) note_library_size(LibrarySize::kEagerLoading);
  const std::vector<DeviceSpecification> all = specification.all_devices();
  if (!specification.share.empty() && !join_shared(all)) return;
  std::vector<int> order = visible_devices(visible, static_cast<int>(all.size()));
  visible_count_ = static_cast<int>(order.size());
  for (int number = 0; number < static_cast<int>(all.size()); ++number) {
    if (std::find(order.begin(), order.end(), number) == order.end()) order.push_back(number);
  }
  devices_ = std::vector<Device>(order.size());
  for (size_t device = 0; device < order.size(); ++device) {
    const DeviceSpecification& wanted = all[static_cast<size_t>(order[device])];
    Device& d = devices_[device];
    d.profile = wanted.profile;
    d.capacity = wanted.capacity_bytes();
    d.context_bytes = specification.context_bytes_of(wanted);
    d.has_nccl_model = specification.has_nccl_model(wanted);
    d.machine_number = order[device];
    d.pool.device = d.graph_pool.device = static_cast<int>(device);
    d.graph_pool.release_threshold = std::numeric_limits<size_t>::max();
  }
}

const Profile& Machine::profile(int device) const {
  return device >= 0 && device < machine_count() ? at(device).profile : *find_profile("h200");
}

int Machine::device_of_machine(int machine_number) const {
  const auto found = std::find_if(
      devices_.begin(), devices_.end(),
      [machine_number](const Device& device) { return device.machine_number == machine_number; });
  return static_cast<int>(found - devices_.begin());
}

MemoryInfo Machine::memory_info(int device) {
  std::lock_guard<std::mutex> lock(mutex_);
  const Device& d = devices_[device];
  const size_t used = shared_ ? shared_->used(d.machine_number) : d.used;
  return {d.capacity - std::min(used, d.capacity), d.capacity};
}

memledger_virtual_gpu_use Machine::use(int device) {
  std::lock_guard<std::mutex> lock(mutex_);
  return use_locked(device);
}

memledger_virtual_gpu_use Machine::use_locked(int device) const {
  const Device& d = devices_[device];
  return {d.profile.name.c_str(),
          d.capacity,
          has_context(device) ? d.context_bytes : 0,
          d.used,
          d.used_high,
          d.unretried_failures};
}

void Machine::note_use(int device) {
  const Device& d = devices_[device];
  memledger_virtual_gpu_use use = use_locked(device);
  use.peak_bytes -= std::min<uint64_t>(use.peak_bytes, d.inherited);
  use.context_bytes = d.inherited == 0 ? use.context_bytes : 0;
  use_file_.note(d.machine_number, use);
}

void Machine::forget_uses_of_parent() {
  use_file_.forked();
  for (Device& d : devices_) d.inherited = d.used_high = d.used;
}

void Machine::reset_peak(int device) {
  std::lock_guard<std::mutex> lock(mutex_);
  Device& d = devices_[device];
  d.used_high = d.used;
  if (has_context(device)) note_use(device);
}

bool Machine::make_context(int device) {
  if (has_context(device)) return true;
  std::lock_guard<std::mutex> lock(mutex_);
  return make_context_locked(device);
}

bool Machine::make_context_locked(int device) {
  if (has_context(device)) return true;
  Device& d = devices_[device];
  if (!take_memory(device, d.context_bytes)) return false;
  if (shared_) shared_->set_context(d.machine_number, true);
  contexts_.fetch_or(1u << device, std::memory_order_release);
  note_use(device);
  tell_library_sizes();
  if (prediction::DeviceUseFile* const file = UseFile::current())
    file->are_ones_likely = specification_.numbers_are_one ? 1 : 0;
  return true;
}

void Machine::reset(int device) {
  std::lock_guard<std::mutex> lock(mutex_);
  for (auto entry = entries_.begin(); entry != entries_.end();) {
    if (entry->second.region.device != device || entry->second.region.kind != MemoryKind::kDevice) {
      ++entry;
      continue;
    }
    give_back(entry->second);
    entry = entries_.erase(entry);
  }
  Device& d = devices_[device];
  ++d.resets;
  for (auto symbol = d.symbols.begin(); symbol != d.symbols.end();)
    symbol = symbol->second < d.symbols_begin ? d.symbols.erase(symbol) : std::next(symbol);
  for (auto memory = physical_.begin(); memory != physical_.end();) {
    if (memory->second->device == device) {
      give_physical(*memory->second);
      memory = physical_.erase(memory);
    } else {
      ++memory;
    }
  }
  for (auto& [pool, owner] : pools_) {
    if (pool->device == device) shrink(*pool, 0);
  }
  shrink(d.pool, 0);
  shrink(d.graph_pool, 0);
  drop_reservations(device);
  for (auto held = held_.begin(); held != held_.end();)
    held = held->second.device == device ? held_.erase(held) : std::next(held);
  for (int other = 0; other < machine_count(); ++other)
    peers_ &= ~(peer_bit(device, other) | peer_bit(other, device));
  give_memory(device, d.used);
  if (shared_) shared_->set_context(d.machine_number, false);
  contexts_.fetch_and(~(1u << device), std::memory_order_release);
}

uint64_t Machine::resets(int device) {
  std::lock_guard<std::mutex> lock(mutex_);
  return devices_[device].resets;
}

// Those that another device's memory is mapped in stay.
void Machine::drop_reservations(int device) {
  for (auto reservation = reservations_.begin(); reservation != reservations_.end();) {
    const auto [begin, range] = *reservation;
    const auto mapped = entries_.lower_bound(begin);
    const bool in_use = mapped != entries_.end() && mapped->first < begin + range.bytes;
    if (range.device != device || in_use) {
      ++reservation;
      continue;
    }
    release_addresses(begin, range.bytes);
    reservation = reservations_.erase(reservation);
  }
}

bool Machine::enable_peer(int device, int peer) {
  const uint64_t bit = peer_bit(device, peer);
  return !(peers_.fetch_or(bit) & bit);
}

bool Machine::disable_peer(int device, int peer) {
  const uint64_t bit = peer_bit(device, peer);
  return peers_.fetch_and(~bit) & bit;
}

bool Machine::charge(int device, size_t bytes) {
  return make_context_locked(device) && take_memory(device, bytes);
}

// All that a device's memory is counted by.
bool Machine::take_memory(int device, size_t bytes) {
  Device& d = devices_[device];
  const bool fits = shared_ ? shared_->take(d.machine_number, bytes) : bytes <= d.capacity - d.used;
  if (!fits) {
    use_file_.note_refused(d.machine_number, bytes);
    return false;
  }
  d.used += bytes;
  if (d.used > d.used_high) {
    d.used_high = d.used;
    if (has_context(device)) note_use(device);
  }
  use_file_.note_taken(d.machine_number, bytes);
  return true;
}

void Machine::give_memory(int device, size_t bytes) {
  Device& d = devices_[device];
  d.used -= bytes;
  if (shared_) shared_->give(d.machine_number, bytes);
}

bool Machine::hold(int device, const void* owner, size_t bytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  Held& held = held_.try_emplace(owner, Held{device, 0}).first->second;
  if (bytes <= held.bytes) return true;
  if (!charge(device, bytes - held.bytes)) {
    ++devices_[device].unretried_failures;
    return false;
  }
  held.bytes = bytes;
  return true;
}

void Machine::release_held(const void* owner) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = held_.find(owner);
  if (found == held_.end()) return;
  give_memory(found->second.device, found->second.bytes);
  held_.erase(found);
}

uintptr_t Machine::take_addresses(int device, size_t bytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!has_addresses(device)) return 0;
  return devices_[device].addresses->take(bytes).value_or(0);
}

void Machine::give_addresses(int device, uintptr_t begin, size_t bytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (begin != 0) devices_[device].addresses->give(begin, bytes);
}

bool Machine::has_addresses(int device) {
  Device& d = devices_[device];
  if (d.begin) return true;
  const size_t capacity = round_up(d.capacity, DeviceAddresses::kChunk);
  for (size_t per_byte = kAddressesPerByte; per_byte; per_byte /= 2) {
    const size_t bytes = capacity * per_byte;
    d.begin = reserve_addresses(bytes + kSymbolBytes, DeviceAddresses::kChunk);
    if (!d.begin) continue;
    d.addresses.emplace(d.begin, bytes, specification_.ascending_addresses);
    d.symbols_begin = d.begin + bytes;
    if (!specification_.ascending_addresses && per_byte > 1) d.addresses->take(kBeforeFirstBlock);
    return true;
  }
  say("device %d cannot have its %zu GiB of addresses. Is the process's address space limited "
      "(ulimit -v)?",
      device, capacity >> 30);
  return false;
}

void* Machine::allocate(int device, size_t bytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  return allocate_locked(device, bytes);
}

void* Machine::allocate_once(int device, size_t bytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  void* const block = allocate_locked(device, bytes);
  if (block == nullptr) ++devices_[device].unretried_failures;
  return block;
}

void* Machine::allocate_locked(int device, size_t bytes) {
  // More than the device has never fits, and rounding it up could overflow.
  if (bytes > devices_[device].capacity || !has_addresses(device)) {
    use_file_.note_refused(devices_[device].machine_number, bytes);
    return nullptr;
  }
  if (bytes <= kPage / 2) return allocate_small(device, bytes);
  const size_t pages = round_up(bytes, kPage);
  if (!charge(device, pages)) return nullptr;
  const std::optional<uintptr_t> address = devices_[device].addresses->take(pages);
  if (!address) {
    give_memory(device, pages);
    return nullptr;
  }
  entries_[*address] = Entry{{*address, bytes, device, MemoryKind::kDevice}};
  return reinterpret_cast<void*>(*address);
}

std::optional<uintptr_t> Machine::take_small(std::map<uintptr_t, AddressSpace>& pages,
                                             size_t bytes) {
  for (auto& [begin, page] : pages) {
    if (const std::optional<uintptr_t> address = page.take(bytes, kSmallAlignment)) return address;
  }
  return std::nullopt;
}

// Small blocks share pages, as those of cudaMalloc do.
void* Machine::allocate_small(int device, size_t bytes) {
  Device& d = devices_[device];
  const size_t rounded = round_up(bytes, kSmallAlignment);
  std::optional<uintptr_t> address = take_small(d.small_pages, rounded);
  if (!address) {
    if (!charge(device, kPage)) return nullptr;
    const std::optional<uintptr_t> page = d.addresses->take(kPage);
    if (!page) {
      give_memory(device, kPage);
      return nullptr;
    }
    address = d.small_pages.emplace(*page, AddressSpace(*page, kPage))
                  .first->second.take(rounded, kSmallAlignment);
  }
  entries_[*address] = Entry{{*address, bytes, device, MemoryKind::kDevice}};
  return reinterpret_cast<void*>(*address);
}

// Whether the block's page has nothing left in it, and is no longer among them.
bool Machine::give_small(std::map<uintptr_t, AddressSpace>& pages, const Region& region) {
  const uintptr_t page = region.begin / kPage * kPage;
  AddressSpace& space = pages.at(page);
  space.give(region.begin, round_up(region.bytes, kSmallAlignment));
  if (!space.is_whole(page, kPage)) return false;
  pages.erase(page);
  return true;
}

// The memory and addresses of an entry that leaves the table.
void Machine::give_back(const Entry& entry) {
  const Region& region = entry.region;
  if (region.kind == MemoryKind::kManaged || region.kind == MemoryKind::kPinned) {
    munmap(reinterpret_cast<void*>(region.begin), round_up(region.bytes, page_size()));
    return;
  }
  if (region.kind == MemoryKind::kRegistered) return;
  forget(region.begin, region.bytes);
  const bool is_shared = entry.export_number || entry.imported_number ||
                         (entry.physical && entry.physical->export_number);
  if (is_shared) note_shared(region.begin, region.bytes, false);
  if (entry.physical) return drop_mapping(entry);
  if (entry.imported_number) return release_addresses(region.begin, round_up(region.bytes, kPage));
  if (entry.export_number) shared_->remove_export(entry.export_number);
  Device& d = devices_[region.device];
  if (entry.pool) {
    give_for_pool(*entry.pool, region);
    if (entry.has_memory) entry.pool->used -= round_up(region.bytes, kSmallAlignment);
    shrink(*entry.pool, entry.pool->release_threshold);
    erase_if_done(entry.pool);
    return;
  }
  if (region.bytes > kPage / 2) {
    d.addresses->give(region.begin, round_up(region.bytes, kPage));
    give_memory(region.device, round_up(region.bytes, kPage));
    return;
  }
  if (!give_small(d.small_pages, region)) return;
  d.addresses->give(region.begin / kPage * kPage, kPage);
  give_memory(region.device, kPage);
}

bool Machine::free(void* pointer) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = entries_.find(reinterpret_cast<uintptr_t>(pointer));
  if (found == entries_.end() || found->second.physical || found->second.imported_number)
    return false;
  const MemoryKind kind = found->second.region.kind;
  if (kind != MemoryKind::kDevice && kind != MemoryKind::kManaged) return false;
  give_back(found->second);
  entries_.erase(found);
  return true;
}

void* Machine::map_host(int device, size_t bytes, MemoryKind kind) {
  const size_t mapped_bytes = round_up(bytes, page_size());
  if (mapped_bytes < bytes) return nullptr;
  // The machine that is meant may have more memory than this one. Untouched pages take none.
  void* mapped = mmap(nullptr, mapped_bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) return nullptr;
  const uintptr_t address = reinterpret_cast<uintptr_t>(mapped);
  std::lock_guard<std::mutex> lock(mutex_);
  add_host_memory({address, bytes, device, kind});
  return mapped;
}

void Machine::add_host_memory(const Region& region) {
  entries_[region.begin] = Entry{region};
  has_host_memory_.store(true, std::memory_order_relaxed);
}

bool Machine::is_host_memory(uintptr_t address) {
  const std::optional<Region> region = find(reinterpret_cast<const void*>(address));
  return region && region->kind != MemoryKind::kDevice;
}

// Memory that host and device share lies on the host here, and takes nothing of the device.
void* Machine::allocate_managed(int device, size_t bytes) {
  virtual_gpu::note_managed_allocation();
  return map_host(device, bytes, MemoryKind::kManaged);
}
void* Machine::allocate_host(int device, size_t bytes) {
  return map_host(device, bytes, MemoryKind::kPinned);
}

bool Machine::free_host(void* pointer) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = entries_.find(reinterpret_cast<uintptr_t>(pointer));
  if (found == entries_.end() || found->second.region.kind != MemoryKind::kPinned) return false;
  give_back(found->second);
  entries_.erase(found);
  return true;
}

bool Machine::register_host(int device, void* pointer, size_t bytes) {
  const uintptr_t begin = reinterpret_cast<uintptr_t>(pointer);
  std::lock_guard<std::mutex> lock(mutex_);
  const auto next = entries_.lower_bound(begin);
  if (next != entries_.end() && next->first < begin + bytes) return false;
  if (next != entries_.begin() && std::prev(next)->second.region.end() > begin) return false;
  add_host_memory({begin, bytes, device, MemoryKind::kRegistered});
  return true;
}

bool Machine::unregister_host(void* pointer) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = entries_.find(reinterpret_cast<uintptr_t>(pointer));
  if (found == entries_.end() || found->second.region.kind != MemoryKind::kRegistered) return false;
  entries_.erase(found);
  return true;
}

std::map<uintptr_t, Machine::Entry>::iterator Machine::find_locked(uintptr_t address) {
  auto found = entries_.upper_bound(address);
  if (found == entries_.begin()) return entries_.end();
  --found;
  return address < found->second.region.end() ? found : entries_.end();
}

std::optional<Region> Machine::find(const void* pointer) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = find_locked(reinterpret_cast<uintptr_t>(pointer));
  if (found != entries_.end()) return found->second.region;
  // Variables of device code.
  const uintptr_t address = reinterpret_cast<uintptr_t>(pointer);
  for (int device = 0; device < device_count(); ++device) {
    const Device& d = devices_[device];
    if (!d.begin) continue;
    if (address >= d.symbols_begin && address < d.symbols_begin + kSymbolBytes) {
      return Region{d.symbols_begin, kSymbolBytes, device, MemoryKind::kDevice};
    }
  }
  return std::nullopt;
}

bool Machine::is_device_range(const void* pointer, size_t bytes) {
  const uintptr_t begin = reinterpret_cast<uintptr_t>(pointer);
  {
    std::lock_guard<std::mutex> lock(mutex_);
    auto entry = find_locked(begin);
    while (entry != entries_.end() && entry->second.region.kind == MemoryKind::kDevice) {
      const uintptr_t end = entry->second.region.end();
      if (bytes <= end - begin) return true;
      if (!entry->second.physical) return false;
      ++entry;
      if (entry == entries_.end() || entry->first != end || !entry->second.physical) return false;
    }
  }
  const std::optional<Region> symbols = find(pointer);
  return symbols && symbols->kind == MemoryKind::kDevice && bytes <= symbols->end() - begin;
}

void* Machine::symbol_address(int device, const void* host_variable, size_t bytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!has_addresses(device)) return nullptr;
  Device& d = devices_[device];
  const auto found = d.symbols.find(host_variable);
  if (found != d.symbols.end()) return reinterpret_cast<void*>(found->second);
  if (takes_memory_of_its_own(bytes)) {
    void* const block = allocate_locked(device, bytes);
    // The program does not ask again.
    if (block == nullptr) return ++d.unretried_failures, nullptr;
    d.symbols[host_variable] = reinterpret_cast<uintptr_t>(block);
    return block;
  }
  uintptr_t next = d.symbols_begin;
  const uintptr_t end = next + kSymbolBytes;
  if (const auto free = d.symbols.find(nullptr); free != d.symbols.end()) next = free->second;
  if (round_up(bytes, kSmallAlignment) > end - next) return nullptr;
  d.symbols[host_variable] = next;
  d.symbols[nullptr] = next + round_up(bytes, kSmallAlignment);  // where the next one goes
  return reinterpret_cast<void*>(next);
}

void Machine::drop_symbol(const void* host_variable) {
  std::lock_guard<std::mutex> lock(mutex_);
  for (Device& device : devices_) {
    const auto symbol = device.symbols.find(host_variable);
    if (symbol == device.symbols.end()) continue;
    const auto entry = entries_.find(symbol->second);
    if (entry == entries_.end()) continue;
    give_back(entry->second);
    entries_.erase(entry);
    device.symbols.erase(symbol);
  }
}

void Machine::copy_to_device(uintptr_t address, const void* source, size_t bytes) {
  virtual_gpu::known_values().wrote(address, source, bytes);
  kept_.write(address, source, bytes);
  recent_.write(address, source, bytes);
  messages_.write(address, source, bytes);
}

void Machine::copy_on_device(uintptr_t destination, uintptr_t source, size_t bytes) {
  virtual_gpu::known_values().wrote(destination, nullptr, bytes);
  kept_.copy(destination, source, bytes);
  recent_.copy(destination, source, bytes);
  messages_.copy(destination, source, bytes);
}

void Machine::copy_to_host(void* destination, uintptr_t address, size_t bytes) {
  if (virtual_gpu::read_unknown(destination, bytes)) return;
  (messages_.is_on() ? recent_ : kept_).read(destination, address, bytes);
  messages_.read(destination, address, bytes);
  virtual_gpu::known_values().read(destination, address, bytes);
}

void Machine::note_ranks() {
  if (!kept_.is_on()) messages_.turn_on();
}

void Machine::note_exchange(void* destination, const void* source, size_t bytes, int ranks,
                            ExchangedBytes::Content content) {
  messages_.exchange(reinterpret_cast<uintptr_t>(destination), reinterpret_cast<uintptr_t>(source),
                     bytes, ranks, content);
}

namespace {

void note_fill(uintptr_t address, unsigned char value, size_t bytes) {
  constexpr size_t kMostBytes = 64 << 10;
  if (bytes > kMostBytes) return virtual_gpu::known_values().wrote(address, nullptr, bytes);
  const std::vector<unsigned char> content(bytes, value);
  virtual_gpu::known_values().wrote(address, content.data(), bytes);
}

}  // namespace

void Machine::fill(uintptr_t address, unsigned char value, size_t bytes) {
  note_fill(address, value, bytes);
  kept_.fill(address, value, bytes);
  recent_.fill(address, value, bytes);
  messages_.forget(address, bytes);
}

void Machine::forget(uintptr_t address, size_t bytes) {
  virtual_gpu::known_values().wrote(address, nullptr, bytes);
  kept_.forget(address, bytes);
  recent_.forget(address, bytes);
  messages_.forget(address, bytes);
}

MemoryPool* Machine::default_pool(int device) { return &devices_[device].pool; }
MemoryPool* Machine::graph_pool(int device) { return &devices_[device].graph_pool; }

MemoryPool* Machine::make_pool(int device) {
  auto pool = std::make_unique<MemoryPool>();
  pool->device = device;
  MemoryPool* const made = pool.get();
  std::lock_guard<std::mutex> lock(mutex_);
  pools_[made] = std::move(pool);
  return made;
}

bool Machine::destroy_pool(MemoryPool* pool) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = pools_.find(pool);
  if (found == pools_.end()) return false;
  if (pool->destroyed) return false;
  pool->destroyed = true;
  pool->release_threshold = 0;
  shrink(*pool, 0);
  erase_if_done(pool);
  return true;
}

// A pool lives until its last block is freed, as in CUDA.
void Machine::erase_if_done(MemoryPool* pool) {
  if (pool->destroyed && pool->used == 0) pools_.erase(pool);
}

// Small blocks of a pool share pages of addresses, too: 2 MiB for each would run out before the
// memory does.
std::optional<uintptr_t> Machine::take_for_pool(MemoryPool& pool, size_t bytes) {
  DeviceAddresses& addresses = *devices_[pool.device].addresses;
  if (bytes > kPage / 2) return addresses.take(round_up(bytes, kPage));
  const size_t rounded = round_up(bytes, kSmallAlignment);
  if (const std::optional<uintptr_t> address = take_small(pool.small_pages, rounded))
    return address;
  const std::optional<uintptr_t> page = addresses.take(kPage);
  if (!page) return std::nullopt;
  return pool.small_pages.emplace(*page, AddressSpace(*page, kPage))
      .first->second.take(rounded, kSmallAlignment);
}

void Machine::give_for_pool(MemoryPool& pool, const Region& region) {
  DeviceAddresses& addresses = *devices_[pool.device].addresses;
  if (region.bytes > kPage / 2) {
    addresses.give(region.begin, round_up(region.bytes, kPage));
  } else if (give_small(pool.small_pages, region)) {
    addresses.give(region.begin / kPage * kPage, kPage);
  }
}

bool Machine::is_pool_locked(const MemoryPool* pool) const {
  for (const Device& device : devices_) {
    if (pool == &device.pool || pool == &device.graph_pool) return true;
  }
  return pools_.count(const_cast<MemoryPool*>(pool)) != 0 && !pool->destroyed;
}

bool Machine::is_pool(const MemoryPool* pool) {
  std::lock_guard<std::mutex> lock(mutex_);
  return is_pool_locked(pool);
}

void* Machine::allocate_from(MemoryPool* pool, size_t bytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!is_pool_locked(pool)) return nullptr;
  const int device = pool->device;
  if (pool != &devices_[device].graph_pool) note_library_size(LibrarySize::kStreamOrderedPool);
  void* const pointer = take_from(*pool, bytes);
  // LibTorch empties no cache of its own and does not ask again.
  if (pointer == nullptr) ++devices_[device].unretried_failures;
  return pointer;
}

void* Machine::take_from(MemoryPool& pool, size_t bytes) {
  const int device = pool.device;
  if (bytes > devices_[device].capacity || !has_addresses(device)) {
    use_file_.note_refused(devices_[device].machine_number, bytes);
    return nullptr;
  }
  const std::optional<uintptr_t> address = take_for_pool(pool, bytes);
  if (!address) return nullptr;
  const Region region{*address, bytes, device, MemoryKind::kDevice};
  const size_t wanted = pool.used + round_up(bytes, kSmallAlignment);
  if (wanted > pool.reserved) {
    // In steps; where a step no longer fits, what is needed.
    size_t grown = round_up(wanted, kPoolStep);
    if (!charge(device, grown - pool.reserved)) {
      grown = round_up(wanted, kPage);
      if (!charge(device, grown - pool.reserved)) {
        give_for_pool(pool, region);
        return nullptr;
      }
    }
    pool.reserved = grown;
    pool.reserved_high = std::max(pool.reserved_high, grown);
  }
  pool.used = wanted;
  pool.used_high = std::max(pool.used_high, wanted);
  Entry entry{region};
  entry.pool = &pool;
  entries_[*address] = entry;
  return reinterpret_cast<void*>(*address);
}

void Machine::give_up_memory(void* pointer) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = entries_.find(reinterpret_cast<uintptr_t>(pointer));
  if (found == entries_.end() || !found->second.pool || !found->second.has_memory) return;
  found->second.has_memory = false;
  MemoryPool& pool = *found->second.pool;
  pool.used -= round_up(found->second.region.bytes, kSmallAlignment);
  shrink(pool, pool.release_threshold);
}

void Machine::shrink(MemoryPool& pool, size_t keep_bytes) {
  const size_t least =
      std::max(round_up(pool.used, kPoolStep), std::min(keep_bytes, pool.reserved));
  if (least >= pool.reserved) return;
  give_memory(pool.device, pool.reserved - least);
  pool.reserved = least;
}

bool Machine::trim(MemoryPool* pool, size_t keep_bytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!is_pool_locked(pool)) return false;
  shrink(*pool, keep_bytes);
  return true;
}

uintptr_t Machine::reserve(size_t bytes, size_t alignment, int device) {
  const uintptr_t address = reserve_addresses(bytes, std::max(alignment, kPage));
  if (!address) return 0;
  std::lock_guard<std::mutex> lock(mutex_);
  reservations_[address] = {bytes, device};
  return address;
}

bool Machine::release_reservation(uintptr_t address, size_t bytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = reservations_.find(address);
  if (found == reservations_.end() || found->second.bytes != bytes) return false;
  const auto mapped = entries_.lower_bound(address);
  if (mapped != entries_.end() && mapped->first < address + bytes) return false;
  reservations_.erase(found);
  release_addresses(address, bytes);
  return true;
}

PhysicalMemory* Machine::create_physical(int device, size_t bytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!charge(device, bytes)) return nullptr;
  auto memory = std::make_unique<PhysicalMemory>(PhysicalMemory{device, bytes, 1, 0});
  PhysicalMemory* const made = memory.get();
  physical_[made] = std::move(memory);
  return made;
}

void Machine::release_if_unused(PhysicalMemory* memory) {
  if (memory->references || memory->mappings) return;
  give_physical(*memory);
  physical_.erase(memory);
}

bool Machine::release_physical(PhysicalMemory* memory) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = physical_.find(memory);
  if (found == physical_.end() || !memory->references) return false;
  --memory->references;
  release_if_unused(memory);
  return true;
}

bool Machine::retain_physical(PhysicalMemory* memory) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!physical_.count(memory)) return false;
  ++memory->references;
  return true;
}

std::optional<PhysicalMemory> Machine::physical(PhysicalMemory* memory) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!physical_.count(memory)) return std::nullopt;
  return *memory;
}

bool Machine::map(uintptr_t address, size_t bytes, PhysicalMemory* memory) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!physical_.count(memory) || !bytes || bytes > memory->bytes || address % kPage ||
      bytes % kPage)
    return false;
  auto reservation = reservations_.upper_bound(address);
  if (reservation == reservations_.begin()) return false;
  --reservation;
  if (address + bytes > reservation->first + reservation->second.bytes) return false;
  const auto next = entries_.lower_bound(address);
  if (next != entries_.end() && next->first < address + bytes) return false;
  if (next != entries_.begin() && std::prev(next)->second.region.end() > address) return false;
  ++memory->mappings;
  Entry entry{{address, bytes, memory->device, MemoryKind::kDevice}};
  entry.physical = memory;
  entries_[address] = entry;
  if (memory->export_number) note_shared(address, bytes, true);
  return true;
}

void Machine::drop_mapping(const Entry& entry) {
  --entry.physical->mappings;
  release_if_unused(entry.physical);
}

bool Machine::unmap(uintptr_t address, size_t bytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  // Whole mappings only, and nothing but mappings.
  uintptr_t at = address;
  for (auto entry = entries_.find(address); at < address + bytes; ++entry) {
    if (entry == entries_.end() || entry->first != at || !entry->second.physical) return false;
    at = entry->second.region.end();
  }
  if (at != address + bytes || !bytes) return false;
  for (auto entry = entries_.find(address);
       entry != entries_.end() && entry->first < address + bytes;) {
    give_back(entry->second);
    entry = entries_.erase(entry);
  }
  return true;
}

PhysicalMemory* Machine::mapped_at(const void* pointer) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = find_locked(reinterpret_cast<uintptr_t>(pointer));
  return found == entries_.end() ? nullptr : found->second.physical;
}

}  // namespace memledger::virtual_gpu

extern "C" void memledger_virtual_gpu_forget(const void* pointer, size_t bytes) {
  memledger::virtual_gpu::Machine::get().forget(reinterpret_cast<uintptr_t>(pointer), bytes);
}

extern "C" size_t memledger_virtual_gpu_uses(memledger_virtual_gpu_use* rows, size_t capacity) {
  using memledger::virtual_gpu::Machine;
  Machine& machine = Machine::get();
  const size_t count = static_cast<size_t>(machine.device_count());
  for (size_t i = 0; i < std::min(count, capacity); ++i) rows[i] = machine.use(static_cast<int>(i));
  return count;
}

extern "C" bool memledger_virtual_gpu_is_used() {
  using memledger::virtual_gpu::Machine;
  if (!Machine::is_made()) return false;
  const Machine& machine = Machine::get();
  for (int device = 0; device < machine.device_count(); ++device) {
    if (machine.has_context(device)) return true;
  }
  return false;
}

extern "C" void memledger_virtual_gpu_reset_peaks() {
  using memledger::virtual_gpu::Machine;
  Machine& machine = Machine::get();
  for (int device = 0; device < machine.device_count(); ++device) machine.reset_peak(device);
}
