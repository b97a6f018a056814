#pragma once

#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <csignal>
#include <cstdint>

// Writes of ours inside the program that must not end it.

namespace memledger::inside {

// Whether a file may grow by this many bytes: beyond the program's limit of file sizes
// (RLIMIT_FSIZE) a write would bring SIGXFSZ. Async-signal-safe.
inline bool may_grow(int file, size_t bytes) noexcept {
  rlimit limit{};
  struct stat status {};
  if (getrlimit(RLIMIT_FSIZE, &limit) != 0 || fstat(file, &status) != 0) return false;
  return limit.rlim_cur == RLIM_INFINITY ||
         static_cast<uint64_t>(status.st_size) + bytes <= limit.rlim_cur;
}

// writev() by which no signal reaches the program: SIGPIPE and SIGXFSZ that it causes are taken
// back. Changes errno. Async-signal-safe.
inline long write_quietly(int file, const iovec* parts, int count) noexcept {
  constexpr uint64_t kCaused = 1ULL << (SIGPIPE - 1) | 1ULL << (SIGXFSZ - 1);
  constexpr size_t kBytes = sizeof kCaused;
  uint64_t before = 0, pending = 0;
  syscall(SYS_rt_sigprocmask, SIG_BLOCK, &kCaused, &before, kBytes);
  syscall(SYS_rt_sigpending, &pending, kBytes);
  const long written = syscall(SYS_writev, file, parts, count);
  const uint64_t ours = kCaused & ~pending;
  const timespec now = {0, 0};
  while (ours != 0 && syscall(SYS_rt_sigtimedwait, &ours, nullptr, &now, kBytes) > 0) {
  }
  syscall(SYS_rt_sigprocmask, SIG_SETMASK, &before, nullptr, kBytes);
  return written;
}

}  // namespace memledger::inside
