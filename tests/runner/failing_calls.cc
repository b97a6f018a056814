// Preloaded behind libmemledger_measure.so: the call that FAIL_CALL names fails with FAIL_WITH, as
// it does on a file system that cannot do it.

// NOLINTBEGIN: it does on purpose what clang-tidy warns of.
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/uio.h>

namespace {

bool fails(const char* call) {
  const char* const name = getenv("FAIL_CALL");
  if (name == nullptr || strcmp(name, call) != 0) return false;
  errno = atoi(getenv("FAIL_WITH"));
  return true;
}

}  // namespace

#define FAILING(result, failure, name, parameters, ...)                                  \
  extern "C" __attribute__((visibility("default"))) result name parameters {             \
    if (fails(#name)) return failure;                                                    \
    return reinterpret_cast<result(*) parameters>(dlsym(RTLD_NEXT, #name))(__VA_ARGS__); \
  }

FAILING(int, -1, rename, (const char* from, const char* to), from, to)
FAILING(int, -1, link, (const char* from, const char* to), from, to)
FAILING(int, -1, symlink, (const char* target, const char* path), target, path)
FAILING(int, -1, unlink, (const char* path), path)
FAILING(int, -1, remove, (const char* path), path)
FAILING(int, -1, rmdir, (const char* path), path)
FAILING(int, -1, mkdir, (const char* path, mode_t mode), path, mode)
FAILING(int, -1, creat, (const char* path, mode_t mode), path, mode)
FAILING(FILE*, nullptr, fopen, (const char* path, const char* mode), path, mode)
FAILING(int, -1, truncate, (const char* path, off_t bytes), path, bytes)
FAILING(int, -1, ftruncate, (int file, off_t bytes), file, bytes)
FAILING(int, -1, fallocate, (int file, int mode, off_t from, off_t bytes), file, mode, from, bytes)
FAILING(int, errno, posix_fallocate, (int file, off_t from, off_t bytes), file, from, bytes)
FAILING(ssize_t, -1, write, (int file, const void* data, size_t bytes), file, data, bytes)
FAILING(ssize_t, -1, pwrite, (int file, const void* data, size_t bytes, off_t at), file, data,
        bytes, at)
FAILING(ssize_t, -1, writev, (int file, const iovec* parts, int count), file, parts, count)
FAILING(ssize_t, -1, pwritev, (int file, const iovec* parts, int count, off_t at), file, parts,
        count, at)
FAILING(size_t, 0, fwrite, (const void* data, size_t size, size_t count, FILE* file), data, size,
        count, file)
FAILING(int, EOF, fflush, (FILE * file), file)
FAILING(int, -1, msync, (void* begin, size_t bytes, int flags), begin, bytes, flags)
FAILING(int, -1, connect, (int socket, const sockaddr* address, socklen_t length), socket, address,
        length)
// NOLINTEND
