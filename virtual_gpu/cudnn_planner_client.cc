#include "virtual_gpu/cudnn_planner_client.h"

#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <glob.h>
#include <link.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>

#include "virtual_gpu/cudnn_version.h"
#include "virtual_gpu/unconsidered_functions.h"

namespace memledger::virtual_gpu {
namespace {

constexpr char kPlannerName[] = "memledger_cudnn_planner";
constexpr char kCudnnName[] = "libcudnn.so.9";
constexpr int kCudaMajor = 13;
constexpr int kPlannerSocket = 3;
constexpr int kDefaultSeconds = 60;  // reading cuDNN's 500 MB from a slow disk is in it
constexpr int kMostStarts = 3;       // a graph that kills cuDNN must not kill it forever
constexpr uint32_t kMostAnswerBytes = 16U << 20;
constexpr size_t kMostFiles = 4096;
constexpr char kUnfinished[] = ".new-";
constexpr time_t kMostSecondsToWrite = 3600;
constexpr char kFileHeader[] = "memledger cuDNN plans 1\n";

// --- Text -----------------------------------------------------------------------------------

// The words of one line.
std::vector<std::string_view> split(std::string_view line, char at) {
  std::vector<std::string_view> words;
  while (!line.empty()) {
    const size_t end = line.find(at);
    if (end != 0) words.push_back(line.substr(0, end));
    if (end == std::string_view::npos) break;
    line.remove_prefix(end + 1);
  }
  return words;
}

template <typename T>
bool read_number(std::string_view text, T& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

bool read_notes(const std::vector<std::string_view>& words, size_t& at, std::vector<int>& notes) {
  size_t count = 0;
  if (at >= words.size() || !read_number(words[at], count)) return false;
  ++at;
  for (; count > 0; --count, ++at) {
    int note = 0;
    if (at >= words.size() || !read_number(words[at], note)) return false;
    notes.push_back(note);
  }
  return true;
}

uint64_t hash(std::string_view text, uint64_t seed) {
  uint64_t value = 14695981039346656037ULL ^ seed;  // FNV-1a
  for (const char c : text) value = (value ^ static_cast<unsigned char>(c)) * 1099511628211ULL;
  return value;
}

std::string hex(uint64_t value) {
  char text[17];
  std::snprintf(text, sizeof(text), "%016llx", static_cast<unsigned long long>(value));
  return text;
}

int64_t now_ms() {
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time);
  return int64_t{time.tv_sec} * 1000 + time.tv_nsec / 1000000;
}

const char* variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr || *value == '\0' ? nullptr : value;
}

// --- Which cuDNN ----------------------------------------------------------------------------

std::string folder_of_this_library() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<const void*>(&folder_of_this_library), &info) == 0 ||
      info.dli_fname == nullptr)
    return "";
  const std::string path = info.dli_fname;
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : path.substr(0, slash);
}

bool same_file(const std::string& a, const std::string& b) {
  struct stat one {
  }, other{};
  return stat(a.c_str(), &one) == 0 && stat(b.c_str(), &other) == 0 && one.st_dev == other.st_dev &&
         one.st_ino == other.st_ino;
}

// Where the dynamic linker would look for what this library needs.
std::vector<std::string> search_folders(const char* library) {
  std::vector<std::string> folders;
  void* const handle = dlopen(library, RTLD_LAZY | RTLD_NOLOAD);
  if (handle == nullptr) return folders;
  Dl_serinfo size{};
  if (dlinfo(handle, RTLD_DI_SERINFOSIZE, &size) == 0) {
    std::vector<char> memory(size.dls_size);
    auto* const list = reinterpret_cast<Dl_serinfo*>(memory.data());
    if (dlinfo(handle, RTLD_DI_SERINFOSIZE, list) == 0 &&
        dlinfo(handle, RTLD_DI_SERINFO, list) == 0) {
      for (unsigned i = 0; i < list->dls_cnt; ++i) folders.push_back(list->dls_serpath[i].dls_name);
    }
  }
  dlclose(handle);
  return folders;
}

std::vector<std::string> files_like(const std::string& pattern) {
  glob_t found{};
  std::vector<std::string> files;
  if (glob(pattern.c_str(), GLOB_NOSORT, nullptr, &found) == 0)
    files.assign(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  globfree(&found);
  std::sort(files.begin(), files.end());
  return files;
}

// Where Python environments keep cuDNN's wheel: the folder of a package is next to the one with its
// version. Another release chooses other engines, so its sizes would be no better than the model's.
std::vector<std::string> folders_of_wheels() {
  std::vector<std::string> environments;
  for (const char* const name : {"VIRTUAL_ENV", "CONDA_PREFIX"}) {
    if (const char* const folder = variable(name)) environments.emplace_back(folder);
  }
  if (const char* const home = variable("HOME"))
    environments.push_back(std::string(home) + "/.local");
  environments.emplace_back("/usr/local");
  const std::string release =
      std::to_string(cudnn_version() / 10000) + "." + std::to_string(cudnn_version() / 100 % 100);
  const std::string wheel =
      "/nvidia_cudnn_cu" + std::to_string(kCudaMajor) + "-" + release + ".*.dist-info";
  std::vector<std::string> folders;
  for (const std::string& environment : environments) {
    for (const char* const packages : {"site-packages", "dist-packages"}) {
      const std::string where = environment + "/lib/python3*/" + packages;
      for (const std::string& told : files_like(where + wheel))
        folders.push_back(told.substr(0, told.rfind('/')) + "/nvidia/cudnn/lib");
    }
  }
  return folders;
}

// The libcudnn that the program would have loaded without the stand-ins, else one that a Python
// environment has; empty for none.
std::string find_cudnn() {
  const char* const wanted = variable(kCudnnVariable);
  if (wanted != nullptr && std::strcmp(wanted, "model") == 0) return "";
  if (wanted != nullptr && std::strcmp(wanted, "ask") != 0) return wanted;
  const std::string own = folder_of_this_library();
  std::vector<std::string> folders = search_folders("libtorch_cuda.so");
  for (std::string& folder : search_folders(nullptr)) folders.push_back(std::move(folder));
  for (std::string& folder : folders_of_wheels()) folders.push_back(std::move(folder));
  for (const char* const folder :
       {"/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/local/cuda/lib64"})
    folders.emplace_back(folder);
  for (const std::string& folder : folders) {
    const std::string path = folder + "/" + kCudnnName;
    if (access(path.c_str(), R_OK) == 0 && !same_file(path, own + "/" + kCudnnName)) return path;
  }
  if (wanted != nullptr)
    say("%s=ask: there is no %s where this program would look for it, nor %s in a Python "
        "environment; sizes are the model's",
        kCudnnVariable, kCudnnName, cudnn_requirement().c_str());
  return "";
}

// --- The cache on disk ------------------------------------------------------------------------

// What others could have written, or could put something else in the place of, is not used.
bool is_ours_alone(const struct stat& found) {
  return found.st_uid == geteuid() && (found.st_mode & (S_IWGRP | S_IWOTH)) == 0;
}

class File {
 public:
  explicit File(int number = -1) : number_(number) {}
  ~File() {
    if (number_ >= 0) close(number_);
  }
  File(File&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  File& operator=(File&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }
  explicit operator bool() const { return number_ >= 0; }
  int number() const { return number_; }

 private:
  int number_;
};

// $XDG_CACHE_HOME, or $HOME/.cache, which may be links to where there is room. Both count only as
// absolute paths.
std::string cache_home() {
  const char* const cache = variable("XDG_CACHE_HOME");
  if (cache != nullptr && *cache == '/') return cache;
  const char* const home = variable("HOME");
  if (home == nullptr || *home != '/') return "";
  std::string folder = std::string(home) + "/.cache";
  mkdir(folder.c_str(), 0700);
  return folder;
}

// False where no folder can be had that is this user's alone.
File open_cache_folder() {
  const std::string home = cache_home();
  if (home.empty()) return File();
  constexpr int kFolder = O_RDONLY | O_DIRECTORY | O_CLOEXEC;
  File folder(open(home.c_str(), kFolder));
  for (const char* const part : {"memledger", "cudnn"}) {
    if (!folder) return File();
    mkdirat(folder.number(), part, 0755);
    folder = File(openat(folder.number(), part, kFolder | O_NOFOLLOW));
    struct stat found {};
    if (folder && (fstat(folder.number(), &found) != 0 || !is_ours_alone(found))) return File();
  }
  return folder;
}

// Distinguishes one cuDNN from another: a file that was replaced has other times.
std::string identity(const std::string& library) {
  struct stat file {};
  if (stat(library.c_str(), &file) != 0) return "";
  return library + " " + std::to_string(file.st_size) + " " + std::to_string(file.st_mtim.tv_sec) +
         "." + std::to_string(file.st_mtim.tv_nsec) + "\n";
}

// Nothing for what is no file of ours: a pipe, say, would be waited for.
std::optional<std::string> read_file(const File& folder, const std::string& name) {
  const File file(openat(folder.number(), name.c_str(),
                         O_RDONLY | O_NONBLOCK | O_NOFOLLOW | O_NOCTTY | O_CLOEXEC));
  struct stat found {};
  if (!file || fstat(file.number(), &found) != 0 || !S_ISREG(found.st_mode) ||
      !is_ours_alone(found))
    return std::nullopt;
  std::string text;
  char part[16384];
  ssize_t n = 0;
  while ((n = read(file.number(), part, sizeof(part))) > 0 && text.size() < kMostAnswerBytes)
    text.append(part, static_cast<size_t>(n));
  return n == 0 ? std::optional<std::string>(std::move(text)) : std::nullopt;
}

std::optional<std::string> read_cached(const File& folder, const std::string& name) {
  std::optional<std::string> text = read_file(folder, name);
  const size_t header = sizeof(kFileHeader) - 1;
  if (!text.has_value() || text->compare(0, header, kFileHeader) != 0 || text->size() < header + 17)
    return std::nullopt;
  const std::string answer = text->substr(header + 17);
  if (text->compare(header, 16, hex(hash(answer, 0))) != 0) return std::nullopt;
  return answer;
}

// Leaves the newest half, and nothing that a process left behind which was killed while it wrote.
void shrink(const File& folder) {
  const int copy = openat(folder.number(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR* const list = copy < 0 ? nullptr : fdopendir(copy);
  if (list == nullptr) {
    if (copy >= 0) close(copy);
    return;
  }
  std::vector<std::pair<time_t, std::string>> files;
  const time_t now = time(nullptr);
  while (const dirent* const entry = readdir(list)) {
    const std::string name = entry->d_name;
    const bool is_unfinished = name.compare(0, sizeof(kUnfinished) - 1, kUnfinished) == 0;
    struct stat file {};
    if ((name[0] == '.' && !is_unfinished) ||
        fstatat(folder.number(), entry->d_name, &file, AT_SYMLINK_NOFOLLOW) != 0 ||
        !S_ISREG(file.st_mode))
      continue;
    if (!is_unfinished) {
      files.emplace_back(file.st_mtime, name);
    } else if (now - file.st_mtime > kMostSecondsToWrite) {
      unlinkat(folder.number(), entry->d_name, 0);
    }
  }
  closedir(list);
  if (files.size() <= kMostFiles) return;
  std::sort(files.begin(), files.end());
  for (size_t i = 0; i < files.size() - kMostFiles / 2; ++i)
    unlinkat(folder.number(), files[i].second.c_str(), 0);
}

// More than the program may write would end it by SIGXFSZ.
bool may_write(size_t bytes) {
  rlimit most{};
  return getrlimit(RLIMIT_FSIZE, &most) == 0 &&
         (most.rlim_cur == RLIM_INFINITY || bytes <= most.rlim_cur);
}

// Others see the whole file or none of it. A full disk has none.
void write_cached(const File& folder, const std::string& name, const std::string& answer) {
  const std::string text = kFileHeader + hex(hash(answer, 0)) + "\n" + answer;
  if (!may_write(text.size())) return;
  const std::string temporary = kUnfinished + hex(hash(name, static_cast<uint64_t>(getpid()) << 32 ^
                                                                 static_cast<uint64_t>(now_ms())));
  const File file(openat(folder.number(), temporary.c_str(),
                         O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644));
  if (!file) return;
  bool whole = true;
  for (size_t done = 0; whole && done < text.size();) {
    const ssize_t n = write(file.number(), text.data() + done, text.size() - done);
    whole = n > 0;
    if (whole) done += static_cast<size_t>(n);
  }
  whole = whole && renameat(folder.number(), temporary.c_str(), folder.number(), name.c_str()) == 0;
  if (!whole) unlinkat(folder.number(), temporary.c_str(), 0);
}

// --- The process ------------------------------------------------------------------------------

int allowed_seconds() {
  int seconds = 0;
  const char* const text = variable(kCudnnSecondsVariable);
  return text != nullptr && read_number(std::string_view(text), seconds) && seconds > 0
             ? seconds
             : kDefaultSeconds;
}

// The connection to the planner. The program may close all descriptors, and get its number for a
// file of its own: that is never read, written or closed here.
class Connection {
 public:
  Connection() = default;
  explicit Connection(int number) : number_(number) {
    struct stat found {};
    if (number_ >= 0 && fstat(number_, &found) == 0) file_ = {found.st_dev, found.st_ino};
  }
  bool is_open() const {
    struct stat found {};
    return number_ >= 0 && fstat(number_, &found) == 0 && S_ISSOCK(found.st_mode) &&
           file_ == std::make_pair(found.st_dev, found.st_ino);
  }
  // -1 where it is no longer this connection's.
  int number() const { return is_open() ? number_ : -1; }
  void end() {
    if (is_open()) close(number_);
    number_ = -1;
  }

 private:
  int number_ = -1;
  std::pair<dev_t, ino_t> file_;
};

// The descriptor once it is ready, -1 where it does not become so or is no longer the connection's.
int wait_for(const Connection& connection, short what, int64_t deadline) {
  for (;;) {
    const int64_t left = deadline - now_ms();
    const int file = connection.number();
    if (left <= 0 || file < 0) return -1;
    pollfd poll_for{file, what, 0};
    const int ready = poll(&poll_for, 1, static_cast<int>(std::min<int64_t>(left, INT_MAX)));
    if (ready > 0) return connection.number();
    if (ready < 0 && errno != EINTR) return -1;
  }
}

bool send_all(const Connection& connection, const char* from, size_t bytes, int64_t deadline) {
  while (bytes > 0) {
    const int file = wait_for(connection, POLLOUT, deadline);
    if (file < 0) return false;
    const ssize_t n = send(file, from, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (n <= 0) return false;
    from += n;
    bytes -= static_cast<size_t>(n);
  }
  return true;
}

bool receive_all(const Connection& connection, char* to, size_t bytes, int64_t deadline) {
  while (bytes > 0) {
    const int file = wait_for(connection, POLLIN, deadline);
    if (file < 0) return false;
    const ssize_t n = recv(file, to, bytes, MSG_DONTWAIT);
    if (n < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (n <= 0) return false;
    to += n;
    bytes -= static_cast<size_t>(n);
  }
  return true;
}

std::optional<std::string> receive_text(const Connection& connection, int64_t deadline) {
  uint32_t bytes = 0;
  if (!receive_all(connection, reinterpret_cast<char*>(&bytes), sizeof(bytes), deadline) ||
      bytes > kMostAnswerBytes)
    return std::nullopt;
  std::string text(bytes, '\0');
  if (!receive_all(connection, text.data(), bytes, deadline)) return std::nullopt;
  return text;
}

// Starts a program. A program gets SIGCHLD for children that end, and any wait() sees them: what
// starts the other one ends without a signal, in the memory of this process.
struct Start {
  const char* program;
  const posix_spawn_file_actions_t* actions;
  const posix_spawnattr_t* attributes;
  char* const* arguments;
  char* const* environment;
  int failed;
};

int start_and_end(void* what) {
  auto* const start = static_cast<Start*>(what);
  pid_t pid = 0;
  start->failed = posix_spawn(&pid, start->program, start->actions, start->attributes,
                              start->arguments, start->environment);
  _exit(0);
}

bool start_quietly(Start& start) {
  constexpr size_t kStack = size_t{256} << 10;
  void* const stack =
      mmap(nullptr, kStack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
  if (stack == MAP_FAILED) return false;
  start.failed = EAGAIN;
  // No handler of the program's may run there.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  const pid_t child =
      clone(start_and_end, static_cast<char*>(stack) + kStack, CLONE_VM | CLONE_VFORK, &start);
  while (child > 0 && waitpid(child, nullptr, __WCLONE) < 0 && errno == EINTR) {
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  munmap(stack, kStack);
  return child > 0 && start.failed == 0;
}

// A program without standard streams writes to whatever has their numbers.
int above_standard_streams(int file) {
  if (file < 0 || file > STDERR_FILENO) return file;
  const int moved = fcntl(file, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
  close(file);
  return moved;
}

// Starts the planner and returns the socket to it, or -1. It is no child of this process: it starts
// its own and ends.
int start_planner(const std::string& library, int seconds) {
  const char* const given = variable(kCudnnPlannerVariable);
  const std::string program =
      given != nullptr ? given : folder_of_this_library() + "/" + kPlannerName;
  if (access(program.c_str(), X_OK) != 0) {
    say("cannot ask cuDNN: %s is missing; sizes are the model's", program.c_str());
    return -1;
  }
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) return -1;
  for (int& end : ends) end = above_standard_streams(end);
  if (ends[0] < 0 || ends[1] < 0) {
    for (const int end : ends) {
      if (end >= 0) close(end);
    }
    return -1;
  }
  std::vector<char*> environment;
  char no_devices[] = "CUDA_VISIBLE_DEVICES=";
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    if (std::strncmp(*entry, "LD_PRELOAD=", 11) != 0 &&
        std::strncmp(*entry, no_devices, sizeof(no_devices) - 1) != 0)
      environment.push_back(*entry);
  }
  environment.push_back(no_devices);
  environment.push_back(nullptr);
  std::string name = kPlannerName, path = library, limit = std::to_string(seconds);
  char* arguments[] = {name.data(), path.data(), limit.data(), nullptr};
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], kPlannerSocket);
  posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&actions, 1, "/dev/null", O_WRONLY, 0);
  posix_spawn_file_actions_addopen(&actions, 2, "/dev/null", O_WRONLY, 0);
  // No signal that this thread blocks stays blocked there.
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t none;
  sigemptyset(&none);
  posix_spawnattr_setsigmask(&attributes, &none);
  // Nor is any ignored: the planner ends by SIGALRM.
  sigset_t all;
  sigfillset(&all);
  posix_spawnattr_setsigdefault(&attributes, &all);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  Start start{program.c_str(), &actions, &attributes, arguments, environment.data(), 0};
  const bool started = start_quietly(start);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  close(ends[1]);
  if (!started) {
    close(ends[0]);
    return -1;
  }
  return ends[0];
}

struct Client {
  std::mutex mutex;  // of everything but `known`, held while the planner works
  std::optional<std::string> library;
  std::string library_identity;
  Connection connection;
  int starts = 0;
  bool given_up = false;
  bool shrunk = false;

  std::atomic<bool> found_none{false};

  std::mutex known_mutex;
  std::map<std::string, std::optional<std::vector<CudnnPlan>>> known;
};

Client* client = nullptr;

// The connection is the parent's, and its locks may have been held by a thread that the child does
// not have.
void start_anew_in_child() {
  if (client == nullptr) return;
  client->connection.end();
  client = new Client;  // The old one is left as it is.
}

Client& get_client() {
  static const bool made = [] {
    client = new Client;
    pthread_atfork(nullptr, nullptr, start_anew_in_child);
    return true;
  }();
  (void)made;
  return *client;
}

// With the mutex held.
bool connect(Client& c, int64_t deadline, int seconds) {
  if (c.connection.is_open()) return true;
  if (c.starts == kMostStarts) {
    say("cuDNN (%s) ended %d times while it was asked; sizes are the model's", c.library->c_str(),
        kMostStarts);
    c.given_up = true;
    return false;
  }
  ++c.starts;
  c.connection = Connection(start_planner(*c.library, seconds));
  if (!c.connection.is_open()) {
    c.given_up = true;
    return false;
  }
  const std::optional<std::string> greeting = receive_text(c.connection, deadline);
  if (greeting.has_value() && greeting->compare(0, 8, "version ") == 0) return true;
  say("cannot ask cuDNN (%s): %s; sizes are the model's", c.library->c_str(),
      greeting.has_value() ? greeting->c_str() : "it did not start in time");
  c.connection.end();
  c.given_up = true;
  return false;
}

// With the mutex held.
std::optional<std::string> ask_process(Client& c, const std::string& request) {
  const int seconds = allowed_seconds();
  const int64_t deadline = now_ms() + int64_t{seconds} * 1000;
  if (!connect(c, deadline, seconds)) return std::nullopt;
  const auto bytes = static_cast<uint32_t>(request.size());
  std::optional<std::string> answer;
  if (send_all(c.connection, reinterpret_cast<const char*>(&bytes), sizeof(bytes), deadline) &&
      send_all(c.connection, request.data(), request.size(), deadline))
    answer = receive_text(c.connection, deadline);
  if (answer.has_value()) return answer;
  c.connection.end();
  if (now_ms() >= deadline) {
    say("cuDNN (%s) did not answer within %d s; sizes are the model's", c.library->c_str(),
        seconds);
    c.given_up = true;
  }
  return std::nullopt;
}

std::optional<std::vector<CudnnPlan>> ask_unknown(Client& c, const Profile& profile,
                                                  const std::string& request) {
  const std::lock_guard<std::mutex> lock(c.mutex);
  if (!c.library.has_value()) {
    c.library = find_cudnn();
    c.library_identity = c.library->empty() ? "" : identity(*c.library);
    if (c.library_identity.empty()) {
      if (!c.library->empty())
        say("%s=%s: there is no such file; sizes are the model's", kCudnnVariable,
            c.library->c_str());
      const char* const wanted = variable(kCudnnVariable);
      c.found_none = wanted == nullptr || std::strcmp(wanted, "model") != 0;
      c.given_up = true;
    }
  }
  if (c.given_up && c.library_identity.empty()) return std::nullopt;
  const File folder = open_cache_folder();
  const std::string key = c.library_identity + request;
  std::string name;
  if (folder) {
    std::string device = profile.name.empty() ? "device" : profile.name;
    for (char& c : device) {
      if (c == '/') c = '_';
    }
    name = device + "-" + hex(hash(key, 0)) + hex(hash(key, 0x5bd1e995)) + ".plans";
    if (const auto cached = read_cached(folder, name); cached.has_value()) {
      if (auto plans = parse_cudnn_answer(*cached); plans.has_value()) return plans;
    }
  }
  if (c.given_up) return std::nullopt;
  const std::optional<std::string> answer = ask_process(c, request);
  if (!answer.has_value()) return std::nullopt;
  auto plans = parse_cudnn_answer(*answer);
  if (plans.has_value() && folder) {
    if (!c.shrunk) shrink(folder);
    c.shrunk = true;
    write_cached(folder, name, *answer);
  }
  return plans;
}

}  // namespace

size_t cudnn_version() {
  static const size_t value = [] {
    const char* const text = std::getenv(kCudnnVersionVariable);
    const size_t wanted = text == nullptr ? 0 : std::strtoul(text, nullptr, 10);
    return wanted == 0 ? default_cudnn_version() : wanted;
  }();
  return value;
}

std::string cudnn_requirement() {
  return "nvidia-cudnn-cu" + std::to_string(kCudaMajor) +
         "==" + std::to_string(cudnn_version() / 10000) + "." +
         std::to_string(cudnn_version() / 100 % 100) + ".*";
}

std::optional<std::vector<CudnnPlan>> parse_cudnn_answer(std::string_view text) {
  std::vector<CudnnPlan> plans;
  bool done = false;
  for (const std::string_view line : split(text, '\n')) {
    const std::vector<std::string_view> words = split(line, ' ');
    if (words.empty() || done || words[0] == "refused") return std::nullopt;
    if (words[0] == "done") {
      done = true;
    } else if (words[0] == "config") {
      CudnnPlan plan;
      size_t at = 3;
      if (words.size() < at || !read_number(words[1], plan.engine) ||
          !read_number(words[2], plan.workspace_bytes) ||
          !read_notes(words, at, plan.numerical_notes) ||
          !read_notes(words, at, plan.behavior_notes) || at != words.size())
        return std::nullopt;
      plans.push_back(std::move(plan));
    }
  }
  return done ? std::optional<std::vector<CudnnPlan>>(std::move(plans)) : std::nullopt;
}

std::string describe_device(const Profile& profile) {
  std::string line = "device ";
  const auto add = [&line](const char* name, const std::string& value) {
    if (line.back() != ' ') line += ',';
    line += '"';
    line += name;
    line += "\":";
    line += value;
  };
  const auto number = [&add](const char* name, uint64_t value) {
    add(name, std::to_string(value));
  };
  add("maxGridSize", "[2147483647,65535,65535]");
  add("maxBlockSize", "[1024,1024,64]");
  number("regsPerBlock", kRegistersPerBlock);
  number("multiProcessorCount", profile.multiprocessors);
  number("warpSize", kWarpSize);
  number("maxSharedMemoryPerBlock", kSharedMemoryPerBlock);
  number("maxSharedMemoryPerBlockOptin", profile.shared_memory_per_block_optin);
  number("reservedSharedMemoryPerBlock", profile.reserved_shared_memory_per_block);
  number("maxRegistersPerSM", kRegistersPerMultiprocessor);
  number("maxCtasPerSM", profile.max_blocks_per_multiprocessor);
  number("maxThreadsPerBlock", kMaxThreadsPerBlock);
  number("maxThreadsPerSM", profile.max_threads_per_multiprocessor);
  number("pciDeviceId", 0);
  number("isTccDriver", 0);
  number("supportCoopLaunch", 1);
  number("totalGlobalMem", profile.total_memory_bytes);
  number("smClockRateKHz", profile.clock_khz);
  number("memClockRateKHz", profile.memory_clock_khz);
  number("l2CacheSize", profile.l2_cache_bytes);
  number("cudaDeviceId", 0);
  number("deviceVer", profile.major * 100 + profile.minor * 10);
  number("driverVer", 13000);
  std::string name;
  for (const char c : profile.device_name) {
    if (static_cast<unsigned char>(c) >= ' ' && c != '"' && c != '\\') name += c;
  }
  add("deviceName", "\"" + name + "\"");
  return line + "\n";
}

std::optional<std::vector<CudnnPlan>> ask_cudnn(const Profile& profile, const std::string& graph,
                                                int mode) {
  Client& c = get_client();
  const std::string request =
      describe_device(profile) + "mode " + std::to_string(mode) + "\n" + graph;
  {
    const std::lock_guard<std::mutex> lock(c.known_mutex);
    if (const auto found = c.known.find(request); found != c.known.end()) return found->second;
  }
  auto plans = ask_unknown(c, profile, request);
  const std::lock_guard<std::mutex> lock(c.known_mutex);
  c.known.emplace(request, plans);
  return plans;
}

bool lacks_cudnn() { return get_client().found_none; }

}  // namespace memledger::virtual_gpu
