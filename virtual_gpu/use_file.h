#pragma once

#include "prediction/device_use_file.h"
#include "virtual_gpu/device_use.h"

namespace memledger::virtual_gpu {

// The file in which `memledger dry-run` finds what this process has taken of its devices, whatever
// ends it. Does nothing where no run is measured. Not thread-safe: the machine's lock protects it.
class UseFile {
 public:
  UseFile() = default;
  ~UseFile();
  UseFile(const UseFile&) = delete;
  UseFile& operator=(const UseFile&) = delete;

  // Makes the file where there is none yet. `device` is the machine's number. Cost afterwards: some
  // stores to memory.
  void note(int device, const memledger_virtual_gpu_use& use);
  // In the child of a fork: the file is its parent's.
  void forked();

 private:
  bool open();

  prediction::DeviceUseRow* rows_ = nullptr;
  bool was_tried_ = false;
};

}  // namespace memledger::virtual_gpu
