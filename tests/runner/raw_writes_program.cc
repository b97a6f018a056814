// Changes files in every way that the kernel knows, by system calls that no library sees. Usage:
// prepare FOLDER | try FOLDER PRIVATE PROCESS | allowed PRIVATE KEY. `try` prints a line for each
// way, "chmod: ok" or "chmod: 1"; PROCESS is one outside, to be written to.

// NOLINTBEGIN: it does on purpose what clang-tidy warns of.
#include <asm/unistd.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <linux/openat2.h>
#include <sched.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>
#include <utime.h>

namespace {

const char* folder;  // of real files
const char* private_folder;
pid_t outside;

struct Path {
  char text[512];
  operator const char*() const { return text; }
};
Path in(const char* parent, const char* name, const char* suffix = "") {
  Path path;
  snprintf(path.text, sizeof path.text, "%s/%s%s", parent, name, suffix);
  return path;
}

long call(long number, const void* first, long second = 0, long third = 0, long fourth = 0,
          long fifth = 0, long sixth = 0) {
  return syscall(number, first, second, third, fourth, fifth, sixth);
}
long open_raw(const char* path, int flags, int mode = 0644) {
  return syscall(SYS_openat, AT_FDCWD, path, flags | O_CLOEXEC, mode);
}
long pointer(const void* value) { return reinterpret_cast<long>(value); }

// Does something with a descriptor of an existing file that is open for reading.
template <typename Function>
long with_file(const char* path, Function&& use) {
  const long file = open_raw(path, O_RDONLY);
  if (file < 0) return -1;
  const long result = use(static_cast<int>(file));
  const int error = errno;
  close(static_cast<int>(file));
  errno = error;
  return result;
}

// chmod() as a 32-bit program calls it; the path has to lie low.
long chmod_32_bit(const char* path) {
  char* const low = static_cast<char*>(
      mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_32BIT, -1, 0));
  strcpy(low, path);
  long result;
  asm volatile("int $0x80"
               : "=a"(result)
               : "a"(15L), "b"(low), "c"(0600L)
               : "memory", "r8", "r9", "r10", "r11");
  errno = result < 0 ? static_cast<int>(-result) : 0;
  return result < 0 ? -1 : 0;
}

long open_by_handle(const char* path) {
  struct {
    file_handle handle;
    char bytes[128];
  } file = {};
  file.handle.handle_bytes = sizeof file.bytes;
  int mount = 0;
  if (syscall(SYS_name_to_handle_at, AT_FDCWD, path, &file.handle, &mount, 0) != 0) return -1;
  const long at = open_raw(folder, O_RDONLY | O_DIRECTORY);
  return syscall(SYS_open_by_handle_at, at, &file.handle, O_WRONLY);
}

struct FileAttributes {  // struct fsxattr, and struct file_attr of Linux 6.17
  uint64_t flags;
  uint32_t extent, extents, project, copy_on_write;
};

// Each has a file of its own name to change, or makes one of its name and ".new".
struct Way {
  const char* name;
  long (*make)(const char* path, const char* made);  // not negative: it succeeded
};
const Way kWays[] = {
    {"open_write", [](const char* path, const char*) { return open_raw(path, O_WRONLY); }},
    {"open_append",
     [](const char* path, const char*) { return open_raw(path, O_RDWR | O_APPEND); }},
    {"open_truncate", [](const char* path, const char*) { return open_raw(path, O_TRUNC); }},
    {"open_create",
     [](const char*, const char* made) { return open_raw(made, O_WRONLY | O_CREAT | O_EXCL); }},
    {"open_create_to_read",
     [](const char*, const char* made) { return open_raw(made, O_RDONLY | O_CREAT | O_EXCL); }},
    {"open_unnamed", [](const char*, const char*) { return open_raw(folder, O_TMPFILE | O_RDWR); }},
    {"openat2",
     [](const char* path, const char*) {
       open_how how = {};
       how.flags = O_WRONLY;
       return syscall(SYS_openat2, AT_FDCWD, path, &how, sizeof how);
     }},
    {"open_file_descriptor_again",
     [](const char* path, const char*) {
       return with_file(path, [](int file) {
         char link[64];
         snprintf(link, sizeof link, "/proc/self/fd/%d", file);
         return open_raw(link, O_WRONLY);
       });
     }},
    {"open_by_root_of_process",
     [](const char* path, const char*) {
       return open_raw(in("/proc/self/root", path + 1), O_WRONLY);
     }},
    {"open_by_root_outside",
     [](const char* path, const char*) {
       char root[64];
       snprintf(root, sizeof root, "/proc/%d/root", outside);
       return open_raw(in(root, path + 1), O_WRONLY);
     }},
    {"open_by_handle", [](const char* path, const char*) { return open_by_handle(path); }},
    {"creat", [](const char* path, const char*) { return call(SYS_creat, path, 0644); }},
    {"truncate", [](const char* path, const char*) { return call(SYS_truncate, path, 1); }},
    {"mkdir", [](const char*, const char* made) { return call(SYS_mkdir, made, 0755); }},
    {"mkdirat",
     [](const char*, const char* made) { return syscall(SYS_mkdirat, AT_FDCWD, made, 0755); }},
    {"rmdir", [](const char*, const char*) { return call(SYS_rmdir, in(folder, "empty")); }},
    {"unlink", [](const char* path, const char*) { return call(SYS_unlink, path); }},
    {"unlinkat",
     [](const char* path, const char*) { return syscall(SYS_unlinkat, AT_FDCWD, path, 0); }},
    {"rename",
     [](const char* path, const char* made) { return call(SYS_rename, path, pointer(made)); }},
    {"renameat2_exchange",
     [](const char* path, const char*) {
       return syscall(SYS_renameat2, AT_FDCWD, path, AT_FDCWD, in(folder, "exchanged").text,
                      RENAME_EXCHANGE);
     }},
    {"rename_out_of_it",
     [](const char* path, const char*) {
       return call(SYS_rename, path, pointer(in(private_folder, "moved").text));
     }},
    {"rename_into_it",
     [](const char* path, const char*) {
       const Path own = in(private_folder, "own");
       close(static_cast<int>(open_raw(own, O_WRONLY | O_CREAT)));
       return call(SYS_rename, own, pointer(path));
     }},
    {"link",
     [](const char* path, const char* made) { return call(SYS_link, path, pointer(made)); }},
    {"link_out_of_it",
     [](const char* path, const char*) {
       return call(SYS_link, path, pointer(in(private_folder, "linked").text));
     }},
    {"link_into_it",
     [](const char*, const char* made) {
       const Path own = in(private_folder, "own");
       close(static_cast<int>(open_raw(own, O_WRONLY | O_CREAT)));
       return call(SYS_link, own, pointer(made));
     }},
    {"symlink",
     [](const char*, const char* made) { return call(SYS_symlink, "x", pointer(made)); }},
    {"write_through_link",
     [](const char* path, const char*) {
       const Path link = in(private_folder, "link");
       call(SYS_unlink, link);
       if (call(SYS_symlink, path, pointer(link.text)) != 0) return -1L;
       return open_raw(link, O_WRONLY);
     }},
    {"mknod_file",
     [](const char*, const char* made) { return call(SYS_mknod, made, S_IFREG | 0644); }},
    {"mknod_fifo",
     [](const char*, const char* made) { return call(SYS_mknod, made, S_IFIFO | 0644); }},
    {"mknod_device",
     [](const char*, const char* made) { return call(SYS_mknod, made, S_IFCHR | 0644, 0x103); }},
    {"mknod_disk_in_private_folder",
     [](const char*, const char*) {
       return call(SYS_mknod, in(private_folder, "disk"), S_IFBLK | 0644, 0xfd00);
     }},
    {"bind",
     [](const char*, const char* made) {
       sockaddr_un address = {};
       address.sun_family = AF_UNIX;
       strncpy(address.sun_path, made, sizeof address.sun_path - 1);
       const int file = socket(AF_UNIX, SOCK_STREAM, 0);
       return static_cast<long>(bind(file, reinterpret_cast<sockaddr*>(&address), sizeof address));
     }},
    {"chmod", [](const char* path, const char*) { return call(SYS_chmod, path, 0600); }},
    {"fchmod",
     [](const char* path, const char*) {
       return with_file(path, [](int file) { return syscall(SYS_fchmod, file, 0600); });
     }},
    {"fchmodat",
     [](const char* path, const char*) { return syscall(SYS_fchmodat, AT_FDCWD, path, 0600); }},
    {"fchmodat2",
     [](const char* path, const char*) { return syscall(452, AT_FDCWD, path, 0600, 0); }},
    {"chmod_32_bit", [](const char* path, const char*) { return chmod_32_bit(path); }},
    {"chmod_x32",
     [](const char* path, const char*) { return call(0x40000000 | SYS_chmod, path, 0600); }},
    {"chown", [](const char* path, const char*) { return call(SYS_chown, path, geteuid(), -1); }},
    {"lchown", [](const char* path, const char*) { return call(SYS_lchown, path, geteuid(), -1); }},
    {"fchown",
     [](const char* path, const char*) {
       return with_file(path, [](int file) { return syscall(SYS_fchown, file, geteuid(), -1); });
     }},
    {"fchownat",
     [](const char* path, const char*) {
       return syscall(SYS_fchownat, AT_FDCWD, path, geteuid(), -1, 0);
     }},
    {"utime",
     [](const char* path, const char*) {
       const utimbuf times = {1, 1};
       return call(SYS_utime, path, pointer(&times));
     }},
    {"utimes",
     [](const char* path, const char*) {
       const timeval times[2] = {{1, 0}, {1, 0}};
       return call(SYS_utimes, path, pointer(times));
     }},
    {"futimesat",
     [](const char* path, const char*) {
       const timeval times[2] = {{1, 0}, {1, 0}};
       return syscall(SYS_futimesat, AT_FDCWD, path, times);
     }},
    {"utimensat",
     [](const char* path, const char*) {
       const timespec times[2] = {{1, 0}, {1, 0}};
       return syscall(SYS_utimensat, AT_FDCWD, path, times, 0);
     }},
    {"utimensat_of_descriptor",
     [](const char* path, const char*) {
       return with_file(path, [](int file) {
         const timespec times[2] = {{1, 0}, {1, 0}};
         return syscall(SYS_utimensat, file, nullptr, times, 0);
       });
     }},
    {"setxattr",
     [](const char* path, const char*) {
       return call(SYS_setxattr, path, pointer("user.a"), pointer("x"), 1);
     }},
    {"lsetxattr",
     [](const char* path, const char*) {
       return call(SYS_lsetxattr, path, pointer("user.a"), pointer("x"), 1);
     }},
    {"fsetxattr",
     [](const char* path, const char*) {
       return with_file(path,
                        [](int file) { return syscall(SYS_fsetxattr, file, "user.a", "x", 1, 0); });
     }},
    {"setxattrat",
     [](const char* path, const char*) {
       const struct {
         uint64_t value;
         uint32_t size, flags;
       } attribute = {static_cast<uint64_t>(pointer("x")), 1, 0};
       return syscall(463, AT_FDCWD, path, 0, "user.a", &attribute, sizeof attribute);
     }},
    {"removexattr", [](const char* path,
                       const char*) { return call(SYS_removexattr, path, pointer("user.there")); }},
    {"lremovexattr",
     [](const char* path, const char*) {
       return call(SYS_lremovexattr, path, pointer("user.there"));
     }},
    {"fremovexattr",
     [](const char* path, const char*) {
       return with_file(path,
                        [](int file) { return syscall(SYS_fremovexattr, file, "user.there"); });
     }},
    {"removexattrat",
     [](const char* path, const char*) { return syscall(466, AT_FDCWD, path, 0, "user.there"); }},
    {"file_setattr",
     [](const char* path, const char*) {
       FileAttributes attributes = {};
       attributes.flags = FS_XFLAG_NODUMP;
       return syscall(469, AT_FDCWD, path, &attributes, sizeof attributes, 0);
     }},
    {"flags_of_file",
     [](const char* path, const char*) {
       return with_file(path, [](int file) {
         int flags = 0;
         syscall(SYS_ioctl, file, FS_IOC_GETFLAGS, &flags);
         flags |= FS_NODUMP_FL;
         return syscall(SYS_ioctl, file, FS_IOC_SETFLAGS, &flags);
       });
     }},
    {"attributes_of_file",
     [](const char* path, const char*) {
       return with_file(path, [](int file) {
         fsxattr attributes = {};
         syscall(SYS_ioctl, file, FS_IOC_FSGETXATTR, &attributes);
         attributes.fsx_xflags |= FS_XFLAG_NODUMP;
         return syscall(SYS_ioctl, file, FS_IOC_FSSETXATTR, &attributes);
       });
     }},
    {"io_uring",
     [](const char*, const char*) {
       char parameters[256] = {};
       return syscall(SYS_io_uring_setup, 4, parameters);
     }},
    {"mount",
     [](const char*, const char*) {
       return call(SYS_mount, private_folder, pointer(folder), 0, MS_BIND) == 0
                  ? call(SYS_umount2, folder, MNT_DETACH)
                  : -1;
     }},
    {"open_tree",
     [](const char*, const char*) {
       return syscall(SYS_open_tree, AT_FDCWD, folder, 1 /* OPEN_TREE_CLONE */);
     }},
    {"fsopen", [](const char*, const char*) { return call(SYS_fsopen, "tmpfs"); }},
    {"mount_in_user_namespace",
     [](const char*, const char*) {
       if (unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) return -1L;
       return call(SYS_mount, private_folder, pointer(folder), 0, MS_BIND);
     }},
    {"ptrace",
     [](const char*, const char*) {
       const long result = syscall(SYS_ptrace, PTRACE_SEIZE, outside, 0, 0);
       if (result == 0) syscall(SYS_ptrace, PTRACE_DETACH, outside, 0, 0);
       return result;
     }},
    {"memory_of_process",
     [](const char*, const char*) {
       char path[64];
       snprintf(path, sizeof path, "/proc/%d/mem", outside);
       return open_raw(path, O_WRONLY);
     }},
    {"descriptor_of_process",
     [](const char*, const char*) {
       const long process = syscall(SYS_pidfd_open, outside, 0);
       return syscall(SYS_pidfd_getfd, process, 0, 0);
     }},
};

void prepare() {
  mkdir(in(folder, "empty"), 0755);
  close(static_cast<int>(open_raw(in(folder, "exchanged"), O_WRONLY | O_CREAT)));
  for (const Way& way : kWays) {
    const Path path = in(folder, way.name);
    const long file = open_raw(path, O_WRONLY | O_CREAT);
    if (write(static_cast<int>(file), way.name, strlen(way.name)) < 0) _exit(3);
    close(static_cast<int>(file));
    call(SYS_setxattr, path, pointer("user.there"), pointer("x"), 1);
  }
}

void print(const char* name, long result) {
  if (result >= 0) {
    printf("%s: ok\n", name);
  } else {
    printf("%s: %d\n", name, errno);
  }
}

void try_all() {
  for (const Way& way : kWays) {
    fflush(stdout);
    const pid_t child = fork();  // some change what the process may do
    if (child == 0) {
      errno = 0;
      print(way.name, way.make(in(folder, way.name), in(folder, way.name, ".new")));
      fflush(stdout);
      _exit(0);
    }
    int status;
    waitpid(child, &status, 0);
    if (status != 0) printf("%s: ended with %d\n", way.name, status);
  }
}

// What programs go on to do.
void try_allowed(uint64_t key) {
  const Path file = in(private_folder, "file"), other = in(private_folder, "other");
  print("private file", open_raw(file, O_RDWR | O_CREAT | O_TRUNC));
  print("private rename", call(SYS_rename, file, pointer(other.text)));
  print("private link", call(SYS_link, other, pointer(file.text)));
  print("private folder", call(SYS_mkdir, in(private_folder, "folder"), 0755));
  print("private rename across folders",
        call(SYS_rename, other, pointer(in(private_folder, "folder/x").text)));
  print("private truncate", call(SYS_truncate, file, 1));
  print("private unlink", call(SYS_unlink, file));
  close(static_cast<int>(open_raw(file, O_RDWR | O_CREAT)));
  print("private chmod with the key", syscall(SYS_fchmodat, AT_FDCWD, file.text, 0600, 0, 0, key));
  const timespec times[2] = {{1, 0}, {1, 0}};
  print("private utimensat with the key",
        syscall(SYS_utimensat, AT_FDCWD, file.text, times, 0, 0, key));
  print("private setxattr with the key",
        syscall(SYS_lsetxattr, file.text, "user.a", "x", 1, 0, key));
  print("private chmod without", syscall(SYS_fchmodat, AT_FDCWD, file.text, 0644, 0, 0, key + 1));
  print("private chmod with half of it",
        syscall(SYS_fchmodat, AT_FDCWD, file.text, 0644, 0, 0, key & 0xffffffff));
  print("/dev/null", open_raw("/dev/null", O_WRONLY | O_CREAT | O_TRUNC));
  print("/dev/zero", open_raw("/dev/zero", O_RDWR));
  print("/dev/full", open_raw("/dev/full", O_WRONLY));
  char shared[64];
  snprintf(shared, sizeof shared, "/dev/shm/memledger-test-%d", getpid());
  print("shared memory", open_raw(shared, O_RDWR | O_CREAT | O_EXCL));
  print("shared memory removed", call(SYS_unlink, shared));
  print("memfd", syscall(SYS_memfd_create, "x", 0));
  print("reading", open_raw("/etc/passwd", O_RDONLY));
  print("reading a folder", open_raw("/", O_RDONLY | O_DIRECTORY));
  int flags = 0;
  const long own = open_raw(file, O_RDWR);
  print("flags of a file", syscall(SYS_ioctl, own, FS_IOC_GETFLAGS, &flags));
}

}  // namespace

int main(int count, char** arguments) {
  if (count < 3) return 2;
  folder = private_folder = arguments[2];
  if (strcmp(arguments[1], "prepare") == 0) {
    prepare();
  } else if (strcmp(arguments[1], "allowed") == 0) {
    try_allowed(strtoull(arguments[3], nullptr, 10));
  } else if (strcmp(arguments[1], "try") == 0) {
    private_folder = arguments[3];
    outside = atoi(arguments[4]);
    try_all();
  } else {
    return 2;
  }
  return 0;
}
// NOLINTEND
