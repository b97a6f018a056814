#include "tracker/growth_finder.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <mutex>
#include <ostream>
#include <string_view>
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
#include "tracker/exact_device.h"
#include "tracker/until_told.h"

namespace memledger {
namespace {

constexpr size_t kMostRowsInText = 20;
// Share of a sum's slope that, once rows below it have shown it, makes a row of its own needless.
constexpr double kExplained = 0.5;

// A node of the tree device ← operator ← group ← stack. Sums include all nodes below.
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

// Abseil's maps are broken once they find no memory to grow.
using GroupTable = std::unordered_map<StorageGroup, std::unique_ptr<Group>, StorageGroupHash>;

StorageGroup without_stack(StorageGroup key) {
  key.stack = 0;
  return key;
}

StorageGroup operator_key(const StorageGroup& key) {
  StorageGroup maker;
  maker.device = key.device;
  maker.op = key.op;
  maker.autograd_node = key.autograd_node;
  maker.phase = key.phase;
  maker.raw_block = key.raw_block;
  return maker;
}

StorageGroup device_key(const StorageGroup& key) {
  StorageGroup all;
  all.device = key.device;
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

  // Changes, with all the memory that counting them takes.
  struct Counted {
    Changes changes;
    AliveTable born;
    int64_t left_out = 0;
  };

  // Makes the groups. Those with births count as changed at once, so that none of them has to make
  // room for another.
  Counted prepared(Changes changes) {
    Counted counted;
    left_out_now_ = 0;
    if (changes.from_snapshot) {
      for (GroupTable* const table : tables()) {
        for (auto& [key, group] : *table) note_changed(*group);
      }
    }
    for (const StorageInfo& storage : changes.born) {
      if (storage.adopted || !takes_in(options_.device, storage.device)) continue;
      StorageGroup key = storage_group(storage);
      // Sampled stacks would split a group at random.
      if (storage.stack_weight == 1) key.stack = storage.stack;
      Group& group = key.stack == 0 ? group_of(std::move(key)) : stack_of(std::move(key));
      for (Group* node = &group; node != nullptr; node = node->parent) note_changed(*node);
      counted.born.emplace(storage.id, Alive{&group, storage.nbytes});
    }
    size_t groups = 0;
    for (const GroupTable* const table : tables()) groups += table->size();
    changed_.reserve(groups);                             // for add()
    alive_.reserve(alive_.size() + counted.born.size());  // for merge()
    // Only groups with births can rise.
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
        for (auto& [key, group] : *table) group->bytes = group->count = 0;
      }
    }
    for (const StorageInfo& storage : counted.changes.died) {
      const auto known = alive_.find(storage.id);
      if (known == alive_.end()) continue;
      add(known->second.group, -known->second.nbytes, -1);
      alive_.erase(known);
    }
    for (const auto& [id, alive] : counted.born) add(alive.group, alive.nbytes, 1);
    alive_.merge(counted.born);
    left_out_ += counted.left_out;
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
      for (auto& [key, group] : *table) group->series = GrowthSeries(group->bytes);
    }
  }

  Group& stack_of(StorageGroup key) {
    const auto known = stacks_.find(key);
    if (known != stacks_.end()) return *known->second;
    Group& group = group_of(without_stack(key));
    // Without room for the group this is its operator. Without room for the stack it counts in its
    // group only.
    if (group.level != GrowthLevel::kGroup ||
        (stacks_.size() >= options_.max_groups && !make_room(stacks_)))
      return group;
    return make(stacks_, std::move(key), GrowthLevel::kStack, &group);
  }

  Group& group_of(StorageGroup key) {
    const auto known = groups_.find(key);
    if (known != groups_.end()) return *known->second;
    Group& maker = operator_of(key);
    if (groups_.size() >= options_.max_groups && !make_room(groups_)) {
      ++left_out_now_;
      return maker;
    }
    return make(groups_, std::move(key), GrowthLevel::kGroup, &maker);
  }

  Group& operator_of(const StorageGroup& key) {
    StorageGroup maker = operator_key(key);
    const auto known = operators_.find(maker);
    if (known != operators_.end()) return *known->second;
    StorageGroup all = device_key(key);
    const auto device = devices_.find(all);
    Group& parent = device != devices_.end()
                        ? *device->second
                        : make(devices_, std::move(all), GrowthLevel::kDevice, nullptr);
    // Bounded as well: user scopes give operators any number of names.
    if (operators_.size() >= options_.max_groups) return parent;
    return make(operators_, std::move(maker), GrowthLevel::kOperator, &parent);
  }

  static Group& make(GroupTable& table, StorageGroup key, GrowthLevel level, Group* parent) {
    const auto made = table.emplace(std::move(key), std::make_unique<Group>()).first;
    Group& group = *made->second;
    group.level = level;
    group.parent = parent;
    if (parent != nullptr) ++parent->children;
    return group;
  }

  // Drops the half of the empty groups that has been quiet longest; at most once per step, as
  // looking at all of them takes time.
  bool make_room(GroupTable& table) {
    int64_t& next_look = &table == &stacks_ ? next_look_at_stacks_ : next_look_at_groups_;
    if (step_ < next_look) return false;
    const auto can_go = [](const Group& group) {
      return group.is_empty() && !group.changed && group.children == 0;
    };
    std::vector<int64_t> quiet_since;
    for (const auto& [key, group] : table) {
      if (can_go(*group)) quiet_since.push_back(group->series.last_change());
    }
    next_look = step_ + 1;
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
  std::unordered_map<const Group*, double> explained;  // bytes per step in rows below
  for (const GroupTable* const table : {&stacks_, &groups_, &operators_, &devices_}) {
    for (const auto& [key, group] : *table) {
      const Growth growth = group->series.growth(step_, options_.rule);
      double told = explained[group.get()];
      if (growth.growing && told < kExplained * growth.bytes_per_step) {
        report.rows.push_back({group->level, key, growth, group->bytes, group->count});
        told = growth.bytes_per_step;
      }
      if (group->parent != nullptr) explained[group->parent] += told;
    }
  }
  return report;
}

GrowthReport GrowthFinder::Groups::report() const {
  GrowthReport report = unsorted_report();
  // Without the lock: looking up a line may take 100 ms.
  std::vector<std::pair<std::string, size_t>> order;
  for (size_t i = 0; i < report.rows.size(); ++i) order.emplace_back(report.rows[i].where(), i);
  std::sort(order.begin(), order.end(), [&report](const auto& a, const auto& b) {
    const double slope_a = report.rows[a.second].growth.bytes_per_step;
    const double slope_b = report.rows[b.second].growth.bytes_per_step;
    return std::tie(slope_b, a.first) < std::tie(slope_a, b.first);
  });
  std::vector<GrowthRow> rows;
  rows.reserve(order.size());
  for (const auto& [where, index] : order) rows.push_back(std::move(report.rows[index]));
  report.rows = std::move(rows);
  return report;
}

std::string GrowthRow::where() const {
  switch (level) {
    case GrowthLevel::kDevice:
      return "all of " + group.device.str();
    case GrowthLevel::kOperator:
      return maker_text(group) + " of several shapes or labels on " + group.device.str();
    case GrowthLevel::kGroup:
    case GrowthLevel::kStack:
      break;
  }
  return to_string(group);
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
    const std::string slope =
        verdict_text(row.growth, report.unit).substr(std::string("growing ").size());
    text += "\n  " + slope + ": " + row.where() + ", " +
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

// The keys that have one value for all storages of a row. In the others null is "several", in these
// "unknown".
Json keys_of(GrowthLevel level) {
  Json keys = Json::array({"device"});
  if (level == GrowthLevel::kDevice) return keys;
  for (const char* const key : {"op", "autograd_node", "phase", "raw_block"}) keys.push_back(key);
  if (level == GrowthLevel::kOperator) return keys;
  for (const char* const key : {"label", "shape", "dtype"}) keys.push_back(key);
  if (level == GrowthLevel::kStack) keys.push_back("where");
  return keys;
}

Json json_of(const GrowthRow& row) {
  const StorageGroup& group = row.group;
  const bool one_maker = row.level != GrowthLevel::kDevice;
  const bool one_label = row.level <= GrowthLevel::kGroup;
  const auto if_one = [](bool one, auto value) { return one ? Json(value) : Json(nullptr); };
  const std::string line = group.stack == 0 ? "" : to_string(program_frame(group.stack));
  return {{"level", to_string(row.level)},
          {"by", keys_of(row.level)},
          {"device", group.device.str()},
          {"op", if_one(one_maker, group.op)},
          {"autograd_node", if_one(one_maker, group.autograd_node)},
          {"phase", if_one(one_maker, to_string(group.phase))},
          {"raw_block", if_one(one_maker, group.raw_block)},
          {"label", if_one(one_label, group.label)},
          {"shape", shape_json(group.shape)},
          {"dtype", or_null(known_dtype(group.dtype))},
          {"where", if_one(!line.empty(), line)},
          {"bytes_per_step", row.growth.bytes_per_step},
          {"since_step", row.growth.since_step},
          {"grown_bytes", row.growth.grown_bytes},
          {"bytes", row.bytes},
          {"count", row.count}};
}

}  // namespace

std::string GrowthReport::to_json() const {
  Json json = {{"schema", "memledger.growth/2"},
               {"unit", unit},
               {"tracked", tracked},
               {"steps", steps},
               {"steps_needed", steps_needed},
               {"groups", groups},
               {"groups_left_out", groups_left_out},
               {"verdict", verdict()},
               {"rows", Json::array()}};
  for (const GrowthRow& row : rows) json["rows"].push_back(json_of(row));
  return to_text(json);
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
