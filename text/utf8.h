#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace memledger {

// Returns the bytes of the UTF-8 sequence that begins there, 0 where none does. No overlong forms,
// no surrogates, nothing beyond U+10FFFF.
size_t utf8_sequence(std::string_view text, size_t at);

// Returns `text` with U+FFFD in place of each byte that belongs to no well-formed UTF-8 sequence.
std::string valid_utf8(std::string_view text);

}  // namespace memledger
