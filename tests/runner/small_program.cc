// A user's LibTorch program, which knows nothing of memledger: echoes its input, keeps a tensor of
// 1 MiB (with `nothing`: none), and ends as its arguments say.
//
//   small_program exit STATUS | signal NUMBER | survive STATUS | nothing STATUS
//   small_program waits STATUS: in calls that a signal handler would end early
//   small_program handles STATUS: SIGUSR2 itself, while it waits
//   small_program starts STATUS: programs that print which signals they have blocked

// NOLINTBEGIN: it does on purpose what clang-tidy warns of.
#include <ATen/ops/empty.h>
#include <poll.h>
#include <semaphore.h>
#include <spawn.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <functional>
#include <iostream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace {
// Static, so that it is still there when the process ends.
at::Tensor* kept = nullptr;
}  // namespace

// Asks for more memory than there is.
__attribute__((noinline)) int64_t survive() {
  const at::Tensor some = at::empty({1000}, at::kByte);
  try {
    return at::empty({int64_t{1} << 60}, at::kByte).numel();
  } catch (const std::exception&) {
    return some.numel();
  }
}

namespace {

// Returns the calls that returned early, or otherwise than at the end of their time.
std::string calls_that_end_early() {
  constexpr long kMs = 400;
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0) return "socketpair";
  const timeval at_most{0, kMs * 1000};
  setsockopt(ends[0], SOL_SOCKET, SO_RCVTIMEO, &at_most, sizeof at_most);
  const int queue = epoll_create1(EPOLL_CLOEXEC);
  sem_t semaphore;
  sem_init(&semaphore, 0, 0);
  const std::vector<std::pair<std::string, std::function<bool()>>> calls = {
      {"sleep", [] { return sleep(1) == 0; }},
      {"usleep", [] { return usleep(kMs * 1000) == 0; }},
      {"nanosleep",
       [] {
         const timespec time{0, kMs * 1'000'000};
         return nanosleep(&time, nullptr) == 0;
       }},
      {"poll", [] { return poll(nullptr, 0, kMs) == 0; }},
      {"select",
       [] {
         timeval time{0, kMs * 1000};
         return select(0, nullptr, nullptr, nullptr, &time) == 0;
       }},
      {"epoll_wait",
       [&] {
         epoll_event event;
         return epoll_wait(queue, &event, 1, kMs) == 0;
       }},
      {"recv",
       [&] {
         char byte = 0;
         return recv(ends[0], &byte, 1, 0) == -1 && errno == EAGAIN;
       }},
      {"sem_timedwait",
       [&] {
         timespec end;
         clock_gettime(CLOCK_REALTIME, &end);
         end.tv_sec += 1;
         return sem_timedwait(&semaphore, &end) == -1 && errno == ETIMEDOUT;
       }},
  };
  std::string early;
  for (const auto& [name, call] : calls) {
    const auto began = std::chrono::steady_clock::now();
    const bool is_right = call();
    if (!is_right || std::chrono::steady_clock::now() - began < std::chrono::milliseconds(kMs - 20))
      early += " " + name;
  }
  return early;
}

void wait_undisturbed() {
  std::cout << "ready" << std::endl;
  std::string in_thread;
  std::thread other([&] { in_thread = calls_that_end_early(); });
  const std::string early = calls_that_end_early();
  other.join();
  std::cout << "early:" << early << in_thread << std::endl;
}

volatile std::sig_atomic_t handled = 0;
pthread_t main_thread;

void handle_itself() {
  main_thread = pthread_self();
  const auto handler = [](int) {
    handled = pthread_equal(pthread_self(), main_thread) != 0 ? 1 : 2;
  };
  std::signal(SIGUSR2, handler);
  std::cout << "ready" << std::endl;
  const unsigned left = sleep(30);
  std::cout << "handled " << handled << ", " << (left > 0 ? "woken" : "slept on") << std::endl;
}

// Prints `WHO …` with the mask of the process's main thread as hexadecimal digits.
void start_others() {
  char program[] = "/bin/grep", word[] = "SigBlk", file[] = "/proc/self/status";
  char* const words[] = {program, word, file, nullptr};
  std::cout << "system " << std::flush;
  if (std::system("exec grep SigBlk /proc/self/status") != 0) std::exit(66);
  std::cout << "popen " << std::flush;
  if (pclose(popen("exec grep SigBlk /proc/self/status", "w")) != 0) std::exit(67);
  pid_t child = 0;
  std::cout << "posix_spawn " << std::flush;
  if (posix_spawn(&child, program, nullptr, nullptr, words, environ) != 0) std::exit(68);
  waitpid(child, nullptr, 0);
  std::cout << "vfork " << std::flush;
  if ((child = vfork()) == 0) {
    execv(program, words);
    _exit(69);
  }
  waitpid(child, nullptr, 0);
  std::cout << "fork " << std::flush;
  if ((child = fork()) == 0) {
    raise(SIGUSR2);  // ends it
    std::exit(70);
  }
  int status = 0;
  waitpid(child, &status, 0);
  std::cout << (WIFSIGNALED(status) ? WTERMSIG(status) : -1) << std::endl;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 64;
  if (std::string(argv[1]) != "nothing") kept = new at::Tensor(at::empty({262144}, at::kFloat));
  for (std::string line; std::getline(std::cin, line);) std::cout << "echo " << line << '\n';
  std::cout.flush();
  std::cerr << "to standard error\n";
  const int number = std::atoi(argv[2]);
  if (std::string(argv[1]) == "survive" && survive() != 1000) return 65;
  if (std::string(argv[1]) == "signal") std::raise(number);
  if (std::string(argv[1]) == "waits") wait_undisturbed();
  if (std::string(argv[1]) == "handles") handle_itself();
  if (std::string(argv[1]) == "starts") start_others();
  return number;
}
// NOLINTEND
