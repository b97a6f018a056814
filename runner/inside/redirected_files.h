#pragma once

// What programs see of the file system where their writes are redirected into a private folder: a
// union of that folder, which is in front, and the real files, which are only read. The kernel
// refuses what goes past it (runner/writes/landlock_rules.h).
//
// A file is copied when it is first opened for writing, and a folder's files when it is renamed.
// A folder that both sides have is opened as the real one, so that it stays the same folder when
// the first file is made in it; readers of folders add the private entries.
//
// All functions can be called in signal handlers and children of vfork, and allocate nothing. Where
// they fail they set errno as the call does.

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <time.h>

#include "runner/inside/noted_files.h"

namespace memledger::inside {

// Called once, after begin_to_note_files(), with the run's folder for notes as well. Returns false
// where it is no folder for that (runner/writes/redirect_folder.h).
bool begin_to_redirect(const char* folder, const char* notes);
bool is_redirecting();
// Whether anything was written or removed yet: until then all is as the kernel has it.
bool has_redirected();
// The folder of the private files, without a slash at its end.
const char* redirected_root();

enum class Layer {
  kNothing,  // nothing is there, but its folder is
  kReal,
  kPrivate,  // hides a real one, if there is one
  kMerged,   // a folder that both sides have
  kOutside,  // /proc, /dev, /sys, our own folders: the kernel's view is right
  kAsGiven,  // of no known path: a call has to be made as it was
};

// Where a path leads.
class Place {
 public:
  Place() = default;
  Place(const Place&) = delete;
  Place& operator=(const Place&) = delete;

  Layer layer = Layer::kNothing;
  mode_t mode = 0;                 // of what is there
  bool hides_real = false;         // a real file here was removed, or one of its folders
  bool folder_hides_real = false;  // the same of its folder
  bool wants_folder = false;       // the path ends with a slash
  // Without links, except the last part's. The program knows it as `path()`, the kernel as
  // `kernel_path()`; `private_path()` is where it is once it was copied.
  const char* path() const { return *logical == '\0' ? "/" : logical; }
  const char* kernel_path() const { return layer == Layer::kPrivate ? full : path(); }
  const char* private_path() const { return full; }

  char full[kPathBytes + 512];
  char* logical = nullptr;  // a part of it
};

// Returns false, with errno, where the call would fail before it looks at the last part. A link
// with a slash behind it is followed whatever `follows` is, unless something new is to be made
// there.
bool find_place(int folder, const char* path, bool follows, Place& place, bool is_new = false);

// Before opening with these flags: copies or makes folders. Afterwards the kernel can open
// `kernel_path()`.
bool prepare_to_write(Place& place, int flags);
// Before making something new that is no regular file; afterwards the kernel can make it at
// `kernel_path()`.
bool prepare_new(int folder, const char* path, Place& place, bool is_folder = false);

namespace redirected {

int open(int folder, const char* path, int flags, mode_t mode);
int rename(int from_folder, const char* from, int to_folder, const char* to, unsigned flags);
int link(int from_folder, const char* from, int to_folder, const char* to, int flags);
int symlink(const char* target, int folder, const char* path);
int mkdir(int folder, const char* path, mode_t mode);
int mknod(int folder, const char* path, mode_t mode, dev_t device);
int unlink(int folder, const char* path);
int rmdir(int folder, const char* path);
int truncate(const char* path, off_t bytes);

// Binds a Unix socket to `path`: `bind_to` binds it to another that is as short as can be, and then
// it is moved. Returns what bind() does.
template <typename Function>
int bind(const char* path, const Function& bind_to);
// Writes the path that a program gave to bind(), for that which the kernel knows. Returns false
// where that is no private one.
bool given_address(const char* path, char* given, size_t bytes);

int chmod(int folder, const char* path, mode_t mode, bool follows);
int chmod(int descriptor, mode_t mode);
int chown(int folder, const char* path, uid_t owner, gid_t group, bool follows);
int chown(int descriptor, uid_t owner, gid_t group);
int set_times(int folder, const char* path, const timespec* times, bool follows);
int set_times(int descriptor, const timespec* times);
int set_attribute(const char* path, const char* name, const void* value, size_t size, int flags,
                  bool follows);
int set_attribute(int descriptor, const char* name, const void* value, size_t size, int flags);
int remove_attribute(const char* path, const char* name, bool follows);
int remove_attribute(int descriptor, const char* name);

// Parts of bind().
constexpr size_t kAddressBytes = 512;
bool prepare_to_bind(const char* path, Place& place, char (&address)[kAddressBytes]);
bool move_bound(const char* path, const char* address, Place& place);

template <typename Function>
__attribute__((noinline)) int bind(const char* path, const Function& bind_to) {
  Place place;
  char address[kAddressBytes];
  if (!prepare_to_bind(path, place, address)) return -1;
  if (bind_to(address) != 0) {
    if (errno == ENAMETOOLONG) note_refusal("bind: ENAMETOOLONG", AT_FDCWD, path);
    return -1;
  }
  return move_bound(path, address, place) ? 0 : -1;
}

}  // namespace redirected

// Whether an entry of a folder's real side is to be shown; `path` is the folder's.
bool shows_real_entry(const char* path, const char* name);

}  // namespace memledger::inside
