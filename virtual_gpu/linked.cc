// Gives the program that it is linked with a virtual GPU, however it is started: before main(), the
// program becomes `memledger run --virtual-gpu=…` of itself, which preloads what that takes.
//
// Knows neither LibTorch nor memledger, whose libraries come with the runner.

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <string>
#include <vector>

namespace {

constexpr char kSpecification[] = "MEMLEDGER_VIRTUAL_GPU";
constexpr char kDefault[] = "h200";
// The process that has tried: a program keeps its number when it becomes another.
constexpr char kTried[] = "MEMLEDGER_VIRTUAL_GPU_TRIED_BY";

std::string path_of_this_program() {
  std::string path(4096, '\0');
  const ssize_t length = readlink("/proc/self/exe", path.data(), path.size());
  path.resize(length < 0 ? 0 : static_cast<size_t>(length));
  return path;
}

bool is_program(const std::string& path) { return access(path.c_str(), X_OK) == 0; }

// Where Bazel puts what a program needs when it runs; else the one that is installed.
std::string find_runner(const std::string& program) {
  std::vector<std::string> folders = {program + ".runfiles"};
  for (const char* const variable : {"RUNFILES_DIR", "TEST_SRCDIR"}) {
    if (const char* const folder = getenv(variable)) folders.emplace_back(folder);
  }
  for (const std::string& folder : folders) {
    const std::string runner = folder + "/memledger/runner/memledger";
    if (is_program(runner)) return runner;
  }
#if defined(MEMLEDGER_COMMAND)
  if (is_program(MEMLEDGER_COMMAND)) return MEMLEDGER_COMMAND;
#endif
  return "memledger";
}

void become_virtual(int argc, char** argv) {
  const std::string process = std::to_string(getpid());
  const char* const tried = getenv(kTried);
  if (tried != nullptr && tried == process) return;  // the runner has said why not
  setenv(kTried, process.c_str(), /*overwrite=*/1);
  const char* const wanted = getenv(kSpecification);
  const std::string option =
      std::string("--virtual-gpu=") + (wanted == nullptr || *wanted == '\0' ? kDefault : wanted);
  const std::string program = path_of_this_program();
  const std::string runner = find_runner(program);
  std::vector<std::string> words = {runner, "run", "--quiet", option, "--", program};
  for (int i = 1; i < argc; ++i) words.emplace_back(argv[i]);
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  execvp(runner.c_str(), pointers.data());
  fprintf(stderr,
          "memledger: no virtual GPU: neither %s.runfiles nor PATH has the command `memledger`\n",
          program.c_str());
}

// Before the program's own static objects. glibc hands main's arguments on.
__attribute__((constructor(101))) void begin(int argc, char** argv) {
  if (dlsym(RTLD_DEFAULT, "memledger_virtual_gpu_uses") == nullptr) become_virtual(argc, argv);
  // A program that is linked with LibTorch's CUDA library cannot start where NVIDIA's are missing;
  // so it comes now, along the program's run path.
  if (dlsym(RTLD_DEFAULT, "memledger_virtual_gpu_uses") != nullptr &&
      dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_GLOBAL) == nullptr)
    fprintf(stderr, "memledger: no virtual GPU: %s\n", dlerror());
}

}  // namespace
