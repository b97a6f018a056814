#include "text/table_names.h"

#include <algorithm>
#include <map>
#include <set>
#include <string_view>

#include "text/names.h"

namespace memledger {
namespace {

constexpr std::string_view kCut = "\xe2\x80\xa6";

bool is_first_byte(char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; }

// Returns where the character of that number begins.
size_t place_of_character(std::string_view text, size_t number) {
  size_t at = 0;
  for (size_t seen = 0; at < text.size(); ++at) {
    if (is_first_byte(text[at]) && seen++ == number) break;
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
  return part_of(text, 0, part) + std::string(kCut) + part_of(text, from, part) +
         std::string(kCut) + part_of(text, all - part, part);
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

}  // namespace memledger
