#include "compare/match_rows.h"

#include <algorithm>
#include <functional>
#include <initializer_list>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>

namespace memledger::compare {
namespace {

// Returns a key that no other texts have.
std::string key_of(std::initializer_list<std::string_view> texts) {
  std::string key;
  for (const std::string_view text : texts) {
    key += std::to_string(text.size());
    key += ':';
    key += text;
  }
  return key;
}

// How many sizes a shape has: (256, 3) and (64, 3) may be one tensor, (256,) is none of them.
std::string sizes_in(const std::string& shape) {
  const bool ends_with_comma = shape.size() > 2 && shape[shape.size() - 2] == ',';
  return std::to_string(std::count(shape.begin(), shape.end(), ',') - (ends_with_comma ? 1 : 0));
}

// A row, with its names as they are compared.
struct Candidate {
  const Row* row;
  std::string name, layer;
  bool may_be_renumbered = false;
};
using Candidates = std::vector<Candidate>;
// Returns the empty text for a row that this rule does not match.
using Key = std::function<std::string(const Candidate&)>;

enum class Bytes : uint8_t { kEqual, kAny };

std::string name_and_role(const Candidate& c) {
  return c.row->name.empty() ? "" : key_of({c.row->name, c.row->role});
}
std::string only_name(const Candidate& c) { return c.row->name; }
std::string clean_name(const Candidate& c) {
  return c.name.empty() ? "" : key_of({c.name, c.row->role});
}
std::string numbered_name(const Candidate& c) {
  if (c.name.empty() || !c.may_be_renumbered) return "";
  return key_of({without_numbers(c.name), c.row->role, sizes_in(c.row->shape)});
}
std::string maker_and_line(const Candidate& c) {
  const Row& row = *c.row;
  return key_of({row.role, c.layer, row.op, row.node, row.shape, row.dtype, row.line});
}
std::string maker(const Candidate& c) {
  const Row& row = *c.row;
  return key_of({row.role, c.layer, row.op, row.node, row.shape, row.dtype});
}
std::string only_maker(const Candidate& c) {
  const Row& row = *c.row;
  return row.op.empty() ? "" : key_of({row.role, row.op, row.node, row.shape, row.dtype});
}
std::string maker_without_layer(const Candidate& c) { return c.layer.empty() ? only_maker(c) : ""; }
std::string numbered_maker(const Candidate& c) {
  const Row& row = *c.row;
  if (c.layer.empty() || !c.may_be_renumbered) return "";
  return key_of({row.role, without_numbers(c.layer), row.op, row.node, row.shape, row.dtype});
}
// The rest is for rows without a name.
std::string layer_and_operator(const Candidate& c) {
  const Row& row = *c.row;
  if (!row.name.empty() || row.op.empty() || c.layer.empty()) return "";
  return key_of({row.role, c.layer, row.op, row.node});
}
std::string line_and_operator(const Candidate& c) {
  const Row& row = *c.row;
  if (!row.name.empty() || row.line.empty()) return "";
  return key_of({row.role, row.op, row.node, row.line});
}
std::string layer_and_shape(const Candidate& c) {
  const Row& row = *c.row;
  if (!row.name.empty() || c.layer.empty() || row.shape.empty()) return "";
  return key_of({row.role, c.layer, row.node, row.shape, row.dtype});
}

class Matcher {
 public:
  MatchedRows match_all(const std::vector<Row>& before, const std::vector<Row>& after) {
    before_ = candidates_of(before);
    after_ = candidates_of(after);
    match(Match::kName, Bytes::kAny, name_and_role);
    match(Match::kName, Bytes::kAny, only_name);
    clean(before, after);
    match(Match::kPrefix, Bytes::kAny, clean_name);
    match(Match::kNumber, Bytes::kEqual, numbered_name);
    match(Match::kNumber, Bytes::kAny, numbered_name);
    match(Match::kMaker, Bytes::kEqual, maker_and_line);
    match(Match::kMaker, Bytes::kEqual, maker);
    match(Match::kNumber, Bytes::kEqual, numbered_maker);
    // A layer that one of the files does not know.
    match(Match::kMaker, Bytes::kEqual, maker_without_layer, only_maker);
    match(Match::kMaker, Bytes::kEqual, only_maker, maker_without_layer);
    match(Match::kLayer, Bytes::kAny, layer_and_operator);
    match(Match::kLayer, Bytes::kAny, line_and_operator);
    match(Match::kOperator, Bytes::kEqual, layer_and_shape);
    for (const Candidate& one : before_) result_.pairs.push_back({one.row, nullptr, Match::kNone});
    for (const Candidate& one : after_) result_.pairs.push_back({nullptr, one.row, Match::kNone});
    return std::move(result_);
  }

 private:
  static Candidates candidates_of(const std::vector<Row>& rows) {
    Candidates result;
    for (const Row& row : rows) result.push_back({&row, row.name, row.layer, false});
    return result;
  }

  static std::set<std::string> layers_of(const std::vector<Row>& rows) {
    std::set<std::string> layers;
    for (const Row& row : rows) layers.insert(without_wrappers(row.layer));
    return layers;
  }
  static std::vector<std::string> only_in(const std::set<std::string>& one,
                                          const std::set<std::string>& other) {
    std::vector<std::string> result;
    std::set_difference(one.begin(), one.end(), other.begin(), other.end(),
                        std::back_inserter(result));
    return result;
  }
  static std::vector<std::string> names_of(const Candidates& all) {
    std::vector<std::string> names;
    for (const Candidate& one : all) {
      if (!one.name.empty()) names.push_back(one.name);
    }
    return names;
  }

  // Leaves out what wrappers add, and what both the names and the layers of one file have more than
  // the other's.
  void clean(const std::vector<Row>& before, const std::vector<Row>& after) {
    for (Candidates* const all : {&before_, &after_}) {
      for (Candidate& one : *all) {
        one.name = without_wrappers(one.name);
        one.layer = without_wrappers(one.layer);
      }
    }
    std::set<std::string> layers_before = layers_of(before), layers_after = layers_of(after);
    Prefixes& prefixes = result_.prefixes;
    prefixes = prefixes_of(names_of(before_), names_of(after_));
    if (prefixes.before.empty() && prefixes.after.empty())
      prefixes =
          prefixes_of(only_in(layers_before, layers_after), only_in(layers_after, layers_before));
    strip(prefixes.before, before_, layers_before);
    strip(prefixes.after, after_, layers_after);
    mark_renumbered(layers_after, before_);
    mark_renumbered(layers_before, after_);
  }

  static void strip(const std::string& prefix, Candidates& all, std::set<std::string>& layers) {
    for (Candidate& one : all) {
      one.name = without_prefix(one.name, prefix);
      one.layer = without_prefix(one.layer, prefix);
    }
    std::set<std::string> stripped;
    for (const std::string& layer : layers) stripped.insert(without_prefix(layer, prefix));
    layers = std::move(stripped);
  }

  // A layer that both files have is not one that got another number.
  static void mark_renumbered(const std::set<std::string>& others, Candidates& all) {
    for (Candidate& one : all)
      one.may_be_renumbered = one.layer.empty() || others.count(one.layer) == 0;
  }

  // Pairs the rows that have one key, those of the same bytes first, then the largest.
  void match(Match how, Bytes bytes, const Key& key) { match(how, bytes, key, key); }
  void match(Match how, Bytes bytes, const Key& key_before, const Key& key) {
    std::unordered_map<std::string, std::multimap<int64_t, size_t>> waiting;
    for (size_t i = 0; i < before_.size(); ++i) {
      std::string found = key_before(before_[i]);
      if (!found.empty()) waiting[std::move(found)].emplace(before_[i].row->bytes, i);
    }
    std::vector<size_t> late;
    for (size_t i = 0; i < after_.size(); ++i) {
      const auto same = waiting.find(key(after_[i]));
      if (same == waiting.end()) continue;
      const auto equal = same->second.lower_bound(after_[i].row->bytes);
      if (equal == same->second.end() || equal->first != after_[i].row->bytes)
        late.push_back(i);
      else
        pair(how, same->second, equal, i);
    }
    std::stable_sort(late.begin(), late.end(), [this](size_t a, size_t b) {
      return after_[a].row->bytes > after_[b].row->bytes;
    });
    for (const size_t i : late) {
      if (bytes == Bytes::kEqual) break;
      auto& same = waiting[key(after_[i])];
      if (!same.empty()) pair(how, same, std::prev(same.end()), i);
    }
    remove_paired(before_);
    remove_paired(after_);
  }

  void pair(Match how, std::multimap<int64_t, size_t>& same,
            std::multimap<int64_t, size_t>::iterator before, size_t after) {
    result_.pairs.push_back({before_[before->second].row, after_[after].row, how});
    before_[before->second].row = after_[after].row = nullptr;
    same.erase(before);
  }

  static void remove_paired(Candidates& all) {
    all.erase(std::remove_if(all.begin(), all.end(),
                             [](const Candidate& one) { return one.row == nullptr; }),
              all.end());
  }

  Candidates before_, after_;  // those that are not matched yet
  MatchedRows result_;
};

}  // namespace

std::string_view to_string(Match match) {
  switch (match) {
    case Match::kNone:
      return "none";
    case Match::kName:
      return "name";
    case Match::kPrefix:
      return "name without prefix";
    case Match::kNumber:
      return "name without numbers";
    case Match::kMaker:
      return "layer, operator and shape";
    case Match::kLayer:
      return "layer and operator";
    case Match::kOperator:
      return "layer and shape";
  }
  return "?";
}

MatchedRows match_rows(const std::vector<Row>& before, const std::vector<Row>& after) {
  return Matcher().match_all(before, after);
}

}  // namespace memledger::compare
