// A user's LibTorch program that keeps a tensor of 3 MiB and ends as its argument says. What waits
// for a signal says `ready` first.
//
//   ending_program END

#include <ATen/ops/empty.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

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
       signal(SIGTERM, [](int) {});
       if (signal(SIGTERM, SIG_DFL) == SIG_DFL) say("no handler\n");
       struct sigaction now {};
       sigaction(SIGTERM, nullptr, &now);
       if (now.sa_handler != SIG_DFL) say("another action\n");
       wait_for_signal();
     }},
    {"sent", [] { raise(SIGTERM); }},
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
  if (what == "launcher" || what == "idle") return end_without_tensor(argv[0], what);
  const auto end = ends.find(what);
  if (end == ends.end()) return 64;
  static const auto* const kept = new at::Tensor(make());
  end->second();
  return kept->defined() ? 0 : 1;
}
