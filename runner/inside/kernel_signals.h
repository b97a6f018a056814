#pragma once

// Signals as the kernel has them, past the C library and whoever stands before its sigaction(). All
// of it may be called in a signal handler.

#include <signal.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>

namespace memledger::inside {

constexpr int kMaxSignal = 64;

constexpr uint64_t bit_of(int number) { return uint64_t{1} << (number - 1); }

struct KernelAction {
  void (*handler)(int, siginfo_t*, void*) = nullptr;  // null: the default action
  unsigned long flags = 0;
  void (*restorer)() = nullptr;
  uint64_t mask = 0;
};

inline bool is_ignored(const KernelAction& action) noexcept {
  return reinterpret_cast<uintptr_t>(action.handler) == reinterpret_cast<uintptr_t>(SIG_IGN);
}
inline bool is_handler(const KernelAction& action) noexcept {
  return action.handler != nullptr && !is_ignored(action);
}

// Return whether it could be done.
inline bool get_kernel_action(int number, KernelAction& action) noexcept {
  return syscall(SYS_rt_sigaction, number, nullptr, &action, sizeof action.mask) == 0;
}
inline bool set_kernel_action(int number, const KernelAction& action) noexcept {
  return syscall(SYS_rt_sigaction, number, &action, nullptr, sizeof action.mask) == 0;
}

// Returns what the calling thread blocks.
inline uint64_t blocked_signals() noexcept {
  uint64_t blocked = 0;
  syscall(SYS_rt_sigprocmask, SIG_BLOCK, nullptr, &blocked, sizeof blocked);
  return blocked;
}
// `how`: SIG_BLOCK, SIG_UNBLOCK or SIG_SETMASK. Returns what was blocked before.
inline uint64_t change_blocked_signals(int how, uint64_t signals) noexcept {
  uint64_t before = 0;
  syscall(SYS_rt_sigprocmask, how, &signals, &before, sizeof before);
  return before;
}

// In a signal handler: what its thread blocks once the handler has returned. After a call that had
// a mask of its own (sigsuspend(), ppoll()) that is the mask from before the call. The kernel's set
// has eight bytes, and the C library's reaches over what follows.
inline uint64_t blocked_afterwards(const ucontext_t& state) noexcept {
  uint64_t blocked = 0;
  std::memcpy(&blocked, &state.uc_sigmask, sizeof blocked);
  return blocked;
}
inline void block_afterwards(ucontext_t& state, uint64_t signals) noexcept {
  std::memcpy(&state.uc_sigmask, &signals, sizeof signals);
}

// Returns what waits for the calling thread or its process because the thread blocks it.
inline uint64_t pending_signals() noexcept {
  uint64_t pending = 0;
  syscall(SYS_rt_sigpending, &pending, sizeof pending);
  return pending;
}

}  // namespace memledger::inside
