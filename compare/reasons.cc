#include "compare/reasons.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "compare/sizes.h"

namespace memledger::compare {
namespace {

const std::string* value_of(const std::vector<Fact>& facts, const std::string& name) {
  for (const Fact& fact : facts) {
    if (fact.name == name) return &fact.value;
  }
  return nullptr;
}

std::string of_device(const std::string& device) { return device.empty() ? "" : device + ": "; }

struct Count {
  size_t rows = 0;
  std::string example;
};
// By what was before, and what is after.
using Counts = std::map<std::pair<std::string, std::string>, Count>;

void count(const std::string& before, const std::string& after, const Row& example,
           Counts& counts) {
  if (before == after || before.empty() || after.empty()) return;
  Count& found = counts[{before, after}];
  if (found.rows++ == 0) found.example = example.name.empty() ? example.layer : example.name;
}

void add_counts(const Counts& counts, const std::string& device, const char* what,
                std::vector<std::string>& reasons) {
  constexpr size_t kMost = 3;
  std::vector<std::pair<size_t, std::string>> sentences;
  for (const auto& [change, found] : counts) {
    sentences.emplace_back(
        found.rows,
        absl::StrCat(of_device(device), what, ": ", change.first, " before, ", change.second,
                     " after, in ", found.rows, found.rows == 1 ? " row" : " rows",
                     found.example.empty() ? "" : ", such as ", found.example));
  }
  std::stable_sort(sentences.begin(), sentences.end(),
                   [](const auto& a, const auto& b) { return a.first > b.first; });
  for (size_t i = 0; i < std::min(kMost, sentences.size()); ++i)
    reasons.push_back(std::move(sentences[i].second));
}

void add_graph(const AccountChange& account, std::vector<std::string>& reasons) {
  for (const FigureChange& figure : account.figures) {
    if (figure.name != kUnusedGraph || !figure.differs()) continue;
    const bool is_before =
        figure.before && (!figure.after || figure.before->high > figure.after->high);
    const Figure& larger = is_before ? *figure.before : *figure.after;
    reasons.push_back(absl::StrCat(of_device(title_of(account)), is_before ? "before" : "after",
                                   ", autograd holds up to ", size(larger.high),
                                   " for a backward pass that never began; without one, run under "
                                   "torch::NoGradGuard or torch.no_grad()"));
  }
}

void add_workspaces(const AccountChange& account, const std::vector<RowPair>& pairs,
                    std::vector<std::string>& reasons) {
  int64_t before = 0, after = 0;
  for (const RowPair& pair : pairs) {
    if (pair.before != nullptr && pair.before->role == kWorkspaceRole) before += pair.before->bytes;
    if (pair.after != nullptr && pair.after->role == kWorkspaceRole) after += pair.after->bytes;
  }
  if (before == after) return;
  reasons.push_back(absl::StrCat(of_device(title_of(account)),
                                 "workspaces of libraries and operators: ", size(before),
                                 " before, ", size(after), " after"));
}

}  // namespace

void add_reasons(const std::vector<Fact>& before, const std::vector<Fact>& after,
                 const FactsOf& facts, std::vector<std::string>& reasons) {
  const auto add = [&](const std::string& name) {
    const std::string* const old = value_of(before, name);
    const std::string* const now = value_of(after, name);
    const bool are_known = old != nullptr && now != nullptr;
    if (are_known ? *old == *now : !facts.is_one_kind) return;
    reasons.push_back(absl::StrCat(of_device(facts.device), name, ": ", old == nullptr ? "?" : *old,
                                   " before, ", now == nullptr ? "?" : *now, " after"));
  };
  for (const Fact& fact : before) add(fact.name);
  for (const Fact& fact : after) {
    if (value_of(before, fact.name) == nullptr) add(fact.name);
  }
}

void add_reasons(const AccountChange& account, const std::vector<RowPair>& pairs,
                 std::vector<std::string>& reasons) {
  add_graph(account, reasons);
  add_workspaces(account, pairs, reasons);
  Counts dtypes, operators;
  for (const RowPair& pair : pairs) {
    if (pair.before == nullptr || pair.after == nullptr) continue;
    count(pair.before->dtype, pair.after->dtype, *pair.after, dtypes);
    if (pair.match == Match::kOperator)
      count(pair.before->op, pair.after->op, *pair.after, operators);
  }
  add_counts(dtypes, title_of(account), "dtype", reasons);
  add_counts(operators, title_of(account), "operator", reasons);
}

}  // namespace memledger::compare
