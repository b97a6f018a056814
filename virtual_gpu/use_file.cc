#include "virtual_gpu/use_file.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "prediction/measure_variables.h"
#include "virtual_gpu/real_libraries.h"

// Not in every program that has this file.
#pragma weak memledger_virtual_gpu_real_libraries

namespace memledger::virtual_gpu {
namespace {

constexpr size_t kFileBytes = sizeof(prediction::DeviceUseFile);
constexpr int kMaxFiles = 100;  // of one process

// Another one for each program that the process becomes by exec(); -1 where there is none.
int make_file() {
  const char* const folder = secure_getenv(prediction::kMeasureVariable);
  rlimit largest;
  // Beyond that limit the kernel sends a signal.
  if (folder == nullptr || *folder != '/' || getrlimit(RLIMIT_FSIZE, &largest) != 0 ||
      largest.rlim_cur < kFileBytes)
    return -1;
  for (int i = 0; i < kMaxFiles; ++i) {
    char number[16] = "", path[4096];
    if (i > 0) std::snprintf(number, sizeof number, ".%d", i);
    const int length = std::snprintf(path, sizeof path, "%s/%d%s%s", folder, getpid(), number,
                                     prediction::kDeviceUseExtension);
    if (length < 0 || static_cast<size_t>(length) >= sizeof path) return -1;
    // Not by open(), in front of which another library notes what the program writes.
    const int file = static_cast<int>(
        syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
    if (file >= 0 || errno != EEXIST) return file;
  }
  return -1;
}

// Most libraries are loaded late, so they are named at the end.
void tell_libraries() {
  prediction::DeviceUseFile* const file = UseFile::current();
  if (file == nullptr || memledger_virtual_gpu_real_libraries == nullptr) return;
  try {
    memledger_virtual_gpu_real_libraries(file->libraries, sizeof file->libraries);
  } catch (...) {  // no memory for the names
  }
}

}  // namespace

std::atomic<prediction::DeviceUseFile*> UseFile::current_{nullptr};

UseFile::~UseFile() { forked(); }

void UseFile::note(int device, const memledger_virtual_gpu_use& use) {
  if (device >= prediction::kMaxDeviceUses || (current() == nullptr && !open())) return;
  prediction::DeviceUseRow& row = current()->devices[device];
  if (row.gpu[0] == '\0') std::snprintf(row.gpu, sizeof row.gpu, "%s", use.name);
  row.capacity_bytes = use.total_bytes;
  row.context_bytes = use.context_bytes;
  row.peak_bytes = use.peak_bytes;
}

prediction::DeviceUseRow* UseFile::row_of(int device) {
  prediction::DeviceUseFile* const file = current();
  return file == nullptr || device >= prediction::kMaxDeviceUses ? nullptr : &file->devices[device];
}

void UseFile::note_taken(int device, uint64_t bytes) {
  prediction::DeviceUseRow* const row = row_of(device);
  if (row == nullptr) return;
  ++row->times_taken;
  row->taken_in_all += bytes;
}

void UseFile::note_refused(int device, uint64_t bytes) {
  prediction::DeviceUseRow* const row = row_of(device);
  if (row != nullptr && row->times_refused++ == 0) row->first_refused_bytes = bytes;
}

void UseFile::forked() {
  // Other threads may hold the address, but a child has none.
  prediction::DeviceUseFile* const file = current_.exchange(nullptr);
  if (file != nullptr) munmap(file, kFileBytes);
  was_tried_ = false;
}

bool UseFile::open() {
  if (was_tried_) return false;
  was_tried_ = true;
  const int file = make_file();
  if (file < 0) return false;
  // The blocks themselves, as a store to a page that a full file system lacks ends the process.
  const bool has_blocks = fallocate(file, 0, 0, kFileBytes) == 0;
  void* const mapped = has_blocks
                           ? mmap(nullptr, kFileBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0)
                           : MAP_FAILED;
  close(file);
  if (mapped == MAP_FAILED) return false;
  current_.store(static_cast<prediction::DeviceUseFile*>(mapped), std::memory_order_release);
  static const int is_registered = std::atexit(&tell_libraries);
  static_cast<void>(is_registered);
  return true;
}

}  // namespace memledger::virtual_gpu
