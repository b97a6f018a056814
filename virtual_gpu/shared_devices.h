#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace memledger::virtual_gpu {

// The devices that processes of one user share under a name: what each has taken of them lies in
// memory that all of them map. What a process held is given back when it ends, however it does.
// Devices are numbered as in the machine. Not thread-safe: the machine's lock protects it.
class SharedDevices {
 public:
  struct Device {
    std::string name;
    uint64_t capacity;
  };

  struct Process {
    pid_t id;
    uint64_t bytes;
  };

  // Memory of another process that can be mapped here.
  struct Export {
    int device;
    uint64_t bytes;
    bool is_own;
  };

  // What another process needs to find an export. Fits into CUDA's handles.
  struct Ticket {
    uint64_t mark;    // of these devices, for as long as a process has them
    uint64_t number;  // of the export
  };

  // nullptr, and a sentence that names what is wrong, where the devices cannot be shared.
  static std::unique_ptr<SharedDevices> join(const std::string& name, std::vector<Device> devices,
                                             std::string* error);
  ~SharedDevices();
  SharedDevices(const SharedDevices&) = delete;
  SharedDevices& operator=(const SharedDevices&) = delete;

  // False where all processes together would have more than there is.
  bool take(int device, uint64_t bytes);
  void give(int device, uint64_t bytes);
  // By all processes.
  uint64_t used(int device);
  void set_context(int device, bool exists);
  // Those that have a context or memory.
  std::vector<Process> processes(int device);

  // Nothing where too many are exported already.
  std::optional<Ticket> add_export(int device, uint64_t address, uint64_t bytes);
  void remove_export(uint64_t number);
  // For memory that lives as long as anybody has it: false where others do, who then give it back.
  bool release_export(uint64_t number);
  void add_import(uint64_t number);
  void remove_import(uint64_t number);
  // Nothing for what is not exported, or no longer.
  std::optional<Export> find_export(const Ticket& ticket);
  Ticket ticket_of(uint64_t number);
  // Whether the ticket is of these devices.
  bool is_valid(const Ticket& ticket);

  // The child of a fork has taken nothing yet. What it inherited stays its parent's.
  void forked();
  // Gives back all that this process has, which can take nothing any more.
  void leave();

 private:
  struct State;
  class Locked;

  SharedDevices(const std::string& name, std::vector<Device> devices);
  bool attach(std::string* error);
  bool prepare(int file, std::string* error);
  bool has_slot();
  void detach();
  bool add_process(std::string* error);
  void reap();
  void drop_process(uint32_t place);
  void drop_import(uint64_t number);
  uint64_t sum(int device) const;
  bool is_left() const;
  void remove_unused_files() const;
  std::string describe(const std::vector<Device>& devices) const;

  const std::string name_;
  const std::string path_;
  const std::vector<Device> devices_;
  State* state_ = nullptr;
  int slot_ = -1;  // this process's place
  uint64_t file_number_ = 0;
  std::map<int, uint64_t> inherited_;  // of a parent, by device
  bool has_left_ = false;
};

}  // namespace memledger::virtual_gpu
