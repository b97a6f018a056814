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
  for (const auto& unheld : memledger::runner::unheld_descriptors(rules)) {
    std::fprintf(stderr, "descriptor %d is open for writing to %s\n", unheld.number,
                 unheld.path.c_str());
    return 3;
  }
  const auto hold = memledger::runner::LandlockHold::prepare(rules);
  if (!hold.ok()) {
    std::fprintf(stderr, "%s\n", hold.status().ToString().c_str());
    return absl::IsUnimplemented(hold.status()) ? 4 : 3;
  }
  if (!hold->apply()) {
    std::perror("it is not held");
    return 5;
  }
  execv(arguments[3], arguments + 3);
  std::perror(arguments[3]);
  return 127;
}
