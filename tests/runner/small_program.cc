// A user's LibTorch program, which knows nothing of memledger: echoes its input, keeps a tensor of
// 1 MiB (with `nothing`: none), and ends as its arguments say.
//
//   small_program exit STATUS | signal NUMBER | survive STATUS | nothing STATUS

#include <ATen/ops/empty.h>

#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <string>

namespace {
// Static, so that it is still there when the process ends.
at::Tensor* kept = nullptr;
}  // namespace

// Asks for more memory than there is.
__attribute__((noinline)) int64_t survive() {
  const at::Tensor some = at::empty({1000}, at::kByte);
  try {
    return at::empty({int64_t{1} << 60}, at::kByte).numel();
  } catch (const std::exception&) {
    return some.numel();
  }
}

int main(int argc, char** argv) {
  if (argc != 3) return 64;
  if (std::string(argv[1]) != "nothing") kept = new at::Tensor(at::empty({262144}, at::kFloat));
  for (std::string line; std::getline(std::cin, line);) std::cout << "echo " << line << '\n';
  std::cout.flush();
  std::cerr << "to standard error\n";
  const int number = std::atoi(argv[2]);
  if (std::string(argv[1]) == "survive" && survive() != 1000) return 65;
  if (std::string(argv[1]) == "signal") std::raise(number);
  return number;
}
