// Writes files before and after it reads a value of cuda:0, for unreal_files_test.sh:
//
//   unreal_files_program known|unknown|size [COMMAND]
//
// early.txt is closed before, and log.txt is open all the time. Then it reads a value that is
// known, one that is not, or a size that only the device knows; writes model.bin, renames part.tmp
// to part.bin and old.bin to kept.bin, and has the shell run a command.
#include <ATen/ATen.h>

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
  return argc > 2 ? std::system(argv[2]) : 0;
}
