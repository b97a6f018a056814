#include "runner/inside/thread_visits.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>

namespace memledger::inside {
namespace {

constexpr int kSignal = 33;

pid_t process = 0;
KernelAction ours;  // without a handler: nobody is visited
std::atomic<decltype(KernelAction::handler)> replaced{nullptr};  // the C library's, if it has one
std::array<std::atomic<Visit>, 2> visits;

// Nobody else's signal makes us call what it carries.
Visit visit_of(const siginfo_t& info) {
  if (info.si_code != SI_QUEUE || info.si_pid != process) return nullptr;
  for (const auto& known : visits) {
    const Visit visit = known.load();
    if (visit != nullptr && info.si_value.sival_ptr == reinterpret_cast<void*>(visit)) return visit;
  }
  return nullptr;
}

void on_visit(int number, siginfo_t* info, void* state) {
  const int error = errno;
  if (const Visit visit = visit_of(*info)) {
    visit(*static_cast<ucontext_t*>(state));
  } else if (const auto of_c_library = replaced.load()) {
    of_c_library(number, info, state);
  }
  errno = error;
}

// Each caller makes sure for itself: another thread may be half way, and the C library sets its own
// handler when the first thread is made. Without a handler the signal would end the process.
bool set_handler() {
  KernelAction now;
  if (ours.handler == nullptr || !get_kernel_action(kSignal, now)) return false;
  if (now.handler == ours.handler) return true;
  if (is_handler(now)) replaced.store(now.handler);
  return set_kernel_action(kSignal, ours);
}

void note(Visit visit) {
  for (auto& known : visits) {
    Visit none = nullptr;
    if (known.compare_exchange_strong(none, visit) || none == visit) return;
  }
}

void send(pid_t thread, Visit visit) {
  siginfo_t info{};
  info.si_signo = kSignal;
  info.si_code = SI_QUEUE;
  info.si_pid = process;
  info.si_uid = getuid();
  info.si_value.sival_ptr = reinterpret_cast<void*>(visit);
  syscall(SYS_rt_tgsigqueueinfo, process, thread, kSignal, &info);
}

void send_to_all(const char* entries, long bytes, Visit visit) {
  constexpr size_t kLength = 16, kName = 19;  // of linux_dirent64
  const auto this_thread = static_cast<pid_t>(syscall(SYS_gettid));
  for (long at = 0; at < bytes;) {
    uint16_t length = 0;
    std::memcpy(&length, entries + at + kLength, sizeof length);
    pid_t thread = 0;
    for (const char* name = entries + at + kName; *name >= '0' && *name <= '9'; ++name)
      thread = 10 * thread + (*name - '0');
    if (thread != 0 && thread != this_thread) send(thread, visit);
    at += length;
  }
}

}  // namespace

void prepare_visits(const KernelAction& like) noexcept {
  process = getpid();
  ours = like;
  ours.handler = &on_visit;
}

void visit_other_threads(Visit visit) noexcept {
  if (!set_handler()) return;
  note(visit);
  const int folder = open("/proc/self/task", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder < 0) return;
  alignas(8) std::array<char, 512> entries;  // the stack may be small
  long bytes = 0;
  while ((bytes = syscall(SYS_getdents64, folder, entries.data(), entries.size())) > 0)
    send_to_all(entries.data(), bytes, visit);
  close(folder);
}

int64_t result_of_call(const ucontext_t& state, int64_t otherwise) noexcept {
#if defined(__x86_64__)
  constexpr unsigned char kCall[] = {0x0f, 0x05};
  const auto next = static_cast<uintptr_t>(state.uc_mcontext.gregs[REG_RIP]);
  const int64_t result = state.uc_mcontext.gregs[REG_RAX];
#elif defined(__aarch64__)
  constexpr uint32_t kCall[] = {0xd4000001};
  const uintptr_t next = state.uc_mcontext.pc;
  const auto result = static_cast<int64_t>(state.uc_mcontext.regs[0]);
#else
  constexpr char kCall[] = {0};
  const uintptr_t next = 0;
  const int64_t result = otherwise;
#endif
  constexpr uintptr_t kNowhere = 4096;
  const bool is_after_call =
      next > kNowhere && result <= 0 && result >= -EINTR &&
      std::memcmp(reinterpret_cast<const char*>(next) - sizeof kCall, kCall, sizeof kCall) == 0;
  return is_after_call ? result : otherwise;
}

bool has_ended_call(const ucontext_t& state) noexcept {
#if defined(__x86_64__)
  const auto second_argument = static_cast<uint64_t>(state.uc_mcontext.gregs[REG_RSI]);
#elif defined(__aarch64__)
  const uint64_t second_argument = state.uc_mcontext.regs[1];
#else
  const uint64_t second_argument = 0;
#endif
  // The number of the call is gone, but what it was given is not: a private futex' operation.
  const uint64_t operation = second_argument & ~uint64_t{FUTEX_CLOCK_REALTIME};
  const bool is_futex = operation == FUTEX_WAIT_PRIVATE || operation == FUTEX_WAIT_BITSET_PRIVATE;
  return !is_futex && result_of_call(state, 0) == -EINTR;
}

}  // namespace memledger::inside
