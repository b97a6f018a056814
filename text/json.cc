#include "text/json.h"

namespace memledger {

std::string to_text(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string json_string(std::string_view text) { return to_text(Json(text)); }

}  // namespace memledger
