#include <fmt/format.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "compare/difference_formats.h"
#include "compare/sizes.h"
#include "text/names.h"
#include "text/places.h"

namespace memledger::compare {
namespace {

constexpr char kArrow[] = " \xe2\x86\x92 ";
constexpr size_t kWidth = 116;  // of a line, as in the report of a run
constexpr size_t kParts = 8;
constexpr size_t kLines = 5;
constexpr size_t kReasons = 10;

std::string maybe_size(const std::optional<int64_t>& bytes) { return bytes ? size(*bytes) : "?"; }

// Adds the items after `first`, separated by commas, in lines that begin with `indent`.
void add_list(std::string& text, const std::string& first, const std::vector<std::string>& items) {
  std::string line = first;
  for (size_t i = 0; i < items.size(); ++i) {
    const std::string item = items[i] + (i + 1 < items.size() ? "," : "");
    if (i > 0 && count_characters(line) + 1 + count_characters(item) > kWidth) {
      text += line + "\n";
      line = "   ";
    }
    line += " " + item;
  }
  text += line + "\n";
}

void add_parts(std::string& text, const char* first, const std::vector<PartChange>& parts,
               size_t most) {
  if (parts.empty()) return;
  std::vector<std::string> items;
  int64_t others = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (i < most)
      items.push_back(
          absl::StrCat(table_name(parts[i].name, 60), " ", size_change(parts[i].change)));
    else
      others += parts[i].change;
  }
  if (parts.size() > most)
    items.push_back(absl::StrCat(parts.size() - most, " more ", size_change(others)));
  add_list(text, first, items);
}

void add_figures(std::string& text, const char* first, const std::vector<FigureChange>& figures) {
  std::vector<std::string> items;
  for (const FigureChange& figure : figures) {
    if (is_shown(figure))
      items.push_back(absl::StrCat(printable(figure.name), " ", figure_text(figure.before), kArrow,
                                   figure_text(figure.after)));
  }
  if (!items.empty()) add_list(text, first, items);
}

void add_row(std::string& text, const ShownRow& row) {
  const std::string count = row.count > 1 ? absl::StrCat(row.count, " x ") : "";
  text += fmt::format("  {:>14}  {:<6}  {}", exact_change(row.change), row.what,
                      count + table_name(row.name, 70));
  if (!row.shape.empty()) absl::StrAppend(&text, "  ", row.shape);
  const bool has_both = row.what == "grew" || row.what == "shrank";
  if (has_both && row.shape.find(kArrow) == std::string::npos)
    absl::StrAppend(&text, "  ", size(row.before), kArrow, size(row.after));
  if (!row.where.empty()) absl::StrAppend(&text, "  ", row.where);
  if (!row.note.empty()) absl::StrAppend(&text, "  (", row.note, ")");
  text += "\n";
}

void add_sum(std::string& text, int64_t change, const std::string& what) {
  text += fmt::format("  {:>14}  {}\n", exact_change(change), what);
}

void add_rows(std::string& text, const AccountChange& account, const ShownRows& shown) {
  const ShownAccount rows = shown_rows(account, shown);
  for (const ShownRow& row : rows.rows) add_row(text, row);
  if (rows.more > 0) add_sum(text, rows.more_change, absl::StrCat(rows.more, " more rows (--all)"));
  const std::optional<int64_t> change = account.change();
  if (account.rest_before && *account.rest_before != *account.rest_after)
    add_sum(text, *account.rest_after - *account.rest_before,
            absl::StrCat("the rest, in no row: ", size_change(*account.rest_before), kArrow,
                         size_change(*account.rest_after)));
  if (change) add_sum(text, *change, "in all, to the byte");
  if (!change) add_sum(text, account.rows_change, "in all rows; a total is not known");
  const size_t unknown = account.rows_without_bytes_before + account.rows_without_bytes_after;
  if (unknown > 0)
    text += fmt::format("  {:>14}  rows of unknown size: {} before, {} after\n", "?",
                        account.rows_without_bytes_before, account.rows_without_bytes_after);
}

std::vector<PartChange> with_short_places(std::vector<PartChange> lines) {
  for (PartChange& line : lines) line.name = short_place(line.name);
  return lines;
}

bool has_layers_as_rows(const AccountChange& account) {
  return std::all_of(account.rows.begin(), account.rows.end(), [](const RowPair& pair) {
    const Row& row = pair.after == nullptr ? *pair.before : *pair.after;
    return row.name == row.layer;
  });
}

void add_account(std::string& text, const AccountChange& account, const ShownRows& shown) {
  const std::optional<int64_t> change = account.change();
  absl::StrAppend(&text, printable(title_of(account)), "  ", printable(account.moment), " ",
                  maybe_size(account.before), kArrow, maybe_size(account.after));
  if (change && *change == 0) text += ": the same";
  if (change && *change != 0)
    absl::StrAppend(&text, ": ", size_change(*change), share_of(*change, *account.before), ", ",
                    exact_change(*change), " bytes");
  text += "\n";
  add_figures(text, " ", account.figures);
  if (account.rows.empty() && account.rest_before == account.rest_after) return;
  add_parts(text, "  what for:", account.by_role, kParts);
  if (!has_layers_as_rows(account)) add_parts(text, "  by layer:", account.by_layer, kParts);
  add_parts(text, "  by line:", with_short_places(account.by_line), kLines);
  const std::string matches = matches_text(account);
  absl::StrAppend(&text, "  rows that differ: ", account.rows.size(),
                  ", that do not: ", account.same, matches.empty() ? "" : "; ", matches, "\n");
  add_rows(text, account, shown);
}

bool has_other_names(const AccountChange& account) {
  return account.matches[static_cast<size_t>(Match::kPrefix)] > 0 ||
         account.matches[static_cast<size_t>(Match::kNumber)] > 0;
}

}  // namespace

std::string difference_text(const Difference& difference, const ShownRows& shown) {
  std::string text = absl::StrCat("memledger diff: ", printable(difference.before), kArrow,
                                  printable(difference.after), "\n");
  if (!difference.differs()) {
    text += "no difference\n";
    for (const AccountChange& account : difference.accounts) {
      if (has_other_names(account))
        absl::StrAppend(&text, printable(title_of(account)), "  ", matches_text(account), "\n");
    }
    return text;
  }
  const std::vector<std::string>& reasons = difference.reasons;
  for (size_t i = 0; i < std::min(kReasons, reasons.size()); ++i)
    absl::StrAppend(&text, "  ", printable(reasons[i]), "\n");
  if (reasons.size() > kReasons)
    absl::StrAppend(&text, "  ", reasons.size() - kReasons, " more reasons (--json has all)\n");
  add_figures(text, " ", difference.figures);
  // The first device that differs is the one that the reader asks about.
  ShownRows rows = shown;
  for (const AccountChange& account : difference.accounts) {
    add_account(text, account, rows);
    if (account.differs() && rows.most == ShownRows().most) rows.most /= 4;
  }
  return text;
}

}  // namespace memledger::compare
