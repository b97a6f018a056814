#include "reporter/names/prototype_layers.h"

#include <torch/nn/modules/transformercoder.h>

namespace memledger {
namespace {

using Visit = std::function<void(const std::string& path, const torch::nn::Module& prototype)>;

void walk(const torch::nn::Module& module, const std::string& path, const Visit& visit) {
  const std::string prefix = path.empty() ? "" : path + ".";
  if (const auto* encoder = dynamic_cast<const torch::nn::TransformerEncoderImpl*>(&module)) {
    if (const auto& layer = encoder->options.encoder_layer(); !layer.is_empty())
      visit(prefix + "options.encoder_layer", *layer);
  } else if (const auto* decoder =
                 dynamic_cast<const torch::nn::TransformerDecoderImpl*>(&module)) {
    if (const auto& layer = decoder->options.decoder_layer(); !layer.is_empty())
      visit(prefix + "options.decoder_layer", *layer);
  }
  for (const auto& child : module.named_children())
    walk(*child.value(), prefix + child.key(), visit);
}

}  // namespace

void for_each_prototype_layer(const torch::nn::Module& module, const Visit& visit) {
  walk(module, "", visit);
}

}  // namespace memledger
