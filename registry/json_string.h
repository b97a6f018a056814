#pragma once

#include <string>
#include <string_view>

namespace memledger {

// `text` as a JSON string, quotes included (RFC 8259): bytes from 0x80 on pass through, as names are UTF-8 already.
std::string json_string(std::string_view text);

}  // namespace memledger
