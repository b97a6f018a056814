// A plug-in that runs a recurrent effect on blocks of audio and hands its state from block to
// block.
#include <torch/torch.h>
#include <cstdio>
#include <string>
#include <tuple>

struct EffectImpl : torch::nn::Module {
  torch::nn::LSTM lstm{nullptr};
  torch::nn::Linear out{nullptr};
  std::tuple<torch::Tensor, torch::Tensor> state;
  EffectImpl() {
    lstm = register_module("lstm", torch::nn::LSTM(torch::nn::LSTMOptions(1, 40)));
    out = register_module("out", torch::nn::Linear(40, 1));
    state = std::make_tuple(torch::zeros({1, 1, 40}), torch::zeros({1, 1, 40}));
  }
  torch::Tensor process(const torch::Tensor& block) {
    auto [y, next] = lstm->forward(block, state);
    state = next;
    return out->forward(y) + block;
  }
};
TORCH_MODULE(Effect);

int main(int argc, char** argv) {
  const bool guarded = argc > 1 && std::string(argv[1]) == "fixed";
  Effect effect;
  effect->eval();
  float buffer[256] = {};
  double sum = 0;
  for (int block = 0; block < 300; ++block) {
    torch::AutoGradMode mode(!guarded);
    const auto in = torch::from_blob(buffer, {256, 1, 1});
    const auto wet = effect->process(in);
    sum += wet[0].item<float>();  // stands for the copy into the host's buffer
  }
  std::printf("done %f\n", sum);
}
// Source: https://github.com/anira-project/anira/issues/45
