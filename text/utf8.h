#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace memledger {

// Returns how many bytes the UTF-8 sequence at `text[at]` has, 0 if it is not well-formed: overlong
// forms, surrogates and what is beyond U+10FFFF are not.
size_t utf8_sequence(std::string_view text, size_t at);

// Returns `text` with U+FFFD instead of each byte that belongs to no well-formed UTF-8 sequence.
std::string valid_utf8(std::string_view text);

}  // namespace memledger
