#include "registry/core/other_threads.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <optional>
#include <string_view>

namespace memledger::core {
namespace {

using Kind = OtherThreads::Kind;

struct Start {
  uintptr_t routine = 0;
  uintptr_t argument = 0;
};
struct Thread {
  pid_t id = 0;
  Start start;
};

pid_t this_thread_id() noexcept { return static_cast<pid_t>(syscall(SYS_gettid)); }

// Reads memory that may not be there.
template <typename T>
bool read_memory(uintptr_t address, T& value) noexcept {
  iovec to{&value, sizeof value};
  iovec from{reinterpret_cast<void*>(address), sizeof value};
  return syscall(SYS_process_vm_readv, getpid(), &to, 1, &from, 1, 0) ==
         static_cast<long>(sizeof value);
}

// Where the C library keeps its threads, by its tables for libthread_db.
struct Layout {
  uintptr_t list = 0;  // of the threads; 0: not known
  size_t next = 0, in_thread = 0, id = 0, start = 0;

  static Layout find() noexcept {
    struct Field {
      uint32_t bits, count, offset;
    };
    const auto field = [](const char* name) {
      return static_cast<const Field*>(dlsym(RTLD_DEFAULT, name));
    };
    const Field* const list = field("_thread_db_rtld_global__dl_stack_used");
    const Field* const next = field("_thread_db_list_t_next");
    const Field* const in_thread = field("_thread_db_pthread_list");
    const Field* const id = field("_thread_db_pthread_tid");
    const Field* const start = field("_thread_db_pthread_start_routine");
    void* const global = dlsym(RTLD_DEFAULT, "_rtld_global");
    Layout layout;
    if (list == nullptr || next == nullptr || in_thread == nullptr || id == nullptr ||
        start == nullptr || global == nullptr || id->bits != 8 * sizeof(pid_t) ||
        start->bits != 8 * sizeof(void*))
      return layout;
    layout.list = reinterpret_cast<uintptr_t>(global) + list->offset;
    layout.next = next->offset;
    layout.in_thread = in_thread->offset;
    layout.id = id->offset;
    layout.start = start->offset;
    return layout;
  }
};

Layout layout;

// Calls back with each thread that the C library knows. They come and go meanwhile: an entry is
// believed by its thread's id, which the kernel writes when the rest is there and clears first.
template <typename Callback>
void for_each_known_thread(size_t count, const Callback& callback) {
  uintptr_t node = 0;
  if (layout.list == 0 || !read_memory(layout.list + layout.next, node)) return;
  for (size_t i = 0; i < 2 * count + 64 && node != layout.list; ++i) {
    const uintptr_t thread = node - layout.in_thread;
    Thread one;
    pid_t again = 0;
    if (!read_memory(thread + layout.id, one.id) ||
        !read_memory(thread + layout.start, one.start) || !read_memory(thread + layout.id, again) ||
        !read_memory(node + layout.next, node))
      return;
    if (one.id == again) callback(one);
  }
}

bool begins_with(std::string_view text, std::string_view begin) {
  return text.substr(0, begin.size()) == begin;
}

enum class Pool : uint8_t { kNone, kOpenMp, kThreadSanitizer, kOther };

Pool pool_of_library(std::string_view path) {
  const std::string_view name = path.substr(path.rfind('/') + 1);
  for (const std::string_view library : {"libgomp", "libomp", "libiomp5"}) {
    if (begins_with(name, library)) return Pool::kOpenMp;
  }
  if (begins_with(name, "libtsan")) return Pool::kThreadSanitizer;
  for (const std::string_view library :
       {"libopenblas", "libscipy_openblas", "libblis", "libcuda.so", "libnvidia-", "libcupti"}) {
    if (begins_with(name, library)) return Pool::kOther;
  }
  return Pool::kNone;
}

using InParallel = int (*)();

// What the OpenMP libraries met so far say, by their workers' start routine.
struct OpenMp {
  std::atomic<uintptr_t> routine{0};
  std::atomic<InParallel> in_parallel{nullptr};
};
std::array<OpenMp, 4> open_mps{};

// Asks the worker's own library: several may be loaded.
bool is_in_parallel(uintptr_t routine, const char* library) {
  for (OpenMp& known : open_mps) {
    uintptr_t none = 0;
    if (known.routine.load() != routine && !known.routine.compare_exchange_strong(none, routine))
      continue;
    InParallel ask = known.in_parallel.load();
    if (ask == nullptr) {
      void* const handle = dlopen(library, RTLD_LAZY | RTLD_NOLOAD);
      if (handle == nullptr) return true;
      ask = reinterpret_cast<InParallel>(dlsym(handle, "omp_in_parallel"));
      dlclose(handle);
      known.in_parallel.store(ask);
    }
    return ask == nullptr || ask() != 0;
  }
  return true;
}

// Returns the type of what a std::thread runs; empty if it is none.
std::string_view type_of_state(uintptr_t state, std::array<char, 512>& text) {
  uintptr_t table = 0, type = 0, name = 0;
  if (!read_memory(state, table) || !read_memory(table - sizeof(void*), type) ||
      !read_memory(type + sizeof(void*), name))
    return "";
  // The name may lie before what is not mapped.
  size_t size = 0;
  for (; size + 16 < text.size(); size += 16) {
    std::array<char, 16> piece{};
    if (!read_memory(name + size, piece)) break;
    std::memcpy(&text[size], piece.data(), piece.size());
    if (std::memchr(piece.data(), '\0', piece.size()) != nullptr) break;
  }
  text.back() = '\0';
  std::string_view read(text.data(), strnlen(text.data(), std::min(size + 16, text.size())));
  if (begins_with(read, "*")) read.remove_prefix(1);
  return begins_with(read, "NSt6thread11_State_impl") ? read : "";
}

std::array<std::atomic<uintptr_t>, 8> own_routines{};

bool is_own(uintptr_t routine) {
  return std::any_of(own_routines.begin(), own_routines.end(),
                     [routine](const auto& own) { return own.load() == routine; });
}

// Returns the path of the library that an address lies in; null: none. Takes the loader's lock
// where the C library is older than 2.35.
const char* library_at(uintptr_t address) {
#ifdef DLFO_STRUCT_HAS_EH_DBASE
  dl_find_object found{};
  if (_dl_find_object(reinterpret_cast<void*>(address), &found) != 0) return nullptr;
  return found.dlfo_link_map == nullptr ? nullptr : found.dlfo_link_map->l_name;
#else
  Dl_info found{};
  return dladdr(reinterpret_cast<void*>(address), &found) == 0 ? nullptr : found.dli_fname;
#endif
}

// Whether a thread is of an idle pool. Takes the loader's lock as library_at() does, and where a
// library of OpenMP is met for the first time.
bool is_of_idle_pool(const Start& start) {
  const char* const library = library_at(start.routine);
  if (library == nullptr) return false;
  switch (pool_of_library(library)) {
    case Pool::kNone:
      return false;
    case Pool::kOpenMp:
      return !is_in_parallel(start.routine, library);
    case Pool::kThreadSanitizer:
      // Every thread that it sees begins in it: the program's have an argument, its own has none.
      return start.argument == 0;
    case Pool::kOther:
      return true;
  }
  return false;
}

Kind kind_of_state(uintptr_t state) {
  std::array<char, 512> text{};
  const std::string_view type = type_of_state(state, text);
  if (type.find("N5torch8autograd6Engine") != std::string_view::npos) return Kind::kEngine;
  if (type.find("9memledger") != std::string_view::npos &&
      type.find("7Streams10has_workerEv") != std::string_view::npos)
    return Kind::kNone;
  return Kind::kProgram;
}

// Calls back with the ids in a folder of tasks. Returns false if they cannot be read.
template <typename Callback>
bool for_each_task(Callback callback) noexcept {
  const auto folder = static_cast<int>(
      syscall(SYS_openat, AT_FDCWD, "/proc/self/task", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (folder < 0) return false;
  constexpr long kLength = 16, kName = 19;    // of linux_dirent64
  alignas(8) std::array<char, 1024> entries;  // the stack may be small
  long bytes = 0;
  while ((bytes = syscall(SYS_getdents64, folder, entries.data(), entries.size())) > 0) {
    for (long at = 0; at < bytes;) {
      uint16_t length = 0;
      std::memcpy(&length, &entries[static_cast<size_t>(at + kLength)], sizeof length);
      pid_t id = 0;
      for (const char* name = &entries[static_cast<size_t>(at + kName)];
           *name >= '0' && *name <= '9'; ++name)
        id = 10 * id + (*name - '0');
      if (id != 0) callback(id);
      at += length;
    }
  }
  syscall(SYS_close, folder);
  return bytes == 0;
}

constexpr size_t kMaxOthers = 1024;
using Ids = std::array<pid_t, kMaxOthers>;

// Fills in the other threads, and returns their number; nothing if they cannot be read. The kernel
// may pass over one where another ends meanwhile, so they are counted, too.
std::optional<size_t> other_threads(Ids& ids) noexcept {
  constexpr int kAttempts = 5;
  constexpr size_t kLinksOfNone = 2;
  const pid_t mine = this_thread_id();
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    size_t count = 0;
    const bool is_whole = for_each_task([&](pid_t id) {
      if (id == mine) return;
      if (count < kMaxOthers) ids[count] = id;
      ++count;
    });
    struct stat tasks {};
    if (!is_whole || count > kMaxOthers || stat("/proc/self/task", &tasks) != 0)
      return std::nullopt;
    if (tasks.st_nlink == kLinksOfNone + count + 1) return count;
  }
  return std::nullopt;
}

// Returns whether a thread has ended, but for what the kernel still does: it runs no more code.
bool has_ended(pid_t id) noexcept {
  std::array<char, 40> path{"/proc/self/task/"};
  std::array<char, 12> digits;
  size_t count = 0;
  for (pid_t rest = id; rest > 0; rest /= 10) digits[count++] = static_cast<char>('0' + rest % 10);
  size_t at = sizeof "/proc/self/task/" - 1;
  while (count > 0) path[at++] = digits[--count];
  std::memcpy(&path[at], "/stat", sizeof "/stat");
  const auto file =
      static_cast<int>(syscall(SYS_openat, AT_FDCWD, path.data(), O_RDONLY | O_CLOEXEC));
  if (file < 0) return errno == ENOENT;
  std::array<char, 512> text{};
  const long size = syscall(SYS_read, file, text.data(), text.size() - 1);
  syscall(SYS_close, file);
  if (size <= 0) return size < 0 && errno == ESRCH;
  // 17 (a name) S 1 2 3 4 5 flags …: the name may have brackets.
  const char* next = std::strrchr(text.data(), ')');
  if (next == nullptr) return false;
  constexpr unsigned kExiting = 4;  // PF_EXITING
  constexpr int kWordsBefore = 7;   // the state and five numbers, each behind a blank
  for (int word = 0; word < kWordsBefore; ++word) {
    next = std::strchr(next + 1, ' ');
    if (next == nullptr) return false;
  }
  unsigned flags = 0;
  for (++next; *next >= '0' && *next <= '9'; ++next)
    flags = 10 * flags + static_cast<unsigned>(*next - '0');
  return (flags & kExiting) != 0;
}

Kind kind_of_all(const Ids& ids, size_t count, bool may_have_ended) {
  if (count == 0) return Kind::kNone;
  Ids unknown = ids;  // 0: it is no thread of the program's
  const auto end = unknown.begin() + static_cast<std::ptrdiff_t>(count);
  Kind all = Kind::kNone;
  uintptr_t idle_routine = 0;  // workers of one pool have one
  for_each_known_thread(count, [&](const Thread& thread) {
    const auto there = std::find(unknown.begin(), end, thread.id);
    if (thread.id == 0 || there == end) return;
    const uintptr_t routine = thread.start.routine;
    Kind kind = Kind::kNone;
    if (routine != idle_routine && !is_own(routine)) {
      if (is_of_idle_pool(thread.start)) {
        idle_routine = routine;
      } else {
        kind = kind_of_state(thread.start.argument);
      }
    }
    if (kind == Kind::kProgram) return;
    all = std::max(all, kind);
    *there = 0;
  });
  const bool has_program = std::any_of(unknown.begin(), end, [&](pid_t id) {
    return id != 0 && !(may_have_ended && has_ended(id));
  });
  return has_program ? Kind::kProgram : all;
}

std::atomic<pid_t> process{0};  // that this code was loaded into, or that fork() made
// What the thread that forks saw; kProgram until it has looked.
std::atomic<Kind> at_fork{Kind::kProgram};
std::atomic<bool> fork_is_noted{false};
std::atomic<Kind> inherited{Kind::kNone};  // in a child: what was there when it was made

// For a copy. Written by the thread that has `noting`.
std::atomic<bool> noting{false};
Ids noted_ids{};
size_t noted_count = 0;
// Only in the copy:
bool this_is_a_copy = false;
bool copy_is_noted = false;

}  // namespace

Kind OtherThreads::look() noexcept {
  const int error = errno;
  Kind kind = Kind::kProgram;
  Ids ids;
  if (this_is_a_copy || process.load() != getpid()) {
    // A copy: the parent's other threads, in the parent's memory.
    if (copy_is_noted) kind = kind_of_all(noted_ids, noted_count, /*may_have_ended=*/false);
  } else if (const auto count = other_threads(ids)) {
    kind = kind_of_all(ids, *count, /*may_have_ended=*/true);
  }
  errno = error;
  return std::max(kind, inherited.load());
}

void OtherThreads::prepare() noexcept {
  layout = Layout::find();
  process.store(getpid());
  const auto after_fork = [] { fork_is_noted.store(false); };
  if (pthread_atfork(&note_fork, after_fork, &be_child) != 0) inherited.store(Kind::kProgram);
}

void OtherThreads::note_fork() noexcept {
  if (!fork_is_noted.exchange(true)) at_fork.store(look());
}

void OtherThreads::be_child() noexcept {
  inherited.store(at_fork.load());
  process.store(getpid());
  noting.store(false);
  fork_is_noted.store(false);
}

void OtherThreads::add_own(void* (*start)(void*)) noexcept {
  const auto routine = reinterpret_cast<uintptr_t>(start);
  for (auto& own : own_routines) {
    uintptr_t none = 0;
    if (own.load() == routine || own.compare_exchange_strong(none, routine)) return;
  }
}

bool OtherThreads::begin_copy() noexcept {
  if (noting.exchange(true)) return false;
  const int error = errno;
  const auto count = other_threads(noted_ids);
  errno = error;
  noted_count = count.value_or(0);
  if (!count.has_value()) noting.store(false);
  return count.has_value();
}

void OtherThreads::end_copy() noexcept { noting.store(false); }
void OtherThreads::be_copy(bool noted) noexcept {
  this_is_a_copy = true;
  copy_is_noted = noted;
}

}  // namespace memledger::core
