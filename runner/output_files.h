#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace memledger::runner {

// What the file of an option has to be.
struct OutputFile {
  enum class Kind : uint8_t {
    kFile,           // in a folder that is there
    kFileOfProgram,  // with %r, %p and %% in its path; its folders are made
    kFolderOfProgram,
    kPrinted,  // written at once, so that nothing is lost where that fails
  };
  Kind kind = Kind::kFile;
  std::vector<std::string> endings;  // of its formats, in lower case; none: any
  // Whether the ending chooses the format. Otherwise a file that is there may have any name, such
  // as that of mktemp.
  bool ending_chooses = false;
};

// Returns what is wrong with a path, so that it is known before the program starts. Makes nothing.
// `name`: the option or variable, for the message.
absl::Status check_output(const OutputFile& file, const std::string& name, const std::string& path);

}  // namespace memledger::runner
