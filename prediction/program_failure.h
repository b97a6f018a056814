#pragma once

#include <string>

#include "prediction/prediction.h"

namespace memledger::prediction {

// Explains, in one sentence without a full stop, the end of a run that failed although memory was
// not short: its status, the line of its output that says most, and what may help.
std::string why_it_failed(const Run& run);

}  // namespace memledger::prediction
