// Holds the virtual GPU against what others have published of real ones: runs each program on the
// virtual device, and prints the real figure beside the virtual one.
//
//   ./bazelw run //tests/gpu:published
//   ./bazelw run //tests/gpu:published -- --mlp_data=mlp_data_step1.csv --mlp_rows=150
//
// Ends with 1 if a figure is further from the real one than it was when it was written down here.

#include <fmt/format.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <optional>
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
// else lay there. One figure for all runs, 1427 or 1429 in the most.
constexpr int64_t kBesideMlp = 1428 * kMiB;

struct Case {
  std::string name;
  std::string source;  // a key of sources()
  std::string device;  // real
  std::string gpu;     // virtual
  std::string program;
  std::string figure;     // what the program prints
  int64_t real = 0;       // bytes
  int64_t deviation = 0;  // of the virtual device when this was written, within `rounding`
  int64_t rounding = 0;   // the real figure is known to so many bytes
  int64_t beside = 0;     // in the real figure and not in LibTorch's
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

Case gpt2(std::string name, const std::string& step, const std::string& figure, double real_gib,
          int64_t deviation) {
  // Four decimals; what is reserved is whole MiB, which they tell.
  const bool reserved = figure == "reserved";
  const int64_t real = gib(real_gib);
  return {"GPT-2 124M, " + std::move(name) + ", " + figure,
          "LLMs-from-scratch",
          "A100",
          "a100",
          "gpt2 " + step,
          figure,
          reserved ? (real + kMiB / 2) / kMiB * kMiB : real,
          deviation,
          reserved ? 0 : gib(0.00005)};
}

Case mlp(const std::string& parameters, int64_t nvidia_smi_mib, int64_t deviation_mib) {
  return {"MLP " + parameters,
          "GPUMemNet",
          "A100",
          "a100",
          "mlp " + parameters,
          "reserved_peak",
          nvidia_smi_mib * kMiB,
          deviation_mib * kMiB,
          0,
          kBesideMlp};
}

std::vector<Case> cases() {
  return {
      gpt2("original", "original", "reserved", 26.2617, 0),
      gpt2("original", "original", "allocated", 2.5069, 1088846),
      gpt2("causal mask on the fly", "mask", "reserved", 26.2422, 0),
      gpt2("bfloat16", "bfloat16", "reserved", 13.7871, 12 * kMiB),
      gpt2("LayerNorm and GELU of torch", "modules", "reserved", 11.5645, 12 * kMiB),
      gpt2("FlashAttention", "flash", "reserved", 5.9004, 2 * kMiB),
      {"Qwen3-8B, loaded, allocated", "FakeGPU", "RTX PRO 5000 Blackwell", "rtx5090:70GiB", "qwen3",
       "loaded", 16383586816, 0},
      {"Qwen3-8B, two tokens, allocated", "FakeGPU", "RTX PRO 5000 Blackwell", "rtx5090:70GiB",
       "qwen3", "peak", 16396630528, 0},
      mlp("1269 25 1 bottleneck 702", 1477, -1),
      mlp("1491 86 10 gradual 221", 1621, -1),
      mlp("2380 28 9 uniform 625", 2523, -1),
      mlp("3555 681 8 gradual 411", 2309, -1),
      mlp("1426 242 6 pyramid 498", 1483, 1),
      mlp("2366 571 6 gradual 248", 1765, 1),
      mlp("2859 680 10 uniform 118", 3123, 1),
      mlp("3292 451 10 bottleneck 421", 1669, -19),
      mlp("3401 558 10 gradual 858", 2431, -1),
      {"convolution, float32, workspace", "FakeGPU workspaces", "RTX 3090 Ti", "rtx3090",
       "convolution float32", "workspace", 8536576, 0},
      {"convolution, bfloat16, workspace", "FakeGPU workspaces", "RTX 3090 Ti", "rtx3090",
       "convolution bfloat16", "workspace", 8462848, 0},
      {"convolution, float32, workspace", "FakeGPU workspaces", "RTX PRO 5000 Blackwell", "rtx5090",
       "convolution float32", "workspace", 16925184, 0},
      {"convolution, bfloat16, workspace", "FakeGPU workspaces", "RTX PRO 5000 Blackwell",
       "rtx5090", "convolution bfloat16", "workspace", 8462848, 0},
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
    all.push_back(mlp(fmt::format("{} {} {} {} {}", part[1].str(), part[2].str(), part[3].str(),
                                  part[4].str(), part[5].str()),
                      std::stoll(part[6]), 1));
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

void print_head(bool markdown) {
  if (markdown) {
    fmt::print("| case | real device | real bytes | virtual bytes | difference |\n");
    fmt::print("|---|---|---|---|---|\n");
  } else {
    fmt::print("{:<58}{:<24}{:>15}{:>15}{:>16}\n", "case", "real device", "real bytes", "virtual",
               "difference");
  }
}

// In groups of three digits.
std::string grouped(int64_t number) {
  std::string digits = std::to_string(number);
  for (int i = static_cast<int>(digits.size()) - 3; i > 0; i -= 3) digits.insert(i, " ");
  return digits;
}

std::string difference(int64_t bytes, int64_t rounding) {
  if (std::abs(bytes) <= rounding) return "0";
  const int64_t size = std::abs(bytes);
  const char sign = bytes < 0 ? '-' : '+';
  return size % kMiB == 0 ? fmt::format("{}{} MiB", sign, size / kMiB)
                          : fmt::format("{}{} B", sign, grouped(size));
}

int run() {
  const fs::path here = fs::read_symlink("/proc/self/exe").parent_path();
  const auto given = [](const std::string& flag, const fs::path& otherwise) {
    return flag.empty() ? otherwise.string() : flag;
  };
  const std::string memledger =
      given(absl::GetFlag(FLAGS_memledger), here.parent_path().parent_path() / "runner/memledger");
  const std::string program = given(absl::GetFlag(FLAGS_published_case), here / "published_case");
  const std::string data = absl::GetFlag(FLAGS_mlp_data);
  const bool markdown = absl::GetFlag(FLAGS_markdown);

  std::map<std::string, std::map<std::string, int64_t>> done;  // by command
  int compared = 0, equal = 0, worse = 0;
  print_head(markdown);
  for (const Case& one : data.empty() ? cases() : mlp_cases(data, absl::GetFlag(FLAGS_mlp_rows))) {
    if (one.name.find(absl::GetFlag(FLAGS_cases)) == std::string::npos) continue;
    const std::string command = quoted(memledger) + " run --quiet " +
                                quoted("--virtual-gpu=" + one.gpu) + " -- " + quoted(program) +
                                " " + one.program;
    auto found = done.find(command);
    if (found == done.end()) found = done.emplace(command, run(command)).first;
    const auto figure = found->second.find(one.figure);
    if (figure == found->second.end())
      throw std::runtime_error(command + "\nprinted no " + one.figure);
    const int64_t virtually = figure->second + one.beside;
    const int64_t bytes = virtually - one.real;
    fmt::print(markdown ? "| {} | {} | {} | {} | {} |\n" : "{:<58}{:<24}{:>15}{:>15}{:>16}\n",
               one.name, one.device, grouped(one.real), grouped(virtually),
               difference(bytes, one.rounding));
    std::fflush(stdout);
    ++compared;
    equal += std::abs(bytes) <= one.rounding;
    if (std::abs(bytes) > std::abs(one.deviation) + one.rounding) {
      ++worse;
      fmt::print("  WORSE: the difference was {} B\n", grouped(one.deviation));
    }
  }
  if (compared == 0) throw std::runtime_error("there is no such case");
  fmt::print("\n{} of {} figures are equal, {} further from the real one than recorded.\n", equal,
             compared, worse);
  if (data.empty()) {
    for (const auto& [name, address] : sources()) fmt::print("{}: {}\n", name, address);
  }
  return worse > 0 ? 1 : 0;
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
