#include "runner/linker_trace.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <sstream>

#include "absl/strings/strip.h"
#include "runner/program_kind.h"

namespace memledger::runner {
namespace {

constexpr char kLinker[] = "/lib64/ld-linux-x86-64.so.2";  // as the ABI has it

}  // namespace

std::optional<std::string> trace_linker(const std::string& path, bool resolve_symbols) {
  const bool is_program = kind_of_program(path.c_str()) == ProgramKind::kGlibc;
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
    if (is_program) {
      execl(path.c_str(), path.c_str(), nullptr);
    } else {
      execl(kLinker, kLinker, path.c_str(), nullptr);
    }
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

std::vector<NeededLibrary> needed_libraries(const std::string& text) {
  constexpr std::string_view kArrow = " => ";
  std::vector<NeededLibrary> libraries;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const size_t arrow = line.find(kArrow);
    if (arrow == std::string::npos) continue;
    NeededLibrary library;
    library.name = std::string(absl::StripAsciiWhitespace(line.substr(0, arrow)));
    library.path = line.substr(arrow + kArrow.size());
    // Behind a path stands its address.
    library.path.resize(library.path[0] == '/' ? library.path.rfind(" (0x") : 0);
    libraries.push_back(std::move(library));
  }
  return libraries;
}

std::string folder_of_libtorch(const std::vector<NeededLibrary>& libraries) {
  for (const NeededLibrary& library : libraries) {
    const bool is_libtorch = library.name == "libtorch_cpu.so" || library.name == "libc10.so";
    if (is_libtorch && !library.path.empty())
      return library.path.substr(0, library.path.rfind('/'));
  }
  return "";
}

}  // namespace memledger::runner
