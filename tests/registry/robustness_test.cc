// What programs do to those who watch them: fork while others work, exit with threads running, free
// after main, run out of memory where the tables grow, call deleters with nothing, have signal
// handlers. Own binary: its operator new can refuse.
#define DOCTEST_CONFIG_IMPLEMENT
#include "tests/support/doctest_beside_torch.h"

#include <ATen/ops/add.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/stack.h>
#include <ATen/record_function.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "registry/registry.h"
#include "tests/support/failing_new.h"

namespace memledger {
namespace {

Registry& registry() { return Registry::global(); }

int64_t total() { return registry().snapshot().total_bytes(at::kCPU); }

bool books_agree() {
  const Snapshot snapshot = registry().snapshot();
  return snapshot.total_bytes(at::kCPU) == snapshot.counters(at::kCPU).current_bytes;
}

// The exit status of a child; minus the signal if one ended it.
int status_of(pid_t child) {
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

// This program again, in another role (see main).
int status_as(const char* role) {
  const pid_t child = fork();
  if (child == 0) {
    execl("/proc/self/exe", "robustness_test", role, nullptr);
    _exit(99);
  }
  return status_of(child);
}

class Workers {
 public:
  explicit Workers(int count) {
    for (int i = 0; i < count; ++i) {
      threads_.emplace_back([this] {
        std::vector<at::Tensor> kept;
        bool counted = false;
        while (!stop_.load(std::memory_order_relaxed)) {
          const ScopedLabel label("worker");
          kept.push_back(at::add(at::ones({16}), 1));
          if (!counted) ++begun_;
          counted = true;
          if (kept.size() == 50) kept.clear();
        }
      });
    }
    // A thread's first operator takes a lock of LibTorch's (of its RecordFunction callbacks), which
    // LibTorch does not free in a child.
    while (begun_.load() < count) std::this_thread::yield();
  }
  ~Workers() {
    stop_.store(true);
    for (std::thread& thread : threads_) thread.join();
  }

 private:
  std::atomic<bool> stop_{false};
  std::atomic<int> begun_{0};
  std::vector<std::thread> threads_;
};

TEST_CASE(
    "children of a program whose threads allocate: their books are right, and the parent's stay "
    "so") {
#if defined(__SANITIZE_ADDRESS__)
  MESSAGE(
      "skipped: the address sanitizer's own allocator may be locked in a child of a threaded "
      "program");
  return;
#endif
  const int64_t before = total();
  {
    const auto mine = at::empty({1000});
    const Workers workers(3);
    for (int i = 0; i < 30; ++i) {
      const pid_t child = fork();
      if (child == 0) {
        alarm(60);  // a lock that nobody holds any more would end here, with a signal
        if (!books_agree()) _exit(1);
        const int64_t at_start = total();
        Cursor cursor;
        registry().changes_since(cursor);
        const ScopedLabel label("child");
        const auto more = at::add(mine, 1);
        if (total() != at_start + 4000 || !books_agree()) _exit(2);
        const Changes changes = registry().changes_since(cursor);
        if (changes.born.size() != 1 || changes.born[0].label != "child" ||
            changes.born[0].op != "aten::add")
          _exit(3);
        // Again one generation down, with a thread of its own.
        const pid_t grandchild = fork();
        if (grandchild == 0) {
          bool right = false;
          std::thread([&] {
            const auto last = at::ones({10});
            right = total() == at_start + 4040;
          }).join();
          _exit(right && books_agree() ? 0 : 1);
        }
        _exit(status_of(grandchild) == 0 ? 0 : 4);
      }
      CHECK(status_of(child) == 0);
    }
  }
  CHECK(total() == before);
  CHECK(books_agree());
}

TEST_CASE("a child leaves with exit: the parent's tensors in it are nobody's loss") {
  const auto mine = at::empty({1000});
  const int64_t before = total();
  const pid_t child = fork();
  if (child == 0) std::quick_exit(total() == before ? 0 : 1);
  CHECK(status_of(child) == 0);
  CHECK(total() == before);
}

TEST_CASE("exit with tensors alive and threads at work, watched as unwatched") {
  for (int i = 0; i < 10; ++i) {
    CHECK(status_as("exit with threads, unwatched") == 7);
    CHECK(status_as("exit with threads") == 7);
  }
}

TEST_CASE("tensors of static objects, and the registry asked by their destructors") {
  CHECK(status_as("static objects") == 0);
}

TEST_CASE("a deleter is called with nothing") {
  c10::Allocator* const allocator = c10::GetAllocator(at::kCPU);
  const int64_t before = total();
  const HookHealth health = registry().health();
  REQUIRE((allocator->raw_deleter() != nullptr));
  allocator->raw_deleter()(nullptr);
  allocator->raw_deallocate(nullptr);
  c10::DataPtr made = allocator->allocate(100);
  made.get_deleter()(nullptr);
  CHECK(total() == before + 100);
  made.clear();
  const c10::DataPtr empty = allocator->allocate(0);
  CHECK(total() == before);
  CHECK(registry().health().unknown_frees == health.unknown_frees);
}

TEST_CASE(
    "no memory where the tables grow: counted, never thrown, and the program's memory is its own") {
  c10::Allocator* const allocator = c10::GetAllocator(at::kCPU);
  constexpr size_t kBlocks = 20000;
  std::vector<c10::DataPtr> blocks;
  blocks.reserve(kBlocks);
  // The tables have room for some.
  for (size_t i = 0; i < 3000; ++i) blocks.push_back(allocator->allocate(64));
  blocks.clear();
  const int64_t before = total();
  const int64_t dropped = registry().health().dropped_records;
  const int64_t refused = testing::refused_allocations();
  {
    const testing::NoMemory no_memory;
    for (size_t i = 0; i < kBlocks; ++i) {
      blocks.push_back(allocator->allocate(64));
      std::memset(blocks.back().get(), 1, 64);
    }
  }
  CHECK(testing::refused_allocations() > refused);
  const int64_t lost = registry().health().dropped_records - dropped;
  CHECK(lost > 0);
  CHECK(lost < static_cast<int64_t>(kBlocks));
  CHECK(total() == before + 64 * (static_cast<int64_t>(kBlocks) - lost));
  CHECK(books_agree());
  {
    const testing::NoMemory no_memory;
    blocks.clear();
  }
  CHECK(total() == before);
  CHECK(books_agree());
  // And everything is as before, once there is memory.
  const auto after = at::ones({100});
  CHECK(total() == before + 400);
  CHECK(registry().health().dropped_records == dropped + lost);
}

TEST_CASE("no memory while operators and cursors are watched") {
  const auto a = at::ones({16}), b = at::ones({16});
  Cursor cursor;
  registry().changes_since(cursor);
  std::vector<at::Tensor> kept;
  kept.reserve(4000);
  std::vector<at::Tensor> early;
  for (int i = 0; i < 2000; ++i) early.push_back(at::ones({4}));
  registry().changes_since(cursor);
  const int64_t refused = testing::refused_allocations();
  for (int i = 0; i < 2000; ++i) {
    at::Tensor made;
    {
      const testing::NoMemory no_memory;
      {
        RECORD_USER_SCOPE("scope");
        made = at::add(a, b);
      }
      early[static_cast<size_t>(i)].reset();  // a tombstone for the cursor
    }
    kept.push_back(std::move(made));
  }
  CHECK(testing::refused_allocations() > refused);
  for (const at::Tensor& tensor : kept) REQUIRE(tensor.data_ptr<float>()[15] == 2);
  CHECK(books_agree());
  // Reports what died, or that it is not known.
  const Changes changes = registry().changes_since(cursor);
  CHECK((changes.from_snapshot || changes.died.size() == 2000));
  kept.clear();
  CHECK(books_agree());
}

volatile std::sig_atomic_t alarms = 0;

TEST_CASE("signal handlers are the program's, and run while it is watched") {
  struct sigaction mine {};
  mine.sa_handler = [](int) { alarms = alarms + 1; };
  struct sigaction before {};
  REQUIRE(sigaction(SIGALRM, &mine, &before) == 0);
  struct sigaction segv_before {};
  struct sigaction term_before {};
  sigaction(SIGSEGV, nullptr, &segv_before);
  sigaction(SIGTERM, nullptr, &term_before);
  sigset_t mask_before{};
  pthread_sigmask(SIG_SETMASK, nullptr, &mask_before);

  const itimerval every_ms{{0, 1000}, {0, 1000}};
  setitimer(ITIMER_REAL, &every_ms, nullptr);
  const int64_t at_start = total();
  while (alarms < 50) {
    const ScopedTracking again;
    const auto made = at::add(at::ones({64}), 1);
    CHECK(total() == at_start + 256);
  }
  const itimerval off{};
  setitimer(ITIMER_REAL, &off, nullptr);

  struct sigaction now {};
  sigaction(SIGALRM, &before, &now);
  CHECK((now.sa_handler == mine.sa_handler));
  sigaction(SIGSEGV, nullptr, &now);
  CHECK((now.sa_handler == segv_before.sa_handler));
  sigaction(SIGTERM, nullptr, &now);
  CHECK((now.sa_handler == term_before.sa_handler));
  sigset_t mask_now{};
  pthread_sigmask(SIG_SETMASK, nullptr, &mask_now);
  for (int signal = 1; signal < NSIG; ++signal)
    CHECK(sigismember(&mask_now, signal) == sigismember(&mask_before, signal));
}

TEST_CASE("signals end a watched program as they would, or reach its handlers") {
  for (const int signal : {SIGTERM, SIGSEGV, SIGABRT}) {
    CAPTURE(signal);
    for (const bool handled : {false, true}) {
      const pid_t child = fork();
      if (child == 0) {
        std::signal(signal, handled ? [](int) { _exit(42); } : SIG_DFL);
        const auto made = at::ones({64});
        raise(signal);
        _exit(1);
      }
      CHECK(status_of(child) == (handled ? 42 : -signal));
    }
  }
}

// Roles of a process of its own.

int exit_with_threads(bool watched) {
  if (watched && !registry().activate().ok()) return 1;
  static auto* const alive = new at::Tensor(at::ones({1000}));
  c10::Allocator* const allocator = c10::GetAllocator(at::kCPU);
  for (int i = 0; i < 4; ++i) {
    // Not through operators: LibTorch takes its dispatcher down under threads that still run,
    // watched or not.
    std::thread([allocator] {
      for (;;) const c10::DataPtr made = allocator->allocate(256);
    }).detach();
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  return alive->defined() ? 7 : 1;
}

// Made before main, and so destroyed after everything that main makes.
class AsksAtTheEnd {
 public:
  ~AsksAtTheEnd() {
    if (!tensor.defined()) return;
    const int64_t before = total();
    const bool known = registry().snapshot().find_address(at::kCPU, tensor.data_ptr()) != nullptr;
    const auto nbytes = static_cast<int64_t>(tensor.nbytes());
    tensor.reset();
    const HookHealth health = registry().health();
    const bool right =
        known && total() == before - nbytes && books_agree() && health.unknown_frees == 0;
    if (!right) _exit(1);
  }
  at::Tensor tensor;
};
AsksAtTheEnd made_early;

int with_static_objects() {
  static AsksAtTheEnd made_in_main;
  static Cursor cursor;
  static std::unique_ptr<ScopedTracking> tracking = std::make_unique<ScopedTracking>();
  registry().changes_since(cursor);
  made_early.tensor = at::ones({1000});
  made_in_main.tensor = at::add(made_early.tensor, 1);
  return 0;
}

}  // namespace
}  // namespace memledger

int main(int argc, char** argv) {
  const std::string role = argc > 1 ? argv[1] : "";
  if (role == "exit with threads") return memledger::exit_with_threads(/*watched=*/true);
  if (role == "exit with threads, unwatched")
    return memledger::exit_with_threads(/*watched=*/false);
  if (role == "static objects") return memledger::with_static_objects();
  if (!memledger::Registry::global().activate().ok()) return 1;
  return doctest::Context(argc, argv).run();
}
