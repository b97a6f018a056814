#pragma once

#include <string>

namespace memledger::prediction {

struct DevicePrediction;
struct Prediction;

std::string sentence_of(const Prediction& prediction);
std::string json_of(const Prediction& prediction);
std::string text_of(const Prediction& prediction);
// The lines of one device.
std::string device_text(const DevicePrediction& device);

}  // namespace memledger::prediction
