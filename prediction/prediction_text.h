#pragma once

#include <string>

namespace memledger::prediction {

struct Prediction;

std::string sentence_of(const Prediction& prediction);

}  // namespace memledger::prediction
