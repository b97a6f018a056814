#include "tracker/growth_finder.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <mutex>
#include <ostream>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "registry/core/fork_safe_mutex.h"
#include "registry/registry.h"
#include "registry/stacks.h"
#include "text/bytes.h"
#include "text/dtype.h"
#include "text/json.h"
#include "text/names.h"
#include "tracker/until_told.h"

namespace memledger {
namespace {

constexpr int kJsonVersion = 1;
constexpr size_t kMostRowsInText = 20;
// Of the sum's slope: the rest is not worth a row of its own.
constexpr double kExplained = 0.5;

// A node of the tree device ← operator ← group ← stack. Sums hold all that is below.
struct Group {
  GrowthLevel level = GrowthLevel::kGroup;
  Group* parent = nullptr;
  int64_t bytes = 0;
  int64_t count = 0;
  size_t children = 0;
  bool changed = false;
  GrowthSeries series;

  bool is_empty() const { return count == 0; }
};

// Not Abseil's maps, which are broken when they find no memory to grow.
using GroupTable = std::unordered_map<StorageGroup, std::unique_ptr<Group>, StorageGroupHash>;

StorageGroup of_group(StorageGroup place) {
  place.stack = 0;
  return place;
}

StorageGroup of_operator(const StorageGroup& place) {
  StorageGroup maker;
  maker.device = place.device;
  maker.op = place.op;
  maker.autograd_node = place.autograd_node;
  maker.phase = place.phase;
  maker.raw_block = place.raw_block;
  return maker;
}

StorageGroup of_device(const StorageGroup& place) {
  StorageGroup all;
  all.device = place.device;
  return all;
}

}  // namespace

class GrowthFinder::Groups {
 public:
  explicit Groups(GrowthOptions options) : options_(std::move(options)) {
    count(prepared(Registry::global().changes_since(cursor_)));
    if (options_.rule.warm_up_steps <= 0) begin_to_judge();
  }
  Groups(const Groups&) = delete;
  Groups& operator=(const Groups&) = delete;

  void step() {
    const std::lock_guard<ForkSafeMutex> hold(lock_);
    UntilTold until_told(cursor_);
    Counted counted = prepared(Registry::global().changes_since(cursor_));
    until_told.told();
    // From here on nothing needs memory.
    count(std::move(counted));
    ++step_;
    if (step_ < options_.rule.warm_up_steps) {
      forget_what_changed();
    } else if (step_ == options_.rule.warm_up_steps) {
      begin_to_judge();
    } else {
      for (Group* const group : changed_) group->series.note(step_, group->bytes);
      forget_what_changed();
    }
  }

  GrowthReport report() const;

 private:
  GrowthReport unsorted_report() const;

  struct Alive {
    Group* group;
    int64_t nbytes;
  };

  using AliveTable = std::unordered_map<uint64_t, Alive>;  // by storage id

  // Changes with all the memory that counting them takes.
  struct Counted {
    Changes changes;
    AliveTable born;
    int64_t left_out = 0;
  };

  // Makes the groups. Those that something was born in count as changed at once, so that none of
  // them has to make room for another.
  Counted prepared(Changes changes) {
    Counted counted;
    left_out_now_ = 0;
    if (changes.from_snapshot) {
      for (GroupTable* const table : tables()) {
        for (auto& [place, group] : *table) note_changed(*group);
      }
    }
    for (const StorageInfo& storage : changes.born) {
      // Older than tracking: it came to light, not into being.
      if (storage.adopted || (options_.device.has_value() && !is_on(storage.device))) continue;
      StorageGroup place = storage_group(storage);
      // A weight other than 1 is a sample's, of which others like it have no stack.
      if (storage.stack_weight == 1) place.stack = storage.stack;
      Group& group = place.stack == 0 ? group_of(std::move(place)) : stack_of(std::move(place));
      for (Group* one = &group; one != nullptr; one = one->parent) note_changed(*one);
      counted.born.emplace(storage.id, Alive{&group, storage.nbytes});
    }
    size_t groups = 0;
    for (const GroupTable* const table : tables()) groups += table->size();
    changed_.reserve(groups);                             // for add()
    alive_.reserve(alive_.size() + counted.born.size());  // for merge()
    // Only what something was born in can rise.
    if (step_ >= options_.rule.warm_up_steps) {
      for (Group* const group : changed_) group->series.make_room();
    }
    counted.changes = std::move(changes);
    counted.left_out = left_out_now_;
    return counted;
  }

  void count(Counted counted) {
    if (counted.changes.from_snapshot) {
      alive_.clear();
      for (GroupTable* const table : tables()) {
        for (auto& [place, group] : *table) group->bytes = group->count = 0;
      }
    }
    for (const StorageInfo& storage : counted.changes.died) {
      const auto known = alive_.find(storage.id);
      if (known == alive_.end()) continue;
      add(known->second.group, -known->second.nbytes, -1);
      alive_.erase(known);
    }
    for (const auto& [id, one] : counted.born) add(one.group, one.nbytes, 1);
    alive_.merge(counted.born);
    left_out_ += counted.left_out;
  }

  bool is_on(c10::Device device) const {
    return device.type() == options_.device->type() &&
           (device.is_cpu() || !options_.device->has_index() ||
            device.index() == options_.device->index());
  }

  void add(Group* group, int64_t bytes, int64_t count) {
    for (; group != nullptr; group = group->parent) {
      group->bytes += bytes;
      group->count += count;
      note_changed(*group);
    }
  }

  std::array<GroupTable*, 4> tables() { return {&stacks_, &groups_, &operators_, &devices_}; }

  void note_changed(Group& group) {
    if (!group.changed) changed_.push_back(&group);
    group.changed = true;
  }

  void forget_what_changed() {
    for (Group* const group : changed_) group->changed = false;
    changed_.clear();
  }

  void begin_to_judge() {
    forget_what_changed();
    for (GroupTable* const table : tables()) {
      for (auto& [place, group] : *table) group->series = GrowthSeries(group->bytes);
    }
  }

  Group& stack_of(StorageGroup place) {
    const auto known = stacks_.find(place);
    if (known != stacks_.end()) return *known->second;
    Group& group = group_of(of_group(place));
    // No place for the group: its operator got it. Or none for the stack, which then counts in its
    // group only.
    if (group.level != GrowthLevel::kGroup ||
        (stacks_.size() >= options_.max_groups && !make_room(stacks_)))
      return group;
    return make(stacks_, std::move(place), GrowthLevel::kStack, &group);
  }

  Group& group_of(StorageGroup place) {
    const auto known = groups_.find(place);
    if (known != groups_.end()) return *known->second;
    Group& maker = operator_of(place);
    if (groups_.size() >= options_.max_groups && !make_room(groups_)) {
      ++left_out_now_;
      return maker;
    }
    return make(groups_, std::move(place), GrowthLevel::kGroup, &maker);
  }

  Group& operator_of(const StorageGroup& place) {
    StorageGroup maker = of_operator(place);
    const auto known = operators_.find(maker);
    if (known != operators_.end()) return *known->second;
    StorageGroup all = of_device(place);
    const auto device = devices_.find(all);
    Group& parent = device != devices_.end()
                        ? *device->second
                        : make(devices_, std::move(all), GrowthLevel::kDevice, nullptr);
    // Operators' names may be the program's own (user scopes): as many as groups, and then no more.
    if (operators_.size() >= options_.max_groups) return parent;
    return make(operators_, std::move(maker), GrowthLevel::kOperator, &parent);
  }

  static Group& make(GroupTable& table, StorageGroup place, GrowthLevel level, Group* parent) {
    const auto made = table.emplace(std::move(place), std::make_unique<Group>()).first;
    Group& group = *made->second;
    group.level = level;
    group.parent = parent;
    if (parent != nullptr) ++parent->children;
    return group;
  }

  // The half of the empty groups that has been quiet longest. Not at every turn: what emptied since
  // the last time would hardly pay for looking at them all.
  bool make_room(GroupTable& table) {
    int64_t& next_look = &table == &stacks_ ? next_look_at_stacks_ : next_look_at_groups_;
    if (step_ < next_look) return false;
    const auto can_go = [](const Group& group) {
      return group.is_empty() && !group.changed && group.children == 0;
    };
    std::vector<int64_t> quiet_since;
    for (const auto& [place, group] : table) {
      if (can_go(*group)) quiet_since.push_back(group->series.last_change());
    }
    next_look = step_ + 1;  // not before there was memory for looking
    if (quiet_since.empty()) return false;
    const auto middle = quiet_since.begin() + static_cast<std::ptrdiff_t>(quiet_since.size() / 2);
    std::nth_element(quiet_since.begin(), middle, quiet_since.end());
    const int64_t limit = *middle;
    for (auto it = table.begin(); it != table.end();) {
      const Group& group = *it->second;
      if (can_go(group) && group.series.last_change() <= limit) {
        --group.parent->children;
        table.erase(it++);
      } else {
        ++it;
      }
    }
    return true;
  }

  const GrowthOptions options_;
  const ScopedTracking tracking_;
  mutable ForkSafeMutex lock_;  // after the registry is active
  Cursor cursor_;
  int64_t step_ = 0;
  int64_t next_look_at_groups_ = 0;
  int64_t next_look_at_stacks_ = 0;
  int64_t left_out_ = 0;
  int64_t left_out_now_ = 0;  // by the step that is being prepared
  GroupTable stacks_;
  GroupTable groups_;
  GroupTable operators_;
  GroupTable devices_;
  AliveTable alive_;
  std::vector<Group*> changed_;
};

GrowthReport GrowthFinder::Groups::unsorted_report() const {
  const std::lock_guard<ForkSafeMutex> hold(lock_);
  GrowthReport report;
  report.unit = options_.unit;
  report.steps = step_;
  report.tracked = Registry::global().active();
  report.steps_needed = std::max<int64_t>(0, options_.rule.warm_up_steps) +
                        std::max<int64_t>(2, options_.rule.min_growths);
  report.groups = groups_.size();
  report.groups_left_out = left_out_;
  std::unordered_map<const Group*, double> explained;  // bytes per step that rows below tell of
  for (const GroupTable* const table : {&stacks_, &groups_, &operators_, &devices_}) {
    for (const auto& [place, group] : *table) {
      const Growth growth = group->series.growth(step_, options_.rule);
      double told = explained[group.get()];
      if (growth.growing && told < kExplained * growth.bytes_per_step) {
        report.rows.push_back({group->level, place, growth, group->bytes, group->count});
        told = growth.bytes_per_step;
      }
      if (group->parent != nullptr) explained[group->parent] += told;
    }
  }
  return report;
}

GrowthReport GrowthFinder::Groups::report() const {
  GrowthReport report = unsorted_report();
  // Without the lock: to name a stack's line may take LibTorch a tenth of a second.
  std::vector<std::pair<std::string, size_t>> order;
  for (size_t i = 0; i < report.rows.size(); ++i) order.emplace_back(report.rows[i].where(), i);
  std::sort(order.begin(), order.end(), [&report](const auto& a, const auto& b) {
    const double slope_a = report.rows[a.second].growth.bytes_per_step;
    const double slope_b = report.rows[b.second].growth.bytes_per_step;
    return std::tie(slope_b, a.first) < std::tie(slope_a, b.first);
  });
  std::vector<GrowthRow> rows;
  rows.reserve(order.size());
  for (const auto& [where, at] : order) rows.push_back(std::move(report.rows[at]));
  report.rows = std::move(rows);
  return report;
}

std::string GrowthRow::where() const {
  switch (level) {
    case GrowthLevel::kDevice:
      return "all of " + place.device.str();
    case GrowthLevel::kOperator:
      return maker_text(place) + " of several shapes or labels on " + place.device.str();
    case GrowthLevel::kGroup:
    case GrowthLevel::kStack:
      break;
  }
  return to_string(place);
}

std::string verdict_text(const Growth& growth, const std::string& unit) {
  if (!growth.growing) return "steady";
  return "growing " + size_in_words(growth.bytes_per_step) + " per " + table_name(unit) +
         " since " + table_name(unit) + " " + std::to_string(growth.since_step);
}

std::string GrowthReport::verdict() const {
  if (!tracked) return "unknown: tracking is off";
  if (!known())
    return "unknown: " + std::to_string(steps) + " of at least " + std::to_string(steps_needed) +
           " " + table_name(unit) + "s";
  if (rows.empty()) return "steady";
  Growth all = rows.front().growth;
  all.bytes_per_step = 0;
  for (const GrowthRow& row : rows) {
    all.bytes_per_step += row.growth.bytes_per_step;
    all.since_step = std::min(all.since_step, row.growth.since_step);
  }
  return verdict_text(all, unit);
}

std::string to_string(const GrowthReport& report) {
  std::string text = report.verdict();
  for (size_t i = 0; i < std::min(report.rows.size(), kMostRowsInText); ++i) {
    const GrowthRow& row = report.rows[i];
    const std::string verdict =
        verdict_text(row.growth, report.unit).substr(std::string("growing ").size());
    text += "\n  " + verdict + ": " + row.where() + ", " +
            size_in_words(static_cast<double>(row.bytes)) + " in " + std::to_string(row.count) +
            (row.count == 1 ? " storage" : " storages");
  }
  if (report.rows.size() > kMostRowsInText) {
    text += "\n  … and " + std::to_string(report.rows.size() - kMostRowsInText) + " more";
  }
  return text;
}

std::ostream& operator<<(std::ostream& out, const GrowthReport& report) {
  return out << to_string(report);
}

namespace {

std::string json_shape(const std::optional<std::vector<int64_t>>& shape) {
  if (!shape.has_value()) return "null";
  std::string json = "[";
  for (size_t i = 0; i < shape->size(); ++i)
    json += (i == 0 ? "" : ",") + std::to_string((*shape)[i]);
  return json + "]";
}

const char* level_name(GrowthLevel level) {
  switch (level) {
    case GrowthLevel::kOperator:
      return "operator";
    case GrowthLevel::kDevice:
      return "device";
    case GrowthLevel::kStack:
      return "stack";
    case GrowthLevel::kGroup:
      break;
  }
  return "group";
}

// In a sum, what differs among its parts is null.
std::string json_row(const GrowthRow& row) {
  const auto text = [](std::string_view value, bool known) {
    return known ? json_string(value) : "null";
  };
  const bool has_maker = row.level != GrowthLevel::kDevice;
  std::string json = "{\"level\":" + json_string(level_name(row.level)) +
                     ",\"device\":" + json_string(row.place.device.str());
  json += ",\"op\":" + text(row.place.op, has_maker) +
          ",\"autograd_node\":" + text(row.place.autograd_node, has_maker);
  json += ",\"label\":" + text(row.place.label, row.level <= GrowthLevel::kGroup);
  json += ",\"phase\":" + text(to_string(row.place.phase), has_maker) +
          ",\"shape\":" + json_shape(row.place.shape);
  json += ",\"dtype\":" + text(row.place.dtype.has_value() ? dtype_text(row.place.dtype) : "",
                               row.place.dtype.has_value());
  const std::string line = row.place.stack == 0 ? "" : to_string(program_frame(row.place.stack));
  json += ",\"line\":" + text(line, !line.empty());
  json += ",\"bytes_per_step\":" + fmt::format("{}", row.growth.bytes_per_step);
  json += ",\"since_step\":" + std::to_string(row.growth.since_step) +
          ",\"grown_bytes\":" + std::to_string(row.growth.grown_bytes) +
          ",\"bytes\":" + std::to_string(row.bytes);
  return json + ",\"count\":" + std::to_string(row.count) + "}";
}

}  // namespace

std::string GrowthReport::to_json() const {
  std::string json = "{\"schema\":\"memledger.growth\",\"version\":" + std::to_string(kJsonVersion);
  json += ",\"unit\":" + json_string(unit) + ",\"steps\":" + std::to_string(steps) +
          ",\"steps_needed\":" + std::to_string(steps_needed);
  json += ",\"groups\":" + std::to_string(groups) +
          ",\"groups_left_out\":" + std::to_string(groups_left_out);
  json += ",\"verdict\":" + json_string(verdict()) + ",\"rows\":[";
  for (size_t i = 0; i < rows.size(); ++i) json += (i == 0 ? "" : ",") + json_row(rows[i]);
  return json + "]}";
}

GrowthFinder::GrowthFinder(GrowthOptions options)
    : groups_(std::make_unique<Groups>(std::move(options))) {}
GrowthFinder::~GrowthFinder() = default;
void GrowthFinder::step() { groups_->step(); }
GrowthReport GrowthFinder::report() const { return groups_->report(); }

TestVerdict no_growth(const GrowthReport& report) {
  if (!report.tracked)
    return TestVerdict::failed("cannot tell whether memory grows: tracking is off");
  if (!report.known()) {
    return TestVerdict::failed("too few " + table_name(report.unit) +
                               "s to tell whether memory grows: " + std::to_string(report.steps) +
                               " of at least " + std::to_string(report.steps_needed));
  }
  return report.growing() ? TestVerdict::failed(to_string(report))
                          : TestVerdict::passed(to_string(report));
}

TestVerdict no_growth(const GrowthFinder& finder) { return no_growth(finder.report()); }

}  // namespace memledger
