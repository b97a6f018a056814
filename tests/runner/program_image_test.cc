#include "runner/program_image.h"

#include <doctest/doctest.h>
#include <stdlib.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <string>
#include <thread>

#include "runner/child_process.h"
#include "runner/scratch_folder.h"

namespace memledger::runner {
namespace {

// Runs a shell's command to its end; -1 if that does not come.
int status_of(const ProgramImage& image, const ScratchFolder& folder, std::string* output = {}) {
  auto child = ChildProcess::start(folder.path() + "/input", "IMAGE_TEST=here",
                                   /*ends_itself=*/false, [&] { return image.become(); });
  REQUIRE(child.ok());
  while (!child->poll()) {
    if (child->age() > std::chrono::seconds(20)) {
      child->kill();
      return -1;
    }
    ChildProcess::wait_for_any({&*child}, std::chrono::milliseconds(1000));
  }
  if (output != nullptr) *output = child->output().last_lines(1);
  return child->end().status;
}

ProgramImage shell(const std::string& command) {
  return ProgramImage("/bin/sh", {"sh", "-c", command}, "/");
}

TEST_CASE("a program gets its arguments, its folder and its environment") {
  const ScratchFolder folder;
  setenv("IMAGE_TEST_MINE", "before", /*overwrite=*/1);
  setenv("IMAGE_TEST_GONE", "before", /*overwrite=*/1);
  ProgramImage image =
      shell("echo \"$PWD $IMAGE_TEST_MINE ${IMAGE_TEST_GONE-none} $IMAGE_TEST_NEW\"");
  image.set("IMAGE_TEST_MINE", "after");
  image.set_default("IMAGE_TEST_MINE", "never");
  image.set_default("IMAGE_TEST_NEW", "new");
  image.unset("IMAGE_TEST_GONE");
  image.finish();
  std::string output;
  CHECK(status_of(image, folder, &output) == 0);
  CHECK(output == "/ after none new");
  const char* const mine = getenv("IMAGE_TEST_MINE");
  REQUIRE(mine != nullptr);
  CHECK(std::string(mine) == "before");

  ProgramImage missing("/no such program", {"x"});
  missing.finish();
  CHECK(status_of(missing, folder) == 126);
}

TEST_CASE("a program starts while another thread holds the environment's lock") {
  const ScratchFolder folder;
  setenv("IMAGE_TEST_MINE", "", /*overwrite=*/1);
  std::atomic<bool> is_over{false};
  std::thread other([&] {
    while (!is_over) setenv("IMAGE_TEST_MINE", is_over ? "a" : "b", /*overwrite=*/1);
  });
  int ended_well = 0;
  for (int i = 0; i < 20; ++i) {
    ProgramImage image = shell("exit 7");
    image.set("IMAGE_TEST", "here");
    image.finish();
    const int status = status_of(image, folder);
    ended_well += status == 7 ? 1 : 0;
    if (status == -1) break;
  }
  is_over = true;
  other.join();
  CHECK(ended_well == 20);
}

}  // namespace
}  // namespace memledger::runner
