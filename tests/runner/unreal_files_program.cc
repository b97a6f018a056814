// Writes files before and after it reads a value of cuda:0, for unreal_files_test.sh:
//
//   unreal_files_program known|unknown|size|_exit|small_stack [COMMAND]
//
// early.txt is closed before, and log.txt is open all the time. Then it reads a value that is
// known, one that is not, or a size that only the device knows. It writes model.bin, renames
// part.tmp to part.bin and old.bin to kept.bin, and has the shell run a command. The last two end
// by _exit(), small_stack on a thread with the smallest stack that there is.
#include <ATen/ATen.h>
#include <pthread.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>

namespace {

void write_file(const char* path) {
  std::FILE* const file = std::fopen(path, "w");
  std::fputs("values\n", file);
  std::fclose(file);
}

[[noreturn]] void end_on_small_stack() {
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_t thread;
  int result = EINVAL;  // as long as the libraries' variables of a thread have no room
  for (auto bytes = static_cast<size_t>(sysconf(_SC_THREAD_STACK_MIN)); result == EINVAL;
       bytes += 4096) {
    pthread_attr_setstacksize(&attributes, bytes);
    const auto end = [](void*) -> void* { _exit(0); };
    result = pthread_create(&thread, &attributes, end, nullptr);
  }
  while (true) pause();
}

void read_value(const std::string& kind) {
  const auto options = at::TensorOptions(at::kCUDA).dtype(at::kFloat);
  if (kind == "known") {
    at::full({4}, 3, options).cpu();
  } else if (kind == "size") {
    at::empty({1 << 20}, options).nonzero();
  } else {
    (at::empty({1 << 20}, options) * 2).cpu();
  }
}

}  // namespace

int main(int argc, char** argv) {
  write_file("early.txt");
  std::FILE* const log = std::fopen("log.txt", "w");
  std::fputs("begin\n", log);
  std::fflush(log);
  std::FILE* const unused = std::fopen("unused.txt", "a");
  std::this_thread::sleep_for(std::chrono::milliseconds(50));  // some ticks of the clock of files
  read_value(argc > 1 ? argv[1] : "unknown");
  std::fputs("loss 0\n", log);
  std::fclose(log);
  std::fclose(unused);
  write_file("model.bin");
  write_file("part.tmp");
  std::rename("part.tmp", "part.bin");
  std::rename("old.bin", "kept.bin");
  const std::string end = argc > 1 ? argv[1] : "";
  if (end == "_exit") _exit(0);
  if (end == "small_stack") end_on_small_stack();
  return argc > 2 ? std::system(argv[2]) : 0;
}
