#include "runner/linked_libtorch.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <optional>
#include <sstream>
#include <string_view>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "runner/libtorch_release.h"
#include "runner/program_file.h"
#include "runner/program_kind.h"

namespace memledger::runner {
namespace {

// What the dynamic linker prints of a program in place of starting it, as ldd does. Resolving all
// symbols takes its time with LibTorch.
std::optional<std::string> ask_linker(const std::string& path, bool resolve_symbols) {
  std::array<int, 2> ends;
  if (pipe2(ends.data(), O_CLOEXEC) != 0) return std::nullopt;
  const pid_t child = fork();
  if (child == 0) {
    // Nor has it rights of others then, should the file be another by now.
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    setenv("LD_TRACE_LOADED_OBJECTS", "1", 1);
    if (resolve_symbols) {
      setenv("LD_WARN", "yes", 1);
      setenv("LD_BIND_NOW", "yes", 1);
    }
    dup2(ends[1], STDOUT_FILENO);
    dup2(ends[1], STDERR_FILENO);
    execl(path.c_str(), path.c_str(), nullptr);
    _exit(127);
  }
  close(ends[1]);
  std::string text;
  std::array<char, 4096> buffer;
  for (;;) {
    const ssize_t got = read(ends[0], buffer.data(), buffer.size());
    if (got > 0) text.append(buffer.data(), static_cast<size_t>(got));
    if (got == 0 || (got < 0 && errno != EINTR)) break;
  }
  close(ends[0]);
  if (child < 0) return std::nullopt;
  while (waitpid(child, nullptr, 0) < 0 && errno == EINTR) {
  }
  return text;
}

// The folder in `libtorch_cpu.so => /folder/libtorch_cpu.so (0x00007f…)`; empty where there is no
// such line.
std::string folder_of_libtorch(const std::string& text) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (!absl::StrContains(line, "libtorch_cpu.so => ") &&
        !absl::StrContains(line, "libc10.so => "))
      continue;
    const size_t begin = line.find("=> ") + std::string_view("=> ").size();
    const size_t end = line.rfind('/');
    if (end != std::string::npos && end > begin) return line.substr(begin, end - begin);
  }
  return "";
}

// What is missing, as `libcudart.so.12 => not found` or `undefined symbol: name`, behind which
// stands the file that lacks it. One is enough to say.
std::string first_missing(const std::string& text) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (absl::StrContains(line, "not found") || absl::StrContains(line, "undefined symbol") ||
        absl::StrContains(line, "cannot open shared object file")) {
      const std::string found(absl::StripAsciiWhitespace(line));
      return found.substr(0, found.find('\t'));
    }
  }
  return "";
}

}  // namespace

std::string why_libtorch_does_not_fit(const std::string& program,
                                      const std::vector<std::string>& libraries,
                                      const std::string& release) {
  const std::string path = find_program(program);
  // The linker would start such a program in place of telling of it.
  if (kind_of_program(path.c_str()) != ProgramKind::kGlibc || gains_privileges(path)) return "";
  const std::optional<std::string> needed = ask_linker(path, /*resolve_symbols=*/false);
  const std::string folder = needed ? folder_of_libtorch(*needed) : "";
  char version[64] = "";
  if (folder.empty() || !read_libtorch_version(folder.c_str(), version, sizeof version)) return "";
  const int cuda = cuda_of_libraries(absl::StrJoin(libraries, ":").c_str());
  if (is_of_release(version, release.c_str()) && is_same_cuda(cuda_of_version(version), cuda))
    return "";
  // Another release may fit all the same.
  const std::optional<std::string> resolved = ask_linker(path, /*resolve_symbols=*/true);
  const std::string missing = resolved ? first_missing(*resolved) : "";
  if (missing.empty()) return "";
  return absl::StrCat(
      path, " is linked with LibTorch ", version, " (", folder,
      "), and the virtual GPU of this memledger was made for LibTorch ", release, " with CUDA ",
      cuda, ", so that it does not start (", missing,
      "). Build memledger for that LibTorch (LIBTORCH=", folder.substr(0, folder.rfind('/')),
      " ./bazelw build ...), or the program with LibTorch ", release);
}

}  // namespace memledger::runner
