// Makes one call of the C library that writes, removes, renames or reads files, by its name, and
// prints what came of it: "rename: ok", "rename: 18". Usage: CALL PATH [PATH].

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <unistd.h>

namespace {

struct Call {
  const char* name;
  bool (*make)(const char* path, const char* other);  // true: it succeeded
};

bool close_if(int file) { return file >= 0 && close(file) == 0; }

// Opens `path` for writing, calls, closes.
template <typename Function>
bool with_file(const char* path, Function&& call) {
  const int file = open(path, O_RDWR | O_CREAT, 0644);
  if (file < 0) return false;
  const bool is_done = call(file);
  const int error = errno;
  close(file);
  errno = error;
  return is_done;
}

iovec text_part() { return {const_cast<char*>("text"), 4}; }

constexpr Call kCalls[] = {
    {"open", [](const char* path, const char*) { return close_if(open(path, O_RDONLY)); }},
    {"open_nonblocking",
     [](const char* path, const char*) { return close_if(open(path, O_RDONLY | O_NONBLOCK)); }},
    {"open_for_writing",
     [](const char* path, const char*) { return close_if(open(path, O_WRONLY)); }},
    {"create",
     [](const char* path, const char*) { return close_if(open(path, O_WRONLY | O_CREAT, 0644)); }},
    {"creat", [](const char* path, const char*) { return close_if(creat(path, 0644)); }},
    {"fopen",
     [](const char* path, const char*) {
       FILE* const file = fopen(path, "w");
       return file != nullptr && fclose(file) == 0;
     }},
    {"rename", [](const char* path, const char* other) { return rename(path, other) == 0; }},
    {"link", [](const char* path, const char* other) { return link(path, other) == 0; }},
    {"symlink", [](const char* path, const char* other) { return symlink(other, path) == 0; }},
    {"unlink", [](const char* path, const char*) { return unlink(path) == 0; }},
    {"remove", [](const char* path, const char*) { return remove(path) == 0; }},
    {"rmdir", [](const char* path, const char*) { return rmdir(path) == 0; }},
    {"mkdir", [](const char* path, const char*) { return mkdir(path, 0755) == 0; }},
    {"mkfifo", [](const char* path, const char*) { return mkfifo(path, 0644) == 0; }},
    {"truncate", [](const char* path, const char*) { return truncate(path, 1) == 0; }},
    {"ftruncate",
     [](const char* path, const char*) {
       return with_file(path, [](int file) { return ftruncate(file, 1) == 0; });
     }},
    {"fallocate",
     [](const char* path, const char*) {
       return with_file(path, [](int file) { return fallocate(file, 0, 0, 4096) == 0; });
     }},
    {"posix_fallocate",
     [](const char* path, const char*) {
       return with_file(path, [](int file) {
         errno = posix_fallocate(file, 0, 4096);
         return errno == 0;
       });
     }},
    {"write",
     [](const char* path, const char*) {
       return with_file(path, [](int file) { return write(file, "text", 4) == 4; });
     }},
    {"pwrite",
     [](const char* path, const char*) {
       return with_file(path, [](int file) { return pwrite(file, "text", 4, 0) == 4; });
     }},
    {"writev",
     [](const char* path, const char*) {
       const iovec part = text_part();
       return with_file(path, [&](int file) { return writev(file, &part, 1) == 4; });
     }},
    {"pwritev",
     [](const char* path, const char*) {
       const iovec part = text_part();
       return with_file(path, [&](int file) { return pwritev(file, &part, 1, 0) == 4; });
     }},
    {"fwrite",
     [](const char* path, const char*) {
       FILE* const file = fopen(path, "w");
       const bool is_done = file != nullptr && fwrite("text", 1, 4, file) == 4;
       const int error = errno;
       if (file != nullptr) fclose(file);
       errno = error;
       return is_done;
     }},
    {"fflush",
     [](const char* path, const char*) {
       FILE* const file = fopen(path, "w");
       return file != nullptr && fputs("text", file) >= 0 && fflush(file) == 0;
     }},
    {"fclose",
     [](const char* path, const char*) {
       FILE* const file = fopen(path, "w");
       return file != nullptr && fputs("text", file) >= 0 && fclose(file) == 0;
     }},
    {"msync",
     [](const char* path, const char*) {
       return with_file(path, [](int file) {
         if (ftruncate(file, 4096) != 0) return false;
         void* const memory = mmap(nullptr, 4096, PROT_WRITE, MAP_SHARED, file, 0);
         return memory != MAP_FAILED && msync(memory, 4096, MS_SYNC) == 0;
       });
     }},
    {"connect",
     [](const char* path, const char*) {
       sockaddr_un address = {};
       address.sun_family = AF_UNIX;
       strncpy(address.sun_path, path, sizeof address.sun_path - 1);
       const int socket_file = socket(AF_UNIX, SOCK_STREAM, 0);
       const auto* const any = reinterpret_cast<const sockaddr*>(&address);
       return connect(socket_file, any, sizeof address) == 0;
     }},
    {"bind",
     [](const char* path, const char*) {
       sockaddr_un address = {};
       address.sun_family = AF_UNIX;
       strncpy(address.sun_path, path, sizeof address.sun_path - 1);
       const int socket_file = socket(AF_UNIX, SOCK_STREAM, 0);
       const auto* const any = reinterpret_cast<const sockaddr*>(&address);
       return bind(socket_file, any, sizeof address) == 0;
     }},
};

}  // namespace

int main(int count, char** arguments) {
  if (count < 3) return 2;
  for (const Call& call : kCalls) {
    if (strcmp(call.name, arguments[1]) != 0) continue;
    errno = 0;
    if (call.make(arguments[2], arguments[count - 1])) {
      printf("%s: ok\n", call.name);
    } else {
      printf("%s: %d\n", call.name, errno);
    }
    return 0;
  }
  return 2;
}
