#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "prediction/prediction.h"

namespace memledger::prediction {

// The runs behind what one call of predict() returned. A process that was started again for a later
// call reads them, so that it goes the same way.
struct RecordedCall {
  std::string key;  // which call it is
  std::string specification;
  std::vector<Run> runs;
  bool has_settled = true;  // no peak moved any more
};

// Write and read a call as JSON. Reading fails with a sentence that names what is wrong.
std::string to_json(const RecordedCall& call);
absl::StatusOr<RecordedCall> parse_recorded_call(std::string_view json);

}  // namespace memledger::prediction
