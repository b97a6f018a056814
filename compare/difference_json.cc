#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "compare/difference_formats.h"

namespace memledger::compare {
namespace {

std::string machine_name(Match match) {
  switch (match) {
    case Match::kNone:
      return "none";
    case Match::kName:
      return "name";
    case Match::kPrefix:
      return "prefix";
    case Match::kNumber:
      return "number";
    case Match::kMaker:
      return "maker";
    case Match::kLayer:
      return "layer";
    case Match::kOperator:
      return "operator";
  }
  return "none";
}

std::string machine_name(const RowPair& pair) {
  if (pair.before == nullptr) return "came";
  if (pair.after == nullptr) return "went";
  return pair.change() > 0 ? "grew" : "shrank";
}

Json or_null_text(const std::string& text) { return text.empty() ? Json(nullptr) : Json(text); }

Json json_of(const Row* row) {
  if (row == nullptr) return nullptr;
  return JsonRow()
      .add("name", row->name)
      .add("role", or_null_text(row->role))
      .add("layer", row->layer)
      .add("op", row->op)
      .add("autograd_node", row->node)
      .add("shape", or_null_text(row->shape))
      .add("dtype", or_null_text(row->dtype))
      .add("where", or_null_text(row->line))
      .add("bytes", row->bytes)
      .end();
}

Json json_of(const RowPair& pair) {
  return JsonRow()
      .add("change", machine_name(pair))
      .add("matched_by", machine_name(pair.match))
      .add("bytes", pair.change())
      .add("before", json_of(pair.before))
      .add("after", json_of(pair.after))
      .end();
}

Json json_of(const std::vector<PartChange>& parts) {
  Json list = Json::array();
  for (const PartChange& part : parts)
    list.push_back({{"name", part.name},
                    {"before_bytes", or_null(part.before)},
                    {"after_bytes", or_null(part.after)},
                    {"bytes", part.change}});
  return list;
}

Json json_of(const std::optional<Figure>& figure) {
  if (!figure) return nullptr;
  return {{"low", figure->low}, {"high", figure->high}};
}

Json json_of(const std::vector<FigureChange>& figures) {
  Json list = Json::array();
  for (const FigureChange& figure : figures)
    list.push_back({{"name", figure.name},
                    {"before", json_of(figure.before)},
                    {"after", json_of(figure.after)}});
  return list;
}

Json json_of(const AccountChange& account) {
  Json rows = Json::array(), matches = Json::object();
  for (const RowPair& pair : account.rows) rows.push_back(json_of(pair));
  for (size_t i = 1; i < kMatches; ++i)
    matches[machine_name(static_cast<Match>(i))] = account.matches[i];
  return {{"rank", or_null(account.rank)},
          {"device", account.device},
          {"moment", account.moment},
          {"before_bytes", or_null(account.before)},
          {"after_bytes", or_null(account.after)},
          {"bytes", or_null(account.change())},
          {"rows_bytes", account.rows_change},
          {"rest_before_bytes", or_null(account.rest_before)},
          {"rest_after_bytes", or_null(account.rest_after)},
          {"same_rows", account.same},
          {"unknown_rows_before", account.rows_without_bytes_before},
          {"unknown_rows_after", account.rows_without_bytes_after},
          {"matched", std::move(matches)},
          {"prefix_before", account.prefixes.before},
          {"prefix_after", account.prefixes.after},
          {"figures", json_of(account.figures)},
          {"by_role", json_of(account.by_role)},
          {"by_layer", json_of(account.by_layer)},
          {"by_line", json_of(account.by_line)},
          {"rows", std::move(rows)}};
}

}  // namespace

Json difference_json(const Difference& difference) {
  Json accounts = Json::array();
  for (const AccountChange& account : difference.accounts) accounts.push_back(json_of(account));
  return {{"schema", "memledger.diff/1"},  {"before", difference.before},
          {"after", difference.after},     {"differs", difference.differs()},
          {"reasons", difference.reasons}, {"figures", json_of(difference.figures)},
          {"devices", std::move(accounts)}};
}

}  // namespace memledger::compare
