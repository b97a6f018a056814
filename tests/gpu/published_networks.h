// The random networks of GPUMemNet's data sets (github.com/itu-rad/GPUMemNet), trained on cuda:0 as
// its programs do; what follows is the words of the command line, in the order of its usage.

#ifndef MEMLEDGER_TESTS_GPU_PUBLISHED_NETWORKS_H_
#define MEMLEDGER_TESTS_GPU_PUBLISHED_NETWORKS_H_

#include <string>
#include <vector>

namespace memledger::as_python {

// mlp.py, or mlp_next.py with activations, dropout and batch normalization.
void train_mlp(const std::vector<std::string>& words);

// cnn.py. Dense networks depend on a coin that the program tosses: PARAMETERS says how it fell (0:
// not known, of networks without convolutions).
void train_cnn(const std::vector<std::string>& words);

}  // namespace memledger::as_python

#endif  // MEMLEDGER_TESTS_GPU_PUBLISHED_NETWORKS_H_
