#include <algorithm>
#include <cstdlib>
#include <map>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "compare/difference_formats.h"
#include "compare/sizes.h"
#include "text/names.h"
#include "text/places.h"

namespace memledger::compare {
namespace {

constexpr char kArrow[] = " \xe2\x86\x92 ";

// A pair has one row at least, which clang-tidy does not know.
const Row& newest(const RowPair& pair) {
  const Row* const row = pair.after == nullptr ? pair.before : pair.after;
  return *row;  // NOLINT(clang-analyzer-core.uninitialized.UndefReturn)
}

std::string what_of(const RowPair& pair) {
  if (pair.before == nullptr) return "came";
  if (pair.after == nullptr) return "went";
  return pair.change() > 0 ? "grew" : "shrank";
}

std::string title_of(const Row& row) {
  if (!row.name.empty()) return row.name;
  std::string title = row.op.empty() ? "?" : row.op;
  if (!row.node.empty()) absl::StrAppend(&title, " in ", row.node);
  return title;
}

std::string changed(const std::string& before, const std::string& after) {
  return before == after || before.empty() ? after : before + kArrow + after;
}

std::vector<std::string> sizes_of(const std::string& shape) {
  if (shape.size() < 2) return {};
  const absl::string_view inner = absl::string_view(shape).substr(1, shape.size() - 2);
  return absl::StrSplit(absl::StripSuffix(inner, ","), ", ");
}

// Returns (16, 256 → 320, 14, 14).
std::string changed_shape(const std::string& before, const std::string& after) {
  const std::vector<std::string> old = sizes_of(before), now = sizes_of(after);
  if (old.size() != now.size() || before == after) return changed(before, after);
  std::vector<std::string> sizes;
  for (size_t i = 0; i < old.size(); ++i) sizes.push_back(changed(old[i], now[i]));
  return "(" + absl::StrJoin(sizes, ", ") + ")";
}

std::string short_dtype(const std::string& dtype) {
  return std::string(absl::StripPrefix(dtype, "torch."));
}

std::string shape_of(const RowPair& pair) {
  const Row& now = newest(pair);
  const Row& old = pair.before == nullptr ? now : *pair.before;
  const std::string shape = changed_shape(old.shape, now.shape);
  const std::string dtype = changed(short_dtype(old.dtype), short_dtype(now.dtype));
  return shape + (shape.empty() || dtype.empty() ? "" : " ") + dtype;
}

// Rows of one key make one line.
using LineKey = std::tuple<std::string, std::string, std::string, std::string, int64_t, int64_t>;

LineKey key_of(const RowPair& pair) {
  const Row& now = newest(pair);
  return {what_of(pair),
          without_numbers(title_of(now)),
          without_numbers(now.layer),
          shape_of(pair),
          pair.before == nullptr ? 0 : pair.before->bytes,
          pair.after == nullptr ? 0 : pair.after->bytes};
}

std::string note_of(const std::vector<const RowPair*>& pairs) {
  const RowPair& first = *pairs.front();
  if (first.match != Match::kNumber) return "";
  const bool has_name = !first.after->name.empty();
  const std::string& old = has_name ? first.before->name : first.before->layer;
  return old.empty() || old == (has_name ? first.after->name : first.after->layer)
             ? ""
             : "was " + printable(old);
}

std::string where_of(const std::vector<const RowPair*>& pairs) {
  std::vector<std::string> layers;
  std::string line;
  for (const RowPair* const pair : pairs) {
    layers.push_back(newest(*pair).layer);
    if (line.empty()) line = newest(*pair).line;
    if (line.empty() && pair->before != nullptr) line = pair->before->line;
  }
  std::string where;
  const std::string layer = ranged_name(layers);
  if (!layer.empty() && newest(*pairs.front()).name.empty()) where = "in " + printable(layer);
  if (!line.empty()) absl::StrAppend(&where, where.empty() ? "" : " ", "at ", short_place(line));
  return where;
}

ShownRow shown_row(const std::vector<const RowPair*>& pairs) {
  ShownRow row;
  std::vector<std::string> names;
  for (const RowPair* const pair : pairs) {
    row.change += pair->change();
    row.before += pair->before == nullptr ? 0 : pair->before->bytes;
    row.after += pair->after == nullptr ? 0 : pair->after->bytes;
    names.push_back(title_of(newest(*pair)));
  }
  row.count = pairs.size();
  row.what = what_of(*pairs.front());
  row.name = printable(ranged_name(names));
  row.where = where_of(pairs);
  row.shape = printable(shape_of(*pairs.front()));
  row.note = note_of(pairs);
  return row;
}

}  // namespace

ShownAccount shown_rows(const AccountChange& account, const ShownRows& shown) {
  std::map<LineKey, size_t> places;
  std::vector<std::vector<const RowPair*>> lines;
  for (const RowPair& pair : account.rows) {
    const auto [place, is_new] = places.emplace(key_of(pair), lines.size());
    if (is_new) lines.emplace_back();
    lines[place->second].push_back(&pair);
  }
  const auto size_of = [](const std::vector<const RowPair*>& pairs) {
    return std::abs(pairs.front()->change()) * static_cast<int64_t>(pairs.size());
  };
  std::stable_sort(lines.begin(), lines.end(),
                   [&](const auto& a, const auto& b) { return size_of(a) > size_of(b); });
  ShownAccount result;
  for (const std::vector<const RowPair*>& pairs : lines) {
    if (result.rows.size() < shown.most) {
      result.rows.push_back(shown_row(pairs));
      result.shown_change += result.rows.back().change;
      continue;
    }
    result.more += pairs.size();
    for (const RowPair* const pair : pairs) result.more_change += pair->change();
  }
  return result;
}

std::string matches_text(const AccountChange& account) {
  std::string text;
  for (size_t i = 1; i < kMatches; ++i) {
    if (account.matches[i] == 0) continue;
    absl::StrAppend(&text, text.empty() ? "matched: " : "; ", account.matches[i], " by ",
                    std::string(to_string(static_cast<Match>(i))));
  }
  const std::string prefix =
      account.prefixes.before.empty() ? account.prefixes.after : account.prefixes.before;
  if (!prefix.empty() && !text.empty())
    absl::StrAppend(&text, "; without `", printable(prefix), "` of ",
                    account.prefixes.before.empty() ? "after" : "before");
  return text;
}

bool is_shown(const FigureChange& figure) {
  return figure.differs() && figure.name != kUnusedGraph;
}

std::string figure_text(const std::optional<Figure>& figure) {
  if (!figure) return "?";
  const auto text = [&](int64_t value) {
    return figure->is_bytes ? size(value) : std::to_string(value);
  };
  if (figure->low == figure->high) return text(figure->low);
  return text(figure->low) + "\xe2\x80\xa6" + text(figure->high);
}

}  // namespace memledger::compare
