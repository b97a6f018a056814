#include "text/names.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>

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

namespace {

// Returns where the character of that number begins.
size_t place_of_character(std::string_view text, size_t number) {
  size_t at = 0;
  for (size_t seen = 0; at < text.size(); ++at) {
    if (begins_character(text[at]) && seen++ == number) break;
  }
  return at;
}

std::string part_of(std::string_view text, size_t first, size_t count) {
  const size_t begin = place_of_character(text, first);
  return std::string(text.substr(begin, place_of_character(text.substr(begin), count)));
}

// Returns where texts, of which none is another, begin to differ, in characters.
size_t first_difference(const std::set<std::string>& texts) {
  const std::string& first = *texts.begin();
  const std::string& last = *texts.rbegin();  // of sorted texts these differ first
  size_t same = 0;
  while (same < std::min(first.size(), last.size()) && first[same] == last[same]) ++same;
  return count_characters(std::string_view(first).substr(0, same));
}

// Returns begin…middle…end, where the middle is about that character.
std::string cut_around(const std::string& text, size_t most, size_t at) {
  const size_t part = most / 3;
  const size_t all = count_characters(text);
  const size_t from = at > part / 4 ? at - part / 4 : 0;
  if (from <= part || from + part >= all) return text;
  return part_of(text, 0, part) + std::string(kEllipsis) + part_of(text, from, part) +
         std::string(kEllipsis) + part_of(text, all - part, part);
}

}  // namespace

std::vector<std::string> table_names(const std::vector<NameInTable>& names) {
  std::vector<std::string> whole, result;
  std::map<std::string, std::set<std::string>> by_cut;
  for (const NameInTable& name : names) {
    whole.push_back(printable(name.text));
    result.push_back(table_name(name.text, name.most));
    by_cut[result.back()].insert(whole.back());
  }
  std::map<std::string, std::set<std::string>> by_other_cut;
  std::vector<std::string> others;
  for (size_t i = 0; i < names.size(); ++i) {
    const std::set<std::string>& alike = by_cut[result[i]];
    others.push_back(alike.size() == 1
                         ? result[i]
                         : cut_around(whole[i], names[i].most, first_difference(alike)));
    by_other_cut[others.back()].insert(whole[i]);
  }
  for (size_t i = 0; i < names.size(); ++i)
    result[i] = by_other_cut[others[i]].size() == 1 ? others[i] : whole[i];
  return result;
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
