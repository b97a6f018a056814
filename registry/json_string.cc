#include "registry/json_string.h"

#include <fmt/format.h>

namespace memledger {
namespace {

// Bytes of the UTF-8 sequence that begins here; 0 where none does. No overlong forms, no surrogates, nothing beyond U+10FFFF.
size_t sequence_at(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(at);
  if (first < 0x80) return 1;
  if (first < 0xc2 || first > 0xf4) return 0;
  const size_t length = first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
  if (text.size() - at < length) return 0;
  const unsigned char lowest = first == 0xe0 ? 0xa0 : first == 0xf0 ? 0x90 : 0x80;
  const unsigned char highest = first == 0xed ? 0x9f : first == 0xf4 ? 0x8f : 0xbf;
  if (byte(at + 1) < lowest || byte(at + 1) > highest) return 0;
  for (size_t i = at + 2; i < at + length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
  }
  return length;
}

// Appends what begins there, and gives back where the next begins.
size_t append_sequence(std::string& result, std::string_view text, size_t at) {
  const size_t length = sequence_at(text, at);
  if (length == 0) {
    result += "\xef\xbf\xbd";
    return at + 1;
  }
  result.append(text.substr(at, length));
  return at + length;
}

}  // namespace

std::string valid_utf8(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  for (size_t i = 0; i < text.size();) i = append_sequence(result, text, i);
  return result;
}

std::string json_string(std::string_view text) {
  std::string result = "\"";
  for (size_t i = 0; i < text.size();) {
    const char c = text[i];
    switch (c) {
      case '"':
      case '\\':
        result += '\\';
        result += c;
        break;
      case '\n':
        result += "\\n";
        break;
      case '\r':
        result += "\\r";
        break;
      case '\t':
        result += "\\t";
        break;
      default:
        if (static_cast<unsigned char>(c) >= 0x20) {
          i = append_sequence(result, text, i);
          continue;
        }
        result += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
    }
    ++i;
  }
  return result + "\"";
}

}  // namespace memledger
