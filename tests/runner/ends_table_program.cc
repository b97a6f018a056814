// A user's LibTorch program that keeps a tensor of 3 MiB and ends as its argument says; the table
// is in ends_table.py. A program that waits for a signal says `ready` and its process id first.
//
//   ends_table_program END [MICROSECONDS]
//
// Also a plug-in, by table_main(), for ends_table_host.c.

// NOLINTBEGIN: it does on purpose what clang-tidy warns of.
#include <ATen/ops/empty.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
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

namespace {

int microseconds = 0;  // the second argument

at::Tensor make(int64_t elements = 3 << 18) { return at::empty({elements}, at::kFloat); }

// Keeps tensors until the process is gone.
void keep(int count, int64_t elements) {
  static auto* const kept = new std::vector<at::Tensor>;
  for (int i = 0; i < count; ++i) kept->push_back(make(elements));
}

// What a signal handler may call.
void say(const char* text) {
  if (write(STDOUT_FILENO, text, std::strlen(text)) < 0) _exit(99);
}

void say_ready() { std::cout << "ready " << getpid() << std::endl; }

void handle(int number, void (*handler)(int)) {
  struct sigaction action {};
  action.sa_handler = handler;
  struct sigaction before {};
  sigaction(number, &action, &before);
  if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN) say("there was a handler\n");
}

[[noreturn]] void wait_for_signal() {
  say_ready();
  while (true) sleep(60);
}

// Without a pause, so that a signal finds the thread inside the allocator and the books.
[[noreturn]] void work() {
  while (true) {
    std::vector<at::Tensor> some;
    for (int64_t i = 1; i < 64; ++i) some.push_back(make(i * 16));
  }
}

// Without a pause in malloc() and free(), with and without the arena's lock.
[[noreturn]] void allocate() {
  unsigned state = 1;
  std::vector<void*> blocks(256);
  while (true) {
    state = state * 1664525 + 1013904223;
    void*& block = blocks[state >> 24];
    std::free(block);
    block = std::malloc(state >> 8 & 0x3fff);
  }
}

[[noreturn]] void in_threads(void (*function)()) {
  for (int i = 0; i < 3; ++i) std::thread(function).detach();
  say_ready();
  function();
  std::abort();
}

// A timer's handler ends the program at a moment of its work that nobody has chosen.
[[noreturn]] void end_in_handler(void (*handler)(int)) {
  handle(SIGALRM, handler);
  itimerval timer{};
  timer.it_value.tv_usec = 1 + microseconds;
  setitimer(ITIMER_REAL, &timer, nullptr);
  work();
}

void spend_processor_time(int timer, int number) {
  handle(number, SIG_DFL);
  itimerval time{};
  time.it_value.tv_usec = 20'000;
  setitimer(static_cast<__itimer_which_t>(timer), &time, nullptr);
  for (volatile int i = 0;; i = i + 1) {
  }
}

// Returns a set that blocks nothing.
sigset_t block_sigterm() {
  sigset_t set, none;
  sigemptyset(&none);
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  sigprocmask(SIG_BLOCK, &set, nullptr);
  say_ready();
  return none;
}

int overflow(int depth) {
  volatile char room[4096] = {};
  room[0] = static_cast<char>(depth);
  return depth < 0 ? 0 : overflow(depth + 1) + room[0];
}

// Reads behind the end of a mapped file.
int bus_error() {
  std::FILE* const file = std::tmpfile();
  if (file == nullptr) return 98;
  void* const page = mmap(nullptr, 4096, PROT_READ, MAP_SHARED, fileno(file), 0);
  return page == MAP_FAILED ? 98 : *static_cast<volatile char*>(page);
}

void exceed_file_size() {
  std::FILE* const file = std::tmpfile();
  const rlimit limit{16, 16};
  setrlimit(RLIMIT_FSIZE, &limit);
  const char some[64] = {};
  if (file == nullptr || write(fileno(file), some, 16) != 16 || write(fileno(file), some, 64) < 0)
    std::exit(98);
}

void exceed_processor_time() {
  const rlimit limit{1, 5};
  setrlimit(RLIMIT_CPU, &limit);
  for (volatile int i = 0;; i = i + 1) {
  }
}

void write_to_nobody() {
  int ends[2];
  if (pipe(ends) != 0) std::exit(98);
  close(ends[0]);
  if (write(ends[1], "", 1) < 0) std::exit(98);
}

std::atomic<int> signals_of_children{0};
std::atomic<int> signals{0};

void count_children() {
  handle(SIGCHLD, [](int) { ++signals_of_children; });
}

// Looks for any child of the process, by each of the ways in which a program finds out.
void look_for_children(const char* when) {
  int status = 0;
  siginfo_t info{};
  const pid_t ended = waitpid(-1, &status, WNOHANG);
  if (ended > 0) std::cout << when << ": a child ended with " << status << std::endl;
  if (ended == 0) std::cout << when << ": there is a child" << std::endl;
  if (waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) == 0)
    std::cout << when << ": waitid sees a child" << std::endl;
}

void say_usage_of_children() {
  rusage usage{};
  getrusage(RUSAGE_CHILDREN, &usage);
  std::cout << "children used " << (usage.ru_maxrss > 0 ? "memory" : "nothing") << std::endl;
}

// Sees its own child end, and nothing else, while signals come.
void observe_children() {
  count_children();
  handle(SIGTERM, [](int) { ++signals; });
  const pid_t child = fork();
  if (child == 0) _exit(5);
  waitpid(child, nullptr, 0);
  say_ready();
  while (signals == 0) {
    look_for_children("working");
    usleep(200);
  }
  std::cout << "SIGCHLD " << signals_of_children << std::endl;
  std::exit(0);
}

[[noreturn]] void observe_children_to_the_end() {
  count_children();
  say_ready();
  while (true) {
    look_for_children("at the end");
    if (signals_of_children.exchange(0) != 0) std::cout << "SIGCHLD" << std::endl;
    usleep(100);
  }
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

sigjmp_buf before_signal;

const std::map<std::string, std::function<void()>> ends = {
    {"return", [] {}},
    {"return_beside_work", [] { std::thread(&allocate).detach(); }},
    {"exit", [] { std::exit(3); }},
    {"exit_in_thread",
     [] {
       std::thread([] { std::exit(3); }).detach();
       allocate();  // LibTorch's own objects end meanwhile, so no tensors
     }},
    {"main_thread_ends",
     [] {
       std::thread([] {
         usleep(20'000);
         std::exit(3);
       }).detach();
       pthread_exit(nullptr);
     }},
    {"_exit", [] { _exit(4); }},
    {"_exit_in_thread",
     [] {
       std::thread([] { _exit(4); }).detach();
       work();
     }},
    {"_Exit", [] { std::_Exit(5); }},
    {"quick_exit", [] { std::quick_exit(6); }},
    {"exception", [] { throw std::runtime_error("a user's mistake"); }},
    {"abort", [] { std::abort(); }},

    // What ends a program by its default action.
    {"null", [] { *static_cast<volatile int*>(nullptr) = 1; }},
    {"overflow", [] { std::exit(overflow(0)); }},
    {"bus", [] { std::exit(bus_error()); }},
    {"zero",
     [] {
       volatile int zero = 0;
       std::exit(100 / zero);
     }},
    {"illegal", [] { __builtin_trap(); }},
#if defined(__x86_64__)
    {"trap", [] { __asm__ volatile("int3"); }},
#else
    {"trap", [] { raise(SIGTRAP); }},
#endif
    {"file_size", &exceed_file_size},
    {"processor_time", &exceed_processor_time},
    {"pipe", &write_to_nobody},
    {"alarm",
     [] {
       ualarm(20'000, 0);
       while (true) sleep(60);
     }},
    {"virtual_timer", [] { spend_processor_time(ITIMER_VIRTUAL, SIGVTALRM); }},
    {"profiling_timer", [] { spend_processor_time(ITIMER_PROF, SIGPROF); }},
    {"many",  // threads end at once
     [] {
       for (int i = 0; i < 8; ++i) std::thread([] { raise(SIGTERM); }).detach();
       while (true) sleep(60);
     }},
    {"null_beside_writer",  // whose lines after the fault show how long it went on
     [] {
       keep(100'000, 4);
       std::thread([] {
         while (true) {
           say("alive\n");
           usleep(5'000);
         }
       }).detach();
       usleep(20'000);
       say("fault\n");
       *static_cast<volatile int*>(nullptr) = 1;
     }},

    // Signals from outside find the program here.
    {"wait", [] { wait_for_signal(); }},
    {"work", [] { in_threads(&work); }},
    {"malloc", [] { in_threads(&allocate); }},
    {"malloc_alone",  // where the C library takes no locks
     [] {
       say_ready();
       allocate();
     }},
    {"large",
     [] {
       keep(200'000, 4);
       wait_for_signal();
     }},
    {"huge",
     [] {
       keep(800'000, 4);
       wait_for_signal();
     }},

    // Another program.
    {"exec", [] { execl("/bin/echo", "echo", "another program", nullptr); }},
    {"exec_itself", [] { execl("/proc/self/exe", "ends_table_program", "exit", nullptr); }},
    {"exec_fails",
     [] {
       execl("/no/such/program", "program", nullptr);
       std::cout << std::strerror(errno) << std::endl;
       std::exit(9);
     }},
    {"exec_in_thread",
     [] {
       std::thread([] { execl("/bin/echo", "echo", "another program", nullptr); }).detach();
       work();
     }},
    {"system", [] { std::exit(std::system("echo a child; kill -TERM $$") == SIGTERM ? 9 : 98); }},
    {"child",
     [] {
       fail_in_child(SIGTERM);
       fail_in_child(SIGSEGV);
       std::exit(9);
     }},

    // Its own handlers.
    {"handler_exits", [] { end_in_handler([](int) { std::exit(0); }); }},
    {"handler_quick_exits", [] { end_in_handler([](int) { std::quick_exit(0); }); }},
    {"handler__exits", [] { end_in_handler([](int) { _exit(0); }); }},
    {"handler_returns",
     [] {
       sigset_t set;
       sigset_t before;
       sigemptyset(&set);
       sigaddset(&set, SIGTERM);
       sigprocmask(SIG_BLOCK, &set, &before);  // until it waits
       handle(SIGTERM, [](int) { ++signals; });
       say_ready();
       const bool is_woken = ppoll(nullptr, 0, nullptr, &before) < 0 && errno == EINTR;
       std::cout << "SIGTERM " << signals << (is_woken ? ", woken" : "") << std::endl;
       std::exit(0);
     }},
    {"handler_jumps",
     [] {
       handle(SIGTERM, [](int) { siglongjmp(before_signal, 1); });
       if (sigsetjmp(before_signal, 1) == 0) wait_for_signal();
       std::exit(7);
     }},
    {"handler_passes_on",  // as crash handlers do
     [] {
       handle(SIGTERM, [](int number) {
         say("its own handler\n");
         signal(number, SIG_DFL);
         raise(number);
       });
       wait_for_signal();
     }},
    {"handler_of_fault",
     [] {
       handle(SIGSEGV, [](int) {
         say("its own handler\n");
         _exit(7);
       });
       *static_cast<volatile int*>(nullptr) = 1;
     }},
    {"ignored",
     [] {
       signal(SIGTERM, SIG_IGN);
       raise(SIGTERM);
       std::exit(8);
     }},
    {"blocked",
     [] {
       sigset_t set;
       sigemptyset(&set);
       sigaddset(&set, SIGTERM);
       sigprocmask(SIG_BLOCK, &set, nullptr);
       raise(SIGTERM);
       std::exit(8);
     }},
    // Calls that let in what the thread blocks otherwise.
    {"sigsuspend",
     [] {
       const sigset_t none = block_sigterm();
       sigsuspend(&none);
       say("goes on\n");
     }},
    {"ppoll",
     [] {
       const sigset_t none = block_sigterm();
       ppoll(nullptr, 0, nullptr, &none);
       say("goes on\n");
     }},
    {"sigwait",
     [] {
       sigset_t set;
       sigemptyset(&set);
       sigaddset(&set, SIGTERM);
       sigprocmask(SIG_BLOCK, &set, nullptr);
       std::thread([set] {
         int number = 0;
         sigwait(&set, &number);
         std::cout << "waited for " << number << std::endl;
         std::exit(0);
       }).detach();
       wait_for_signal();
     }},
    {"actions",  // are the program's own
     [] {
       signal(SIGTERM, [](int) {});
       if (signal(SIGTERM, SIG_DFL) == SIG_DFL) say("no handler\n");
       for (int number = 1; number <= SIGRTMAX; ++number) {
         struct sigaction now {};
         if (sigaction(number, nullptr, &now) == 0 && now.sa_handler != SIG_DFL &&
             now.sa_handler != SIG_IGN)
           std::cout << "another action of " << number << std::endl;
       }
       std::exit(0);
     }},

    // Nobody sees the copy that writes a report.
    {"observe_children", &observe_children},
    {"observe_children_to_the_end", [] { observe_children_to_the_end(); }},
    {"usage_of_children",
     [] {
       handle(SIGTERM, [](int) { ++signals; });
       say_ready();
       while (signals == 0) usleep(1000);
       say_usage_of_children();
       std::exit(0);
     }},
    {"count_interrupts",
     [] {
       handle(SIGINT, [](int) { say("SIGINT\n"); });
       handle(SIGTERM, [](int) { ++signals; });
       say_ready();
       while (signals == 0) usleep(1000);
       std::exit(0);
     }},
    {"sleep",
     [] {
       say_ready();
       timespec pause{1, 500'000'000};
       const int result = nanosleep(&pause, nullptr);
       std::cout << (result == 0 ? "slept" : std::strerror(errno)) << std::endl;
     }},
    {"sleep_in_read",
     [] {
       int pipe_ends[2];
       if (pipe(pipe_ends) != 0) std::exit(98);
       std::thread([write_end = pipe_ends[1]] {
         usleep(1'500'000);
         if (write(write_end, "", 1) != 1) std::exit(98);
       }).detach();
       say_ready();
       char byte = 1;
       const ssize_t size = read(pipe_ends[0], &byte, 1);
       std::cout << (size == 1 ? "read" : std::strerror(errno)) << std::endl;
     }},
};

}  // namespace

extern "C" __attribute__((visibility("default"))) int table_main(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "";
  microseconds = argc > 2 ? std::atoi(argv[2]) : 0;
  static const auto* const kept = new at::Tensor(make());
  if (what.rfind("raise_", 0) == 0) {
    raise(std::atoi(what.c_str() + std::strlen("raise_")));
    std::cout << "goes on" << std::endl;
    return 8;
  }
  const auto end = ends.find(what);
  if (end == ends.end()) return 64;
  end->second();
  return kept->defined() ? 0 : 1;
}

int main(int argc, char** argv) { return table_main(argc, argv); }
// NOLINTEND
