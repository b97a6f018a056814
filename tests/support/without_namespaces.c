// Starts a program where the kernel refuses namespaces and mounts, as the seccomp filter of
// Docker's containers does; with --landlock Landlock, too, as older kernels do.
//
//   without_namespaces [--landlock] PROGRAM ARGUMENT…
#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/sched.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#if defined(__x86_64__)
#define THIS_ARCHITECTURE AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#define THIS_ARCHITECTURE AUDIT_ARCH_AARCH64
#endif

// The same on all architectures; headers may be older.
enum {
  kOpenTree = 428,
  kMoveMount = 429,
  kFsopen = 430,
  kFsmount = 432,
  kClone3 = 435,
  kMountSetattr = 442,
  kLandlock = 444
};

#define NEW_NAMESPACES                                                                          \
  (CLONE_NEWNS | CLONE_NEWCGROUP | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWUSER | CLONE_NEWPID | \
   CLONE_NEWNET)

#define LOAD(field) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, field))
#define RETURN(what) BPF_STMT(BPF_RET | BPF_K, what)
#define REFUSE(number, error) \
  BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1), RETURN(SECCOMP_RET_ERRNO | (error))
// Skips the next four statements unless it is this call.
#define REFUSE_NEW_NAMESPACES(number)                             \
  BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 4), LOAD(args),  \
      BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, NEW_NAMESPACES, 0, 1), \
      RETURN(SECCOMP_RET_ERRNO | EPERM), RETURN(SECCOMP_RET_ALLOW)

static struct sock_filter statements[] = {
    LOAD(arch),
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, THIS_ARCHITECTURE, 1, 0),
    RETURN(SECCOMP_RET_KILL_PROCESS),
    LOAD(nr),
    // Its arguments are in memory, where no filter looks: the C library then uses clone().
    REFUSE(kClone3, ENOSYS),
    REFUSE(SYS_mount, EPERM),
    REFUSE(SYS_umount2, EPERM),
    REFUSE(SYS_pivot_root, EPERM),
    REFUSE(SYS_setns, EPERM),
    REFUSE(kOpenTree, EPERM),
    REFUSE(kMoveMount, EPERM),
    REFUSE(kFsopen, EPERM),
    REFUSE(kFsmount, EPERM),
    REFUSE(kMountSetattr, EPERM),
    REFUSE_NEW_NAMESPACES(SYS_unshare),
    REFUSE_NEW_NAMESPACES(SYS_clone),
    RETURN(SECCOMP_RET_ALLOW),
};

static struct sock_filter without_landlock[] = {
    LOAD(nr),
    REFUSE(kLandlock, ENOSYS),
    REFUSE(kLandlock + 1, ENOSYS),
    REFUSE(kLandlock + 2, ENOSYS),
    RETURN(SECCOMP_RET_ALLOW),
};

static int install(struct sock_filter* filter, size_t size) {
  const struct sock_fprog program = {(unsigned short)(size / sizeof *filter), filter};
  return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}

int main(int argc, char** argv) {
  char** command = argv + 1;
  if (argc > 1 && strcmp(argv[1], "--landlock") == 0) ++command;
  if (argc < 2 || *command == NULL) return 2;
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || install(statements, sizeof statements) != 0 ||
      (command != argv + 1 && install(without_landlock, sizeof without_landlock) != 0)) {
    perror("without_namespaces");
    return 1;
  }
  execvp(*command, command);
  perror(*command);
  return 127;
}
