#include "compare/names.h"

#include <algorithm>
#include <cctype>
#include <map>
#include <unordered_set>
#include <utility>

namespace memledger::compare {
namespace {

constexpr std::string_view kWrappers[] = {"module", "_orig_mod", "_fsdp_wrapped_module",
                                          "_checkpoint_wrapped_module"};

// Fewer names than this say nothing about a prefix that all of them have.
constexpr size_t kMinNames = 2;

bool is_digit(char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; }

bool is_wrapper(std::string_view segment) {
  return std::find(std::begin(kWrappers), std::end(kWrappers), segment) != std::end(kWrappers);
}

// Returns the prefix without which most of these names are among the others; empty if there is
// none.
std::string prefix_of(const std::vector<std::string>& names,
                      const std::vector<std::string>& others) {
  const std::unordered_set<std::string> wanted(others.begin(), others.end());
  std::map<std::string, size_t> found;
  size_t with_dots = 0;
  for (const std::string& name : names) {
    if (name.find('.') != std::string::npos) ++with_dots;
    for (size_t dot = name.find('.'); dot != std::string::npos; dot = name.find('.', dot + 1)) {
      if (wanted.count(name.substr(dot + 1)) > 0) ++found[name.substr(0, dot + 1)];
    }
  }
  std::string best;
  size_t most = std::max(kMinNames, (with_dots + 1) / 2) - 1;
  for (const auto& [prefix, count] : found) {
    if (count <= most) continue;
    most = count;
    best = prefix;
  }
  return best;
}

// A name's texts, and the numbers between them.
std::vector<std::string> pieces_of(const std::string& name) {
  std::vector<std::string> pieces;
  for (const char c : name) {
    const bool begins = pieces.empty() || is_digit(pieces.back().back()) != is_digit(c);
    if (begins) pieces.emplace_back();
    pieces.back() += c;
  }
  return pieces;
}

bool is_less(const std::string& a, const std::string& b) {
  return std::pair(a.size(), a) < std::pair(b.size(), b);
}

}  // namespace

std::string without_wrappers(std::string_view name) {
  std::string result;
  while (!name.empty()) {
    const size_t end = name.find_first_of(".+");
    const std::string_view segment = name.substr(0, end);
    const bool goes = end != std::string_view::npos && name[end] == '.' && is_wrapper(segment);
    const size_t length = end == std::string_view::npos ? name.size() : end + 1;
    if (!goes) result += name.substr(0, length);
    name.remove_prefix(length);
  }
  return result;
}

std::string without_prefix(const std::string& name, const std::string& prefix) {
  if (prefix.empty()) return name;
  if (name.compare(0, prefix.size(), prefix) == 0) return name.substr(prefix.size());
  const size_t begin = name.find('.') + 1;  // 0: it has no dot
  if (begin == 0 || name.compare(begin, prefix.size(), prefix) != 0) return name;
  return name.substr(0, begin) + name.substr(begin + prefix.size());
}

std::string without_numbers(std::string_view name) {
  std::string result;
  for (const char c : name) {
    if (!is_digit(c))
      result += c;
    else if (result.empty() || result.back() != '#')
      result += '#';
  }
  return result;
}

Prefixes prefixes_of(const std::vector<std::string>& before,
                     const std::vector<std::string>& after) {
  Prefixes result;
  result.before = prefix_of(before, after);
  if (result.before.empty()) result.after = prefix_of(after, before);
  return result;
}

std::string ranged_name(const std::vector<std::string>& names) {
  std::vector<std::string> least, most;
  for (const std::string& name : names) {
    const std::vector<std::string> pieces = pieces_of(name);
    if (least.empty()) least = most = pieces;
    if (pieces.size() != least.size()) return names.front();
    for (size_t i = 0; i < pieces.size(); ++i) {
      least[i] = std::min(least[i], pieces[i], is_less);
      most[i] = std::max(most[i], pieces[i], is_less);
    }
  }
  std::string result;
  for (size_t i = 0; i < least.size(); ++i)
    result += least[i] == most[i] ? least[i] : least[i] + "\xe2\x80\xa6" + most[i];
  return result;
}

}  // namespace memledger::compare
