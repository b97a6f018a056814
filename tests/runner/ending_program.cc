// A user's LibTorch program that keeps a tensor of 3 MiB and ends as its argument says. What waits
// for a signal says `ready` first.
//
//   ending_program END [NUMBER]

// NOLINTBEGIN: it does on purpose what clang-tidy warns of.
#include <ATen/ops/empty.h>
#include <fcntl.h>
#include <malloc.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <iostream>
#include <map>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

extern "C" void (*bsd_signal(int number, void (*handler)(int)) noexcept)(int);

namespace {

using Handler = void (*)(int);
using SetHandler = Handler (*)(int, Handler);

at::Tensor make() { return at::empty({3 << 18}, at::kFloat); }

int overflow(int depth) {
  volatile char room[4096] = {};
  room[0] = static_cast<char>(depth);
  return depth < 0 ? 0 : overflow(depth + 1) + room[0];
}

[[noreturn]] void wait_for_signal() {
  std::cout << "ready" << std::endl;
  while (true) sleep(60);
}

// Without a pause, so that a signal finds the thread inside the allocator and the books.
[[noreturn]] void work() {
  while (true) {
    std::vector<at::Tensor> some;
    for (int64_t i = 1; i < 64; ++i) some.push_back(at::empty({i * 16}, at::kFloat));
  }
}

void say(const char* text) {
  if (write(STDOUT_FILENO, text, std::strlen(text)) < 0) _exit(99);
}

void handle(int number, void (*handler)(int)) {
  struct sigaction action {};
  action.sa_handler = handler;
  struct sigaction before {};
  sigaction(number, &action, &before);
  if (before.sa_handler != SIG_DFL) say("there was a handler\n");
}

void fail_in_child(int number) {
  const pid_t child = fork();
  if (child == 0) {
    const at::Tensor own = make();
    raise(number);
  }
  int status = 0;
  waitpid(child, &status, 0);
  std::cout << "child " << (WIFSIGNALED(status) ? WTERMSIG(status) : -1) << std::endl;
}

// sigset() is deprecated.
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
constexpr SetHandler kSetHandlers[] = {&signal,      &bsd_signal,    &ssignal,
                                       &sysv_signal, &__sysv_signal, &sigset};
void hold(int number) {
  if (sigset(number, SIG_HOLD) != SIG_DFL) say("there was a handler to hold\n");
  if (sigset(number, SIG_DFL) != SIG_HOLD) say("it was not held\n");
}
#pragma GCC diagnostic warning "-Wdeprecated-declarations"

void set_and_restore() {
  for (const SetHandler set : kSetHandlers) {
    if (set(SIGTERM, [](int) {}) != SIG_DFL) say("there was a handler\n");
    if (set(SIGTERM, SIG_DFL) == SIG_DFL) say("no handler\n");
    struct sigaction now {};
    sigaction(SIGTERM, nullptr, &now);
    if (now.sa_handler != SIG_DFL) say("another action\n");
  }
  hold(SIGTERM);
}

void allow_no_processes() {
  constexpr uid_t kNobody = 65534;
  const rlimit none{};
  if (geteuid() == 0 && setresuid(kNobody, kNobody, kNobody) != 0) _exit(99);
  if (setrlimit(RLIMIT_NPROC, &none) != 0) _exit(99);
}

// Another process may be made 0.2 s from now: a child of this one sees to it.
void allow_processes_later() {
  constexpr uid_t kNobody = 65534;
  rlimit before{};
  if (geteuid() == 0 && setresuid(kNobody, kNobody, kNobody) != 0) _exit(99);
  if (getrlimit(RLIMIT_NPROC, &before) != 0) _exit(99);
  if (fork() == 0) {
    usleep(200'000);
    prlimit(getppid(), RLIMIT_NPROC, &before, nullptr);
    _exit(0);
  }
  const rlimit none{0, before.rlim_max};
  if (setrlimit(RLIMIT_NPROC, &none) != 0) _exit(99);
}

int number = 0;  // the second argument

// While the thread works, a signal's handler ends the program.
void end_in_handler(Handler handler, SetHandler set = &signal) {
  static std::vector<at::Tensor> freed_at_exit;  // by a static object's destructor
  for (int i = 0; i < 8; ++i) freed_at_exit.push_back(at::empty({16}, at::kFloat));
  set(SIGALRM, handler);
  itimerval soon{};
  soon.it_value.tv_usec = 20'000 + 37 * number % 5'000;
  setitimer(ITIMER_REAL, &soon, nullptr);
  work();
}

std::vector<at::Tensor> many_storages() {
  std::vector<at::Tensor> all;
  for (int i = 0; i < number; ++i) all.push_back(at::empty({4}, at::kFloat));
  return all;
}

// A thread that waits for whatever child there is.
void watch_children() {
  signal(SIGCHLD, [](int) { say("SIGCHLD\n"); });
  std::thread([] {
    while (true) {
      if (waitpid(-1, nullptr, 0) > 0) say("a child\n");
      usleep(100);
    }
  }).detach();
}

// Says how often a handler is called, through a pipe that copies of the process share.
void count_calls() {
  static int pipe_ends[2];
  if (pipe(pipe_ends) != 0) std::exit(66);
  signal(SIGINT, [](int) {
    if (write(pipe_ends[1], "x", 1) < 0) _exit(99);
  });
  std::thread([] {
    char one = 0;
    int calls = 0;
    while (read(pipe_ends[0], &one, 1) == 1) {
      char text[32];
      std::snprintf(text, sizeof text, "call %d\n", ++calls);
      say(text);
    }
  }).detach();
}

void fault_while_others_work() {
  static std::atomic<int64_t> steps{0};
  std::thread([] {
    while (true) {
      ++steps;
      char text[32];
      std::snprintf(text, sizeof text, "at work %d\n", static_cast<int>(steps));
      say(text);
      usleep(10'000);
    }
  }).detach();
  const std::vector<at::Tensor> all = many_storages();
  while (steps < 2) usleep(1'000);
  say("now\n");
  *static_cast<volatile int*>(nullptr) = 1;
}

// Says which call a handler has ended.
void wait_in(const char* name, int (*call)()) {
  std::thread([name, call] {
    while (true) {
      if (call() >= 0 || errno != EINTR) continue;
      char text[64];
      std::snprintf(text, sizeof text, "early: %s\n", name);
      say(text);
    }
  }).detach();
}
void wait_in_calls() {
  static const int epoll = epoll_create1(0);
  wait_in("poll", [] { return poll(nullptr, 0, 60'000); });
  wait_in("pause", [] { return pause(); });
  wait_in("select", [] { return select(0, nullptr, nullptr, nullptr, nullptr); });
  wait_in("nanosleep", [] {
    const timespec pause{60, 0};
    return nanosleep(&pause, nullptr);
  });
  wait_in("epoll_wait", [] {
    epoll_event event;
    return epoll_wait(epoll, &event, 1, 60'000);
  });
}

// Says which signals a thread gets that waits for all.
void wait_for_all_signals() {
  std::thread([] {
    sigset_t all;
    sigfillset(&all);
    while (true) {
      int taken = 0;
      if (sigwait(&all, &taken) != 0) continue;
      char text[32];
      std::snprintf(text, sizeof text, "waited for %d\n", taken);
      say(text);
    }
  }).detach();
}

// A thread holds the C library's lock of this thread's heap, nearly all the time.
std::atomic<bool> holds_lock{true};
void hold_lock_of_heap() {
  std::vector<void*> blocks(100'000);
  for (void*& block : blocks) block = std::malloc(16 << 10);
  for (size_t i = 0; i < blocks.size(); i += 2) std::free(blocks[i]);
  std::thread([] {
    while (holds_lock) malloc_trim(0);
  }).detach();
  usleep(100'000);
}

void say_blocked(const char* who) {
  sigset_t blocked;
  sigemptyset(&blocked);
  pthread_sigmask(SIG_BLOCK, nullptr, &blocked);
  say(who);
  say(sigismember(&blocked, SIGUSR2) == 1 ? ": blocked\n" : ": not blocked\n");
}

// The signal as the program itself uses it, which also asks for reports.
sigset_t user_signal() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGUSR2);
  return set;
}
void say_masks() {
  const sigset_t set = user_signal();
  sigset_t before;
  say_blocked("at first");
  pthread_sigmask(SIG_BLOCK, &set, &before);
  say_blocked("when asked for");
  const auto say_in_child = [] {
    const pid_t child = fork();
    if (child == 0) {
      say_blocked("child");
      std::system("sed -n s/^SigBlk/SigBlk/p /proc/self/status");
      _exit(0);
    }
    waitpid(child, nullptr, 0);
  };
  say_in_child();
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  say_blocked("as before");
  say_in_child();
}

void handle_in_worker() {
  static std::atomic<bool> is_handled{false};
  std::thread worker([] {
    while (!is_handled) usleep(1'000);
  });
  signal(SIGUSR2, [](int) { is_handled = true; });
  pthread_kill(worker.native_handle(), SIGUSR2);
  for (int i = 0; i < 3'000 && !is_handled; ++i) usleep(1'000);
  say(is_handled ? "handled\n" : "never handled\n");
  is_handled = true;
  worker.join();
}

void wait_for_user_signal() {
  const sigset_t set = user_signal();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  std::thread waiter([set] {
    for (int i = 0; i < 20; ++i) {
      int taken = 0;
      sigwait(&set, &taken);
      if (taken != SIGUSR2) say("another signal\n");
    }
    say("all 20\n");
  });
  usleep(100'000);
  for (int i = 0; i < 20; ++i) {
    kill(getpid(), SIGUSR2);
    usleep(5'000);
  }
  waiter.join();
}

void call_alone() {
  say(unshare(CLONE_NEWUSER) == 0 ? "unshared\n" : std::strerror(errno));
  wait_for_signal();
}

// Sets a handler that is called once, and says whether it is as the program has set it.
void handle_once(int number) {
  struct sigaction action {};
  action.sa_handler = [](int) { say("once\n"); };
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  sigaction(number, &action, nullptr);
  struct sigaction now {};
  sigaction(number, nullptr, &now);
  if (now.sa_handler != action.sa_handler || (now.sa_flags & SA_SIGINFO) != 0 ||
      (now.sa_flags & static_cast<int>(SA_RESETHAND)) == 0)
    say("another action\n");
}

// Without the mask, as that lets a signal in that the thread blocks otherwise.
void wait_with_mask() {
  sigset_t set, none;
  sigemptyset(&none);
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  sigprocmask(SIG_BLOCK, &set, nullptr);
  std::cout << "ready" << std::endl;
  if (number == 0) sigsuspend(&none);
  if (number == 1) ppoll(nullptr, 0, nullptr, &none);
  if (number == 2) pselect(0, nullptr, nullptr, nullptr, nullptr, &none);
  say("goes on\n");
}

// The program itself asks for reports: each thread blocks the signal, without knowing it.
void ask_for_reports() {
  raise(SIGUSR2);
  say("raised\n");
  pthread_kill(pthread_self(), SIGUSR2);
  say("sent to itself\n");
  const sigset_t set = user_signal();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  raise(SIGUSR2);
  say("blocked\n");
  pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
  say("unblocked\n");
  std::atomic<bool> is_over{false};
  std::thread other([&] {
    while (!is_over) usleep(1'000);
  });
  pthread_kill(other.native_handle(), SIGUSR2);
  usleep(2'000'000);
  is_over = true;
  other.join();
}

// The report has to wait for a lock, and the program sets the signal aside while it goes on for a
// moment. What another thread waits in goes on.
void ignore_while_reported() {
  static int pipe_ends[2];
  if (pipe(pipe_ends) != 0) std::exit(66);
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGALRM);
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  std::thread waiter([] {
    pollfd end{pipe_ends[0], POLLIN, 0};
    while (poll(&end, 1, -1) <= 0) {
    }
  });
  hold_lock_of_heap();
  pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
  const auto now_ms = [] {
    timespec now{};
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1'000 + now.tv_nsec / 1'000'000;
  };
  itimerval soon{};
  soon.it_value.tv_usec = 50'000;
  setitimer(ITIMER_REAL, &soon, nullptr);
  // The handler takes much longer than anything else here.
  for (long last = now_ms(), now = last; now - last < 60; now = now_ms()) last = now;
  signal(SIGALRM, SIG_IGN);
  holds_lock = false;
  say("goes on\n");
  if (write(pipe_ends[1], "x", 1) < 0) _exit(99);
  waiter.join();
}

// Later children are in another namespace of processes, which has none yet; with `begins` one is
// made first.
void choose_namespace(int kinds, bool begins) {
  if (unshare(kinds) != 0) std::exit(77);
  if (begins && fork() == 0) {
    while (getppid() == 0) pause();
    _exit(0);
  }
}
void make_first_process() {
  const pid_t child = fork();
  if (child == 0) _exit(getpid() == 1 ? 0 : 3);
  int status = 1;
  if (child < 0 || waitpid(child, &status, 0) != child || status != 0) say("no first process\n");
}
void end_in_namespace() {
  const bool has_user = (number & 1) != 0, begins = (number & 2) != 0;
  choose_namespace(CLONE_NEWPID | (has_user ? CLONE_NEWUSER : 0), begins);
  raise(SIGUSR2);
  if (!begins) make_first_process();
  if ((number & 4) != 0) std::exit(3);
  raise(SIGTERM);
}

void run_in_vforked_child() {
  const pid_t child = vfork();
  if (child == 0) {
    execl("/bin/echo", "echo", "a child's exec", nullptr);
    _exit(1);
  }
  int status = 1;
  waitpid(child, &status, 0);
  if (status != 0) std::exit(67);
}

const std::map<std::string, std::function<void()>> ends = {
    {"return", [] {}},
    {"exit", [] { std::exit(3); }},
    {"exception", [] { throw std::runtime_error("a user's mistake"); }},
    {"abort", [] { std::abort(); }},
    {"null", [] { *static_cast<volatile int*>(nullptr) = 1; }},
    {"overflow", [] { std::exit(overflow(0)); }},
    {"_exit", [] { _exit(4); }},
    {"_Exit", [] { std::_Exit(5); }},
    {"quick_exit", [] { std::quick_exit(6); }},
    {"wait", [] { wait_for_signal(); }},
    {"work",
     [] {
       for (int i = 0; i < 3; ++i) std::thread(&work).detach();
       std::cout << "ready" << std::endl;
       work();
     }},
    {"grow",  // until the kernel ends it
     [] {
       std::vector<at::Tensor> all;
       while (true) {
         all.push_back(at::empty({int64_t{32} << 20}, at::kByte));
         std::memset(all.back().mutable_data_ptr(), 1, all.back().nbytes());
       }
     }},
    {"many",  // threads end at once
     [] {
       for (int i = 0; i < 8; ++i) std::thread([] { raise(SIGTERM); }).detach();
       wait_for_signal();
     }},
    {"handled",
     [] {
       handle(SIGTERM, [](int) {
         say("its own handler\n");
         _exit(7);
       });
       wait_for_signal();
     }},
    {"passed_on",  // as crash handlers do
     [] {
       handle(SIGTERM, [](int number) {
         say("its own handler\n");
         signal(number, SIG_DFL);
         raise(number);
       });
       wait_for_signal();
     }},
    {"restored",
     [] {
       set_and_restore();
       wait_for_signal();
     }},
    {"restored_and_sent",
     [] {
       set_and_restore();
       raise(SIGTERM);
     }},
    {"sent", [] { raise(SIGTERM); }},
    {"uncopied",
     [] {
       allow_no_processes();
       raise(SIGTERM);
     }},
    {"uncopied_at_first",
     [] {
       allow_processes_later();
       raise(SIGTERM);
     }},
    {"raise", [] { raise(number); }},
    {"exit_in_handler", [] { end_in_handler([](int) { std::exit(0); }); }},
    {"quick_exit_in_handler", [] { end_in_handler([](int) { std::quick_exit(0); }); }},
    {"_exit_in_handler", [] { end_in_handler([](int) { _exit(0); }); }},
    {"exit_in_nested_handler",  // of strict standard C's signal()
     [] { end_in_handler([](int) { std::exit(0); }, &__sysv_signal); }},
    {"exit_at_alarm",
     [] {
       static std::atomic<bool> has_come{false};
       signal(SIGALRM, [](int) { has_come = true; });
       std::cout << "ready" << std::endl;
       while (!has_come) usleep(10'000);
       std::exit(9);
     }},
    {"exec",
     [] {
       execl("/bin/echo", "echo", "another program", nullptr);
       std::exit(68);
     }},
    {"exec_nothing",  // as programs do that try one path after another
     [] {
       execl("/no/such/program", "program", nullptr);
       execlp("no-such-program", "program", nullptr);
       const char* const no_path = std::getenv("NO_SUCH_VARIABLE");
       char* none[] = {nullptr};
       if (execveat(AT_FDCWD, no_path, none, none, 0) != -1 || errno != EFAULT) std::exit(69);
       std::exit(3);
     }},
    {"exec_fails",  // /bin/echo may be run, but not with so much
     [] {
       const std::string much(size_t{1} << 20, 'x');
       execl("/bin/echo", "echo", much.c_str(), nullptr);
       std::exit(3);
     }},
    {"wait_in_calls",
     [] {
       wait_in_calls();
       for (int i = 0; i < 3; ++i) std::thread(&work).detach();
       usleep(100'000);
       raise(SIGTERM);
       say("goes on\n");
     }},
    {"raise_beside_lock",
     [] {
       hold_lock_of_heap();
       raise(SIGTERM);
       say("goes on\n");
     }},
    {"wait_for_all_signals",
     [] {
       wait_for_all_signals();
       const std::vector<at::Tensor> all = many_storages();
       *static_cast<volatile int*>(nullptr) = 1;
     }},
    {"raise_twice",
     [] {
       handle_once(SIGTERM);
       raise(SIGTERM);
       struct sigaction now {};
       sigaction(SIGTERM, nullptr, &now);
       if (now.sa_handler != SIG_DFL) say("not the default action\n");
       raise(SIGTERM);
     }},
    {"raise_twice_by_signal",
     [] {
       __sysv_signal(SIGTERM, [](int) { say("once\n"); });
       raise(SIGTERM);
       raise(SIGTERM);
     }},
    {"null_twice",  // as crash handlers do
     [] {
       handle_once(SIGSEGV);
       *static_cast<volatile int*>(nullptr) = 1;
     }},
    {"exit_with_many",
     [] {
       static const auto* const all = new std::vector<at::Tensor>(many_storages());
       say("ready\n");
       std::exit(all->empty() ? 1 : 0);
     }},
    {"exit_in_slow_malloc",  // see slow_allocator.cc
     [] {
       signal(SIGALRM, [](int) { std::exit(0); });
       itimerval soon{};
       soon.it_value.tv_usec = 100'000;
       setitimer(ITIMER_REAL, &soon, nullptr);
       std::free(std::malloc(1'234'567));
     }},
    {"wait_with_mask", [] { wait_with_mask(); }},
    {"ask_for_reports", [] { ask_for_reports(); }},
    {"ignore_while_reported", [] { ignore_while_reported(); }},
    {"end_in_namespace", [] { end_in_namespace(); }},
    {"masks", [] { say_masks(); }},
    {"handle_in_worker", [] { handle_in_worker(); }},
    {"wait_for_user_signal", [] { wait_for_user_signal(); }},
    {"call_alone", [] { call_alone(); }},
    {"exec_in_child", [] { run_in_vforked_child(); }},
    {"many_storages",
     [] {
       const std::vector<at::Tensor> all = many_storages();
       raise(SIGTERM);
     }},
    {"among_others", [] { fault_while_others_work(); }},
    {"watched_children",
     [] {
       watch_children();
       const std::vector<at::Tensor> all = many_storages();
       usleep(10'000);
       wait_for_signal();
     }},
    {"counted",
     [] {
       count_calls();
       const std::vector<at::Tensor> all = many_storages();
       wait_for_signal();
     }},
    {"ignored",
     [] {
       signal(SIGTERM, SIG_IGN);
       raise(SIGTERM);
       std::exit(8);
     }},
    {"child",
     [] {
       fail_in_child(SIGTERM);
       fail_in_child(SIGSEGV);
       std::exit(9);
     }},
};

}  // namespace

// Makes no tensor, and ends as the program that it starts, if any.
int end_without_tensor(const char* program, const std::string& end) {
  int status = SIGTERM;
  if (end == "idle_wait") wait_for_signal();
  if (end == "launcher") {
    const pid_t child = fork();
    if (child == 0) execl(program, program, "sent", nullptr);
    waitpid(child, &status, 0);
  }
  raise(WTERMSIG(status));
  return 65;
}

int main(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "";
  if (what == "launcher" || what == "idle" || what == "idle_wait")
    return end_without_tensor(argv[0], what);
  number = argc > 2 ? std::atoi(argv[2]) : 0;
  const auto end = ends.find(what);
  if (end == ends.end()) return 64;
  static const auto* const kept = new at::Tensor(make());
  end->second();
  return kept->defined() ? 0 : 1;
}
// NOLINTEND
