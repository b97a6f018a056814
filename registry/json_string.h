#pragma once

#include <string>
#include <string_view>

namespace memledger {

// `text` as a JSON string, quotes included (RFC 8259). Names may come from anywhere: bytes that are no UTF-8 are as in valid_utf8().
std::string json_string(std::string_view text);

// `text` with U+FFFD in place of each byte that belongs to no well-formed UTF-8 sequence.
std::string valid_utf8(std::string_view text);

}  // namespace memledger
