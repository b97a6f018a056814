#pragma once

#include <atomic>

#include "prediction/device_use_file.h"
#include "virtual_gpu/device_use.h"

namespace memledger::virtual_gpu {

// The file in which `memledger dry-run` finds what this process has taken of its devices, whatever
// ends it. Does nothing where no run is measured. The machine's lock protects what it notes, except
// that current() may be called by any thread at any time.
class UseFile {
 public:
  UseFile() = default;
  ~UseFile();
  UseFile(const UseFile&) = delete;
  UseFile& operator=(const UseFile&) = delete;

  // Makes the file where there is none yet. `device` is the machine's number. Cost afterwards: some
  // stores to memory.
  void note(int device, const memledger_virtual_gpu_use& use);
  void note_taken(int device, uint64_t bytes);
  void note_refused(int device, uint64_t bytes);
  // In the child of a fork: the file is its parent's.
  void forked();

  // What is mapped now; nullptr before a device is used, and where no run is measured. Counters in
  // it are added to by add().
  static prediction::DeviceUseFile* current() { return current_.load(std::memory_order_acquire); }
  static void add(uint64_t& counter, uint64_t count = 1) {
    __atomic_fetch_add(&counter, count, __ATOMIC_RELAXED);
  }

 private:
  prediction::DeviceUseRow* row_of(int device);
  bool open();

  static std::atomic<prediction::DeviceUseFile*> current_;
  bool was_tried_ = false;
};

}  // namespace memledger::virtual_gpu
