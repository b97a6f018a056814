#pragma once

#include <string>

#include "prediction/measurement.h"

namespace memledger::prediction {

struct Prediction;

std::string sentence_of(const Prediction& prediction);
std::string headline_of(const Prediction& prediction);

// Returns where the program read it, as --assume has it: train.py:12. Empty where it is not known.
std::string line_of(const MeasuredRead& read);

// Returns a place without the parameters of its function, which would fill the line:
// `train.cc:12 Net::forward` of `train.cc:12 Net::forward(at::Tensor const&)`.
std::string short_place(const std::string& place);

}  // namespace memledger::prediction
