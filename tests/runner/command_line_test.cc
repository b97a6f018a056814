#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "runner/command_line.h"
#include "registry/libtorch/newest_libtorch.h"
#include "tests/support/text_matchers.h"

#include <doctest/doctest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

namespace memledger::runner {
namespace {

using testing::contains;
using Words = std::vector<std::string>;

Words after(const std::string& command, Words words) {
  words.insert(words.begin(), command);
  return words;
}

// Ends the test where the words are not a proper `run`.
RunOptions run_options(const Words& words) {
  const auto request = parse_command_line(after("run", words));
  REQUIRE_MESSAGE(request.ok(), std::string(request.status().message()));
  REQUIRE(std::holds_alternative<RunOptions>(*request));
  return std::get<RunOptions>(*request);
}

LogOptions log_options(const Words& words) {
  const auto request = parse_command_line(after("log", words));
  REQUIRE_MESSAGE(request.ok(), std::string(request.status().message()));
  REQUIRE(std::holds_alternative<LogOptions>(*request));
  return std::get<LogOptions>(*request);
}

std::string text_of(const Words& words) {
  const auto request = parse_command_line(words);
  REQUIRE_MESSAGE(request.ok(), std::string(request.status().message()));
  REQUIRE(std::holds_alternative<PrintText>(*request));
  return std::get<PrintText>(*request).text;
}

std::string error_of(const Words& words) {
  const auto request = parse_command_line(words);
  return request.ok() ? "" : std::string(request.status().message());
}

std::string run_error(const Words& words) { return error_of(after("run", words)); }
std::string log_error(const Words& words) { return error_of(after("log", words)); }

}  // namespace

TEST_CASE("the program begins after --, or at the first word that is no option") {
  for (const Words& words :
       {Words{"--", "./train", "--quiet", "--", "x"}, Words{"./train", "--quiet", "--", "x"}}) {
    const RunOptions options = run_options(words);
    CHECK(options.program == Words{"./train", "--quiet", "--", "x"});
    CHECK_FALSE(options.quiet);
    CHECK(options.virtual_gpu.empty());
  }
}

TEST_CASE("the program's words are handed over untouched") {
  const Words program = {"p", "[a,b]", "--", "top", ""};
  CHECK(run_options({"--", "p", "[a,b]", "--", "top", ""}).program == program);
  CHECK(run_options({"-q", "p", "[a,b]", "--", "top", ""}).program == program);
  for (const std::string word : {"[a,b]", "", "--", "-", "++", "--help", "%%", "/help", "@file"}) {
    CHECK(run_options({"--", word, word}).program == Words{word, word});
    CHECK(run_options({"-f", "f", "--", "p", word, "-q"}).program == Words{"p", word, "-q"});
  }
}

TEST_CASE("the line profile's options") {
  const RunOptions options =
      run_options({"-f", "train", "--function=Net::forward", "-c", "line.left", "-g", "1", "-T",
                   "t", "-r", "j", "--html=h", "--report", "./train", "-f", "x"});
  const environment::LineSettings& lines = options.lines;
  CHECK(lines.functions == Words{"train", "Net::forward"});
  CHECK(lines.columns == Words{"active_bytes.all.peak", "reserved_bytes.all.peak", "line.left"});
  CHECK(lines.gpu == 1);
  CHECK(lines.text_file == "t");
  CHECK(lines.json_file == "j");
  CHECK(lines.html_file == "h");
  CHECK(options.report);
  CHECK_FALSE(options.full_report);
  CHECK(run_options({"--report=full", "p"}).full_report);
  CHECK(contains(run_error({"--report=none", "p"}), "--report=none: it is full"));
  CHECK(options.program == Words{"./train", "-f", "x"});
  CHECK(run_options({"-f", "g", "-D", "-c", "line.left", "p"}).lines.columns == Words{"line.left"});
  CHECK(contains(run_error({"-f", "g", "-D", "p"}), "-c"));
  CHECK(contains(run_error({"-f", "g", "-c", "active_bytes.al.peak", "p"}), "small_pool"));
  CHECK(contains(run_error({"-f", "g", "-g", "one", "p"}), "-g one"));
  CHECK(contains(run_error({"-f", "g", "-g", "128", "p"}), "from 0 to 127"));
  CHECK(contains(run_error({"-f", "", "p"}), "-f"));
  CHECK(contains(run_error({"-f"}), "-f needs a value"));
  for (const Words& words : {Words{"-T", "file", "p"}, Words{"-D", "p"}, Words{"-g", "0", "p"},
                             Words{"-c", "line.left", "p"}, Words{"--html=h", "p"}}) {
    CHECK(run_error(words) == "memledger run: -c, -D, -g, -r, -T and --html require -f FUNCTION.");
  }
}

TEST_CASE("options take their value after = or as the next word") {
  for (const Words& words :
       {Words{"--virtual-gpu=a100:24GiB,count=2", "--log=out/%r", "--save-report=r.html",
              "--timeline=t.json", "--stacks=all", "-q", "./train"},
        Words{"--virtual-gpu", "a100:24GiB,count=2", "--log", "out/%r", "--save-report", "r.html",
              "--timeline", "t.json", "--stacks", "all", "--quiet", "--", "./train"}}) {
    const RunOptions options = run_options(words);
    CHECK(options.virtual_gpu == "a100:24GiB,count=2");
    CHECK(options.log_folder == "out/%r");
    CHECK(options.saved_report == "r.html");
    CHECK(options.timeline == "t.json");
    CHECK(options.stacks == "all");
    CHECK(options.quiet);
    CHECK(options.program == Words{"./train"});
  }
  for (const Words& words : {Words{"-f", "g"}, Words{"-f=g"}, Words{"-fg"}, Words{"-qf", "g"}}) {
    Words line = words;
    line.push_back("p");
    CHECK(run_options(line).lines.functions == Words{"g"});
    CHECK(run_options(line).program == Words{"p"});
  }
}

TEST_CASE("an option's value is taken as it is") {
  for (const std::string value : {"[a,b]", "-q", "--quiet", "a=b", "x y"}) {
    CHECK(run_options({"--log", value, "p"}).log_folder == value);
    CHECK(run_options({"--log=" + value, "p"}).log_folder == value);
  }
  CHECK(run_options({"--log", "", "p"}).log_folder == "");
  CHECK_FALSE(run_options({"p"}).log_folder);
  CHECK(run_options({"-f", "[a,b]", "p"}).lines.functions == Words{"[a,b]"});
}

TEST_CASE("the last of an option's values counts, and a flag may be repeated") {
  CHECK(run_options({"--log=a", "--log=b", "p"}).log_folder == "b");
  CHECK(run_options({"-q", "-q", "--quiet", "p"}).quiet);
}

TEST_CASE("what is wrong is named") {
  CHECK(contains(run_error({}), "which program"));
  CHECK(contains(run_error({"--stacks=some", "p"}), "--stacks=some: it is off, sampled or all"));
  CHECK(contains(run_error({"--detail=some", "p"}), "--detail=some: it is all or names"));
  CHECK(run_options({"--detail=names", "p"}).detail == "names");
  CHECK(contains(run_error({"--"}), "which program"));
  CHECK(contains(run_error({"--virtual-gpu=h200"}), "which program"));
  CHECK(contains(run_error({"--virtual_gpu=h200", "./train"}), "`--virtual_gpu=h200`"));
  CHECK(contains(run_error({"--virtual-gpus=h200", "./train"}), "`--virtual-gpus=h200`"));
  CHECK(contains(run_error({"-x", "./train"}), "`-x`; `memledger run --help`"));
  CHECK(contains(run_error({"-", "./train"}), "`-`"));
  CHECK(contains(run_error({"--virtual-gpu", "--", "./train"}), "--virtual-gpu needs a value"));
  CHECK(contains(run_error({"--virtual-gpu=", "./train"}), "--virtual-gpu= needs a value"));
  CHECK(contains(run_error({"-f=", "./train"}), "-f= needs a value: -f=FUNCTION"));
  CHECK(contains(run_error({"--quiet=yes", "./train"}), "--quiet takes no value"));
  CHECK(contains(run_error({"--log"}), "--log needs a value"));
  // The virtual GPU's own sentence comes through, with the names that it knows.
  const std::string unknown = run_error({"--virtual-gpu=h9000", "./train"});
  CHECK(contains(unknown, "h9000"));
  CHECK(contains(unknown, "a100"));
}

namespace {

// A variable of the caller's for the rest of a test.
class CallersVariable {
 public:
  CallersVariable(const char* name, const char* value) : name_(name) { setenv(name, value, 1); }
  ~CallersVariable() { unsetenv(name_); }
  CallersVariable(const CallersVariable&) = delete;
  CallersVariable& operator=(const CallersVariable&) = delete;

 private:
  const char* const name_;
};

// An empty folder, which is the current one for the rest of a test.
class FolderOfTest {
 public:
  FolderOfTest() : before_(std::filesystem::current_path()) {
    std::string name = std::filesystem::temp_directory_path() / "memledger-test-XXXXXX";
    REQUIRE(mkdtemp(name.data()) != nullptr);
    chmod(name.c_str(), 0755);
    std::filesystem::current_path(name);
  }
  ~FolderOfTest() {
    const std::filesystem::path here = std::filesystem::current_path();
    std::filesystem::current_path(before_);
    std::filesystem::remove_all(here);
  }
  FolderOfTest(const FolderOfTest&) = delete;
  FolderOfTest& operator=(const FolderOfTest&) = delete;

  static bool is_empty() { return std::filesystem::is_empty("."); }

 private:
  const std::filesystem::path before_;
};

// The commands with an option that is written to, before its path.
struct OutputOption {
  Words before;
  std::string option;
  Words after;
  std::string right_ending, wrong_ending;
  bool makes_folders;
};

std::vector<OutputOption> output_options() {
  const Words run = {"run"}, lines = {"run", "-f", "f"}, dry_run = {"dry-run", "--gpu=l4"},
              fit = {"fit", "--gpu=l4", "--arg={}"}, validate = {"validate"};
  const Words program = {"--", "p"};
  return {
      {run, "--save-report", program, ".json", ".json.gz", true},
      {run, "--timeline", program, ".pickle", ".html", true},
      {lines, "--text", program, ".txt", ".html", true},
      {lines, "--json", program, ".json", ".yaml", true},
      {lines, "--html", program, ".html", ".json", true},
      {dry_run, "--json", program, ".json", ".jsn", false},
      {fit, "--json", program, ".json", ".txt", false},
      {fit, "--svg", program, ".svg", ".png", false},
      {validate, "--json", program, ".json", ".csv", false},
      {validate, "--write-calibration", program, ".json", ".csv", false},
      {validate, "--address-log", program, ".csv", ".json", false},
  };
}

std::string error_with(const OutputOption& option, const std::string& path) {
  Words words = option.before;
  words.push_back(option.option + "=" + path);
  words.insert(words.end(), option.after.begin(), option.after.end());
  return error_of(words);
}

}  // namespace

TEST_CASE("a file's ending is one of its formats, without regard to case") {
  const FolderOfTest folder;
  for (const OutputOption& option : output_options()) {
    INFO(option.option);
    std::string upper = option.right_ending;
    for (char& c : upper) c = static_cast<char>(std::toupper(c));
    for (const std::string& name : {"f" + option.right_ending, "f" + upper, std::string("f")})
      CHECK(error_with(option, name).empty());
    const std::string error = error_with(option, "f" + option.wrong_ending);
    CHECK(contains(error, option.option + "=f" + option.wrong_ending + ": the name ends in "));
    CHECK(contains(error, option.right_ending));
  }
  for (const std::string name : {"r.htm", "r.HTML", "r.csv", "r.txt", "a.b/r"})
    CHECK(run_options({"--save-report=" + name, "p"}).saved_report == name);
  CHECK(run_error({"--save-report=r.json.gz", "p"}) ==
        "memledger run: --save-report=r.json.gz: the name ends in .gz, which is none of its "
        "formats: .json, .html, .htm, .csv or .txt");
  CHECK(contains(error_of({"log", "--svg=x.png", "l"}), "--svg=x.png: the name ends in .png"));
  CHECK(log_options({"--svg=x.SVG", "l"}).svg == "x.SVG");
  // The option says the format: what mktemp made may have its name.
  std::ofstream("tmp.x8Q2") << "";
  CHECK(error_of({"dry-run", "--gpu=l4", "--json=tmp.x8Q2", "p"}).empty());
  CHECK(contains(run_error({"--save-report=tmp.x8Q2", "p"}), "ends in .x8q2"));
}

TEST_CASE("a path that cannot be written is told at once, and nothing is made") {
  const FolderOfTest folder;
  std::filesystem::create_directory("folder.json");
  std::filesystem::create_symlink("nowhere/x.json", "link.json");
  std::ofstream("occupied") << "a file";
  std::ofstream("there.json") << "precious";
  for (const OutputOption& option : output_options()) {
    INFO(option.option);
    const std::string end = option.right_ending;
    const std::string in_file = "occupied/x" + end;
    CHECK(contains(error_with(option, in_file),
                   option.option + ": cannot write " + in_file + ": Not a directory"));
    const std::string in_new = "new/below/x" + end;
    const std::string error = error_with(option, in_new);
    if (option.makes_folders) {
      CHECK(error == "");
    } else {
      CHECK(contains(error, "cannot write new/below/x" + end + ": No such file or directory"));
    }
    CHECK(error_with(option, "/dev/full").empty());  // a late failure
    CHECK(contains(error_with(option, "/dev/fd/99"), "cannot write /dev/fd/99: Bad file"));
  }
  CHECK(contains(run_error({"--save-report=folder.json", "p"}), "folder.json: Is a directory"));
  CHECK(contains(error_of({"dry-run", "--gpu=l4", "--json=link.json", "p"}),
                 "link.json: No such file or directory"));
  CHECK(run_error({"--save-report=there.json", "p"}).empty());
  // A path with %r and %p is checked by its folder.
  CHECK(contains(run_error({"--save-report=occupied/%r-%p.json", "p"}), "Not a directory"));
  CHECK(contains(run_error({"--save-report=occupied/%r/x.json", "p"}),
                 "cannot write occupied/0/x.json: Not a directory"));
  CHECK(run_error({"--save-report=%r/%p.json", "p"}).empty());
  CHECK(contains(run_error({"--log=occupied", "p"}), "--log: cannot write occupied: Not a dir"));
  CHECK(contains(run_error({"--log=occupied/%r", "p"}), "Not a directory"));
  CHECK(run_error({"--log=logs/%r", "p"}).empty());
  size_t entries = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(".")) ++entries;
  CHECK(entries == 4);
  CHECK(std::filesystem::file_size("there.json") == 8);
  CHECK(std::filesystem::file_size("occupied") == 6);
}

TEST_CASE("a user without the rights is told at once") {
  if (geteuid() != 0) {
    MESSAGE("SKIPPED: only root can become another user");
    return;
  }
  const FolderOfTest folder;
  std::ofstream("locked.json") << "root's";
  chmod("locked.json", 0644);
  std::filesystem::create_directory("shared");
  chmod("shared", 01777);
  std::ofstream("shared/of_root.json") << "root's";
  chmod("shared/of_root.json", 0666);
  REQUIRE(seteuid(65534) == 0);
  const std::string in_folder = run_error({"--save-report=x.json", "p"});
  const std::string locked = run_error({"--save-report=locked.json", "p"});
  const std::string of_another = run_error({"--save-report=shared/of_root.json", "p"});
  const std::string own = run_error({"--save-report=shared/x.json", "p"});
  const std::string log = run_error({"--log=logs", "p"});
  REQUIRE(seteuid(0) == 0);
  CHECK(contains(in_folder, "cannot write x.json: Permission denied"));
  CHECK(contains(locked, "cannot write locked.json: Permission denied"));
  // In a folder like /tmp nobody may rename over it.
  CHECK(contains(of_another, "cannot write shared/of_root.json: Operation not permitted"));
  CHECK(own == "");
  CHECK(contains(log, "cannot write logs: Permission denied"));
}

TEST_CASE("the caller's variables are checked where no option takes their place") {
  const FolderOfTest folder;
  std::ofstream("occupied") << "";
  const struct {
    const char *variable, *wrong, *why, *option;
  } cases[] = {
      {environment::kStacks, "some", "it is off, sampled or all", "--stacks=all"},
      {environment::kDetail, "few", "it is all or names", "--detail=names"},
      {environment::kReportOn, "SIGKILL", "it is SIGUSR1 or SIGUSR2", "--report-on=SIGUSR1"},
      {environment::kReportNear, "abc", "from 0 to 100", "--report-near=95"},
      {environment::kReportNear, "101", "from 0 to 100", "--report-near=0"},
      {environment::kSaveReport, "r.xyz", ".json, .html, .htm, .csv or .txt",
       "--save-report=r.json"},
      {environment::kTimeline, "t.gz", ".json, .pickle or .pkl", "--timeline=t.json"},
  };
  for (const auto& one : cases) {
    INFO(one.variable);
    const CallersVariable variable(one.variable, one.wrong);
    CHECK(contains(run_error({"p"}),
                   std::string("memledger run: ") + one.variable + "=" + one.wrong + ": "));
    CHECK(contains(run_error({"p"}), one.why));
    CHECK(run_error({one.option, "p"}).empty());
  }
  for (const char* const name :
       {environment::kLog, environment::kSaveReport, environment::kTimeline}) {
    const CallersVariable variable(name, "occupied/x");
    CHECK(contains(run_error({"p"}),
                   std::string(name) + ": cannot write occupied/x: Not a directory"));
  }
}

TEST_CASE("log takes one file or two, and draws one") {
  CHECK(log_options({"a"}).files == Words{"a"});
  CHECK_FALSE(log_options({"a"}).svg);
  CHECK(log_options({"a", "[b,c]"}).files == Words{"a", "[b,c]"});
  CHECK(log_options({"run", "help"}).files == Words{"run", "help"});
  CHECK(log_options({"a", "--svg", "s"}).svg == "s");
  CHECK(log_options({"--svg=-", "a"}).svg == "-");
  CHECK(log_options({"--svg=s", "--", "--svg"}).files == Words{"--svg"});
  CHECK(contains(log_error({}), "memledger log: which log?"));
  CHECK(contains(log_error({"a", "b", "c"}), "one log, or two to compare"));
  CHECK(contains(log_error({"--svg=s", "a", "b"}), "--svg draws one log"));
  CHECK(contains(log_error({"--svg"}), "--svg needs a value"));
  CHECK(contains(log_error({"--svg", "", "a"}), "--svg needs a value"));
  CHECK(contains(log_error({"--sgv"}), "there is no option `--sgv`"));
}

TEST_CASE("fit says where the value goes, and between which bounds it is") {
  const auto options = [](const Words& words) {
    const auto request = parse_command_line(after("fit", words));
    REQUIRE_MESSAGE(request.ok(), std::string(request.status().message()));
    return std::get<FitOptions>(*request);
  };
  const FitOptions plain = options({"--gpu=l4", "--arg=--batch={}", "./train", "{", "--arg", "x"});
  CHECK(plain.gpu == "l4");
  CHECK(plain.arguments == Words{"--batch={}"});
  CHECK(plain.program == Words{"./train", "{", "--arg", "x"});
  CHECK(plain.bounds.from == 1);
  CHECK_FALSE(plain.bounds.to);
  CHECK(program_with(plain, 32) == Words{"./train", "{", "--arg", "x", "--batch=32"});
  const FitOptions both =
      options({"--gpu", "t4", "--arg", "--batch", "--arg", "{}", "--from=8", "--to", "64", "--json",
               "--svg=s", "--timeout=9", "--until=exit", "--", "{}", "a{}{}"});
  CHECK(program_with(both, 9) == Words{"{}", "a99", "--batch", "9"});
  CHECK(arguments_with_value(both) == Words{"a{}{}", "{}"});
  CHECK(both.bounds.from == 8);
  CHECK(both.bounds.to == 64);
  CHECK(both.json);
  CHECK(both.svg_file == "s");
  CHECK(both.timeout_s == 9);
  CHECK(both.until_exit);
  const auto error = [](const Words& words) { return error_of(after("fit", words)); };
  CHECK(contains(error({"--arg={}", "p"}), "memledger fit: on which GPU?"));
  CHECK(contains(error({"--gpu=l4", "--gpu=t4", "--arg={}", "p"}), "one GPU at a time"));
  CHECK(contains(error({"--gpu=l5", "--arg={}", "p"}), "l5"));
  CHECK(contains(error({"--gpu=l4", "--arg={}"}), "which program?"));
  CHECK(contains(error({"--gpu=l4", "p"}), "where does the value go?"));
  CHECK(contains(error({"--gpu=l4", "--arg=--batch", "p"}), "--arg=--batch: it needs {}"));
  CHECK(contains(error({"--gpu=l4", "--arg={}", "--from=9", "--to=8", "p"}),
                 "--from=9 is larger than --to=8"));
  for (const std::string value : {"0", "-1", "x", "1.5", "2147483648", "99999999999999999999"})
    CHECK(contains(error({"--gpu=l4", "--arg={}", "--from=" + value, "p"}), "--from=" + value));
  CHECK(contains(error({"--gpu=l4", "--arg={}", "--timeout=0", "p"}), "--timeout=0"));
}

TEST_CASE("gpus lists the devices, as a table or as JSON, and takes no arguments") {
  const auto options = [](const Words& words) {
    const auto request = parse_command_line(after("gpus", words));
    REQUIRE_MESSAGE(request.ok(), std::string(request.status().message()));
    return std::get<GpusOptions>(*request);
  };
  CHECK_FALSE(options({}).json);
  CHECK(options({"--json"}).json);
  CHECK(error_of({"gpus", "h200"}) == "memledger gpus: it takes no arguments: leave out `h200`");
  const std::string table = gpus_text({});
  CHECK(contains(table, "\nh200       NVIDIA H200 "));
  CHECK(contains(table, " 139.8 GiB  507.0 MiB  784.0 MiB\n"));
  const std::string json = gpus_text({/*json=*/true});
  CHECK(json.find("{\"schema\":\"memledger.gpus/1\",\"gpus\":[") == 0);
  CHECK(contains(json, "\"name\":\"rtx4090\",\"device_name\":\"NVIDIA GeForce RTX 4090\""));
}

TEST_CASE("validate takes a program or none, and a calibration to write") {
  const auto options = [](const Words& words) {
    const auto request = parse_command_line(after("validate", words));
    REQUIRE_MESSAGE(request.ok(), std::string(request.status().message()));
    return std::get<ValidateOptions>(*request);
  };
  CHECK(options({}).program.empty());
  CHECK_FALSE(options({}).until_exit);
  const ValidateOptions all =
      options({"--gpu=a100", "--write-calibration=c.json", "--until=exit", "--json", "p", "-x"});
  CHECK(all.gpu == "a100");
  CHECK(all.calibration_file == "c.json");
  CHECK(all.until_exit);
  CHECK(all.json);
  CHECK(all.program == Words{"p", "-x"});
  CHECK(options({"--network=MLP", "--network=LSTM"}).networks.names == Words{"MLP", "LSTM"});
  CHECK(contains(error_of({"validate", "--gpu=h300"}), "\"h300\" is not a known device"));
  CHECK(contains(error_of({"validate", "--until=now", "p"}), "it is step or exit"));
  CHECK(contains(error_of({"validate", "--json"}), "--json requires a program"));
}

TEST_CASE("a calibration belongs to a virtual GPU, and is read before anything runs") {
  CHECK(contains(error_of({"run", "--calibration=c.json", "p"}), "requires --virtual-gpu"));
  CHECK(contains(error_of({"run", "--writes=discard", "p"}), "requires --virtual-gpu"));
  CHECK(contains(error_of({"run", "--virtual-gpu=a100", "--writes=never", "p"}),
                 "run: --writes=never: it is discard or allow"));
  CHECK(contains(error_of({"run", "--virtual-gpu=a100", "--writes-limit=1GiB", "p"}),
                 "--writes-limit requires --writes=discard"));
  CHECK(contains(error_of({"run", "--virtual-gpu=a100", "--calibration=no such", "p"}),
                 "run: --calibration=\"no such\": it cannot be read, or is empty."));
  CHECK(contains(error_of({"dry-run", "--gpu=a100", "--calibration=no such", "p"}),
                 "dry-run: --calibration=\"no such\": it cannot"));
  CHECK(contains(error_of({"fit", "--gpu=a100", "--gpu=l4", "--arg={}", "p"}), "give --gpu once"));
  CHECK(contains(error_of({"dry-run", "--gpu=a100", "--calibration=a,b", "p"}), "a comma"));
}

TEST_CASE("each command explains itself, with examples and exit statuses") {
  for (const std::string command : {"run", "dry-run", "fit", "validate", "log", "gpus"}) {
    const std::string help = text_of({command, "--help"});
    CHECK(contains(help, "Usage: memledger " + command));
    CHECK(contains(help, "\nExamples:\n  memledger " + command));
    CHECK(contains(help, "\nExit status:\n"));
    CHECK(text_of({command, "-h"}) == help);
    CHECK(text_of({"help", command}) == help);
    CHECK(contains(general_help(), "\n  " + command + " "));
  }
  CHECK(contains(text_of({"run", "-q", "--help", "p"}), "-f, --function=FUNCTION"));
  for (const Words& words : {Words{"help"}, Words{"--help"}, Words{"-h"}})
    CHECK(text_of(words) == general_help());
}

TEST_CASE("help fits a terminal of 100 columns") {
  for (const Words& words :
       {Words{"help"}, Words{"help", "run"}, Words{"help", "dry-run"}, Words{"help", "fit"},
        Words{"help", "log"}, Words{"help", "gpus"}, Words{"help", "validate"}}) {
    std::string text = text_of(words);
    size_t begin = 0;
    for (size_t end = text.find('\n'); end != std::string::npos; end = text.find('\n', begin)) {
      INFO(text.substr(begin, end - begin));
      CHECK(end - begin <= 100);
      CHECK((end == begin || text[end - 1] != ' '));
      begin = end + 1;
    }
    CHECK(begin == text.size());
  }
}

TEST_CASE("the versions of memledger, LibTorch and the build") {
  const std::string versions = text_of({"--version"});
  CHECK(versions.compare(0, 10, "memledger ") == 0);
  CHECK(contains(versions, "\nLibTorch 2."));
  CHECK(contains(versions, "\nBuild: "));
  CHECK(contains(versions, ", interface "));
}

TEST_CASE("a LibTorch that nobody has tried memledger with is told of") {
  for (const char* const known : {"2.9.1", "2.11.0", "2.15.0", "2.15.1"})
    CHECK(newer_libtorch_note(known).empty());
  CHECK(newer_libtorch_note("2.16.0") ==
        "LibTorch 2.16.0 is newer than 2.15, the newest that this memledger was tested with: "
        "cuBLAS's workspaces have no names here");
  CHECK_FALSE(newer_libtorch_note("3.0.0").empty());
}

TEST_CASE("an unknown command says which exist") {
  CHECK(error_of({"walk"}) ==
        "memledger: there is no command `walk`; the commands are run, dry-run, fit, validate, log, "
        "gpus and help. "
        "To run a "
        "program: memledger run -- PROGRAM");
  CHECK(error_of({"help", "walk"}) == error_of({"walk"}));
  CHECK(contains(error_of({"-q"}), "memledger: there is no option `-q`; `memledger --help`"));
  CHECK(contains(error_of({"--"}), "memledger: which command?"));
}

}  // namespace memledger::runner
