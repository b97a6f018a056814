#include "text/json_string.h"

#include "text/utf8.h"

namespace memledger {

std::string json_string(std::string_view text) {
  constexpr std::string_view kHex = "0123456789abcdef";
  std::string result = "\"";
  for (size_t i = 0; i < text.size();) {
    const auto c = static_cast<unsigned char>(text[i]);
    const size_t length = utf8_sequence(text, i);
    if (length == 0) {
      result += "\xef\xbf\xbd";
    } else if (c == '"' || c == '\\') {
      result += '\\';
      result += text[i];
    } else if (c == '\n') {
      result += "\\n";
    } else if (c == '\r') {
      result += "\\r";
    } else if (c == '\t') {
      result += "\\t";
    } else if (c < 0x20) {
      result += "\\u00";
      result += kHex[c >> 4];
      result += kHex[c & 15];
    } else {
      result.append(text.substr(i, length));
    }
    i += length == 0 ? 1 : length;
  }
  return result + "\"";
}

}  // namespace memledger
