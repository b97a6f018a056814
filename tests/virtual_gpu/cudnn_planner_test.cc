// Asking the user's cuDNN for its plans: through a made-up libcudnn with known answers, and the
// real one where there is one.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "virtual_gpu/cudnn_planner_client.h"

#include <dirent.h>
#include <doctest/doctest.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

namespace memledger::virtual_gpu {
namespace {

using Plans = std::optional<std::vector<CudnnPlan>>;

constexpr int kInstant = 0, kFallback = 2;

template <typename T>
std::string hex(const std::vector<T>& values) {
  std::string text;
  const auto* const bytes = reinterpret_cast<const unsigned char*>(values.data());
  for (size_t i = 0; i < values.size() * sizeof(T); ++i) {
    char digits[3];
    std::snprintf(digits, sizeof(digits), "%02x", bytes[i]);
    text += digits;
  }
  return text;
}

std::string tensor(char name, int type, const std::vector<int64_t>& extents) {
  std::vector<int64_t> strides(extents.size());
  int64_t stride = 1;
  for (size_t i = extents.size(); i-- > 0; stride *= extents[i]) strides[i] = stride;
  const std::string n = std::to_string(extents.size());
  return "node 17\nset 901 1 1 " + hex<int>({type}) + "\nset 902 3 " + n + ' ' + hex(extents) +
         "\nset 903 3 " + n + ' ' + hex(strides) + "\nset 906 3 1 " + hex<int64_t>({name}) +
         "\nset 900 3 1 " + hex<int64_t>({16}) + "\n";
}

// A forward convolution with 64 channels on both sides and filters of 3 x 3.
std::string forward(int64_t batch, int64_t size, int type) {
  return tensor('x', type, {batch, 64, size, size}) + tensor('w', type, {64, 64, 3, 3}) +
         tensor('y', type, {batch, 64, size, size}) + "node 1\nset 100 1 1 " + hex<int>({0}) +
         "\nset 101 7 1 " + hex<int>({1}) + "\nset 106 3 1 " + hex<int64_t>({2}) +
         "\nset 105 3 2 " + hex<int64_t>({1, 1}) + "\nset 104 3 2 " + hex<int64_t>({1, 1}) +
         "\nset 102 3 2 " + hex<int64_t>({1, 1}) + "\nset 103 3 2 " + hex<int64_t>({1, 1}) +
         "\nnode 10\nset 700 5 1 " + hex<double>({1}) + "\nset 701 5 1 " + hex<double>({0}) +
         "\nrefer 702 3\nrefer 703 1\nrefer 704 0\nrefer 705 2\nnode 15\nrefer 801 4\n";
}

Plans ask(int64_t batch, int mode = kInstant, const char* device = "h100") {
  return ask_cudnn(*find_profile(device), forward(batch, 8, 0), mode);
}

std::string variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

std::string cache() { return variable("TEST_TMPDIR") + "/cache"; }

// Each child has a connection and a memory of its own, and the settings that it makes. Returns what
// `work` does; negative when it did not end by itself.
template <typename F>
int in_child(F work) {
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child == 0) _exit(work());
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

void use_fake(const char* cache_name = "") {
  setenv(kCudnnVariable, variable("FAKE_CUDNN").c_str(), 1);
  setenv("XDG_CACHE_HOME", (cache() + cache_name).c_str(), 1);
  mkdir(cache().c_str(), 0755);
  mkdir((cache() + cache_name).c_str(), 0755);
}

std::vector<std::string> cached_files(const char* cache_name) {
  const std::string folder = cache() + cache_name + "/memledger/cudnn";
  std::vector<std::string> files;
  if (DIR* const list = opendir(folder.c_str())) {
    while (const dirent* const entry = readdir(list)) {
      if (entry->d_name[0] != '.') files.push_back(folder + "/" + entry->d_name);
    }
    closedir(list);
  }
  return files;
}

TEST_CASE("cuDNN's plans come with their notes and workspaces, best first, for the device") {
  CHECK(in_child([] {
          use_fake("/first");
          const Plans plans = ask(3);
          if (!plans.has_value() || plans->size() != 3) return 1;
          if ((*plans)[0].engine != 10 || (*plans)[0].workspace_bytes != 132003000) return 2;
          if ((*plans)[0].numerical_notes != std::vector<int>{0}) return 3;
          if ((*plans)[1].workspace_bytes >= 0) return 4;  // lists it, but makes no plan
          if ((*plans)[2].workspace_bytes != 136197304) return 5;
          if (!(*plans)[2].numerical_notes.empty()) return 6;
          const Plans l4 = ask(3, kInstant, "l4");
          if (!l4.has_value() || (*l4)[0].workspace_bytes != 58003000) return 7;
          const Plans fallback = ask(3, kFallback);
          if (!fallback.has_value() || fallback->size() != 1 || (*fallback)[0].engine != 99)
            return 8;
          // The program has no child that it did not start.
          return waitpid(-1, nullptr, WNOHANG) == -1 && errno == ECHILD ? 0 : 9;
        }) == 0);
}

TEST_CASE("answers lie on disk; what is unreadable there is asked for again") {
  const auto answer = [](const char* planner) {
    return in_child([planner] {
      use_fake("/disk");
      if (planner != nullptr) setenv(kCudnnPlannerVariable, planner, 1);
      const Plans plans = ask(4);
      return plans.has_value() && plans->size() == 3 && (*plans)[2].workspace_bytes == 136198304;
    });
  };
  CHECK(answer("/nonexistent") == 0);
  CHECK(answer(nullptr) == 1);
  CHECK(answer("/nonexistent") == 1);
  const std::vector<std::string> files = cached_files("/disk");
  REQUIRE(files.size() == 1);
  std::string text;
  std::getline(std::ifstream(files[0]), text, '\0');
  REQUIRE(text.find("136198304") != std::string::npos);
  text.replace(text.find("136198304"), 9, "136198309");
  std::ofstream(files[0]) << text;
  CHECK(answer("/nonexistent") == 0);
  CHECK(answer(nullptr) == 1);
  CHECK(answer("/nonexistent") == 1);
  std::ofstream(files[0]) << text.substr(0, text.size() / 2);
  CHECK(answer(nullptr) == 1);
  // Another libcudnn is another matter.
  CHECK(in_child([] {
          use_fake("/disk");
          setenv(kCudnnPlannerVariable, "/nonexistent", 1);
          const std::string copy = cache() + "/libcudnn_copy.so";
          std::ofstream(copy) << std::ifstream(std::getenv("FAKE_CUDNN")).rdbuf();
          setenv(kCudnnVariable, copy.c_str(), 1);
          return ask(4).has_value() ? 1 : 0;
        }) == 0);
}

// Whether cuDNN's answer is there without asking it.
int is_cached(const char* cache_name) {
  return in_child([cache_name] {
    alarm(20);
    use_fake(cache_name);
    setenv(kCudnnPlannerVariable, "/nonexistent", 1);
    return ask(4).has_value() ? 1 : 0;
  });
}

// Asks, after what `prepare` does in the same process; an answer must come whatever it is.
template <typename F>
int ask_after(const char* cache_name, F prepare) {
  return in_child([&] {
    alarm(20);
    use_fake(cache_name);
    prepare();
    return ask(4).has_value() ? 0 : 1;
  });
}

std::string only_file(const char* cache_name) {
  const std::vector<std::string> files = cached_files(cache_name);
  REQUIRE(files.size() == 1);
  return files[0];
}

TEST_CASE("what is no file of this user's alone is not read from the cache") {
  const auto nothing = [] {};
  REQUIRE(ask_after("/ours", nothing) == 0);
  const std::string file = only_file("/ours"), aside = cache() + "/aside";
  REQUIRE(is_cached("/ours") == 1);
  SUBCASE("a pipe, which would be waited for") {
    REQUIRE(unlink(file.c_str()) == 0);
    REQUIRE(mkfifo(file.c_str(), 0600) == 0);
    CHECK(is_cached("/ours") == 0);
  }
  SUBCASE("a link") {
    REQUIRE(rename(file.c_str(), aside.c_str()) == 0);
    REQUIRE(symlink(aside.c_str(), file.c_str()) == 0);
    CHECK(is_cached("/ours") == 0);
    unlink(aside.c_str());
  }
  SUBCASE("what others may write") {
    REQUIRE(chmod(file.c_str(), 0646) == 0);
    CHECK(is_cached("/ours") == 0);
  }
  SUBCASE("what is another's") {
    constexpr uid_t kNobody = 65534;
    if (geteuid() == 0) {
      REQUIRE(chown(file.c_str(), kNobody, kNobody) == 0);
      CHECK(is_cached("/ours") == 0);
    } else {
      MESSAGE("skipped: only root gives files away");
    }
  }
  SUBCASE("a folder that others may write") {
    const std::string folder = cache() + "/ours/memledger/cudnn";
    REQUIRE(chmod(folder.c_str(), 0777) == 0);
    CHECK(is_cached("/ours") == 0);
    REQUIRE(unlink(file.c_str()) == 0);
    CHECK(ask_after("/ours", nothing) == 0);
    CHECK(cached_files("/ours").empty());
    REQUIRE(chmod(folder.c_str(), 0755) == 0);
  }
  SUBCASE("a folder that is a link") {
    const std::string folder = cache() + "/ours/memledger/cudnn";
    REQUIRE(rename(folder.c_str(), aside.c_str()) == 0);
    REQUIRE(symlink(aside.c_str(), folder.c_str()) == 0);
    CHECK(is_cached("/ours") == 0);
    REQUIRE(unlink(folder.c_str()) == 0);
    REQUIRE(rename(aside.c_str(), folder.c_str()) == 0);
  }
  // cuDNN is asked then, and what can be repaired is.
  CHECK(ask_after("/ours", nothing) == 0);
  CHECK(is_cached("/ours") == 1);
  unlink(file.c_str());
}

TEST_CASE("what cannot be kept on disk changes nothing for the program") {
  SUBCASE("files may not be so large: no signal ends it") {
    CHECK(ask_after("/limit", [] {
            const rlimit small{16, 16};
            setrlimit(RLIMIT_FSIZE, &small);
          }) == 0);
    CHECK(cached_files("/limit").empty());
  }
  SUBCASE("HOME is no absolute path") {
    const std::string folder = cache() + "/relative";
    mkdir(cache().c_str(), 0755);
    mkdir(folder.c_str(), 0755);
    mkdir((folder + "/home").c_str(), 0755);
    for (const char* const home : {"home", ""}) {
      CHECK(ask_after("/relative", [&] {
              unsetenv("XDG_CACHE_HOME");
              setenv("HOME", home, 1);
              for (const char* const name : {kCudnnVariable, kCudnnPlannerVariable}) {
                char path[4096];
                if (realpath(variable(name).c_str(), path) != nullptr) setenv(name, path, 1);
              }
              if (chdir(folder.c_str()) != 0) _exit(3);
            }) == 0);
    }
    CHECK(access((folder + "/home/.cache").c_str(), F_OK) != 0);
  }
  SUBCASE("what a process left that was killed goes, what another writes now stays") {
    REQUIRE(ask_after("/left", [] {}) == 0);
    const std::string folder = cache() + "/left/memledger/cudnn/";
    std::ofstream(folder + ".new-old123") << "half";
    std::ofstream(folder + ".new-now123") << "half";
    const timespec yesterday[2] = {{time(nullptr) - 86400, 0}, {time(nullptr) - 86400, 0}};
    REQUIRE(utimensat(AT_FDCWD, (folder + ".new-old123").c_str(), yesterday, 0) == 0);
    unlink(only_file("/left").c_str());
    REQUIRE(ask_after("/left", [] {}) == 0);
    CHECK(access((folder + ".new-old123").c_str(), F_OK) != 0);
    CHECK(access((folder + ".new-now123").c_str(), F_OK) == 0);
  }
}

// Closes all descriptors but the standard ones, and takes their numbers for pairs of sockets.
std::vector<int> take_all_numbers() {
  for (int file = 3; file < 256; ++file) close(file);
  std::vector<int> peers;
  for (;;) {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends) != 0) return {};
    for (const int end : ends) peers.push_back(end);
    if (ends[1] >= 128) return peers;
  }
}

TEST_CASE("a program that closes all descriptors keeps those that it opens then") {
  CHECK(in_child([] {
          alarm(30);
          use_fake("/closed");
          if (!ask(11).has_value()) return 1;
          const std::vector<int> files = take_all_numbers();
          if (files.empty()) return 2;
          // Asked again, over a connection of its own.
          if (!ask(12).has_value()) return 3;
          char byte = 0;
          for (const int file : files) {
            if (recv(file, &byte, 1, 0) != -1 || errno != EAGAIN) return 4;
          }
          // Nor does a child close one.
          const std::vector<int> others = take_all_numbers();
          const pid_t child = fork();
          if (child == 0) {
            for (const int file : others) {
              if (fcntl(file, F_GETFD) < 0) _exit(1);
            }
            _exit(0);
          }
          int status = 1;
          waitpid(child, &status, 0);
          return status == 0 ? 0 : 5;
        }) == 0);
}

TEST_CASE("the planner is in no wait() of the program's, and sends it no signal") {
  CHECK(in_child([] {
          alarm(30);
          use_fake("/unseen");
          static volatile sig_atomic_t signals = 0;
          struct sigaction action {};
          action.sa_handler = [](int) { signals = signals + 1; };
          sigaction(SIGCHLD, &action, nullptr);
          if (!ask(13).has_value()) return 1;
          if (ask(666).has_value()) return 2;  // ends it
          if (!ask(14).has_value()) return 3;  // another one
          for (const int options : {0, __WALL}) {
            if (waitpid(-1, nullptr, options | WNOHANG) != -1 || errno != ECHILD) return 4;
          }
          // The program's own child is seen as ever.
          const pid_t child = fork();
          if (child == 0) _exit(7);
          int status = 0;
          if (wait(&status) != child || WEXITSTATUS(status) != 7) return 5;
          return signals == 1 ? 0 : 6;
        }) == 0);
}

TEST_CASE("a graph that ends cuDNN has no answer, others have; not more than three times") {
  CHECK(in_child([] {
          use_fake("/dies");
          if (ask(666).has_value()) return 1;
          if (!ask(5).has_value()) return 2;
          if (ask(666).has_value()) return 3;  // not asked again
          if (!ask(6).has_value()) return 4;
          if (ask(666, kFallback).has_value() || ask(666, kInstant, "l4").has_value()) return 5;
          return ask(7).has_value() ? 6 : 0;
        }) == 0);
}

TEST_CASE("what cuDNN refuses, and what is no graph, has no answer") {
  CHECK(in_child([] {
          use_fake("/refuses");
          const Plans none = ask(888);
          if (none.has_value() && !none->empty()) return 1;
          if (ask_cudnn(*find_profile("h100"), "node 15\nrefer 801 7\n", 0).has_value()) return 2;
          if (ask_cudnn(*find_profile("h100"), "node 17\nset 901 1 1 0\n", 0).has_value()) return 3;
          if (ask_cudnn(*find_profile("h100"), "", 0).has_value()) return 4;
          return ask(8).has_value() ? 0 : 5;
        }) == 0);
}

TEST_CASE("nobody waits longer than allowed for an answer, and then no more") {
  const auto begin = std::chrono::steady_clock::now();
  CHECK(in_child([] {
          use_fake("/hangs");
          setenv(kCudnnSecondsVariable, "2", 1);
          return ask(777).has_value() || ask(9).has_value() || ask(777, kFallback).has_value();
        }) == 0);
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(20));
}

TEST_CASE("without a cuDNN that can be asked there is no answer") {
  const auto answers = [](const char* cudnn, const char* version) {
    return in_child([=] {
      use_fake("/none");
      if (cudnn != nullptr) setenv(kCudnnVariable, cudnn, 1);
      if (version != nullptr) setenv("FAKE_CUDNN_VERSION", version, 1);
      return ask(10).has_value();
    });
  };
  CHECK(answers("model", nullptr) == 0);
  CHECK(in_child([] {
          use_fake("/none");
          setenv(kCudnnVariable, "model", 1);
          return ask(10).has_value() || lacks_cudnn();  // nothing was looked for
        }) == 0);
  CHECK(answers("/nonexistent/libcudnn.so.9", nullptr) == 0);
  CHECK(answers("/proc/self/exe", nullptr) == 0);  // a program is no library
  CHECK(answers(nullptr, "90701") == 0);
  CHECK(answers(nullptr, "90800") == 1);
}

// A wheel's folder shows its version. The machine may have a cuDNN, but of no such release.
TEST_CASE("the cuDNN of a Python environment is asked if it is of the release that is told") {
  const auto asks_wheel = [](const std::string& wheel, const char* told) {
    return in_child([&] {
      const std::string environment = cache() + "/" + wheel + "-" + told;
      const std::string packages = environment + "/lib/python3.11/site-packages";
      use_fake(("/venv" + wheel).c_str());
      std::filesystem::create_directories(packages + "/nvidia/cudnn/lib");
      std::filesystem::create_directories(packages + "/nvidia_cudnn_" + wheel + ".dist-info");
      std::filesystem::create_symlink(std::filesystem::absolute(variable("FAKE_CUDNN")),
                                      packages + "/nvidia/cudnn/lib/libcudnn.so.9");
      unsetenv(kCudnnVariable);
      setenv("VIRTUAL_ENV", environment.c_str(), 1);
      setenv(kCudnnVersionVariable, told, 1);
      const Plans plans = ask(10);
      if (plans.has_value() == lacks_cudnn()) return 2;
      return plans.has_value() && (*plans)[0].workspace_bytes == 132010000 ? 1 : 0;
    });
  };
  CHECK(asks_wheel("cu13-9.98.0.56", "99800") == 1);
  CHECK(asks_wheel("cu13-9.97.2.21", "99800") == 0);
  CHECK(asks_wheel("cu12-9.98.0.56", "99800") == 0);
  // What torch's wheels require.
  CHECK(cudnn_requirement() == (LIBTORCH_MINOR >= 15   ? "nvidia-cudnn-cu13==9.26.*"
                                : LIBTORCH_MINOR >= 14 ? "nvidia-cudnn-cu13==9.24.*"
                                : LIBTORCH_MINOR >= 12 ? "nvidia-cudnn-cu13==9.20.*"
                                                       : "nvidia-cudnn-cu13==9.19.*"));
}

TEST_CASE("many threads ask at once, and a child of theirs") {
  CHECK(in_child([] {
          use_fake("/threads");
          std::vector<int> wrong(8);
          std::vector<std::thread> threads;
          for (int t = 0; t < 8; ++t) {
            threads.emplace_back([t, &wrong] {
              for (int64_t n = 20; n < 40; ++n) {
                const Plans plans = ask(n);
                wrong[t] +=
                    !plans.has_value() || (*plans)[0].workspace_bytes != 132000000 + 1000 * n;
              }
            });
          }
    // A child must not talk over its parent's connection, nor wait for its locks.
    // AddressSanitizer's allocator has no fork handlers: there a child may wait for the lock of a
    // thread that is gone.
#if defined(__SANITIZE_ADDRESS__)
          constexpr int64_t kChildren = 0;
#else
          constexpr int64_t kChildren = 5;
#endif
          int failures = 0;
          for (int64_t n = 50; n < 50 + kChildren; ++n) {
            const pid_t child = fork();
            if (child == 0) {
              alarm(20);
              _exit(ask(n).has_value() ? 0 : 1);
            }
            int status = 1;
            waitpid(child, &status, 0);
            failures += status != 0;
          }
          for (std::thread& thread : threads) thread.join();
          for (const int w : wrong) failures += w;
          return failures == 0 ? 0 : 1;
        }) == 0);
}

TEST_CASE("only whole answers are read") {
  CHECK(parse_cudnn_answer("version 91900\nmode 0\ndone\n")->empty());
  CHECK(parse_cudnn_answer("version 91900\nmode 0\nconfig 1 512 1 0 0\ndone\n")->size() == 1);
  for (const char* const wrong :
       {"", "version 91900\nrefused\n", "version 91900\nmode 0\nconfig 1 512 0 0\n",
        "config 1 512 2 0 0\ndone\n", "config 1 x 0 0\ndone\n", "config 1 512 0 0 7\ndone\n",
        "config 1\ndone\n", "config 1 512 0 -1\ndone\n"}) {
    CAPTURE(wrong);
    CHECK_FALSE(parse_cudnn_answer(wrong).has_value());
  }
}

// Measured on a 3090 Ti and a PRO 5000 (Blackwell), with cuDNN 9.20 and 9.10, by FakeGPU: 3 x 3
// with padding 1, 2 x 64 x 128 x 128. LibTorch's allocator gives blocks of 512 bytes.
TEST_CASE("the real cuDNN says of described devices what was measured on real ones") {
  const char* found = nullptr;
  const char* const paths[] = {std::getenv("MEMLEDGER_TEST_CUDNN"),
                               "/usr/local/cuda/lib64/libcudnn.so.9",
                               "/usr/lib/x86_64-linux-gnu/libcudnn.so.9"};
  for (const char* const path : paths) {
    if (found == nullptr && path != nullptr && access(path, R_OK) == 0) found = path;
  }
  if (found == nullptr) {
    MESSAGE("skipped: no libcudnn.so.9; MEMLEDGER_TEST_CUDNN can name one");
    return;
  }
  const auto block = [found](const char* device, int type) {
    int out[2];
    REQUIRE(pipe(out) == 0);
    in_child([&] {
      use_fake("/real");
      setenv(kCudnnVariable, found, 1);
      const Plans plans = ask_cudnn(*find_profile(device), forward(2, 128, type), kInstant);
      const int64_t bytes = plans.has_value() && !plans->empty() ? (*plans)[0].workspace_bytes : -1;
      return write(out[1], &bytes, sizeof(bytes)) == sizeof(bytes) ? 0 : 1;
    });
    int64_t bytes = 0;
    REQUIRE(read(out[0], &bytes, sizeof(bytes)) == sizeof(bytes));
    close(out[0]);
    close(out[1]);
    return (bytes + 511) / 512 * 512;
  };
  constexpr int kFloat = 0, kBfloat16 = 9;
  if (block("rtx3090", kFloat) == 0) {
    MESSAGE("skipped: ", found, " could not be asked");
    return;
  }
  CHECK(block("rtx3090", kFloat) == 8536576);
  CHECK(block("rtx3090", kBfloat16) == 8462848);
  CHECK(block("rtx5090", kFloat) == 16925184);
  CHECK(block("rtx5090", kBfloat16) == 8462848);
}

}  // namespace
}  // namespace memledger::virtual_gpu
