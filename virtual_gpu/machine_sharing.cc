// The part of the machine that other processes see, where devices are shared.
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <string>
#include <string_view>
#include <utility>

#include "virtual_gpu/known_values.h"
#include "virtual_gpu/machine.h"
#include "virtual_gpu/unconsidered_functions.h"

namespace memledger::virtual_gpu {
namespace {

// Runs of `memledger dry-run` go side by side and must not share devices with each other. Each run
// has a folder that its processes write their figures to (prediction/measurement.h).
std::string name_in_this_run(const std::string& name) {
  const char* const folder = std::getenv("MEMLEDGER_MEASURE");
  if (folder == nullptr || *folder == '\0') return name;
  return name + "." + std::to_string(std::hash<std::string_view>()(folder));
}

}  // namespace

bool Machine::join_shared(const std::vector<DeviceSpecification>& devices) {
  std::vector<SharedDevices::Device> shared;
  for (const DeviceSpecification& device : devices)
    shared.push_back({device.profile.device_name, device.capacity_bytes()});
  std::string error;
  shared_ = SharedDevices::join(name_in_this_run(specification_.share), std::move(shared), &error);
  if (!shared_)
    say("share=%s: %s. There is no device now.", specification_.share.c_str(), error.c_str());
  return shared_ != nullptr;
}

void Machine::leave_shared() {
  // A thread that exit() left in the middle of a call must not keep the program from ending.
  std::unique_lock<std::mutex> lock(mutex_, std::defer_lock);
  for (int tries = 0; !lock.try_lock(); ++tries) {
    if (tries == 100) return;
    usleep(1000);
  }
  shared_->leave();
}

std::vector<SharedDevices::Process> Machine::processes(int device) {
  std::lock_guard<std::mutex> lock(mutex_);
  const Device& d = devices_[static_cast<size_t>(device)];
  if (shared_) return shared_->processes(d.machine_number);
  if (!has_context(device)) return {};
  return {{getpid(), d.used}};
}

std::optional<SharedDevices::Ticket> Machine::export_memory(const void* pointer) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = find_locked(reinterpret_cast<uintptr_t>(pointer));
  if (found == entries_.end()) return std::nullopt;
  Entry& entry = found->second;
  const Region& region = entry.region;
  if (region.kind != MemoryKind::kDevice || entry.pool || entry.physical || entry.imported_number)
    return std::nullopt;
  if (entry.export_number) return shared_->ticket_of(entry.export_number);
  const auto ticket = shared_->add_export(
      devices_[static_cast<size_t>(region.device)].machine_number, region.begin, region.bytes);
  if (!ticket) return ticket;
  entry.export_number = ticket->number;
  note_shared(region.begin, region.bytes, true);
  return ticket;
}

Machine::ImportError Machine::import_memory(const SharedDevices::Ticket& ticket, void** pointer) {
  std::lock_guard<std::mutex> lock(mutex_);
  const std::optional<SharedDevices::Export> exported = shared_->find_export(ticket);
  if (!exported) return ImportError::kInvalid;
  if (exported->is_own) return ImportError::kSameProcess;
  const int device = device_of_machine(exported->device);
  if (!is_device(device)) return ImportError::kNoDevice;
  for (auto& [begin, entry] : entries_) {
    if (entry.imported_number != ticket.number) continue;
    ++entry.opened;
    *pointer = reinterpret_cast<void*>(begin);
    return ImportError::kNone;
  }
  const uintptr_t begin = reserve_addresses(round_up(exported->bytes, kPage), kPage);
  if (!begin) return ImportError::kNoAddresses;
  Entry entry{{begin, exported->bytes, device, MemoryKind::kDevice}};
  entry.imported_number = ticket.number;
  entry.opened = 1;
  entries_[begin] = entry;
  note_shared(begin, exported->bytes, true);
  *pointer = reinterpret_cast<void*>(begin);
  return ImportError::kNone;
}

bool Machine::close_import(void* pointer) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = entries_.find(reinterpret_cast<uintptr_t>(pointer));
  if (found == entries_.end() || !found->second.imported_number) return false;
  if (--found->second.opened) return true;
  give_back(found->second);
  entries_.erase(found);
  return true;
}

// What another process has imported stays counted until it lets go.
void Machine::give_physical(const PhysicalMemory& memory) {
  if (memory.is_imported) return shared_->remove_import(memory.export_number);
  if (memory.export_number && !shared_->release_export(memory.export_number)) {
    devices_[static_cast<size_t>(memory.device)].used -= memory.bytes;
    return;
  }
  give_memory(memory.device, memory.bytes);
}

std::optional<SharedDevices::Ticket> Machine::export_physical(PhysicalMemory* memory) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!physical_.count(memory)) return std::nullopt;
  if (memory->export_number) return shared_->ticket_of(memory->export_number);
  const auto ticket = shared_->add_export(
      devices_[static_cast<size_t>(memory->device)].machine_number, 0, memory->bytes);
  if (!ticket) return ticket;
  memory->export_number = ticket->number;
  for (const auto& [begin, entry] : entries_) {
    if (entry.physical == memory) note_shared(begin, entry.region.bytes, true);
  }
  return ticket;
}

// In the process that exported it, it is what it was.
Machine::ImportError Machine::import_physical(const SharedDevices::Ticket& ticket,
                                              PhysicalMemory** memory) {
  std::lock_guard<std::mutex> lock(mutex_);
  const std::optional<SharedDevices::Export> exported = shared_->find_export(ticket);
  if (!exported) return ImportError::kInvalid;
  const int device = device_of_machine(exported->device);
  if (!is_device(device)) return ImportError::kNoDevice;
  for (auto& [known, owner] : physical_) {
    if (known->export_number != ticket.number) continue;
    ++known->references;
    *memory = known;
    return ImportError::kNone;
  }
  auto made = std::make_unique<PhysicalMemory>(PhysicalMemory{device, exported->bytes, 1, 0});
  made->is_imported = true;
  made->export_number = ticket.number;
  shared_->add_import(ticket.number);
  *memory = made.get();
  physical_[*memory] = std::move(made);
  return ImportError::kNone;
}

SharedDevices::Ticket Machine::ticket() {
  std::lock_guard<std::mutex> lock(mutex_);
  return shared_->ticket_of(1);
}

bool Machine::is_valid(const SharedDevices::Ticket& ticket) {
  std::lock_guard<std::mutex> lock(mutex_);
  return shared_->is_valid(ticket);
}

}  // namespace memledger::virtual_gpu
