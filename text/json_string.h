#pragma once

#include <string>
#include <string_view>

namespace memledger {

// Returns `text` as a JSON string, quotes included (RFC 8259). Exact, save for bytes that are no
// UTF-8: see valid_utf8().
std::string json_string(std::string_view text);

}  // namespace memledger
