#pragma once

#include <torch/nn/module.h>

#include <functional>
#include <string>

namespace memledger {

// LibTorch's TransformerEncoder and TransformerDecoder are filled with clones of a prototype layer,
// and their options keep the prototype: real memory that Module::parameters() does not reach. Calls
// visit(`encoder.options.encoder_layer`, the prototype) for each of them within the module, itself
// included.
void for_each_prototype_layer(
    const torch::nn::Module& module,
    const std::function<void(const std::string& path, const torch::nn::Module& prototype)>& visit);

}  // namespace memledger
