#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "runner/run_command.h"

#include <doctest/doctest.h>

#include <string>

namespace memledger::runner {
namespace {

std::string error_of(const std::vector<std::string>& arguments) {
  const auto parsed = parse_run_arguments(arguments);
  return parsed.ok() ? "" : std::string(parsed.status().message());
}

using Words = std::vector<std::string>;

}  // namespace

TEST_CASE("the program begins after --, or at the first word that is no option") {
  for (const Words& arguments :
       {Words{"--", "./train", "--quiet", "--", "x"}, Words{"./train", "--quiet", "--", "x"}}) {
    const auto parsed = parse_run_arguments(arguments);
    REQUIRE(parsed.ok());
    CHECK(parsed->program == Words{"./train", "--quiet", "--", "x"});
    CHECK_FALSE(parsed->quiet);
    CHECK(parsed->virtual_gpu.empty());
  }
}

TEST_CASE("the line profile's options") {
  const auto parsed =
      parse_run_arguments({"-f", "train", "--function=Net::forward", "-c", "line.left", "-g", "1",
                           "-T", "t", "-r", "j", "--html=h", "--report", "./train", "-f", "x"});
  REQUIRE(parsed.ok());
  CHECK(parsed->functions == Words{"train", "Net::forward"});
  CHECK(parsed->columns == Words{"active_bytes.all.peak", "reserved_bytes.all.peak", "line.left"});
  CHECK(parsed->gpu == "1");
  CHECK(parsed->text_file == "t");
  CHECK(parsed->json_file == "j");
  CHECK(parsed->html_file == "h");
  CHECK(parsed->report);
  CHECK(parsed->program == Words{"./train", "-f", "x"});
  CHECK(parse_run_arguments({"-f", "g", "-D", "-c", "line.left", "p"})->columns ==
        Words{"line.left"});
  CHECK(error_of({"-f", "g", "-D", "p"}).find("-c") != std::string::npos);
  CHECK(error_of({"-f", "g", "-c", "active_bytes.al.peak", "p"}).find("small_pool") !=
        std::string::npos);
  CHECK(error_of({"-f", "g", "-g", "one", "p"}).find("-g one") != std::string::npos);
  CHECK(error_of({"-T", "file", "p"}).find("-f FUNCTION") != std::string::npos);
  CHECK(error_of({"-f"}).find("-f needs a value") != std::string::npos);
}

TEST_CASE("options take their value after = or as the next word") {
  for (const Words& arguments : {Words{"--virtual-gpu=a100:24GiB,count=2", "--log=out/%r",
                                       "--timeline=t.json", "-q", "./train"},
                                 Words{"--virtual-gpu", "a100:24GiB,count=2", "--log", "out/%r",
                                       "--timeline", "t.json", "--quiet", "--", "./train"}}) {
    const auto parsed = parse_run_arguments(arguments);
    REQUIRE(parsed.ok());
    CHECK(parsed->virtual_gpu == "a100:24GiB,count=2");
    CHECK(parsed->log_folder == "out/%r");
    CHECK(parsed->timeline == "t.json");
    CHECK(parsed->quiet);
    CHECK(parsed->program == Words{"./train"});
  }
}

TEST_CASE("what is wrong is named") {
  CHECK(error_of({}).find("which program") != std::string::npos);
  CHECK(error_of({"--"}).find("which program") != std::string::npos);
  CHECK(error_of({"--virtual-gpu=h200"}).find("which program") != std::string::npos);
  CHECK(error_of({"--virtual_gpu=h200", "./train"}).find("`--virtual_gpu=h200`") !=
        std::string::npos);
  CHECK(error_of({"--virtual-gpus=h200", "./train"}).find("`--virtual-gpus=h200`") !=
        std::string::npos);
  CHECK(error_of({"--virtual-gpu", "--", "./train"}).find("--virtual-gpu needs a value") !=
        std::string::npos);
  CHECK(error_of({"--virtual-gpu=", "./train"}).find("--virtual-gpu= needs a value") !=
        std::string::npos);
  CHECK(error_of({"--log"}).find("--log needs a value") != std::string::npos);
  // The virtual GPU's own sentence comes through, with the names that it knows.
  const std::string unknown = error_of({"--virtual-gpu=h9000", "./train"});
  CHECK(unknown.find("h9000") != std::string::npos);
  CHECK(unknown.find("a100") != std::string::npos);
}

}  // namespace memledger::runner
