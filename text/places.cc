#include "text/places.h"

#include <algorithm>

#include "text/names.h"

namespace memledger {
namespace {

// Returns the sign that an operator's name begins with, without what `<` may begin: arguments.
// Demanglers put a space between a sign that ends with `<` and those.
std::string_view sign_of_operator(std::string_view text) {
  for (const std::string_view sign :
       {"()", "[]", "<=>", "->*", "->", "<<=", "<<", "<=", ">>=", ">>", ">=", "<", ">"}) {
    if (text.substr(0, sign.size()) == sign) return text.substr(0, sign.size());
  }
  return text.substr(0, std::min(text.find_first_not_of("+-*/%^&|~!=,"), text.size()));
}

void strip_qualifiers(std::string& function) {
  for (bool again = true; again;) {
    again = false;
    for (const std::string_view end : {" const", " volatile", " &", " &&", " noexcept"}) {
      if (function.size() <= end.size() ||
          function.compare(function.size() - end.size(), end.size(), end) != 0)
        continue;
      function.resize(function.size() - end.size());
      again = true;
    }
  }
}

}  // namespace

std::string plain_function(std::string_view name) {
  constexpr std::string_view kOperator = "operator", kAnonymous = "(anonymous namespace)::";
  const auto begins = [&](size_t at, std::string_view part) {
    return name.substr(at, part.size()) == part;
  };
  name = name.substr(0, name.find(" [clone"));
  std::string plain;
  int depth = 0;
  for (size_t i = 0; i < name.size(); ++i) {
    const char c = name[i];
    const bool begins_part = plain.empty() || plain.back() == ':' || plain.back() == ' ';
    if (depth == 0 && begins_part && begins(i, kOperator)) {
      plain.append(kOperator);
      i += kOperator.size();
      if (begins(i, " ") || begins(i, "\"")) {  // operator bool, operator"" _suffix
        i = std::min(name.find('(', i), name.size());
      } else {
        const std::string_view sign = sign_of_operator(name.substr(i));
        plain.append(sign);
        i += sign.size();
      }
      --i;
    } else if (depth == 0 && begins(i, kAnonymous)) {
      i += kAnonymous.size() - 1;
    } else if (depth == 0 && c == '<' && (plain.empty() || plain.back() == '.')) {
      const size_t end = std::min(name.find('>', i), name.size() - 1);  // Python's <lambda>
      plain.append(name.substr(i, end + 1 - i));
      i = end;
    } else if (c == '<' || c == '(') {
      ++depth;
    } else if (c == '>' || c == ')') {
      if (depth > 0) --depth;
    } else if (depth == 0) {
      plain += c;
    }
  }
  strip_qualifiers(plain);
  plain.resize(plain.find_last_not_of(' ') + 1);
  return plain.substr(plain.rfind(' ') + 1);
}

std::string short_place(const std::string& place) {
  size_t function = std::string::npos;
  for (size_t colon = place.find(':'); colon != std::string::npos;
       colon = place.find(':', colon + 1)) {
    const size_t after = place.find_first_not_of("0123456789", colon + 1);
    if (after == colon + 1 || after == std::string::npos || place[after] != ' ') continue;
    function = after + 1;
    break;
  }
  if (function == std::string::npos) return table_name(place);
  const std::string_view line = std::string_view(place).substr(0, function);
  return printable(base_name(line)) +
         table_name(plain_function(std::string_view(place).substr(function)), 60);
}

}  // namespace memledger
