#include "prediction/program_failure.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "prediction/prediction_text.h"
#include "text/names.h"

namespace memledger::prediction {
namespace {

constexpr int kSignalled = 128;
constexpr size_t kLongestLine = 160;
constexpr char kReadsInput[] = "it reads standard input, which is empty here";

struct SignalName {
  int number;
  const char* name;
};
// The same on all Linux that LibTorch runs on.
constexpr SignalName kSignals[] = {{4, "SIGILL"},  {6, "SIGABRT"},  {7, "SIGBUS"},  {8, "SIGFPE"},
                                   {9, "SIGKILL"}, {11, "SIGSEGV"}, {15, "SIGTERM"}};

// The first words of the cause that memledger::predict() gives for a step.
constexpr char kStepThrew[] = "the step threw";

// The cause that a line of the output shows, and what to do.
struct Hint {
  std::vector<const char*> words;  // any of them
  const char* advice;
};

const std::vector<Hint>& hints() {
  static const auto* const hints = new std::vector<Hint>{
      {{"not compiled with CUDA", "from the 'CUDA' backend", "without CUDA support"},
       "its PyTorch is built without CUDA"},
      {{"invalid device ordinal"},
       "it wants more GPUs than it has: --gpu=…,count=N gives it several"},
      {{"No CUDA GPUs are available", "no CUDA-capable device"},
       "it sees no GPU: is CUDA_VISIBLE_DEVICES set to one that is not there?"},
      {{"EOFError", "EOF when reading", "unexpected end of input"}, kReadsInput},
      {{"No such file or directory", "FileNotFoundError", "can't open file", "cannot open file"},
       "it needs a file that is not there"},
      {{"Address already in use", "EADDRINUSE"}, "a port that it listens on is taken"},
      {{"No space left on device"}, "a disk is full"},
      {{"Read-only file system", "Errno 30"}, "it writes where nothing can be written"},
  };
  return *hints;
}

std::vector<std::string> lines_of(const std::string& text) {
  return absl::StrSplit(text, '\n', absl::SkipWhitespace());
}

const Hint* hint_of(const std::string& line) {
  for (const Hint& hint : hints()) {
    for (const char* const words : hint.words) {
      if (absl::StrContains(line, words)) return &hint;
    }
  }
  return nullptr;
}

// The last line of Python's traceback: `ValueError: no such split`.
bool is_exception(const std::string& line) {
  const std::string name = line.substr(0, line.find(':'));
  const auto is_part = [](char c) { return absl::ascii_isalnum(c) || c == '_' || c == '.'; };
  return std::all_of(name.begin(), name.end(), is_part) &&
         (absl::EndsWith(name, "Error") || absl::EndsWith(name, "Exception"));
}

std::string shown(std::string line) {
  absl::StripAsciiWhitespace(&line);
  return table_name(line, kLongestLine);
}

std::string ending(const ProgramEnd& program) {
  if (program.status <= kSignalled) return fmt::format("the program ended with {}", program.status);
  const auto signal = std::find_if(
      std::begin(kSignals), std::end(kSignals),
      [&](const SignalName& known) { return known.number == program.status - kSignalled; });
  return signal == std::end(kSignals)
             ? fmt::format("signal {} ended the program", program.status - kSignalled)
             : fmt::format("{} ended the program", signal->name);
}

std::string time_limit(const Run& run) {
  const std::string steps =
      run.steps == 0 ? "it made no optimizer step"
                     : fmt::format("it made {} optimizer step{}, and its peak still moved",
                                   run.steps, run.steps == 1 ? "" : "s");
  return fmt::format("the program did not end within {} s, and {}; --timeout=SECONDS gives it more",
                     run.program.timeout_s, steps);
}

// The value that the program read last before it failed, if it is one that only a device has.
std::string advice_on_reads(const Run& run) {
  for (const Measurement& process : run.processes) {
    const MeasuredRead* last = nullptr;
    for (const MeasuredRead& read : process.unknown_reads) {
      const bool may_steer = read.kind != MeasuredRead::Kind::kReceived &&
                             read.kind != MeasuredRead::Kind::kModel && !is_sent(read);
      if (may_steer && (last == nullptr || read.last_read >= last->last_read)) last = &read;
    }
    if (last == nullptr) continue;
    const MeasuredRead& read = *last;
    const std::string where = read.place.empty() ? "" : " in " + short_place(read.place);
    const bool is_size = read.kind == MeasuredRead::Kind::kSize;
    const std::string assumed = !is_size                    ? fmt::format("{}", read.assumed)
                                : run.end == Run::End::kLow ? "the smallest possible"
                                                            : "the largest possible";
    const std::string line = line_of(read);
    const std::string remedy = is_size ? "another size can be assumed: --gpu=…,reads=0.1"
                                       : fmt::format("--assume={}=VALUE says what it is",
                                                     line.empty() ? "FILE:LINE" : line);
    return fmt::format("perhaps because it read a value that only the device has as {} ({}{}); {}",
                       assumed, printable(read.op), where, remedy);
  }
  return "";
}

}  // namespace

std::string why_it_failed(const Run& run) {
  if (run.program.timed_out) return time_limit(run);
  if (run.program.status == 0 && run.processes.empty()) {
    return "it used no GPU: there is nothing to measure; is the program, or its PyTorch, built "
           "with "
           "CUDA, and does it put its tensors there?";
  }
  for (const Measurement& process : run.processes) {
    if (absl::StartsWith(process.cause, kStepThrew)) return shown(process.cause);
  }
  std::string sentence = ending(run.program);
  const std::vector<std::string> lines = lines_of(run.program.last_lines);
  // Causes stand at the end of Python's output, and before LibTorch's backtrace.
  for (auto line = lines.rbegin(); line != lines.rend(); ++line) {
    if (const Hint* const hint = hint_of(*line))
      return fmt::format("{}: {} ({})", sentence, hint->advice, shown(*line));
  }
  const auto exception = std::find_if(lines.rbegin(), lines.rend(), &is_exception);
  if (exception != lines.rend()) sentence += ": " + shown(*exception);
  if (run.program.read_input) return fmt::format("{}: {}", sentence, kReadsInput);
  for (const Measurement& process : run.processes) {
    const size_t exception = process.cause.find("uncaught exception");
    if (exception == std::string::npos) continue;
    sentence = fmt::format("{}: {}", sentence, shown(process.cause.substr(exception)));
    break;
  }
  const std::string advice = advice_on_reads(run);
  return advice.empty() ? sentence : sentence + ", " + advice;
}

}  // namespace memledger::prediction
