#pragma once

#include <string>

namespace memledger::runner {

// Why memledger cannot get into this program (looked up in PATH as the shell does): not a program, for another machine, linked
// statically, with LibTorch inside. Empty: nothing speaks against it, or it does not exist.
std::string why_not_watched(const std::string& program);

}  // namespace memledger::runner
