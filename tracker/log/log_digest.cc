#include "tracker/log/log_digest.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "tracker/log/log_text.h"

namespace memledger {
namespace {

constexpr size_t kMostBytes = size_t{256} << 20;
constexpr size_t kMostPoints = size_t{1} << 21;
constexpr size_t kMostMissing = 1000;
constexpr size_t kRowsOfStep = 10;
constexpr size_t kNodeBytes = 48;  // of a map, without its key and value

void add_up(int64_t& sum, int64_t value) {
  if (__builtin_add_overflow(sum, value, &sum)) {
    sum = value > 0 ? std::numeric_limits<int64_t>::max() : std::numeric_limits<int64_t>::min();
  }
}

size_t size_of(const LogRow& row) {
  return sizeof(LogRow) + row.size.size() + row.role.size() + row.dtype.size() + row.last.size();
}

}  // namespace

LogPoint higher(const LogPoint& a, const LogPoint& b) {
  const bool second =
      b.tensor_mib > a.tensor_mib || (std::isnan(a.tensor_mib) && !std::isnan(b.tensor_mib));
  return {std::fmax(a.tensor_mib, b.tensor_mib), std::fmax(a.allocated_mib, b.allocated_mib),
          second ? b.place : a.place};
}

void LogKind::bear(int64_t count, int64_t bytes, uint32_t place, const std::string& last) {
  bytes = std::min(bytes, std::numeric_limits<int64_t>::max() - bytes_);
  Births* const newest = births_.size() > taken_births_ ? &births_.back() : nullptr;
  const bool like_newest = newest != nullptr && bytes % count == 0 &&
                           newest->bytes % newest->count == 0 &&
                           bytes / count == newest->bytes / newest->count;
  if (like_newest) {
    newest->count += count;
    newest->bytes += bytes;
  } else {
    births_.push_back({count, bytes});
  }
  count_ += count;
  bytes_ += bytes;
  born_ += count;
  place_ = place;
  last_ = last;
  born_until_[place] = born_;
  if (born_until_.size() < prune_at_) return;
  const int64_t gone = born_ - count_;
  for (auto birth = born_until_.begin(); birth != born_until_.end();) {
    birth = birth->second <= gone ? born_until_.erase(birth) : std::next(birth);
  }
  prune_at_ = std::max<size_t>(64, 2 * born_until_.size());
}

int64_t LogKind::take(int64_t count) {
  while (count > 0 && taken_births_ < births_.size()) {
    Births& oldest = births_[taken_births_];
    const int64_t gone = std::min(count, oldest.count);
    const int64_t bytes = gone == oldest.count ? oldest.bytes : oldest.bytes / oldest.count * gone;
    oldest.count -= gone;
    oldest.bytes -= bytes;
    count_ -= gone;
    bytes_ -= bytes;
    count -= gone;
    if (oldest.count == 0) ++taken_births_;
  }
  if (taken_births_ * 2 >= births_.size()) {
    births_.erase(births_.begin(), births_.begin() + static_cast<std::ptrdiff_t>(taken_births_));
    taken_births_ = 0;
  }
  return count;
}

size_t LogKind::places() const {
  const int64_t gone = born_ - count_;
  return static_cast<size_t>(std::count_if(born_until_.begin(), born_until_.end(),
                                           [&](const auto& birth) { return birth.second > gone; }));
}

size_t LogKind::size() const {
  return births_.size() * sizeof(Births) + born_until_.size() * (kNodeBytes + sizeof(int64_t)) +
         last_.size();
}

LogRunDigest::LogRunDigest(const LogRun& header)
    : date(header.date),
      tensor_mib(header.tensor_mib),
      allocated_mib(header.allocated_mib),
      cut_rows(header.cut_rows) {
  size_ += date.size();
}

uint32_t LogRunDigest::number_of(const std::string& place) {
  const auto [entry, is_new] = numbers_.try_emplace(place, static_cast<uint32_t>(places.size()));
  if (is_new) {
    places.push_back({&entry->first});
    size_ += place.size() + sizeof(std::string) + sizeof(LogPlace) + kNodeBytes;
  }
  return entry->second;
}

void LogRunDigest::add(const LogBlock& block) {
  const uint32_t place = last_place_ = number_of(block.where);
  for (const std::string& note : block.notes) add_note(note);
  ++blocks;
  if (blocks == 1) first_mib = block.tensor_mib;
  last_mib = block.tensor_mib;
  if (block.tensor_mib && (!highest || *block.tensor_mib > highest->first))
    highest = {*block.tensor_mib, place};
  add_point(block, place);
  add_step(block, place);
  // The log has a block's births first. Its deaths go first here: they are of earlier births.
  for (const LogRow& row : block.rows) {
    if (row.sign == '-') take(row);
  }
  for (const LogRow& row : block.rows) {
    if (row.sign == '+') bear(row, place);
  }
}

void LogRunDigest::add_note(const std::string& note) {
  if (note.find(log_text::kBlocksMissing) == std::string::npos) return;
  if (missing.size() == kMostMissing) {
    ++more_missing;
    return;
  }
  missing.emplace_back(note, last_place_);
  size_ += sizeof missing[0] + note.size();
}

void LogRunDigest::add_point(const LogBlock& block, uint32_t place) {
  const LogPoint point = {block.tensor_mib.value_or(std::nan("")),
                          block.allocated_mib.value_or(std::nan("")), place};
  if (!points.empty() && blocks_in_last_point_ < blocks_per_point) {
    ++blocks_in_last_point_;
    points.back() = higher(points.back(), point);
    return;
  }
  if (points.size() == kMostPoints) {
    for (size_t i = 0; i < kMostPoints / 2; ++i)
      points[i] = higher(points[2 * i], points[2 * i + 1]);
    points.resize(kMostPoints / 2);
    blocks_per_point *= 2;
    size_ -= kMostPoints / 2 * sizeof(LogPoint);
  }
  points.push_back(point);
  blocks_in_last_point_ = 1;
  size_ += sizeof(LogPoint);
}

void LogRunDigest::add_step(const LogBlock& block, uint32_t place) {
  const int64_t born = block.born_bytes(), died = block.died_bytes();
  LogPlace& visited = places[place];
  ++visited.visits;
  add_up(visited.bytes, born - died);
  visited.visits_that_grew += born > died;
  if (biggest && std::abs(born - died) <= std::abs(biggest->born - biggest->died)) return;
  std::vector<const LogRow*> rows;
  for (const LogRow& row : block.rows) rows.push_back(&row);
  std::stable_sort(rows.begin(), rows.end(),
                   [](const LogRow* a, const LogRow* b) { return a->bytes > b->bytes; });
  biggest = {born, died, place, {}, rows.size()};
  size_ -= step_size_;
  step_size_ = 0;
  for (size_t i = 0; i < rows.size() && i < kRowsOfStep; ++i) {
    step_size_ += size_of(*rows[i]);
    biggest->rows.push_back(*rows[i]);
  }
  size_ += step_size_;
}

int64_t LogRunDigest::take_from(LogKind& kind, int64_t count) {
  const size_t before = kind.size();
  const int64_t rest = kind.take(count);
  size_ -= before - kind.size();
  return rest;
}

void LogRunDigest::take(const LogRow& row) {
  int64_t count = row.count;
  if (const auto entry = kinds.find(row.group()); entry != kinds.end()) {
    Kind& kind = entry->second;
    count = take_from(kind.alive, count);
    if (kind.alive.count() == 0) kind.alike->erase(kind.number);
  }
  if (count == 0) return;
  // Its role may have changed since its birth, as when a tensor becomes a parameter. A death that
  // fits no kind is of a tensor from before the log.
  const auto alike = alike_.find(row.size + " " + row.dtype);
  if (alike == alike_.end()) return;
  while (count > 0 && !alike->second.empty()) {
    const auto oldest = alike->second.begin();
    count = take_from(*oldest->second, count);
    if (oldest->second->count() == 0) alike->second.erase(oldest);
  }
}

void LogRunDigest::bear(const LogRow& row, uint32_t place) {
  const auto [entry, is_new] = kinds.try_emplace(row.group());
  Kind& kind = entry->second;
  if (is_new) {
    const std::string looks = row.size + " " + row.dtype;
    kind.number = kinds.size();
    kind.alike = &alike_[looks];
    size_ += sizeof(std::string) + sizeof(Kind) + sizeof(Alike) + entry->first.size() +
             looks.size() + 3 * kNodeBytes;
  }
  const size_t before = kind.alive.size();
  kind.alive.bear(row.count, row.bytes, place, row.last);
  size_ += kind.alive.size();
  size_ -= before;
  kind.alike->emplace(kind.number, &kind.alive);
}

absl::Status LogDigest::begin_run(LogRun header) {
  if (!runs.empty()) ended_runs_size_ += runs.back().size();
  runs.emplace_back(header);
  return check_size();
}

absl::Status LogDigest::add_block(LogBlock block) {
  runs.back().add(block);
  return check_size();
}

absl::Status LogDigest::add_note(std::string note) {
  runs.back().add_note(note);
  return check_size();
}

absl::Status LogDigest::check_size() const {
  if (ended_runs_size_ + runs.back().size() <= most_bytes_) return absl::OkStatus();
  return absl::ResourceExhaustedError(fmt::format(
      "more than {} MiB are needed for what differs in this log up to here ({} runs, in the last "
      "one {} places and {} kinds of tensors); expected a log whose lines repeat themselves",
      most_bytes_ >> 20, runs.size(), runs.back().places.size(), runs.back().kinds.size()));
}

LogDigest digest_of(const MemoryLog& log) {
  LogDigest digest(log.name);
  digest.unread_lines = log.unread_lines;
  for (const LogRun& run : log.runs) digest.runs.push_back(digest_of(run));
  return digest;
}

LogRunDigest digest_of(const LogRun& run) {
  LogRunDigest digest(run);
  for (const LogBlock& block : run.blocks) digest.add(block);
  return digest;
}

absl::StatusOr<LogDigest> read_log_digest(const std::string& path) {
  LogDigest digest(path, kMostBytes);
  const absl::StatusOr<int64_t> unread_lines = visit_log_file(path, digest);
  if (!unread_lines.ok()) return unread_lines.status();
  digest.unread_lines = *unread_lines;
  return digest;
}

}  // namespace memledger
