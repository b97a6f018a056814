// Part of libmemledger_preload.so, and of libmemledger.so for programs that link it: stands before
// the functions that start programs. Observers learn that exec replaces this process' program.
//
// A program that our libraries cannot go into (32-bit, musl) would not start with them in
// LD_PRELOAD, or its linker would complain: it gets the environment without them.
//
// The functions here may be called in signal handlers and in children of vfork, so they allocate
// nothing.

#include "runner/inside/exec_observers.h"

#include <alloca.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runner/environment.h"
#include "runner/inside/kernel_signals.h"
#include "runner/inside/real_function.h"
#include "runner/inside/thread_calls.h"
#include "runner/path_search.h"
#include "runner/program_kind.h"

namespace memledger::inside {

ExecObservers exec_observers;

}  // namespace memledger::inside

namespace {

using memledger::find_in_path;
using memledger::kind_of_program;
using memledger::may_run;
using memledger::ProgramKind;
using memledger::takes_preloaded_libraries;
using memledger::inside::bit_of;
using memledger::inside::change_blocked_signals;
using memledger::inside::exec_observers;
using memledger::inside::ExecObserver;
using memledger::inside::ObservedExec;
using memledger::inside::RealFunction;

using Words = char* const*;

constexpr char kPreload[] = "LD_PRELOAD=";
constexpr size_t kPreloadSize = sizeof kPreload - 1;

// Our part of LD_PRELOAD. Empty: the runner did not start this process.
char ours[16384];

RealFunction<int (*)(const char*, Words, Words)> real_execve("execve");
RealFunction<int (*)(const char*, Words, Words)> real_execvpe("execvpe");
RealFunction<int (*)(int, Words, Words)> real_fexecve("fexecve");
RealFunction<int (*)(int, const char*, Words, Words, int)> real_execveat("execveat");
using Spawn = int (*)(pid_t*, const char*, const posix_spawn_file_actions_t*,
                      const posix_spawnattr_t*, Words, Words);
RealFunction<int (*)(const char*)> real_system("system");
RealFunction<FILE* (*)(const char*, const char*)> real_popen("popen");
RealFunction<Spawn> real_spawn("posix_spawn"), real_spawnp("posix_spawnp");

// Nothing may be looked up in a child of vfork.
__attribute__((constructor)) void find_exec_functions() {
  real_execve.get();
  real_execvpe.get();
  real_fexecve.get();
  real_execveat.get();
  real_spawn.get();
  real_spawnp.get();
  real_system.get();
  real_popen.get();
  const char* const preloaded = secure_getenv(memledger::environment::kPreloaded);
  if (preloaded != nullptr && strlen(preloaded) < sizeof ours)
    memcpy(ours, preloaded, strlen(preloaded) + 1);
}

size_t count(Words words) {
  size_t result = 0;
  while (words != nullptr && words[result] != nullptr) ++result;
  return result;
}

template <typename Function, typename... Arguments>
int run_real(RealFunction<Function>& function, Arguments... arguments) {
  if (function.get() != nullptr) return function.get()(arguments...);
  errno = ENOSYS;
  return -1;
}

// Programs inherit the mask of the thread that starts them: without what we alone have blocked.
class ProgramsMask {
 public:
  ProgramsMask() {
    const int number = memledger_hidden_signal();
    if (number == 0 || memledger_asks_to_block()) return;
    before_ = change_blocked_signals(SIG_UNBLOCK, bit_of(number));
    is_set_ = true;
  }
  ~ProgramsMask() {
    const int error = errno;
    if (is_set_) change_blocked_signals(SIG_SETMASK, before_);
    errno = error;
  }
  ProgramsMask(const ProgramsMask&) = delete;
  ProgramsMask& operator=(const ProgramsMask&) = delete;

 private:
  uint64_t before_ = 0;
  bool is_set_ = false;
};

// Where our part begins in a value of LD_PRELOAD; null where it is not whole there.
const char* find_ours(const char* value) {
  const size_t size = strlen(ours);
  for (const char* at = strstr(value, ours); at != nullptr; at = strstr(at + 1, ours)) {
    const char end = at[size];
    if ((at == value || at[-1] == ':') && (end == ':' || end == '\0')) return at;
  }
  return nullptr;
}

// Calls `call` with the environment that the program is to have.
template <typename Call>
int with_environment(ProgramKind kind, Words environment, Call call) {
  const ProgramsMask mask;
  if (ours[0] == '\0' || takes_preloaded_libraries(kind)) return call(environment);
  const size_t size = count(environment);
  size_t index = 0;
  while (index < size && strncmp(environment[index], kPreload, kPreloadSize) != 0) ++index;
  const char* const begin = index < size ? find_ours(environment[index] + kPreloadSize) : nullptr;
  if (begin == nullptr) return call(environment);
  const char* rest = begin + strlen(ours);
  if (*rest == ':') ++rest;
  const auto before = static_cast<size_t>(begin - environment[index]);
  auto* const text = static_cast<char*>(alloca(before + strlen(rest) + 1));
  memcpy(text, environment[index], before);
  memcpy(text + before, rest, strlen(rest) + 1);
  auto** const changed = static_cast<char**>(alloca((size + 1) * sizeof(char*)));
  for (size_t i = 0; i < size; ++i) changed[i] = environment[i];
  changed[size] = nullptr;
  changed[index] = text;
  // Nobody else's libraries were there.
  if (text[kPreloadSize] == '\0') {
    changed[index] = changed[size - 1];
    changed[size - 1] = nullptr;
  }
  return call(changed);
}

// The kind of the file that execvp() would find.
ProgramKind kind_in_path(const char* file) {
  char room[4096];
  const char* const path = ours[0] == '\0' ? nullptr : find_in_path(file, room);
  return path == nullptr ? ProgramKind::kUnknown : kind_of_program(path);
}

bool is_found(const char* file) {
  char room[4096];
  return find_in_path(file, room) != nullptr;
}

ProgramKind kind_at(const char* path) {
  return ours[0] == '\0' ? ProgramKind::kUnknown : kind_of_program(path);
}
ProgramKind kind_of(int file) {
  return ours[0] == '\0' ? ProgramKind::kUnknown : kind_of_program(file);
}

}  // namespace

extern "C" {

#define MEMLEDGER_IN_FRONT __attribute__((visibility("default")))

MEMLEDGER_IN_FRONT void memledger_observe_exec(ExecObserver before, ExecObserver after) {
  exec_observers.process = getpid();
  __atomic_store_n(&exec_observers.after, after, __ATOMIC_RELEASE);
  __atomic_store_n(&exec_observers.before, before, __ATOMIC_RELEASE);
}

MEMLEDGER_IN_FRONT int execve(const char* path, Words argv, Words environment) noexcept {
  const ObservedExec exec(path, [&] { return may_run(AT_FDCWD, path, 0); });
  return with_environment(kind_at(path), environment, [&](Words changed) {
    return run_real(real_execve, path, argv, changed);
  });
}

MEMLEDGER_IN_FRONT int execv(const char* path, Words argv) noexcept {
  return execve(path, argv, environ);
}

MEMLEDGER_IN_FRONT int execvpe(const char* file, Words argv, Words environment) noexcept {
  const ObservedExec exec(file, [&] { return is_found(file); });
  return with_environment(kind_in_path(file), environment, [&](Words changed) {
    return run_real(real_execvpe, file, argv, changed);
  });
}

MEMLEDGER_IN_FRONT int execvp(const char* file, Words argv) noexcept {
  return execvpe(file, argv, environ);
}

MEMLEDGER_IN_FRONT int fexecve(int file, Words argv, Words environment) noexcept {
  const ObservedExec exec("a descriptor", [&] { return may_run(file, "", AT_EMPTY_PATH); });
  return with_environment(kind_of(file), environment, [&](Words changed) {
    return run_real(real_fexecve, file, argv, changed);
  });
}

MEMLEDGER_IN_FRONT int execveat(int folder, const char* path, Words argv, Words environment,
                                int flags) noexcept {
  if (path == nullptr) return run_real(real_execveat, folder, path, argv, environment, flags);
  const ObservedExec exec(*path != '\0' ? path : "a descriptor",
                          [&] { return may_run(folder, path, flags); });
  const ProgramKind kind = *path == '\0'                        ? kind_of(folder)
                           : *path == '/' || folder == AT_FDCWD ? kind_at(path)
                                                                : ProgramKind::kUnknown;
  return with_environment(kind, environment, [&](Words changed) {
    return run_real(real_execveat, folder, path, argv, changed, flags);
  });
}

// Copies the words of a variadic call, with the null behind them.
#define MEMLEDGER_COPY_WORDS(first, arguments, argv)                            \
  va_list arguments;                                                            \
  va_start(arguments, first);                                                   \
  size_t words = 1;                                                             \
  while (va_arg(arguments, char*) != nullptr) ++words;                          \
  va_end(arguments);                                                            \
  auto** const argv = static_cast<char**>(alloca((words + 1) * sizeof(char*))); \
  argv[0] = const_cast<char*>(first);                                           \
  va_start(arguments, first);                                                   \
  for (size_t i = 1; i <= words; ++i) (argv)[i] = va_arg(arguments, char*)

MEMLEDGER_IN_FRONT int execl(const char* path, const char* first, ...) noexcept {
  MEMLEDGER_COPY_WORDS(first, arguments, argv);
  va_end(arguments);
  return execve(path, argv, environ);
}

MEMLEDGER_IN_FRONT int execlp(const char* file, const char* first, ...) noexcept {
  MEMLEDGER_COPY_WORDS(first, arguments, argv);
  va_end(arguments);
  return execvpe(file, argv, environ);
}

MEMLEDGER_IN_FRONT int execle(const char* path, const char* first, ...) noexcept {
  MEMLEDGER_COPY_WORDS(first, arguments, argv);
  const Words environment = va_arg(arguments, Words);
  va_end(arguments);
  return execve(path, argv, environment);
}

MEMLEDGER_IN_FRONT int posix_spawn(pid_t* process, const char* path,
                                   const posix_spawn_file_actions_t* actions,
                                   const posix_spawnattr_t* attributes, Words argv,
                                   Words environment) {
  return with_environment(kind_at(path), environment, [&](Words changed) {
    return run_real(real_spawn, process, path, actions, attributes, argv, changed);
  });
}

MEMLEDGER_IN_FRONT int posix_spawnp(pid_t* process, const char* file,
                                    const posix_spawn_file_actions_t* actions,
                                    const posix_spawnattr_t* attributes, Words argv,
                                    Words environment) {
  return with_environment(kind_in_path(file), environment, [&](Words changed) {
    return run_real(real_spawnp, process, file, actions, attributes, argv, changed);
  });
}

// They start a shell, which is not one of the programs above.
MEMLEDGER_IN_FRONT int system(const char* command) {
  const ProgramsMask mask;
  return run_real(real_system, command);
}
MEMLEDGER_IN_FRONT FILE* popen(const char* command, const char* mode) {
  const ProgramsMask mask;
  return real_popen.get() == nullptr ? nullptr : real_popen.get()(command, mode);
}

}  // extern "C"
