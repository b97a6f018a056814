#include "virtual_gpu/shared_devices.h"

#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "virtual_gpu/unconsidered_functions.h"

namespace memledger::virtual_gpu {
namespace {

constexpr uint64_t kMagic = 0x6d656d6c65646766;  // changes with the layout of State
constexpr uint32_t kMostProcesses = 1024;
constexpr uint32_t kMostExports = 4096;
constexpr uint32_t kMostImports = 8192;
constexpr size_t kMostDevices = 8;
constexpr char kPrefix[] = "memledger-devices-";

struct SharedDevice {
  char name[64];
  uint64_t capacity;
};

// A process is known by when it began, as the system gives its number to another later.
struct ProcessSlot {
  int32_t id;  // 0: free
  uint32_t contexts;
  uint64_t begun;
  uint64_t used[kMostDevices];
};

struct ExportSlot {
  uint64_t number;  // 0: free
  uint32_t imports;
  uint32_t is_orphaned;  // its process has let it go, and others have not
  uint32_t process;
  uint32_t device;
  uint64_t address;
  uint64_t bytes;
};

// What a process has imported, which it lets go at its end, too.
struct ImportSlot {
  uint64_t number;  // of the export; 0: free
  uint32_t process;
};

// Where files live that only this machine sees and that do not outlive it.
std::string folder() {
  struct stat found;
  const bool has_memory = stat("/dev/shm", &found) == 0 && S_ISDIR(found.st_mode) &&
                          access("/dev/shm", W_OK | X_OK) == 0;
  return has_memory ? "/dev/shm/" : "/tmp/";
}

std::string prefix() { return kPrefix + std::to_string(geteuid()) + "-"; }

// When a living process began; nothing for one that has ended, whether or not its parent has
// noticed.
std::optional<uint64_t> begin_of(pid_t id) {
  char path[64];
  std::snprintf(path, sizeof path, "/proc/%d/stat", static_cast<int>(id));
  const int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return std::nullopt;
  char text[1024];
  const ssize_t length = read(file, text, sizeof text - 1);
  close(file);
  if (length <= 0) return std::nullopt;
  text[length] = 0;
  // The second field is the program's name in parentheses, which can hold anything.
  const char* const rest = std::strrchr(text, ')');
  char status = 0;
  long threads = 0;
  unsigned long long begun = 0;
  // NOLINTNEXTLINE(bugprone-unchecked-string-to-number-conversion): the kernel writes numbers.
  if (!rest || std::sscanf(rest + 1,
                           " %c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d "
                           "%ld %*d %llu",
                           &status, &threads, &begun) != 3)
    return std::nullopt;
  // A zombie with threads is a program whose first thread has ended.
  if (status == 'X' || (status == 'Z' && threads <= 1)) return std::nullopt;
  return begun;
}

// What others may find where this process is killed in the middle: `field` has its value only once
// all that was stored before has its own.
template <typename T>
void publish(T& field, T value) {
  __atomic_store_n(&field, value, __ATOMIC_RELEASE);
}
template <typename T>
T published(const T& field) {
  return __atomic_load_n(&field, __ATOMIC_ACQUIRE);
}

bool is_alive(const ProcessSlot& process) {
  const std::optional<uint64_t> begun = begin_of(published(process.id));
  return begun && *begun == process.begun;
}

// Numbers of processes mean something within one.
uint64_t process_namespace() {
  struct stat found;
  return stat("/proc/self/ns/pid", &found) == 0 ? found.st_ino : 0;
}

class File {
 public:
  explicit File(int number) : number_(number) {}
  ~File() {
    if (number_ < 0) return;
    flock(number_, LOCK_UN);  // a mapping of the file would keep it
    close(number_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  explicit operator bool() const { return number_ >= 0; }
  int number() const { return number_; }

 private:
  const int number_;
};

bool lock_file(int file, int operation) {
  int status;
  do {
    status = flock(file, operation);
  } while (status != 0 && errno == EINTR);
  return status == 0;
}

// The folder is everybody's: another user may have made the file first, or given our own file of
// something else this name as well. One without a name has just been removed.
bool is_ours_alone(const struct stat& found) {
  return S_ISREG(found.st_mode) && found.st_uid == geteuid() && (found.st_mode & 077) == 0 &&
         found.st_nlink <= 1;
}

std::string reason(const char* what) { return std::string(what) + ": " + std::strerror(errno); }

}  // namespace

// All zeros is a state without processes, but for the lock.
struct SharedDevices::State {
  uint64_t magic;
  uint64_t bytes;
  uint64_t mark;
  uint64_t process_namespace;
  uint64_t next_export;
  uint32_t device_count;
  uint32_t processes_end;  // of the slots ever in use
  uint32_t exports_end;
  uint32_t imports_end;
  SharedDevice devices[kMostDevices];
  pthread_mutex_t mutex;
  ProcessSlot processes[kMostProcesses];
  ExportSlot exports[kMostExports];
  ImportSlot imports[kMostImports];
};

// Holds the lock that the processes share. One that ends while it holds it leaves nothing half
// done: every change is one number.
class SharedDevices::Locked {
 public:
  explicit Locked(State* state) : state_(state) {
    if (pthread_mutex_lock(&state_->mutex) == EOWNERDEAD) pthread_mutex_consistent(&state_->mutex);
  }
  ~Locked() { pthread_mutex_unlock(&state_->mutex); }
  Locked(const Locked&) = delete;
  Locked& operator=(const Locked&) = delete;

 private:
  State* const state_;
};

SharedDevices::SharedDevices(const std::string& name, std::vector<Device> devices)
    : name_(name), path_(folder() + prefix() + name), devices_(std::move(devices)) {}

std::unique_ptr<SharedDevices> SharedDevices::join(const std::string& name,
                                                   std::vector<Device> devices,
                                                   std::string* error) {
  std::unique_ptr<SharedDevices> made(new SharedDevices(name, std::move(devices)));
  if (!made->attach(error)) return nullptr;
  made->remove_unused_files();
  return made;
}

SharedDevices::~SharedDevices() { leave(); }

bool SharedDevices::attach(std::string* error) {
  for (;;) {
    const File file(open(path_.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600));
    if (!file) {
      *error = reason(path_.c_str());
      return false;
    }
    struct stat found;
    if (fstat(file.number(), &found) != 0 || !is_ours_alone(found)) {
      *error = path_ + " is not a file of this user's alone: choose another name";
      return false;
    }
    // A process that joins or leaves holds it: the last one that leaves removes the file.
    if (!lock_file(file.number(), LOCK_EX)) {
      *error = reason(path_.c_str());
      return false;
    }
    struct stat named;
    if (stat(path_.c_str(), &named) != 0 || named.st_ino != found.st_ino ||
        named.st_dev != found.st_dev)
      continue;
    file_number_ = found.st_ino;
    return prepare(file.number(), error);
  }
}

bool SharedDevices::prepare(int file, std::string* error) {
  // A file of another version of memledger is left alone, as it is, as long as it may be in use.
  struct {
    uint64_t magic, bytes;
  } head{};
  if (pread(file, &head, sizeof head, 0) < 0) {
    *error = reason(path_.c_str());
    return false;
  }
  const bool is_known = head.magic == kMagic && head.bytes == sizeof(State);
  if (head.magic && !is_known) {
    *error = path_ + " is of another version of memledger; remove it once nothing uses it";
    return false;
  }
  if (const int status = posix_fallocate(file, 0, sizeof(State))) {
    *error = path_ + ": " + std::strerror(status);
    return false;
  }
  void* const mapped = mmap(nullptr, sizeof(State), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (mapped == MAP_FAILED) {
    *error = reason(path_.c_str());
    return false;
  }
  state_ = static_cast<State*>(mapped);
  // Whether those of another live cannot be seen from here.
  const bool is_foreign = is_known && state_->process_namespace != process_namespace();
  if (is_foreign) {
    *error = path_ +
             " is of processes in another PID namespace (a container?); remove it once they "
             "have ended";
    detach();
    return false;
  }
  const bool is_used = is_known && is_left();
  if (!is_used) {
    std::memset(mapped, 0, sizeof(State));
    state_->bytes = sizeof(State);
    state_->process_namespace = process_namespace();
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    state_->mark = static_cast<uint64_t>(now.tv_sec) * 1000000000u +
                   static_cast<uint64_t>(now.tv_nsec) + static_cast<uint64_t>(getpid());
    state_->device_count = static_cast<uint32_t>(devices_.size());
    for (size_t i = 0; i < devices_.size(); ++i) {
      devices_[i].name.copy(state_->devices[i].name, sizeof state_->devices[i].name - 1);
      state_->devices[i].capacity = devices_[i].capacity;
    }
    pthread_mutexattr_t kind;
    pthread_mutexattr_init(&kind);
    pthread_mutexattr_setpshared(&kind, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&kind, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(&state_->mutex, &kind);
    pthread_mutexattr_destroy(&kind);
    publish(state_->magic, kMagic);
  }
  if (add_process(error)) return true;
  detach();
  return false;
}

std::string SharedDevices::describe(const std::vector<Device>& devices) const {
  std::string text;
  for (size_t first = 0; first < devices.size();) {
    size_t end = first;
    while (end < devices.size() && devices[end].name == devices[first].name &&
           devices[end].capacity == devices[first].capacity)
      ++end;
    if (!text.empty()) text += ", ";
    text += std::to_string(end - first) + " x " + devices[first].name + " of " +
            std::to_string(devices[first].capacity) + " bytes";
    first = end;
  }
  return text;
}

// Called with the file locked.
bool SharedDevices::add_process(std::string* error) {
  const pid_t id = getpid();
  const std::optional<uint64_t> begun = begin_of(id);
  if (!begun) {
    *error = "/proc does not tell when this process began";
    return false;
  }
  std::vector<Device> theirs;
  for (uint32_t i = 0; i < state_->device_count; ++i)
    theirs.push_back({state_->devices[i].name, state_->devices[i].capacity});
  std::vector<Device> ours = devices_;
  for (Device& device : ours) device.name.resize(std::min(device.name.size(), size_t{63}));
  if (describe(theirs) != describe(ours)) {
    const auto* const first =
        std::find_if(state_->processes, state_->processes + state_->processes_end,
                     [](const ProcessSlot& process) { return process.id != 0; });
    *error = "process " + std::to_string(first->id) + " has other devices under this name (" +
             describe(theirs) + "; here " + describe(ours) + ")";
    return false;
  }
  const Locked locked(state_);
  reap();
  uint32_t place = 0;
  // A program that went over into another by exec has left what it had, too.
  for (uint32_t i = 0; i < state_->processes_end; ++i) {
    if (state_->processes[i].id == id && state_->processes[i].begun == *begun) drop_process(i);
  }
  while (place < kMostProcesses && state_->processes[place].id) ++place;
  if (place == kMostProcesses) {
    *error = "more than " + std::to_string(kMostProcesses) + " processes share devices";
    return false;
  }
  ProcessSlot& mine = state_->processes[place];
  mine.contexts = 0;
  mine.begun = *begun;
  std::fill(std::begin(mine.used), std::end(mine.used), 0);
  drop_process(place);  // what one that was killed while it left has not dropped
  state_->processes_end = std::max(state_->processes_end, place + 1);
  publish(mine.id, static_cast<int32_t>(id));
  slot_ = static_cast<int>(place);
  return true;
}

void SharedDevices::detach() {
  if (state_) munmap(state_, sizeof(State));
  state_ = nullptr;
  slot_ = -1;
}

// Frees what processes held that have ended.
void SharedDevices::reap() {
  for (uint32_t i = 0; i < state_->processes_end; ++i) {
    ProcessSlot& process = state_->processes[i];
    if (!process.id || static_cast<int>(i) == slot_ || is_alive(process)) continue;
    drop_process(i);
  }
}

void SharedDevices::drop_process(uint32_t place) {
  state_->processes[place].id = 0;
  for (uint32_t i = 0; i < state_->exports_end; ++i) {
    if (state_->exports[i].process == place) state_->exports[i].number = 0;
  }
  for (uint32_t i = 0; i < state_->imports_end; ++i) {
    ImportSlot& import = state_->imports[i];
    if (!import.number || import.process != place) continue;
    drop_import(import.number);
    import.number = 0;
  }
}

bool SharedDevices::is_left() const {
  for (uint32_t i = 0; i < std::min(state_->processes_end, kMostProcesses); ++i) {
    if (state_->processes[i].id && is_alive(state_->processes[i])) return true;
  }
  return false;
}

uint64_t SharedDevices::sum(int device) const {
  uint64_t bytes = 0;
  for (uint32_t i = 0; i < state_->processes_end; ++i) {
    if (state_->processes[i].id) bytes += state_->processes[i].used[device];
  }
  return bytes;
}

// After a fork the child joins at its first call, as a process of its own.
bool SharedDevices::has_slot() {
  if (slot_ >= 0) return true;
  if (has_left_) return false;
  if (state_) detach();
  std::string error;
  if (attach(&error)) return true;
  has_left_ = true;
  say("share=%s: %s. This process's devices have no memory.", name_.c_str(), error.c_str());
  return false;
}

bool SharedDevices::take(int device, uint64_t bytes) {
  if (!has_slot()) return false;
  const Locked locked(state_);
  const uint64_t capacity = devices_[static_cast<size_t>(device)].capacity;
  if (bytes > capacity) return false;
  if (sum(device) > capacity - bytes) {
    reap();
    if (sum(device) > capacity - bytes) return false;
  }
  state_->processes[slot_].used[device] += bytes;
  return true;
}

void SharedDevices::give(int device, uint64_t bytes) {
  if (!inherited_.empty()) {
    uint64_t& inherited = inherited_[device];
    const uint64_t parents = std::min(inherited, bytes);
    inherited -= parents;
    bytes -= parents;
  }
  if (!bytes || slot_ < 0) return;
  const Locked locked(state_);
  uint64_t& used = state_->processes[slot_].used[device];
  used -= std::min(used, bytes);
}

uint64_t SharedDevices::used(int device) {
  if (!has_slot()) return devices_[static_cast<size_t>(device)].capacity;
  const Locked locked(state_);
  reap();
  return sum(device);
}

void SharedDevices::set_context(int device, bool exists) {
  if (!has_slot()) return;
  const Locked locked(state_);
  const uint32_t bit = 1u << device;
  uint32_t& contexts = state_->processes[slot_].contexts;
  contexts = exists ? contexts | bit : contexts & ~bit;
}

std::vector<SharedDevices::Process> SharedDevices::processes(int device) {
  std::vector<Process> result;
  if (!has_slot()) return result;
  const Locked locked(state_);
  reap();
  for (uint32_t i = 0; i < state_->processes_end; ++i) {
    const ProcessSlot& process = state_->processes[i];
    if (process.id && (process.contexts >> device & 1 || process.used[device]))
      result.push_back({process.id, process.used[device]});
  }
  return result;
}

std::optional<SharedDevices::Ticket> SharedDevices::add_export(int device, uint64_t address,
                                                               uint64_t bytes) {
  if (!has_slot()) return std::nullopt;
  const Locked locked(state_);
  uint32_t place = 0;
  while (place < state_->exports_end && state_->exports[place].number) ++place;
  if (place == kMostExports) return std::nullopt;
  ExportSlot& added = state_->exports[place];
  added.process = static_cast<uint32_t>(slot_);
  added.device = static_cast<uint32_t>(device);
  added.address = address;
  added.bytes = bytes;
  added.imports = 0;
  added.is_orphaned = 0;
  const uint64_t number = ++state_->next_export;
  state_->exports_end = std::max(state_->exports_end, place + 1);
  publish(added.number, number);
  return Ticket{state_->mark, number};
}

void SharedDevices::remove_export(uint64_t number) {
  if (slot_ < 0) return;
  const Locked locked(state_);
  for (uint32_t i = 0; i < state_->exports_end; ++i) {
    ExportSlot& found = state_->exports[i];
    if (found.number == number && found.process == static_cast<uint32_t>(slot_)) found.number = 0;
  }
}

bool SharedDevices::release_export(uint64_t number) {
  if (slot_ < 0) return true;
  const Locked locked(state_);
  reap();
  for (uint32_t i = 0; i < state_->exports_end; ++i) {
    ExportSlot& found = state_->exports[i];
    if (found.number != number || found.process != static_cast<uint32_t>(slot_)) continue;
    if (found.imports) {
      found.is_orphaned = 1;
      return false;
    }
    found.number = 0;
  }
  return true;
}

void SharedDevices::add_import(uint64_t number) {
  if (slot_ < 0) return;
  const Locked locked(state_);
  uint32_t place = 0;
  while (place < state_->imports_end && state_->imports[place].number) ++place;
  if (place == kMostImports) return;  // its owner may give it back early
  for (uint32_t i = 0; i < state_->exports_end; ++i) {
    if (state_->exports[i].number != number) continue;
    ++state_->exports[i].imports;
    ImportSlot& added = state_->imports[place];
    added.process = static_cast<uint32_t>(slot_);
    state_->imports_end = std::max(state_->imports_end, place + 1);
    publish(added.number, number);
  }
}

void SharedDevices::remove_import(uint64_t number) {
  if (slot_ < 0) return;
  const Locked locked(state_);
  for (uint32_t i = 0; i < state_->imports_end; ++i) {
    ImportSlot& import = state_->imports[i];
    if (import.number != number || import.process != static_cast<uint32_t>(slot_)) continue;
    drop_import(number);
    import.number = 0;
    return;
  }
}

void SharedDevices::drop_import(uint64_t number) {
  for (uint32_t i = 0; i < state_->exports_end; ++i) {
    ExportSlot& found = state_->exports[i];
    if (found.number != number) continue;
    found.imports -= found.imports ? 1 : 0;
    if (found.imports || !found.is_orphaned) return;
    found.number = 0;
    uint64_t& used = state_->processes[found.process].used[found.device];
    used -= std::min(used, found.bytes);
  }
}

std::optional<SharedDevices::Export> SharedDevices::find_export(const Ticket& ticket) {
  if (!is_valid(ticket)) return std::nullopt;
  const Locked locked(state_);
  reap();
  for (uint32_t i = 0; i < state_->exports_end; ++i) {
    const ExportSlot& found = state_->exports[i];
    if (!found.number || found.number != ticket.number) continue;
    return Export{static_cast<int>(found.device), found.bytes,
                  found.process == static_cast<uint32_t>(slot_)};
  }
  return std::nullopt;
}

SharedDevices::Ticket SharedDevices::ticket_of(uint64_t number) {
  return has_slot() ? Ticket{state_->mark, number} : Ticket{0, 0};
}

bool SharedDevices::is_valid(const Ticket& ticket) {
  return has_slot() && ticket.mark == state_->mark && ticket.number;
}

void SharedDevices::forked() {
  if (slot_ >= 0) {
    for (size_t device = 0; device < devices_.size(); ++device)
      inherited_[static_cast<int>(device)] += state_->processes[slot_].used[device];
  }
  slot_ = -1;
}

// The last process takes the file with it.
void SharedDevices::leave() {
  has_left_ = true;
  if (!state_) return;
  if (slot_ < 0) return detach();
  const File file(open(path_.c_str(), O_RDWR | O_NOFOLLOW | O_CLOEXEC));
  struct stat found;
  const bool is_ours = file && fstat(file.number(), &found) == 0 && found.st_ino == file_number_ &&
                       lock_file(file.number(), LOCK_EX);
  {
    const Locked locked(state_);
    drop_process(static_cast<uint32_t>(slot_));
  }
  if (is_ours && !is_left()) unlink(path_.c_str());
  detach();
}

// Processes that were killed could not remove theirs.
void SharedDevices::remove_unused_files() const {
  const std::string in = folder();
  const std::string begin = prefix();
  DIR* const listing = opendir(in.c_str());
  if (!listing) return;
  while (const dirent* const entry = readdir(listing)) {
    if (std::strncmp(entry->d_name, begin.c_str(), begin.size()) != 0) continue;
    const std::string path = in + entry->d_name;
    if (path == path_) continue;
    const File file(open(path.c_str(), O_RDWR | O_NOFOLLOW | O_CLOEXEC));
    struct stat found;
    if (!file || fstat(file.number(), &found) != 0 || !is_ours_alone(found) ||
        found.st_size != static_cast<off_t>(sizeof(State)) ||
        !lock_file(file.number(), LOCK_EX | LOCK_NB))
      continue;
    void* const mapped = mmap(nullptr, sizeof(State), PROT_READ, MAP_SHARED, file.number(), 0);
    if (mapped == MAP_FAILED) continue;
    const auto* const state = static_cast<const State*>(mapped);
    bool in_use = state->magic != 0 &&
                  (state->magic != kMagic || state->process_namespace != process_namespace());
    for (uint32_t i = 0; state->magic && !in_use && i < kMostProcesses; ++i)
      in_use = state->processes[i].id && is_alive(state->processes[i]);
    munmap(mapped, sizeof(State));
    if (!in_use) unlink(path.c_str());
  }
  closedir(listing);
}

}  // namespace memledger::virtual_gpu
