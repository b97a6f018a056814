#include "runner/writes/foreground.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace memledger::runner {
namespace {

// The witness is sent a signal of the group in the same moment. So much later, it was another.
constexpr int64_t kSameSignalNs = 200'000'000;
constexpr int64_t kWitnessTakesNs = 20'000'000;
// On a busy machine the witness may not run for a while; what it was sent waits there meanwhile.
constexpr int64_t kWitnessMayWaitNs = 2'000'000'000;

int64_t now_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * int64_t{1'000'000'000} + now.tv_nsec;
}

// Those from 3 on that the program gets.
std::vector<int> inherited_descriptors() {
  std::vector<int> numbers;
  DIR* const list = opendir("/proc/self/fd");
  if (list == nullptr) return numbers;
  while (const dirent* const entry = readdir(list)) {
    int number = 0;
    if (absl::SimpleAtoi(entry->d_name, &number) && number > STDERR_FILENO &&
        (fcntl(number, F_GETFD) & FD_CLOEXEC) == 0)
      numbers.push_back(number);
  }
  closedir(list);
  return numbers;
}

// What this process does while the program runs.
class Relay {
 public:
  Relay(pid_t witness, int channel) : witness_(witness), channel_(channel) {
    sigset_t all;
    sigfillset(&all);
    signals_ = signalfd(-1, &all, SFD_CLOEXEC | SFD_NONBLOCK);
    // Even if the caller ignores these signals, this process waits for its child and stops with the
    // program.
    for (const int number : {SIGCHLD, SIGTSTP, SIGTTIN, SIGTTOU}) signal(number, SIG_DFL);
  }
  ~Relay() {
    for (const int descriptor : {signals_, program_, channel_}) {
      if (descriptor >= 0) close(descriptor);
    }
  }
  Relay(const Relay&) = delete;
  Relay& operator=(const Relay&) = delete;

  int until_end() {
    while (is_open_) {
      std::array<pollfd, 2> events = {{{channel_, POLLIN, 0}, {signals_, POLLIN, 0}}};
      if (poll(events.data(), events.size(), -1) < 0) continue;
      if (events[0].revents != 0) read_message();
      if (events[1].revents != 0) read_signal();
    }
    int status = 0;
    while (waitpid(witness_, &status, 0) < 0 && errno == EINTR) {
    }
    return has_ended_ ? status_ : status;
  }

 private:
  using Event = Foreground::Event;

  void read_message() {
    Foreground::Message message;
    std::array<char, CMSG_SPACE(sizeof(ucred))> control{};
    iovec part = {&message, sizeof message};
    msghdr header{};
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    header.msg_control = control.data();
    header.msg_controllen = control.size();
    const ssize_t length = recvmsg(channel_, &header, MSG_CMSG_CLOEXEC);
    if (length < 0 && (errno == EINTR || errno == EAGAIN)) return;
    if (length != static_cast<ssize_t>(sizeof message)) {
      is_open_ = false;
      return;
    }
    ucred sender{};
    const cmsghdr* const first = CMSG_FIRSTHDR(&header);
    if (first != nullptr && first->cmsg_type == SCM_CREDENTIALS)
      std::memcpy(&sender, CMSG_DATA(first), sizeof sender);
    take(message, sender.pid);
  }

  void take(const Foreground::Message& message, pid_t sender) {
    switch (message.event) {
      case Event::kStarted:
        process_ = sender;
        program_ = static_cast<int>(syscall(SYS_pidfd_open, sender, 0));
        for (const signalfd_siginfo& one : early_) pass_on(one);
        early_.clear();
        break;
      case Event::kStopped:
        // A busy machine may let this process run only after the next stop, which it then shared.
        if (message.time_ns > resumed_at_ns_) stop_by(message.value);
        break;
      case Event::kContinued:
        break;
      case Event::kEnded:
        has_ended_ = true;
        status_ = message.value;
        break;
      case Event::kWitnessed:
        if (message.value > 0 && message.value <= kMaxSignal)
          witnessed_ns_[static_cast<size_t>(message.value)] = message.time_ns;
        break;
    }
  }

  // Returns when somebody lets this process go on.
  void stop_by(int number) {
    const int64_t begin = now_ns();
    sigset_t one;
    sigemptyset(&one);
    sigaddset(&one, number);
    // The terminal's may be pending here already. While it is blocked the two are one, and so is
    // the stop.
    kill(getpid(), number);
    sigprocmask(SIG_UNBLOCK, &one, nullptr);
    resumed_at_ns_ = now_ns();  // until now the terminal's next signal stops this process as well
    sigprocmask(SIG_BLOCK, &one, nullptr);
    stopped_at_ns_ = begin;
  }

  void read_signal() {
    signalfd_siginfo info{};
    if (read(signals_, &info, sizeof info) != static_cast<ssize_t>(sizeof info)) return;
    // The terminal's reach the whole group.
    if (info.ssi_signo == SIGCHLD || info.ssi_code == SI_KERNEL) return;
    if (was_sent_to_group(info.ssi_signo)) return;
    if (process_ == 0) {
      early_.push_back(info);
    } else {
      pass_on(info);
    }
  }

  bool was_sent_to_group(uint32_t number) {
    if (number > static_cast<uint32_t>(kMaxSignal)) return false;
    const int64_t now = now_ns();
    // What came while this process was stopped is read now.
    const bool has_just_resumed = now - resumed_at_ns_ < kSameSignalNs;
    const int64_t since = has_just_resumed ? stopped_at_ns_ : now - kSameSignalNs;
    int64_t& witnessed = witnessed_ns_[number];
    int64_t until = now + kWitnessTakesNs;
    while (is_open_ && witnessed < since && now_ns() < until) {
      constexpr int kBetweenLooksMs = 5;
      pollfd event = {channel_, POLLIN, 0};
      if (poll(&event, 1, kBetweenLooksMs) > 0) {
        read_message();
      } else if (now_ns() - now < kWitnessMayWaitNs && waits_at_witness(number)) {
        until = now_ns() + kWitnessTakesNs;
      }
    }
    return std::exchange(witnessed, 0) >= since;
  }

  // Whether the witness has been sent a signal that it has not taken yet.
  bool waits_at_witness(uint32_t number) const {
    std::ifstream file(absl::StrCat("/proc/", witness_, "/status"));
    constexpr absl::string_view kPending = "ShdPnd:\t";
    for (std::string line; std::getline(file, line);) {
      uint64_t pending = 0;
      if (absl::StartsWith(line, kPending))
        return absl::SimpleHexAtoi(line.substr(kPending.size()), &pending) &&
               (pending >> (number - 1) & 1) != 0;
    }
    return false;
  }

  void pass_on(const signalfd_siginfo& info) const {
    siginfo_t queued{};
    queued.si_signo = static_cast<int>(info.ssi_signo);
    queued.si_code = SI_QUEUE;
    queued.si_pid = static_cast<pid_t>(info.ssi_pid);
    queued.si_uid = info.ssi_uid;
    queued.si_value.sival_ptr = reinterpret_cast<void*>(info.ssi_ptr);
    siginfo_t* const value = info.ssi_code == SI_QUEUE ? &queued : nullptr;
    if (program_ >= 0) {
      syscall(SYS_pidfd_send_signal, program_, queued.si_signo, value, 0);
    } else if (!has_ended_) {
      kill(process_, queued.si_signo);
    }
  }

  static constexpr int kMaxSignal = 64;

  const pid_t witness_;
  const int channel_;
  int signals_ = -1;
  int program_ = -1;   // a descriptor
  pid_t process_ = 0;  // 0: not yet
  bool is_open_ = true, has_ended_ = false;
  int status_ = 0;
  int64_t stopped_at_ns_ = 0, resumed_at_ns_ = 0;
  std::array<int64_t, kMaxSignal + 1> witnessed_ns_{};
  std::vector<signalfd_siginfo> early_;
};

}  // namespace

void Foreground::tell(Event event, int value) const {
  const Message message{event, value, now_ns()};
  [[maybe_unused]] const ssize_t sent = send(channel_, &message, sizeof message, MSG_NOSIGNAL);
}

void Foreground::become_program() const {
  tell(Event::kStarted);
  sigprocmask(SIG_SETMASK, &callers_mask_, nullptr);
}

void Foreground::leave_streams() const {
  for (const int number : inherited_) close(number);
  const int nothing = open("/dev/null", O_RDWR | O_CLOEXEC);
  if (nothing < 0) return;
  dup2(nothing, STDIN_FILENO);
  dup2(nothing, STDOUT_FILENO);
  close(nothing);
}

absl::StatusOr<int> run_in_foreground(
    const std::function<int(const Foreground& foreground)>& start) {
  Foreground foreground;
  foreground.inherited_ = inherited_descriptors();
  std::array<int, 2> channel{};
  constexpr int kOn = 1;
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, channel.data()) != 0 ||
      setsockopt(channel[0], SOL_SOCKET, SO_PASSCRED, &kOn, sizeof kOn) != 0)
    return absl::UnavailableError(absl::StrCat("socketpair: ", std::strerror(errno)));
  foreground.channel_ = channel[1];
  sigset_t all;
  sigfillset(&all);
  sigprocmask(SIG_BLOCK, &all, &foreground.callers_mask_);
  const pid_t parent = getpid(), witness = fork();
  if (witness < 0) return absl::UnavailableError(absl::StrCat("fork: ", std::strerror(errno)));
  if (witness == 0) {
    close(channel[0]);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(EXIT_FAILURE);
    _exit(start(foreground));
  }
  close(channel[1]);
  foreground.leave_streams();
  return Relay(witness, channel[0]).until_end();
}

void end_as(int status) {
  if (!WIFSIGNALED(status)) exit(WEXITSTATUS(status));
  const int number = WTERMSIG(status);
  const rlimit none = {0, 0};
  setrlimit(RLIMIT_CORE, &none);
  signal(number, SIG_DFL);
  sigset_t one;
  sigemptyset(&one);
  sigaddset(&one, number);
  kill(getpid(), number);
  sigprocmask(SIG_UNBLOCK, &one, nullptr);
  exit(128 + number);
}

}  // namespace memledger::runner
