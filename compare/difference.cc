#include "compare/difference.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <map>
#include <set>
#include <unordered_map>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "compare/reasons.h"

namespace memledger::compare {
namespace {

constexpr char kNoRole[] = "not known";
constexpr char kNoLayer[] = "no layer";
constexpr char kNoLine[] = "no line known";

const char* name_of(FileKind kind) {
  switch (kind) {
    case FileKind::kRunReport:
      return "a report of a run";
    case FileKind::kReport:
      return "a report";
    case FileKind::kTimeline:
      return "a timeline";
    case FileKind::kPrediction:
      return "a prediction";
    case FileKind::kFit:
      return "a fit";
    case FileKind::kLineProfile:
      return "a line profile";
    case FileKind::kSavedTensors:
      return "a list of saved tensors";
    case FileKind::kSavedGroups:
      return "groups of saved tensors";
  }
  return "?";
}

bool has_storages(FileKind kind) {
  return kind == FileKind::kRunReport || kind == FileKind::kReport || kind == FileKind::kTimeline;
}
bool has_layers(FileKind kind) {
  return kind == FileKind::kRunReport || kind == FileKind::kReport || kind == FileKind::kPrediction;
}

absl::Status check_kinds(const SavedFile& before, const SavedFile& after) {
  const FileKind a = before.kind, b = after.kind;
  if (a == b || (has_storages(a) && has_storages(b)) || (has_layers(a) && has_layers(b)))
    return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      before.name, " is ", name_of(a), " and ", after.name, " is ", name_of(b),
      ", which have nothing in common; give two files of one kind (a report also goes with a "
      "timeline or a prediction)"));
}

absl::Status check_moments(const SavedFile& before, const SavedFile& after) {
  if (before.accounts.empty() || after.accounts.empty()) return absl::OkStatus();
  const std::string& a = before.accounts.front().moment;
  const std::string& b = after.accounts.front().moment;
  if (a == b || before.kind == FileKind::kLineProfile) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      before.name, " shows the ", a, " and ", after.name, " the ", b,
      "; choose one moment of a run's report or a timeline with --at=peak or --at=end"));
}

template <typename T>
void sort_by_change(std::vector<T>& all) {
  std::stable_sort(all.begin(), all.end(),
                   [](const T& a, const T& b) { return std::abs(a.change) > std::abs(b.change); });
}

// Changes by name, in order of first use.
class Sums {
 public:
  void add(const std::string& name, int64_t change) {
    const auto [place, is_new] = places_.emplace(name, sums_.size());
    if (is_new) sums_.push_back({name, std::nullopt, std::nullopt, 0});
    sums_[place->second].change += change;
  }
  // Returns nothing if that is all: the file does not say such things.
  std::vector<PartChange> result_unless_only(const std::string& unknown) {
    if (sums_.size() == 1 && sums_.front().name == unknown) return {};
    sums_.erase(std::remove_if(sums_.begin(), sums_.end(),
                               [](const PartChange& sum) { return sum.change == 0; }),
                sums_.end());
    sort_by_change(sums_);
    return std::move(sums_);
  }

 private:
  std::unordered_map<std::string, size_t> places_;
  std::vector<PartChange> sums_;
};

std::string or_else(const std::string& text, const char* other) {
  return text.empty() ? other : text;
}

// The name that the layer has in both files.
std::string layer_of(const RowPair& pair, const Prefixes& prefixes) {
  std::string layer;
  if (pair.after != nullptr)
    layer = without_prefix(without_wrappers(pair.after->layer), prefixes.after);
  if (layer.empty() && pair.before != nullptr)
    layer = without_prefix(without_wrappers(pair.before->layer), prefixes.before);
  return layer;
}

// Lines are sampled: one of two equal rows may have none.
void add_sums(AccountChange& account) {
  Sums roles, layers, lines;
  for (const RowPair& pair : account.rows) {
    const Row& newest = pair.after == nullptr ? *pair.before : *pair.after;
    const Row& oldest = pair.before == nullptr ? newest : *pair.before;
    if (pair.before != nullptr) roles.add(or_else(pair.before->role, kNoRole), -pair.before->bytes);
    if (pair.after != nullptr) roles.add(or_else(pair.after->role, kNoRole), pair.after->bytes);
    layers.add(or_else(layer_of(pair, account.prefixes), kNoLayer), pair.change());
    lines.add(or_else(newest.line.empty() ? oldest.line : newest.line, kNoLine), pair.change());
  }
  if (account.by_role.empty()) account.by_role = roles.result_unless_only(kNoRole);
  account.by_layer = layers.result_unless_only(kNoLayer);
  account.by_line = lines.result_unless_only(kNoLine);
}

void add_parts(const Account& before, const Account& after, AccountChange& result) {
  if (before.parts.empty() || after.parts.empty()) return;
  std::vector<PartChange> parts;
  std::map<std::string, size_t> places;
  const auto part = [&](const std::string& name) -> PartChange& {
    const auto [place, is_new] = places.emplace(name, parts.size());
    if (is_new) parts.push_back({name, 0, 0, 0});
    return parts[place->second];
  };
  for (const Part& one : before.parts) *part(one.name).before += one.bytes;
  for (const Part& one : after.parts) *part(one.name).after += one.bytes;
  for (PartChange& one : parts) {
    one.change = *one.after - *one.before;
    if (one.change != 0) result.by_role.push_back(std::move(one));
  }
  sort_by_change(result.by_role);
}

// Files of one kind should have the same figures: one that a file lacks is not known there.
std::vector<FigureChange> figures_of(const std::vector<Figure>& before,
                                     const std::vector<Figure>& after, bool is_one_kind) {
  std::vector<FigureChange> result;
  for (const Figure& one : before) result.push_back({one.name, one, std::nullopt});
  for (const Figure& one : after) {
    const auto same = std::find_if(result.begin(), result.end(), [&](const FigureChange& change) {
      return change.name == one.name && !change.after;
    });
    if (same == result.end())
      result.push_back({one.name, std::nullopt, one});
    else
      same->after = one;
  }
  if (is_one_kind) return result;
  result.erase(std::remove_if(result.begin(), result.end(),
                              [](const FigureChange& one) { return !one.before || !one.after; }),
               result.end());
  return result;
}

int64_t sum_of(const std::vector<Row>& rows) {
  int64_t sum = 0;
  for (const Row& row : rows) sum += row.bytes;
  return sum;
}

// A row without a counterpart may be one that the other file leaves out, so it goes to the rest.
bool is_left_out(const RowPair& pair, const Account& before, const Account& after) {
  if (pair.match != Match::kNone) return false;
  return !(pair.before == nullptr ? before : after).has_all_rows;
}

void add_rows(const Account& before, const Account& after, const MatchedRows& matched,
              AccountChange& result) {
  result.prefixes = matched.prefixes;
  int64_t kept_before = sum_of(before.rows), kept_after = sum_of(after.rows);
  for (const RowPair& pair : matched.pairs) {
    if (is_left_out(pair, before, after)) {
      (pair.before == nullptr ? kept_after : kept_before) -=
          (pair.before == nullptr ? pair.after : pair.before)->bytes;
      continue;
    }
    ++result.matches[static_cast<size_t>(pair.match)];
    if (pair.change() == 0) {
      ++result.same;
      continue;
    }
    result.rows_change += pair.change();
    result.rows.push_back(pair);
  }
  std::stable_sort(result.rows.begin(), result.rows.end(), [](const RowPair& a, const RowPair& b) {
    return std::abs(a.change()) > std::abs(b.change());
  });
  if (!result.before || !result.after) return;
  result.rest_before = *result.before - kept_before;
  result.rest_after = *result.after - kept_after;
}

AccountChange change_of(const Account& before, const Account& after, const MatchedRows& matched) {
  AccountChange result;
  result.rank = after.rank ? after.rank : before.rank;
  result.device =
      before.device == after.device ? after.device : before.device + ", now " + after.device;
  result.moment = after.moment;
  result.before = before.total;
  result.after = after.total;
  result.rows_without_bytes_before = before.rows_without_bytes;
  result.rows_without_bytes_after = after.rows_without_bytes;
  add_parts(before, after, result);
  add_rows(before, after, matched, result);
  add_sums(result);
  return result;
}

// Pairs of accounts of one device.
class Accounts {
 public:
  Accounts(const SavedFile& before, const SavedFile& after) {
    for (const Account& account : before.accounts) before_.push_back(&account);
    for (const Account& account : after.accounts) after_.push_back(&account);
  }

  using Pair = std::pair<const Account*, const Account*>;  // either may be null
  std::vector<Pair> pairs() {
    pair([](const Account& a, const Account& b) {
      return a.rank == b.rank && a.device == b.device && a.moment == b.moment;
    });
    pair([](const Account& a, const Account& b) {
      return (!a.rank || !b.rank) && a.device == b.device && a.moment == b.moment;
    });
    pair([](const Account& a, const Account& b) {
      return a.rank == b.rank && type_of(a) == type_of(b) && a.moment == b.moment;
    });
    if (before_.size() == 1 && after_.size() == 1)
      pair([](const Account& a, const Account& b) { return a.moment == b.moment; });
    for (const Account* const one : before_) pairs_.emplace_back(one, nullptr);
    for (const Account* const one : after_) pairs_.emplace_back(nullptr, one);
    return std::move(pairs_);
  }

 private:
  static std::string type_of(const Account& account) {
    return account.device.substr(0, account.device.find(':'));
  }

  template <typename IsSame>
  void pair(const IsSame& is_same) {
    for (auto before = before_.begin(); before != before_.end();) {
      const auto after = std::find_if(after_.begin(), after_.end(),
                                      [&](const Account* one) { return is_same(**before, *one); });
      if (after == after_.end()) {
        ++before;
        continue;
      }
      pairs_.emplace_back(*before, *after);
      after_.erase(after);
      before = before_.erase(before);
    }
  }

  std::vector<const Account*> before_, after_;
  std::vector<Pair> pairs_;
};

void fold_by_layers(SavedFile& file) {
  for (Account& account : file.accounts) {
    std::map<std::string, int64_t> layers;
    for (const Row& row : account.rows) layers[or_else(row.layer, kNoLayer)] += row.bytes;
    account.rows.clear();
    for (const auto& [layer, bytes] : layers) {
      Row row;
      row.name = row.layer = layer;
      row.bytes = bytes;
      account.rows.push_back(std::move(row));
    }
  }
}

// A timeline has no layers and lines, and fewer names and roles.
void keep_what_timelines_say(SavedFile& file) {
  for (Account& account : file.accounts) {
    for (Row& row : account.rows) row.role = row.layer = row.line = "";
  }
}

// Leaves what both files can say.
void align(SavedFile& before, SavedFile& after) {
  if (before.kind == after.kind) return;
  if (before.kind == FileKind::kPrediction) fold_by_layers(after);
  if (after.kind == FileKind::kPrediction) fold_by_layers(before);
  if (before.kind != FileKind::kTimeline && after.kind != FileKind::kTimeline) return;
  keep_what_timelines_say(before);
  keep_what_timelines_say(after);
}

struct FilesAre {
  bool of_one_kind;
  bool of_several_ranks;
};

// One account may be null: its file does not use the device.
void add_account(const Account* before, const Account* after, const FilesAre& files,
                 Difference& result) {
  Account unused;
  unused.device = (before == nullptr ? after : before)->device;
  unused.moment = (before == nullptr ? after : before)->moment;
  unused.total = 0;
  const Account& old = before == nullptr ? unused : *before;
  const Account& now = after == nullptr ? unused : *after;
  MatchedRows matched = match_rows(old.rows, now.rows);
  AccountChange change = change_of(old, now, matched);
  if (!files.of_several_ranks) change.rank = std::nullopt;
  if (before != nullptr && after != nullptr) {
    change.figures = figures_of(old.figures, now.figures, files.of_one_kind);
    add_reasons(old.facts, now.facts, {title_of(change), files.of_one_kind}, result.reasons);
    add_reasons(change, matched.pairs, result.reasons);
  }
  result.accounts.push_back(std::move(change));
}

// One process needs no number.
bool has_ranks(const SavedFile& before, const SavedFile& after) {
  std::set<int64_t> ranks;
  for (const SavedFile* const file : {&before, &after}) {
    for (const Account& account : file->accounts) {
      if (account.rank) ranks.insert(*account.rank);
    }
  }
  return ranks.size() > 1;
}

}  // namespace

std::string title_of(const AccountChange& account) {
  return (account.rank ? absl::StrCat("rank ", *account.rank, ", ") : "") + account.device;
}

bool FigureChange::differs() const {
  if (!before || !after) return true;
  return before->low != after->low || before->high != after->high;
}

std::optional<int64_t> AccountChange::change() const {
  if (!before || !after) return std::nullopt;
  return *after - *before;
}

bool AccountChange::differs() const {
  const bool is_figure = std::any_of(figures.begin(), figures.end(),
                                     [](const FigureChange& one) { return one.differs(); });
  return is_figure || before != after || !rows.empty() || rest_before != rest_after;
}

bool Difference::differs() const {
  return !reasons.empty() ||
         std::any_of(figures.begin(), figures.end(),
                     [](const FigureChange& one) { return one.differs(); }) ||
         std::any_of(accounts.begin(), accounts.end(),
                     [](const AccountChange& one) { return one.differs(); });
}

absl::StatusOr<Difference> compare_files(SavedFile& before, SavedFile& after) {
  if (const absl::Status status = check_kinds(before, after); !status.ok()) return status;
  if (const absl::Status status = check_moments(before, after); !status.ok()) return status;
  const bool is_one_kind = before.kind == after.kind;
  align(before, after);
  Difference result;
  result.before = before.name;
  result.after = after.name;
  result.before_kind = before.kind;
  result.after_kind = after.kind;
  result.figures = figures_of(before.figures, after.figures, is_one_kind);
  add_reasons(before.facts, after.facts, {"", is_one_kind}, result.reasons);
  const bool shows_ranks = has_ranks(before, after);
  for (const auto& [one, other] : Accounts(before, after).pairs()) {
    if (is_one_kind || (one != nullptr && other != nullptr)) {
      add_account(one, other, {is_one_kind, shows_ranks}, result);
      continue;
    }
    const SavedFile& lacks = one == nullptr ? before : after;
    result.reasons.push_back(absl::StrCat((one == nullptr ? other : one)->device, ": ", lacks.name,
                                          " says nothing of it"));
  }
  return result;
}

absl::StatusOr<Limit> parse_limit(const std::string& text) {
  struct Unit {
    const char* name;
    double size;
  };
  constexpr Unit kUnits[] = {{"%", 0.01},      {"TiB", double(int64_t{1} << 40)},
                             {"GiB", 1 << 30}, {"MiB", 1 << 20},
                             {"KiB", 1 << 10}, {"B", 1}};
  for (const Unit& unit : kUnits) {
    absl::string_view number = text;
    if (!absl::ConsumeSuffix(&number, unit.name)) continue;
    double value = 0;
    if (!absl::SimpleAtod(number, &value) || !(value >= 0) || value > 1e6) break;
    Limit limit;
    if (unit.name[0] == '%')
      limit.share = value * unit.size;
    else
      limit.bytes = static_cast<int64_t>(value * unit.size);
    return limit;
  }
  return absl::InvalidArgumentError("it is a share or a size, such as 1% or 20MiB");
}

const AccountChange* first_above(const Difference& difference, const Limit& limit) {
  for (const AccountChange& account : difference.accounts) {
    const std::optional<int64_t> change = account.change();
    if (!change) return &account;
    const double allowed =
        static_cast<double>(limit.bytes) + limit.share * static_cast<double>(*account.before);
    if (*change > 0 && static_cast<double>(*change) > allowed) return &account;
  }
  return nullptr;
}

}  // namespace memledger::compare
