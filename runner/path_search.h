#pragma once

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

namespace memledger {

// Whether it is a file that this process may run, relative to a folder's descriptor.
inline bool may_run(int folder, const char* path, int flags) {
  struct stat status;
  return fstatat(folder, path, &status, flags & AT_EMPTY_PATH) == 0 && S_ISREG(status.st_mode) &&
         (*path == '\0' || faccessat(folder, path, X_OK, AT_EACCESS) == 0);
}

// Returns the path of the program that execvp() would run, in `room` or `file` itself; null where
// there is none. Keeps errno, and allocates nothing.
inline const char* find_in_path(const char* file, char (&room)[4096]) {
  const int error = errno;
  const char* found = nullptr;
  const char* folders = getenv("PATH");
  if (strchr(file, '/') != nullptr) {
    if (may_run(AT_FDCWD, file, 0)) found = file;
    folders = nullptr;
  } else if (folders == nullptr) {
    folders = "/bin:/usr/bin";
  }
  const size_t name_size = strlen(file) + 1;
  while (folders != nullptr && found == nullptr) {
    const char* const end = strchrnul(folders, ':');
    const auto size = static_cast<size_t>(end - folders);
    if (size + 2 + name_size <= sizeof room) {
      memcpy(room, folders, size);
      if (size == 0) room[0] = '.';  // an empty name means this folder
      const size_t folder_size = size == 0 ? 1 : size;
      room[folder_size] = '/';
      memcpy(room + folder_size + 1, file, name_size);
      if (may_run(AT_FDCWD, room, 0)) found = room;
    }
    folders = *end == '\0' ? nullptr : end + 1;
  }
  errno = error;
  return found;
}

}  // namespace memledger
