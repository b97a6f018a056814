// A stranger's LibTorch program, which knows nothing of memledger: echoes its input, keeps a MiB, ends as it is told.
//
//   small_program exit STATUS | signal NUMBER | nothing STATUS    (the last without a tensor)

#include <ATen/ops/empty.h>

#include <csignal>
#include <cstdlib>
#include <iostream>
#include <string>

namespace {
// Static, so that it is still there when the process ends.
at::Tensor* kept = nullptr;
}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 64;
  if (std::string(argv[1]) != "nothing") kept = new at::Tensor(at::empty({262144}, at::kFloat));
  for (std::string line; std::getline(std::cin, line);) std::cout << "echo " << line << '\n';
  std::cout.flush();
  std::cerr << "to standard error\n";
  const int number = std::atoi(argv[2]);
  if (std::string(argv[1]) == "signal") std::raise(number);
  return number;
}
