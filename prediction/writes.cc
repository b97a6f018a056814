#include "prediction/writes.h"

namespace memledger::prediction {

std::string_view to_string(WritesHeldBy held_by) {
  switch (held_by) {
    case WritesHeldBy::kNamespace:
      return "namespace";
    case WritesHeldBy::kLandlock:
      return "landlock";
    case WritesHeldBy::kNothing:
      break;
  }
  return "nothing";
}

WritesHeldBy held_by_of(std::string_view text) {
  for (const WritesHeldBy held_by : {WritesHeldBy::kNamespace, WritesHeldBy::kLandlock}) {
    if (text == to_string(held_by)) return held_by;
  }
  return WritesHeldBy::kNothing;
}

}  // namespace memledger::prediction
