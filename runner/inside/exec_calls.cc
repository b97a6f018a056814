// Part of libmemledger_preload.so, and of libmemledger.so for programs that link it: stands before
// the functions of exec. They may be called in signal handlers and in children of vfork.
#include <errno.h>
#include <stdarg.h>
#include <stddef.h>
#include <unistd.h>

#include "runner/inside/exec_observers.h"
#include "runner/inside/real_function.h"

namespace memledger::inside {

ExecObservers exec_observers;

}  // namespace memledger::inside

namespace {

using memledger::inside::exec_observers;
using memledger::inside::ExecObserver;
using memledger::inside::is_found;
using memledger::inside::may_run;
using memledger::inside::ObservedExec;
using memledger::inside::RealFunction;

using Words = char* const*;
RealFunction<int (*)(const char*, Words, Words)> real_execve("execve");
RealFunction<int (*)(const char*, Words)> real_execv("execv");
RealFunction<int (*)(const char*, Words)> real_execvp("execvp");
RealFunction<int (*)(const char*, Words, Words)> real_execvpe("execvpe");
RealFunction<int (*)(int, Words, Words)> real_fexecve("fexecve");
RealFunction<int (*)(int, const char*, Words, Words, int)> real_execveat("execveat");

// Nothing may be looked up where they are called.
__attribute__((constructor)) void find_exec_functions() {
  real_execve.get();
  real_execv.get();
  real_execvp.get();
  real_execvpe.get();
  real_fexecve.get();
  real_execveat.get();
}

template <typename Function, typename... Arguments>
int run_real(RealFunction<Function>& function, Arguments... arguments) {
  if (function.get() != nullptr) return function.get()(arguments...);
  errno = ENOSYS;
  return -1;
}

}  // namespace

extern "C" {

#define MEMLEDGER_IN_FRONT __attribute__((visibility("default")))

MEMLEDGER_IN_FRONT void memledger_observe_exec(ExecObserver before, ExecObserver after) {
  exec_observers.process = getpid();
  __atomic_store_n(&exec_observers.after, after, __ATOMIC_RELEASE);
  __atomic_store_n(&exec_observers.before, before, __ATOMIC_RELEASE);
}

MEMLEDGER_IN_FRONT int execve(const char* path, Words words, Words variables) noexcept {
  const ObservedExec exec(path, [&] { return may_run(AT_FDCWD, path, 0); });
  return run_real(real_execve, path, words, variables);
}
MEMLEDGER_IN_FRONT int execv(const char* path, Words words) noexcept {
  const ObservedExec exec(path, [&] { return may_run(AT_FDCWD, path, 0); });
  return run_real(real_execv, path, words);
}
MEMLEDGER_IN_FRONT int execvp(const char* file, Words words) noexcept {
  const ObservedExec exec(file, [&] { return is_found(file); });
  return run_real(real_execvp, file, words);
}
MEMLEDGER_IN_FRONT int execvpe(const char* file, Words words, Words variables) noexcept {
  const ObservedExec exec(file, [&] { return is_found(file); });
  return run_real(real_execvpe, file, words, variables);
}
MEMLEDGER_IN_FRONT int fexecve(int file, Words words, Words variables) noexcept {
  const ObservedExec exec("a descriptor", [&] { return may_run(file, "", AT_EMPTY_PATH); });
  return run_real(real_fexecve, file, words, variables);
}
MEMLEDGER_IN_FRONT int execveat(int folder, const char* path, Words words, Words variables,
                                int flags) noexcept {
  const ObservedExec exec(*path != '\0' ? path : "a descriptor",
                          [&] { return may_run(folder, path, flags); });
  return run_real(real_execveat, folder, path, words, variables, flags);
}

// The words of a call of execl() and the like, on the stack, as in the C library.
#define MEMLEDGER_WORDS(first)                                                             \
  va_list list;                                                                            \
  size_t count = 1;                                                                        \
  va_start(list, first);                                                                   \
  while (va_arg(list, char*) != nullptr) ++count;                                          \
  va_end(list);                                                                            \
  char** const words = static_cast<char**>(__builtin_alloca((count + 1) * sizeof(char*))); \
  va_start(list, first);                                                                   \
  words[0] = const_cast<char*>(first);                                                     \
  for (size_t i = 1; i <= count; ++i) words[i] = va_arg(list, char*)

MEMLEDGER_IN_FRONT int execl(const char* path, const char* first, ...) noexcept {
  MEMLEDGER_WORDS(first);
  va_end(list);
  return execv(path, words);
}
MEMLEDGER_IN_FRONT int execlp(const char* file, const char* first, ...) noexcept {
  MEMLEDGER_WORDS(first);
  va_end(list);
  return execvp(file, words);
}
MEMLEDGER_IN_FRONT int execle(const char* path, const char* first, ...) noexcept {
  MEMLEDGER_WORDS(first);
  char* const* const variables = va_arg(list, char* const*);
  va_end(list);
  return execve(path, words, variables);
}

}  // extern "C"
