// A detector on the CPU gets a picture of another size each time. The process grows; with one size
// it does not.
#include <torch/torch.h>
#include <unistd.h>
#include <cstdio>
#include <fstream>
#include <string>

static double rss_mib() {
  std::ifstream in("/proc/self/statm");
  long pages = 0, resident = 0;
  in >> pages >> resident;
  return resident * (sysconf(_SC_PAGESIZE) / 1048576.0);
}

int main(int argc, char** argv) {
  const bool one_size = argc > 1 && std::string(argv[1]) == "one";
  torch::NoGradGuard no_grad;
  torch::nn::Sequential net;
  int in = 3;
  for (int out : {32, 32, 64, 64, 96, 96}) {
    net->push_back(torch::nn::Conv2d(torch::nn::Conv2dOptions(in, out, 3).padding(1)));
    net->push_back(torch::nn::ReLU());
    in = out;
  }
  net->eval();
  for (int i = 0; i <= 400; ++i) {
    const int h = one_size ? 64 : 32 + i % 97, w = one_size ? 64 : 32 + (i * 7) % 89;
    net->forward(torch::rand({1, 3, h, w}));
    if (i % 100 == 0) std::printf("after %d pictures: resident %.0f MiB\n", i, rss_mib());
  }
}
// Source: https://github.com/pytorch/pytorch/issues/25646
