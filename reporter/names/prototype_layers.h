#pragma once

#include <torch/nn/module.h>

#include <functional>
#include <string>

namespace memledger {

// Calls visit(`encoder.options.encoder_layer`, layer) for each prototype layer within a module, or
// of the module itself. LibTorch's TransformerEncoder and TransformerDecoder are filled with clones
// of such a layer, and their options keep it: real memory that Module::parameters() does not reach.
void for_each_prototype_layer(
    const torch::nn::Module& module,
    const std::function<void(const std::string& path, const torch::nn::Module& prototype)>& visit);

}  // namespace memledger
