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

namespace memledger::virtual_gpu {
namespace {

constexpr size_t kFileBytes = prediction::kMaxDeviceUses * sizeof(prediction::DeviceUseRow);
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

}  // namespace

UseFile::~UseFile() { forked(); }

void UseFile::note(int device, const memledger_virtual_gpu_use& use) {
  if (device >= prediction::kMaxDeviceUses || (rows_ == nullptr && !open())) return;
  prediction::DeviceUseRow& row = rows_[device];
  if (row.gpu[0] == '\0') std::snprintf(row.gpu, sizeof row.gpu, "%s", use.name);
  row.capacity_bytes = use.total_bytes;
  row.context_bytes = use.context_bytes;
  row.peak_bytes = use.peak_bytes;
}

void UseFile::forked() {
  if (rows_ != nullptr) munmap(rows_, kFileBytes);
  rows_ = nullptr;
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
  rows_ = static_cast<prediction::DeviceUseRow*>(mapped);
  return true;
}

}  // namespace memledger::virtual_gpu
