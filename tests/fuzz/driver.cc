// Fuzzing as an ordinary test, with any compiler: the given files, then inputs made of them, always
// the same ones.
//
// TARGET [--runs=N] [--seconds=N] [--seed=N] FILE…
//
// It ends after the first of the two limits. What makes the target fail is written to crash-input
// in $TEST_UNDECLARED_OUTPUTS_DIR, or here; `TARGET --runs=0 crash-input` plays it again.

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <fstream>
#include <iterator>
#include <random>

#include "tests/fuzz/fuzz.h"

namespace {

constexpr size_t kMostBytes = 4096;

std::string current;
std::string crash_path = "crash-input";

// Only what a signal handler may call.
void keep_input(int number) {
  const int file = ::open(crash_path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  const char told[] = "this input makes it fail: crash-input\n";
  if (file >= 0 && ::write(file, current.data(), current.size()) >= 0) {
    if (::write(STDERR_FILENO, told, sizeof told - 1) < 0) ::_exit(1);
  }
  ::signal(number, SIG_DFL);
  ::raise(number);
}

void play(std::string input) {
  current = std::move(input);
  LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(current.data()), current.size());
}

class Mutator {
 public:
  Mutator(std::vector<std::string> corpus, uint64_t seed)
      : corpus_(std::move(corpus)), random_(seed) {}

  std::string next() {
    std::string text = corpus_[below(corpus_.size())];
    for (size_t changes = 1 + below(6); changes > 0; --changes) change(text);
    if (text.size() > kMostBytes) text.resize(kMostBytes);
    // Some of what is new goes on from there.
    if (below(64) == 0 && corpus_.size() < 4096) corpus_.push_back(text);
    return text;
  }

 private:
  size_t below(size_t most) { return most == 0 ? 0 : static_cast<size_t>(random_() % most); }

  void change(std::string& text) {
    const size_t at = below(text.size() + 1);
    const std::string& other = corpus_[below(corpus_.size())];
    const size_t from = below(other.size() + 1);
    switch (below(8)) {
      case 0:
        if (at < text.size()) text[at] = static_cast<char>(random_());
        break;
      case 1:
        if (at < text.size()) text[at] = static_cast<char>(text[at] ^ (1 << below(8)));
        break;
      case 2:
        text.erase(at, below(16));
        break;
      case 3:
        text.insert(at, 1 + below(4), static_cast<char>(random_()));
        break;
      case 4:
        text.insert(at, other.substr(from, below(64)));
        break;
      case 5:
        text.replace(at, below(64), other.substr(from, below(256)));
        break;
      default:
        text.insert(at, memledger::fuzz::kTokens[below(memledger::fuzz::kTokens.size())]);
    }
  }

  std::vector<std::string> corpus_;
  std::mt19937_64 random_;
};

}  // namespace

int main(int argc, char** argv) {
  uint64_t runs = 20000, seconds = 20, seed = 1;
  std::vector<std::string> corpus;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    const auto option = [&](const char* name, uint64_t& value) {
      if (argument.rfind(name, 0) != 0) return false;
      value = std::strtoull(argument.c_str() + std::strlen(name), nullptr, 10);
      return true;
    };
    if (option("--runs=", runs) || option("--seconds=", seconds) || option("--seed=", seed))
      continue;
    std::ifstream file(argument, std::ios::binary);
    if (!file) {
      std::fprintf(stderr, "%s: cannot be read\n", argument.c_str());
      return 2;
    }
    corpus.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  if (const char* const folder = std::getenv("TEST_UNDECLARED_OUTPUTS_DIR"))
    crash_path = std::string(folder) + "/crash-input";
  for (const int number : {SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL}) ::signal(number, keep_input);

  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(seconds);
  play("");
  for (const std::string& text : corpus) play(text);
  if (corpus.empty()) corpus.emplace_back("x");
  Mutator mutator(corpus, seed);
  uint64_t done = 0;
  while (done < runs && std::chrono::steady_clock::now() < end) {
    play(mutator.next());
    ++done;
  }
  std::printf("%zu files and %llu inputs made of them\n", corpus.size(),
              static_cast<unsigned long long>(done));
  return 0;
}
