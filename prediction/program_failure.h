#pragma once

#include <string>

#include "prediction/prediction.h"

namespace memledger::prediction {

// Returns in one sentence, without a full stop, why a run that did not end well and whose memory
// was not short ended as it did: its status, the line of its output that says most, and what may
// help.
std::string why_it_failed(const Run& run);

}  // namespace memledger::prediction
