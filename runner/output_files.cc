#include "runner/output_files.h"

#include <unistd.h>

#include <cstdlib>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "runner/environment.h"
#include "text/names.h"
#include "text/output.h"

namespace memledger::runner {
namespace {

using Kind = OutputFile::Kind;

// The path that this process will write, which becomes the program.
std::string path_of(const OutputFile& file, const std::string& path) {
  if (file.kind == Kind::kFile || file.kind == Kind::kPrinted) return path;
  return environment::expand(path, environment::rank(&std::getenv), getpid());
}

int why_not(Kind kind, const std::string& path) {
  switch (kind) {
    case Kind::kFile:
      return why_not_writable(path, /*makes_folders=*/false);
    case Kind::kFileOfProgram:
      return why_not_writable(path, /*makes_folders=*/true);
    case Kind::kFolderOfProgram:
      return why_folder_not_writable(path);
    case Kind::kPrinted:
      return 0;
  }
  return 0;
}

}  // namespace

absl::Status check_output(const OutputFile& file, const std::string& name,
                          const std::string& path) {
  const bool may_have_any_name =
      file.endings.empty() || (!file.ending_chooses && access(path.c_str(), F_OK) == 0);
  const std::string wrong = may_have_any_name ? "" : environment::why_no_format(path, file.endings);
  if (!wrong.empty())
    return absl::InvalidArgumentError(absl::StrCat(name, "=", printable(path), ": ", wrong));
  const std::string final_path = path_of(file, path);
  if (const int error = why_not(file.kind, final_path)) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, ": cannot write ", printable(final_path), ": ", std::strerror(error)));
  }
  return absl::OkStatus();
}

}  // namespace memledger::runner
