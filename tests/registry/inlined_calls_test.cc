// Inlined calls of this file, which is built with -O2 -g: against the lines that it knows itself.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "registry/hooks/inlined_calls.h"

#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>
#if __has_include(<elfutils/libdw.h>)
#include <elfutils/libdw.h>
#endif

#include "registry/core/loaded_libraries.h"
#include "registry/hooks/libdw.h"

namespace program {

// Returns where it was called from.
__attribute__((noinline)) void* here() {
  void* const address = __builtin_return_address(0);
  asm volatile("" ::: "memory");
  return address;
}

constexpr int kLineOfInner = __LINE__ + 2;
__attribute__((always_inline)) inline void* inner() {
  void* const address = here();
  asm volatile("" ::: "memory");
  return address;
}

struct Holder {
  static constexpr int kLine = __LINE__ + 3;
  template <typename T>
  __attribute__((always_inline)) void* call(T /*value*/) const {
    return inner();
  }
};

constexpr int kLineOfLambda = __LINE__ + 2;
__attribute__((noinline)) void* outer() {
  const auto lambda = [](int value) __attribute__((always_inline)) { return Holder().call(value); };
  void* const address = lambda(1);
  asm volatile("" ::: "memory");
  return address;
}

}  // namespace program

namespace memledger {
namespace {

std::string text_of(const std::vector<StackFrame>& frames) {
  std::string text;
  for (const StackFrame& frame : frames) {
    text += frame.file.substr(frame.file.rfind('/') + 1) + ':' + std::to_string(frame.line) + ' ' +
            frame.function + '\n';
  }
  return text;
}

TEST_CASE("each inlined call has its own function and line") {
  REQUIRE(InlinedCalls::are_known());
  const std::vector<StackFrame> frames = InlinedCalls::frames_at({program::outer()}).front();
  const auto line = [](int number) { return "inlined_calls_test.cc:" + std::to_string(number); };
  CHECK(text_of(frames) ==
        line(program::kLineOfInner) + " program::inner()\n" + line(program::Holder::kLine) +
            " void* program::Holder::call<int>(int) const\n" + line(program::kLineOfLambda) +
            " operator()\n" + line(program::kLineOfLambda + 1) + " program::outer()\n");
}

TEST_CASE("the parts of a function's code: each of its lines is among them") {
  const auto begin = reinterpret_cast<uintptr_t>(&program::outer);
  // Up to the call of here(): how long that is depends on the sanitizers.
  const auto end = reinterpret_cast<uintptr_t>(program::outer()) + 1;
  const std::vector<void*> places = InlinedCalls::places(begin, end);
  REQUIRE(places.size() > 1);
  CHECK(std::is_sorted(places.begin(), places.end()));
  std::vector<int64_t> lines;
  for (const std::vector<StackFrame>& frames : InlinedCalls::frames_at(places))
    if (!frames.empty()) lines.push_back(frames.back().line);
  CHECK(std::count(lines.begin(), lines.end(), program::kLineOfLambda + 1) > 0);
}

TEST_CASE("nothing for the system's libraries, and for what is no code") {
  int local = 0;
  const auto frames = InlinedCalls::frames_at(
      {reinterpret_cast<void*>(&std::strtol), &local, nullptr, reinterpret_cast<void*>(~0ull)});
  REQUIRE(frames.size() == 4);
  for (const std::vector<StackFrame>& none : frames) CHECK(none.empty());
  CHECK(InlinedCalls::places(0, 100).empty());
}

TEST_CASE("a child of fork reads on, whatever other threads read at that moment") {
  std::atomic<bool> end{false};
  std::thread reading([&] {
    while (!end.load()) InlinedCalls::frames_at({program::outer()});
  });
  for (int i = 0; i < 50; ++i) {
    InlinedCalls::lock_for_fork();
    core::lock_loaded_libraries_for_fork();
    const pid_t child = fork();
    core::unlock_loaded_libraries_after_fork();
    InlinedCalls::unlock_after_fork();
    if (child == 0) _exit(InlinedCalls::frames_at({program::outer()}).front().size() == 4 ? 0 : 1);
    REQUIRE(child > 0);
    int status = -1;
    REQUIRE(waitpid(child, &status, 0) == child);
    CHECK(status == 0);
  }
  end.store(true);
  reading.join();
}

#if __has_include(<elfutils/libdw.h>)
TEST_CASE("libdw's structures are as they are declared here") {
  CHECK(sizeof(libdw::Entry) == sizeof(Dwarf_Die));
  CHECK(offsetof(libdw::Entry, unit) == offsetof(Dwarf_Die, cu));
  CHECK(sizeof(libdw::Attribute) == sizeof(Dwarf_Attribute));
  CHECK(offsetof(libdw::Attribute, unit) == offsetof(Dwarf_Attribute, cu));
  CHECK(sizeof(Dwarf_Addr) == sizeof(uint64_t));
  CHECK(sizeof(Dwarf_Off) == sizeof(uint64_t));
}
#endif

}  // namespace
}  // namespace memledger
