#include "runner/inside/unreal_files.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "runner/environment.h"
#include "runner/inside/end_calls.h"
#include "runner/inside/noted_files.h"
#include "runner/inside/quiet_write.h"
#include "runner/inside/unreal_files_names.h"

// libmemledger_preload.so has it.
#pragma weak memledger_observe_sudden_exit

// System calls instead of functions that libmemledger_measure.so has itself.

namespace memledger::inside {
namespace {

char list_path[64];  // empty: there is none
uint64_t list_inode;
int first_process;  // of the run
char callers_folder[kPathBytes];
bool has_standard_error = true;
bool is_quiet;
thread_local int own_files __attribute__((tls_model("initial-exec")));

int open_list(int flags) {
  // The program may have put something else there, which is better not even opened.
  constexpr char kWanted[] = "/memfd:";
  char link[sizeof kWanted + sizeof kWrittenListName] = "";
  const long length = syscall(SYS_readlinkat, AT_FDCWD, list_path, link, sizeof link - 1);
  constexpr size_t kPrefix = sizeof kWanted - 1;
  if (length < 0 || strncmp(link, kWanted, kPrefix) != 0 ||
      strncmp(link + kPrefix, kWrittenListName, sizeof kWrittenListName - 1) != 0)
    return -1;
  const int file =
      static_cast<int>(syscall(SYS_openat, AT_FDCWD, list_path, flags | O_CLOEXEC | O_NONBLOCK, 0));
  struct stat status;
  if (file >= 0 && fstat(file, &status) == 0 && status.st_ino == list_inode) return file;
  if (file >= 0) close(file);
  return -1;
}

// The whole list in memory.
class List {
 public:
  List() {
    const int file = open_list(O_RDWR);
    struct stat status;
    if (file < 0) return;
    if (fstat(file, &status) == 0 && status.st_size >= static_cast<off_t>(sizeof *header())) {
      bytes_ = static_cast<size_t>(status.st_size);
      void* const mapped = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
      if (mapped != MAP_FAILED) begin_ = static_cast<char*>(mapped);
    }
    close(file);
  }
  ~List() {
    if (begin_ != nullptr) munmap(begin_, bytes_);
  }
  List(const List&) = delete;
  List& operator=(const List&) = delete;

  explicit operator bool() const { return begin_ != nullptr; }
  WrittenListHeader* header() const { return reinterpret_cast<WrittenListHeader*>(begin_); }

  template <typename Visit>
  void for_each(const Visit& visit) const {
    for (size_t at = sizeof(WrittenListHeader); at + sizeof(WrittenRecord) < bytes_;) {
      // Records are not aligned.
      WrittenRecord record;
      memcpy(&record, begin_ + at, sizeof record);
      const char* const path = begin_ + at + sizeof record;
      const auto* const end =
          static_cast<const char*>(memchr(path, '\0', bytes_ - at - sizeof record));
      if (end == nullptr) return;
      if (visit(record, path)) memcpy(begin_ + at, &record, sizeof record);
      at += sizeof record + static_cast<size_t>(end - path) + 1;
    }
  }

 private:
  char* begin_ = nullptr;
  size_t bytes_ = 0;
};

// One of zeros that is not on the stack: a thread that ends the process may have next to none. Null
// where there is no memory.
template <typename T>
class Mapped {
 public:
  Mapped() {
    void* const memory = mmap(nullptr, sizeof(T), PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory != MAP_FAILED) it_ = static_cast<T*>(memory);
  }
  ~Mapped() {
    if (it_ != nullptr) munmap(it_, sizeof(T));
  }
  Mapped(const Mapped&) = delete;
  Mapped& operator=(const Mapped&) = delete;
  T* get() const { return it_; }

 private:
  T* it_ = nullptr;
};

// Paths that were reported; if the table is full, one is reported again.
class Seen {
 public:
  bool is_new(const char* path) {
    uint64_t hash = 14695981039346656037u;  // FNV-1a
    for (const char* at = path; *at != '\0'; ++at)
      hash = (hash ^ static_cast<unsigned char>(*at)) * 1099511628211u;
    for (size_t i = 0; i < 16; ++i) {
      uint64_t& place = places_[(hash + i) % kPlaces];
      if (place == hash) return false;
      if (place != 0) continue;
      place = hash;
      return true;
    }
    return true;
  }

 private:
  static constexpr size_t kPlaces = 4096;
  uint64_t places_[kPlaces];
};

// Its content was changed then or later, and is still there. A program that sets the time of its
// files is believed.
bool was_written_since(const char* path, int64_t then_ns) {
  struct stat status;
  return stat(path, &status) == 0 && S_ISREG(status.st_mode) && status.st_size > 0 &&
         status.st_mtim.tv_sec * INT64_C(1000000000) + status.st_mtim.tv_nsec >= then_ns;
}

// --- The line of a run whose first process has no report: a shell's, say.

struct Line {
  char text[2048];
  size_t length;
  int shown;
  uint64_t more;
  char whole[2048 + 256];

  void add(const char* part) {
    while (*part != '\0' && length + 1 < sizeof text) {
      const auto byte = static_cast<unsigned char>(*part++);
      text[length++] = byte < ' ' || byte == 0x7f ? '?' : static_cast<char>(byte);
    }
  }
};

void add_to_line(void* context, const char* path) {
  constexpr int kShown = 5;
  Line& line = *static_cast<Line*>(context);
  const size_t room = sizeof line.text - line.length;
  if (line.shown == kShown || strlen(path) + 200 > room) {
    ++line.more;
    return;
  }
  if (line.shown++ > 0) line.add(", ");
  const size_t folder = strlen(callers_folder);
  const bool is_below =
      folder > 0 && strncmp(path, callers_folder, folder) == 0 && path[folder] == '/';
  line.add(is_below ? path + folder + 1 : path);
}

void tell_of_rest() {
  if (list_path[0] == '\0' || is_quiet || getpid() != first_process) return;
  const KeptErrno kept;
  const Mapped<Line> mapped;
  if (mapped.get() == nullptr) return;
  Line& files = *mapped.get();
  bool is_known = false, is_complete = true;
  const uint64_t count = memledger_visit_unreal_files(first_process, /*tells=*/2, &add_to_line,
                                                      &files, &is_known, &is_complete);
  if (count == 0) return;
  char* const text = files.whole;
  constexpr size_t kBytes = sizeof files.whole;
  int length = snprintf(text, kBytes,
                        "memledger run: %s%llu file%s written while the GPU's values were not "
                        "real: %s",
                        is_complete ? "" : "at least ", static_cast<unsigned long long>(count),
                        count == 1 ? " was" : "s were", files.text);
  if (files.more > 0)
    length += snprintf(text + length, kBytes - static_cast<size_t>(length), " and %llu more",
                       static_cast<unsigned long long>(files.more));
  length += snprintf(text + length, kBytes - static_cast<size_t>(length),
                     " (%s may hold zeros or made-up numbers)\n", count == 1 ? "it" : "they");
  const iovec line = {text, static_cast<size_t>(length)};
  if (has_standard_error) write_quietly(STDERR_FILENO, &line, 1);
}

__attribute__((destructor)) void tell_at_exit() { tell_of_rest(); }
void tell_at_sudden_exit(int /*status*/) noexcept { tell_of_rest(); }

}  // namespace

void begin_to_list_files(const char* value) {
  char* end = nullptr;
  const long process = strtol(value, &end, 10);
  if (*end != ':') return;
  const long descriptor = strtol(end + 1, &end, 10);
  if (*end != ':') return;
  list_inode = strtoull(end + 1, &end, 10);
  if (*end != '\0' || process <= 0 || descriptor < 0) return;
  snprintf(list_path, sizeof list_path, "/proc/%ld/fd/%ld", process, descriptor);
  first_process = static_cast<int>(process);
  if (const char* const folder = secure_getenv(environment::kFolder))
    snprintf(callers_folder, sizeof callers_folder, "%s", folder);
  const char* const quiet = secure_getenv(environment::kQuiet);
  has_standard_error = fcntl(STDERR_FILENO, F_GETFD) >= 0;
  is_quiet = quiet != nullptr && *quiet != '\0' && strcmp(quiet, "0") != 0;
  if (getpid() == first_process && &memledger_observe_sudden_exit != nullptr)
    memledger_observe_sudden_exit(&tell_at_sudden_exit);
}

bool are_files_listed() { return list_path[0] != '\0' && own_files == 0; }

bool list_file(const char* path) {
  const int file = open_list(O_RDWR | O_APPEND);
  if (file < 0) return false;
  WrittenListHeader header;
  struct stat status;
  bool is_listed = false;
  if (fstat(file, &status) == 0 &&
      syscall(SYS_pread64, file, &header, sizeof header, 0) == sizeof header) {
    WrittenRecord record = {static_cast<uint32_t>(getpid()), 0};
    const size_t length = strlen(path) + 1;
    // Half is left for what is opened once such values have been read.
    const size_t room = header.first_read_ns == 0 ? kMaxListBytes / 2 : kMaxListBytes;
    if (static_cast<size_t>(status.st_size) + sizeof record + length <= room) {
      const iovec parts[2] = {{&record, sizeof record}, {const_cast<char*>(path), length}};
      is_listed = may_grow(file, sizeof record + length) && write_quietly(file, parts, 2) > 0;
    } else if (header.is_full == 0) {
      const int whole = open_list(O_RDWR);  // what is appended to cannot be changed
      header.is_full = 1;
      syscall(SYS_pwrite64, whole, &header.is_full, sizeof header.is_full,
              offsetof(WrittenListHeader, is_full));
      if (whole >= 0) close(whole);
    }
  }
  close(file);
  return is_listed;
}

}  // namespace memledger::inside

using memledger::inside::KeptErrno;
using memledger::inside::List;
using memledger::inside::WrittenRecord;

extern "C" {

__attribute__((visibility("default"))) void memledger_own_file(int change) {
  memledger::inside::own_files += change;
}

__attribute__((visibility("default"))) void memledger_note_unreal_value() {
  if (memledger::inside::list_path[0] == '\0') return;
  const KeptErrno kept;
  const List list;
  struct timespec now;
  if (!list || clock_gettime(CLOCK_REALTIME_COARSE, &now) != 0) return;
  int64_t none = 0;
  const int64_t ns = now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
  __atomic_compare_exchange_n(&list.header()->first_read_ns, &none, ns, false, __ATOMIC_RELAXED,
                              __ATOMIC_RELAXED);
}

__attribute__((visibility("default"))) uint64_t memledger_visit_unreal_files(
    int process, int tells, memledger_path_visitor visit, void* context, bool* is_known,
    bool* is_complete) {
  *is_known = false;
  if (memledger::inside::list_path[0] == '\0') return 0;
  const KeptErrno kept;
  const List list;
  if (!list || list.header()->first_read_ns == 0) return 0;
  *is_known = true;
  *is_complete = list.header()->is_full == 0;
  uint64_t count = 0;
  const bool is_first = process == memledger::inside::first_process;
  const auto own = static_cast<uint32_t>(process);
  const memledger::inside::Mapped<memledger::inside::Seen> seen;
  list.for_each([&](WrittenRecord& record, const char* path) {
    const bool is_ours = record.writer == own || is_first;
    const bool was_told = record.teller != 0 && (record.teller != own || tells == 2);
    if (!is_ours || was_told ||
        !memledger::inside::was_written_since(path, list.header()->first_read_ns))
      return false;
    if (seen.get() == nullptr || seen.get()->is_new(path)) {
      ++count;
      visit(context, path);
    }
    record.teller = own;
    return tells != 0;
  });
  return count;
}

}  // extern "C"
