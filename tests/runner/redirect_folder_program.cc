// Makes and reads the folder of a redirected run. Usage: make FOLDER | read FOLDER. `make` prints
// the key, `read` a line for each file and the sum.

#include <cinttypes>
#include <cstdio>
#include <string>

#include "runner/writes/redirect_folder.h"

int main(int count, char** arguments) {
  if (count != 3) return 2;
  if (arguments[1] == std::string("make")) {
    const auto key = memledger::runner::make_redirect_folder(arguments[2]);
    if (!key.ok()) {
      std::fprintf(stderr, "%s\n", key.status().ToString().c_str());
      return 1;
    }
    std::printf("%" PRIu64 "\n", *key);
    return 0;
  }
  const auto all = memledger::runner::read_redirect_folder(arguments[2]);
  for (const auto& file : all.files) {
    if (file.is_removed) {
      std::printf("%s removed\n", file.path.c_str());
    } else {
      std::printf("%s %" PRIu64 "\n", file.path.c_str(), file.bytes);
    }
  }
  std::printf("%" PRIu64 " bytes\n", all.bytes);
  return 0;
}
