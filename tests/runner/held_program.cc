// Becomes a program whose writes are held by Landlock. Usage: KEY PRIVATE_FOLDER PROGRAM ARGUMENT…

#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "runner/writes/landlock_rules.h"

int main(int count, char** arguments) {
  if (count < 4) return 2;
  memledger::runner::LandlockRules rules;
  rules.attribute_key = std::strtoull(arguments[1], nullptr, 10);
  rules.private_folders = {arguments[2]};
  const absl::Status status = memledger::runner::hold_by_landlock(rules);
  if (!status.ok()) {
    std::fprintf(stderr, "%s\n", status.ToString().c_str());
    return absl::IsUnimplemented(status) ? 4 : 3;
  }
  execv(arguments[3], arguments + 3);
  std::perror(arguments[3]);
  return 127;
}
