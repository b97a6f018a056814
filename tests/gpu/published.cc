// Compares the virtual GPU with published figures of real ones. Runs each program on the virtual
// device at the ends that `memledger dry-run` takes, each with both orders of addresses. Prints the
// real figure next to the interval that the runs span.
//
//   ./bazelw run //tests/gpu:published
//   ./bazelw run //tests/gpu:published -- --mlp_data=mlp_data_step1.csv --mlp_rows=150
//
// Ends with 1 if a real figure lies above its interval, or below it if the program itself is
// published. Also if an interval is wider than 1 % (5 % with cuDNN) and wider than 24 MiB (32 MiB
// for one workspace).

#include <fmt/format.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <limits>
#include <map>
#include <regex>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"

ABSL_FLAG(std::string, memledger, "",
          "The command `memledger`; empty: ../../runner/memledger from this program.");
ABSL_FLAG(std::string, published_case, "",
          "The program published_case; empty: the one beside this program.");
ABSL_FLAG(std::string, cases, "", "Only the cases whose name holds this.");
ABSL_FLAG(bool, markdown, false, "Print the table as docs/accuracy.md has it.");
ABSL_FLAG(std::string, mlp_data, "",
          "GPUMemNet's Datasets/MLP/mlp_data_step1.csv: compare its rows instead.");
ABSL_FLAG(int, mlp_rows, 150, "How many of its rows, evenly spread.");

namespace {

namespace fs = std::filesystem;

constexpr int64_t kMiB = 1 << 20;

int64_t gib(double amount) { return static_cast<int64_t>(amount * 1024 * kMiB); }

// What nvidia-smi said of GPUMemNet's device beyond what LibTorch reserved: the context, and what
// else lay there. One figure for all runs, but for the code of kernels that a run needed and others
// did not: the driver takes 2 MiB at a time.
constexpr int64_t kBesideMlp = 1429 * kMiB;
constexpr int64_t kCodeOfKernels = 2 * kMiB;

constexpr int64_t kWidestInterval = 24 * kMiB;
// One convolution's workspace: cuDNN's largest plan may have twice what its first has.
constexpr int64_t kWidestWorkspace = 32 * kMiB;
constexpr double kWidestPart = 0.01, kWidestPartWithCudnn = 0.05;

struct Case {
  std::string name;
  std::string source;  // a key of sources()
  std::string device;  // real
  std::string gpu;     // virtual
  std::string program;
  std::string figure;    // what the program prints
  int64_t real = 0;      // bytes
  int64_t rounding = 0;  // the real figure is known to so many bytes
  int64_t beside = 0;    // in the real figure and not in LibTorch's
  // The program is not published, only what it does: how long its tensors live is a guess.
  bool is_described = false;
  bool has_cudnn = false;
};

const std::map<std::string, std::string>& sources() {
  static const auto& all = *new std::map<std::string, std::string>{
      {"LLMs-from-scratch",
       "https://github.com/rasbt/LLMs-from-scratch/tree/main/ch05/10_llm-training-speed"},
      {"FakeGPU",
       "https://github.com/FanBB2333/FakeGPU/blob/main/docs/llm-inference-estimation.md"},
      {"GPUMemNet", "https://github.com/itu-rad/GPUMemNet/blob/main/Datasets/MLP"},
      {"FakeGPU workspaces",
       "https://github.com/FanBB2333/FakeGPU/blob/main/fakegpu/data/workspace_profiles.json"},
  };
  return all;
}

Case gpt2(std::string name, const std::string& step, const std::string& figure, double real_gib) {
  // Four decimals; what is reserved is whole MiB, which they show exactly.
  const bool reserved = figure == "reserved";
  const int64_t real = gib(real_gib);
  Case result{"GPT-2 124M, " + std::move(name) + ", " + figure,
              "LLMs-from-scratch",
              "A100",
              "a100",
              "gpt2 " + step,
              figure,
              reserved ? (real + kMiB / 2) / kMiB * kMiB : real,
              reserved ? 0 : gib(0.00005)};
  return result;
}

Case described(Case one) {
  one.is_described = true;
  return one;
}

Case mlp(const std::string& parameters, int64_t nvidia_smi_mib) {
  return {
      "MLP " + parameters, "GPUMemNet",           "A100",         "a100",    "mlp " + parameters,
      "reserved_peak",     nvidia_smi_mib * kMiB, kCodeOfKernels, kBesideMlp};
}

Case qwen3(std::string name, std::string figure, int64_t real) {
  return {"Qwen3-8B, " + std::move(name),
          "FakeGPU",
          "RTX PRO 5000 Blackwell",
          "rtx5090:70GiB",
          "qwen3",
          std::move(figure),
          real};
}

Case convolution(const std::string& type, std::string device, std::string gpu, int64_t real) {
  Case result{"convolution, " + type + ", workspace",
              "FakeGPU workspaces",
              std::move(device),
              std::move(gpu),
              "convolution " + type,
              "workspace",
              real};
  result.has_cudnn = true;
  return result;
}

std::vector<Case> cases() {
  return {
      gpt2("original", "original", "reserved", 26.2617),
      gpt2("original", "original", "allocated", 2.5069),
      gpt2("causal mask on the fly", "mask", "reserved", 26.2422),
      gpt2("fused AdamW", "fused", "reserved", 26.2422),
      described(gpt2("bfloat16", "bfloat16", "reserved", 13.7871)),
      described(gpt2("LayerNorm and GELU of torch", "modules", "reserved", 11.5645)),
      gpt2("FlashAttention", "flash", "reserved", 5.9004),
      qwen3("loaded, allocated", "loaded", 16383586816),
      qwen3("two tokens, allocated", "peak", 16396630528),
      mlp("1269 25 1 bottleneck 702", 1477),
      mlp("1491 86 10 gradual 221", 1621),
      mlp("2380 28 9 uniform 625", 2523),
      mlp("3555 681 8 gradual 411", 2309),
      mlp("1426 242 6 pyramid 498", 1483),
      mlp("2366 571 6 gradual 248", 1765),
      mlp("2859 680 10 uniform 118", 3123),
      mlp("3292 451 10 bottleneck 421", 1669),
      mlp("3401 558 10 gradual 858", 2431),
      convolution("float32", "RTX 3090 Ti", "rtx3090", 8536576),
      convolution("bfloat16", "RTX 3090 Ti", "rtx3090", 8462848),
      convolution("float32", "RTX PRO 5000 Blackwell", "rtx5090", 16925184),
      convolution("bfloat16", "RTX PRO 5000 Blackwell", "rtx5090", 8462848),
  };
}

// Its rows name their programs: input:1259_output:79_depth:8_arch:pyramid_batch:717.out
std::vector<Case> mlp_cases(const std::string& path, int wanted) {
  std::ifstream file(path);
  if (!file) throw std::runtime_error("cannot read " + path);
  const std::regex row(
      R"(^input:(\d+)_output:(\d+)_depth:(\d+)_arch:([a-z]+)_batch:(\d+)\.out,\d+,"[^"]*",[^,]*,\d+,\d+,\d+,(\d+),)");
  std::vector<Case> all;
  for (std::string line; std::getline(file, line);) {
    std::smatch part;
    if (!std::regex_search(line, part, row)) continue;
    if (part[2] == "1") continue;  // the program ends in its first step: one output, two classes
    all.push_back(mlp(fmt::format("{} {} {} {} {}", part[1].str(), part[2].str(), part[3].str(),
                                  part[4].str(), part[5].str()),
                      std::stoll(part[6])));
  }
  if (all.empty()) throw std::runtime_error(path + " has no rows as they should be");
  std::vector<Case> some;
  const size_t count = std::min<size_t>(std::max(wanted, 1), all.size());
  for (size_t i = 0; i < count; ++i) some.push_back(all[i * all.size() / count]);
  return some;
}

std::string quoted(const std::string& word) { return "'" + word + "'"; }

// Figures by name.
std::map<std::string, int64_t> run(const std::string& command) {
  // NOLINTNEXTLINE(bugprone-command-processor): our own program, whose path has been quoted.
  std::FILE* const pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) throw std::runtime_error("cannot run " + command);
  std::map<std::string, int64_t> figures;
  char* text = nullptr;
  size_t capacity = 0;
  while (getline(&text, &capacity, pipe) >= 0) {
    const std::vector<std::string> words = absl::StrSplit(text, absl::ByAnyChar(" \n"));
    int64_t bytes = 0;
    if (words.size() >= 2 && absl::SimpleAtoi(words[1], &bytes)) figures[words[0]] = bytes;
  }
  std::free(text);
  if (const int status = pclose(pipe); status != 0) {
    throw std::runtime_error(
        fmt::format("{}\nended with {}", command,
                    WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status)));
  }
  return figures;
}

struct Interval {
  int64_t low = 0, high = 0;

  int64_t width() const { return high - low; }
};

// Runs programs at the ends of `memledger dry-run`, each program once.
class Runs {
 public:
  Runs(std::string memledger, std::string program)
      : memledger_(std::move(memledger)), program_(std::move(program)) {}

  Interval interval_of(const Case& one) {
    constexpr const char* kLow = "events=once,workspaces=expected,reads=none";
    constexpr const char* kHigh = "events=late,workspaces=upper,reads=all";
    Interval interval{std::numeric_limits<int64_t>::max(), 0};
    for (const char* const end : {kLow, kHigh}) {
      for (const char* const addresses : {"down", "up"}) {
        const int64_t bytes =
            one.beside + figure(one, fmt::format("{},{},addresses={}", one.gpu, end, addresses));
        interval = {std::min(interval.low, bytes), std::max(interval.high, bytes)};
      }
    }
    return interval;
  }

 private:
  int64_t figure(const Case& one, const std::string& specification) {
    const std::string command = quoted(memledger_) + " run --quiet " +
                                quoted("--virtual-gpu=" + specification) + " -- " +
                                quoted(program_) + " " + one.program;
    auto done = done_.find(command);
    if (done == done_.end()) done = done_.emplace(command, run(command)).first;
    const auto figure = done->second.find(one.figure);
    if (figure == done->second.end())
      throw std::runtime_error(command + "\nprinted no " + one.figure);
    return figure->second;
  }

  const std::string memledger_, program_;
  std::map<std::string, std::map<std::string, int64_t>> done_;  // by command
};

// In groups of three digits.
std::string grouped(int64_t number) {
  std::string digits = std::to_string(number);
  for (int i = static_cast<int>(digits.size()) - 3; i > 0; i -= 3) digits.insert(i, " ");
  return digits;
}

std::string amount(int64_t bytes) {
  if (bytes == 0) return "0";
  return bytes % kMiB == 0 ? fmt::format("{} MiB", bytes / kMiB)
                           : fmt::format("{} B", grouped(bytes));
}

// What is to be said of a case, and whether it is a failure.
struct Finding {
  std::string where;  // inside, or how far above or below
  std::string failure;
};

Finding finding_of(const Case& one, const Interval& interval) {
  Finding finding{"yes", ""};
  if (one.real - one.rounding > interval.high) {
    finding.where = amount(one.real - interval.high) + " above";
    finding.failure = "the real figure is above the interval";
  } else if (one.real + one.rounding < interval.low) {
    finding.where = amount(interval.low - one.real) + " below";
    if (!one.is_described) finding.failure = "the real figure is below the interval";
  }
  const double part = one.has_cudnn ? kWidestPartWithCudnn : kWidestPart;
  const auto widest = std::max(one.figure == "workspace" ? kWidestWorkspace : kWidestInterval,
                               static_cast<int64_t>(part * static_cast<double>(interval.high)));
  if (interval.width() > widest) finding.failure = "the interval is too wide";
  return finding;
}

void print_row(bool markdown, const std::string& name, const std::string& device,
               const std::string& low, const std::string& high, const std::string& real,
               const std::string& inside, const std::string& width) {
  if (markdown) {
    fmt::print("| {} | {} | {} | {} | {} | {} | {} |\n", name, device, low, high, real, inside,
               width);
  } else {
    fmt::print("{:<50}{:<24}{:>15}{:>15}{:>15}{:>16}{:>14}\n", name, device, low, high, real,
               inside, width);
  }
  std::fflush(stdout);
}

int run() {
  const fs::path here = fs::read_symlink("/proc/self/exe").parent_path();
  const auto given = [](const std::string& flag, const fs::path& otherwise) {
    return flag.empty() ? otherwise.string() : flag;
  };
  Runs runs(
      given(absl::GetFlag(FLAGS_memledger), here.parent_path().parent_path() / "runner/memledger"),
      given(absl::GetFlag(FLAGS_published_case), here / "published_case"));
  const std::string data = absl::GetFlag(FLAGS_mlp_data);
  const bool markdown = absl::GetFlag(FLAGS_markdown);

  int compared = 0, inside = 0, failures = 0;
  print_row(markdown, "case", "real device", "low", "high", "real", "inside", "width");
  if (markdown) fmt::print("|---|---|---|---|---|---|---|\n");
  for (const Case& one : data.empty() ? cases() : mlp_cases(data, absl::GetFlag(FLAGS_mlp_rows))) {
    if (one.name.find(absl::GetFlag(FLAGS_cases)) == std::string::npos) continue;
    const Interval interval = runs.interval_of(one);
    const Finding finding = finding_of(one, interval);
    print_row(markdown, one.name, one.device, grouped(interval.low), grouped(interval.high),
              grouped(one.real), finding.where, amount(interval.width()));
    ++compared;
    if (finding.where == "yes") ++inside;
    if (finding.failure.empty()) continue;
    ++failures;
    fmt::print("  FAILED: {}\n", finding.failure);
  }
  if (compared == 0) throw std::runtime_error("there is no such case");
  fmt::print("\n{} of {} figures lie inside their interval, {} failed.\n", inside, compared,
             failures);
  if (data.empty()) {
    for (const auto& [name, address] : sources()) fmt::print("{}: {}\n", name, address);
  }
  return failures > 0 ? 1 : 0;
}

}  // namespace

int main(int argc, char** argv) {
  absl::SetProgramUsageMessage(
      "Prints what published programs took on real GPUs beside what they take on the virtual one.");
  absl::ParseCommandLine(argc, argv);
  try {
    return run();
  } catch (const std::exception& error) {
    std::cerr << "published: " << error.what() << "\n";
    return 1;
  }
}
