#pragma once

#include <string>
#include <vector>

namespace memledger::runner {

// `memledger log`: what follows it on the command line. The exit status: 0, 1 for a file that
// cannot be read or written, 2 for wrong arguments; the reason is on standard error.
int log_command(const std::vector<std::string>& arguments);

}  // namespace memledger::runner
