#pragma once

#include <vector>

#include "prediction/prediction.h"

namespace memledger::prediction {

// Notes how much of the program was seen, and each stage's peaks. `runs`: those of both ends.
// `with_peaks`: those of them that show peaks.
void note_seen_part(const std::vector<Run>& runs, const std::vector<Run>& with_peaks,
                    Prediction& prediction);

}  // namespace memledger::prediction
