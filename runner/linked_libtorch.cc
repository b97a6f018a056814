#include "runner/linked_libtorch.h"

#include <optional>
#include <sstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "runner/libtorch_release.h"
#include "runner/linker_trace.h"
#include "runner/program_file.h"
#include "runner/program_kind.h"

namespace memledger::runner {
namespace {

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
  // The linker would start such a program instead of listing its libraries.
  if (kind_of_program(path.c_str()) != ProgramKind::kGlibc || gains_privileges(path)) return "";
  const std::optional<std::string> needed = trace_linker(path);
  const std::string folder = needed ? folder_of_libtorch(needed_libraries(*needed)) : "";
  char version[64] = "";
  if (folder.empty() || !read_libtorch_version(folder.c_str(), version, sizeof version)) return "";
  const int cuda = cuda_of_libraries(absl::StrJoin(libraries, ":").c_str());
  if (is_of_release(version, release.c_str()) && is_same_cuda(cuda_of_version(version), cuda))
    return "";
  // Another release may fit all the same.
  const std::optional<std::string> resolved = trace_linker(path, /*resolve_symbols=*/true);
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
