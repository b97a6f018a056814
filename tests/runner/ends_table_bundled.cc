// A plug-in for ends_table_host.c, with a LibTorch of its own inside: one that is linked
// statically, or bundled under another name.
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace c10 {

struct Allocator;
__attribute__((visibility("default"))) Allocator* GetDefaultCPUAllocator() { return nullptr; }

}  // namespace c10

extern "C" __attribute__((visibility("default"))) int table_main(int argc, char** argv) {
  const char* const what = argc > 1 ? argv[1] : "";
  std::puts(c10::GetDefaultCPUAllocator() == nullptr ? "its own" : "another");
  std::fflush(stdout);
  if (std::strcmp(what, "exit") == 0) std::exit(3);
  if (std::strcmp(what, "_exit") == 0) _exit(4);
  if (std::strcmp(what, "abort") == 0) std::abort();
  if (std::strcmp(what, "wait") == 0) {
    std::printf("ready %d\n", static_cast<int>(getpid()));
    std::fflush(stdout);
    while (true) sleep(60);
  }
  return 0;
}
