#include <fmt/format.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "compare/difference_formats.h"
#include "compare/sizes.h"
#include "text/names.h"

namespace memledger::compare {
namespace {

constexpr char kArrow[] = " \xe2\x86\x92 ";
constexpr size_t kParts = 8;

// Names in a cell are harmless: no cell, tag, link or emphasis begins in them.
std::string cell(const std::string& text) {
  return absl::StrReplaceAll(printable(text), {{"\\", "\\\\"},
                                               {"|", "\\|"},
                                               {"<", "&lt;"},
                                               {">", "&gt;"},
                                               {"&", "&amp;"},
                                               {"*", "\\*"},
                                               {"_", "\\_"},
                                               {"`", "\\`"},
                                               {"[", "\\["},
                                               {"]", "\\]"},
                                               {"@", "&#64;"},
                                               {"#", "&#35;"}});
}

std::string maybe_size(const std::optional<int64_t>& bytes) { return bytes ? size(*bytes) : "?"; }

void add_totals(std::string& text, const Difference& difference) {
  text += "| | before | after | change | bytes |\n|---|--:|--:|--:|--:|\n";
  const auto add_figure = [&](const std::string& name, const FigureChange& figure) {
    if (!is_shown(figure)) return;
    text += fmt::format("| {} | {} | {} | | |\n", cell(name), figure_text(figure.before),
                        figure_text(figure.after));
  };
  for (const FigureChange& figure : difference.figures) add_figure(figure.name, figure);
  for (const AccountChange& account : difference.accounts) {
    const std::optional<int64_t> change = account.change();
    const std::string name = title_of(account);
    text += fmt::format("| **{} {}** | {} | {} | {} | {} |\n", cell(name), cell(account.moment),
                        maybe_size(account.before), maybe_size(account.after),
                        change ? size_change(*change) + share_of(*change, *account.before) : "?",
                        change ? exact_change(*change) : "?");
    for (const FigureChange& figure : account.figures) add_figure(name + " " + figure.name, figure);
  }
}

void add_parts(std::string& text, const char* title, const std::vector<PartChange>& parts) {
  if (parts.empty()) return;
  text += fmt::format("\n| {} | change |\n|---|--:|\n", title);
  int64_t others = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (i < kParts)
      text += fmt::format("| {} | {} |\n", cell(parts[i].name), size_change(parts[i].change));
    else
      others += parts[i].change;
  }
  if (parts.size() > kParts)
    text += fmt::format("| {} more | {} |\n", parts.size() - kParts, size_change(others));
}

std::string row_text(const ShownRow& row) {
  std::string text = row.count > 1 ? absl::StrCat(row.count, " x ") : "";
  absl::StrAppend(&text, cell(row.name));
  if (!row.shape.empty()) absl::StrAppend(&text, " ", cell(row.shape));
  if (!row.where.empty()) absl::StrAppend(&text, " ", cell(row.where));
  if (!row.note.empty()) absl::StrAppend(&text, " (", cell(row.note), ")");
  return text;
}

void add_rows(std::string& text, const AccountChange& account, const ShownRows& shown) {
  const ShownAccount rows = shown_rows(account, shown);
  text += "\n| bytes | | row |\n|--:|---|---|\n";
  for (const ShownRow& row : rows.rows)
    text += fmt::format("| {} | {} | {} |\n", exact_change(row.change), row.what, row_text(row));
  if (rows.more > 0)
    text += fmt::format("| {} | | {} more rows |\n", exact_change(rows.more_change), rows.more);
  if (account.rest_before && *account.rest_before != *account.rest_after)
    text += fmt::format("| {} | | the rest, in no row |\n",
                        exact_change(*account.rest_after - *account.rest_before));
  const std::optional<int64_t> change = account.change();
  text += fmt::format("| **{}** | | {} |\n", exact_change(change.value_or(account.rows_change)),
                      change ? "in all, to the byte" : "in all rows; a total is not known");
}

void add_details(std::string& text, const AccountChange& account, const ShownRows& shown) {
  if (account.rows.empty() && account.rest_before == account.rest_after) return;
  text +=
      fmt::format("\n<details><summary>{} {}: rows that differ: {}, that do not: {}</summary>\n",
                  cell(title_of(account)), cell(account.moment), account.rows.size(), account.same);
  add_parts(text, "what for", account.by_role);
  add_parts(text, "layer", account.by_layer);
  add_rows(text, account, shown);
  text += "\n</details>\n";
}

}  // namespace

std::string difference_markdown(const Difference& difference, const ShownRows& shown) {
  std::string text = fmt::format("### Memory: {}{}{}\n\n", cell(difference.before), kArrow,
                                 cell(difference.after));
  if (!difference.differs()) return text + "No difference.\n";
  for (const std::string& reason : difference.reasons) text += "- " + cell(reason) + "\n";
  if (!difference.reasons.empty()) text += "\n";
  add_totals(text, difference);
  for (const AccountChange& account : difference.accounts) add_details(text, account, shown);
  return text;
}

}  // namespace memledger::compare
