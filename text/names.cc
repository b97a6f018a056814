#include "text/names.h"

#include <algorithm>
#include <cstdint>

#include "text/escaped.h"
#include "text/utf8.h"

namespace memledger {
namespace {

constexpr std::string_view kHex = "0123456789abcdef";
constexpr std::string_view kEllipsis = "\xe2\x80\xa6";

uint32_t code_point(std::string_view sequence) {
  const auto byte = [&](size_t i) {
    return static_cast<uint32_t>(static_cast<unsigned char>(sequence[i]));
  };
  if (sequence.size() == 1) return byte(0);
  uint32_t code = byte(0) & (0x7fU >> sequence.size());
  for (size_t i = 1; i < sequence.size(); ++i) code = code << 6 | (byte(i) & 0x3f);
  return code;
}

// C0 and C1 controls, DEL, line and paragraph separators, all that changes the direction of
// writing, and what is no character.
bool is_harmful(uint32_t code) {
  return code < 0x20 || (code >= 0x7f && code < 0xa0) || code == 0x61c || code == 0x200e ||
         code == 0x200f || (code >= 0x2028 && code <= 0x202e) ||
         (code >= 0x2066 && code <= 0x2069) || (code & 0xfffe) == 0xfffe;
}

void append_byte(std::string& result, unsigned char byte) {
  result += "\\x";
  result += kHex[byte >> 4];
  result += kHex[byte & 15];
}

void append_escape(std::string& result, uint32_t code) {
  if (code == '\n') {
    result += "\\n";
  } else if (code == '\t') {
    result += "\\t";
  } else if (code < 0x80) {
    append_byte(result, static_cast<unsigned char>(code));
  } else {
    result += code > 0xffff ? "\\U" : "\\u";
    for (int shift = code > 0xffff ? 28 : 12; shift >= 0; shift -= 4)
      result += kHex[code >> shift & 15];
  }
}

bool begins_character(char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; }

}  // namespace

std::string printable(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  for (size_t i = 0; i < text.size();) {
    const size_t length = utf8_sequence(text, i);
    if (length == 0) {
      append_byte(result, static_cast<unsigned char>(text[i++]));
      continue;
    }
    const std::string_view sequence = text.substr(i, length);
    const uint32_t code = code_point(sequence);
    if (is_harmful(code)) {
      append_escape(result, code);
    } else {
      result.append(sequence);
    }
    i += length;
  }
  return result;
}

size_t count_characters(std::string_view text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), &begins_character));
}

std::string table_name(std::string_view text, size_t most) {
  std::string name = printable(text);
  if (count_characters(name) <= most) return name;
  // The end tells more apart than the middle: it is the innermost part of a path.
  const size_t behind = most / 3, before = most - behind - 1;
  size_t begin = 0, end = name.size();
  for (size_t seen = 0; begin < name.size(); ++begin) {
    if (begins_character(name[begin]) && seen++ == before) break;
  }
  for (size_t seen = 0; seen < behind;) seen += begins_character(name[--end]) ? 1 : 0;
  return name.substr(0, begin).append(kEllipsis).append(name, end, std::string::npos);
}

std::string dot_text(std::string_view text) {
  return escaped(printable(text), [](char c) -> std::string_view {
    return c == '"' ? "\\\"" : c == '\\' ? "\\\\" : "";
  });
}

std::string_view base_name(std::string_view path) { return path.substr(path.rfind('/') + 1); }

std::string file_ending(std::string_view path) {
  const std::string_view name = base_name(path);
  const size_t dot = name.rfind('.');
  if (dot == std::string_view::npos) return "";
  std::string ending(name.substr(dot));
  for (char& c : ending) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return ending;
}

}  // namespace memledger
