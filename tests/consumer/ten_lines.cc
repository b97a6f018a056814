#include <torch/torch.h>

#include "memledger.h"

int main() {
  memledger::ScopedTracking tracking;
  torch::nn::Linear net(1024, 1024);
  memledger::MemReporter reporter(net);
  auto loss = net->forward(torch::randn({512, 1024})).sum();
  reporter.add_graph(loss);
  reporter.report(/*verbose=*/true);
  std::cout << memledger::memory_for_backward(net, loss) << " bytes are saved for backward\n";
}
