// TimelineData as Chrome's trace events (Perfetto), and as PyTorch's memory_viz reads it.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <ostream>
#include <set>
#include <string_view>
#include <utility>

#include "registry/stacks.h"
#include "text/dtype.h"
#include "text/json.h"
#include "text/names.h"
#include "text/shape.h"
#include "text/utf8.h"
#include "tracker/timeline.h"

namespace memledger {
namespace {

// A birth or death in the recording.
struct Event {
  int64_t time_ns;
  const Lifetime* life;
  bool birth;
};

// Adopted storages were there before, too.
bool is_born(const Lifetime& life) { return life.born_ns.has_value() && !life.storage.adopted; }

using DeviceKey = std::pair<c10::DeviceType, c10::DeviceIndex>;
DeviceKey key_of(const Lifetime& life) {
  return {life.storage.device.type(), life.storage.device.index()};
}

std::map<DeviceKey, std::vector<const Lifetime*>> by_device(const TimelineData& data) {
  std::map<DeviceKey, std::vector<const Lifetime*>> result;
  for (const Lifetime& life : data.recording.lifetimes) result[key_of(life)].push_back(&life);
  return result;
}

std::vector<Event> events_of(const std::vector<const Lifetime*>& lives) {
  std::vector<Event> events;
  for (const Lifetime* life : lives) {
    if (is_born(*life)) events.push_back({*life->born_ns, life, true});
    if (life->died_ns) events.push_back({*life->died_ns, life, false});
  }
  std::stable_sort(events.begin(), events.end(),
                   [](const Event& a, const Event& b) { return a.time_ns < b.time_ns; });
  return events;
}

std::string maker_of(const StorageInfo& storage) {
  if (storage.adopted) return "before tracking";
  if (!storage.op.empty()) return std::string(storage.op);
  if (!storage.autograd_node.empty()) return std::string(storage.autograd_node);
  return storage.raw_block ? "raw block" : "outside operators";
}

const TimelineName* name_of(const Lifetime& life, const TimelineData& data) {
  const auto name = data.names.find(life.storage.id);
  return name == data.names.end() ? nullptr : &name->second;
}

Role role_of(const Lifetime& life, const TimelineData& data) {
  const TimelineName* const name = name_of(life, data);
  if (name != nullptr && name->role != Role::kTensor) return name->role;
  return life.used_as_parameter ? Role::kParameter : Role::kTensor;
}

// The registry notes the shape together with the dtype.
std::optional<c10::DimVector> shape_of(const StorageInfo& storage) {
  return storage.dtype.has_value() ? std::optional(storage.shape) : std::nullopt;
}

std::string looks_of(const StorageInfo& storage) {
  if (!storage.dtype.has_value()) return "?";
  return shape_text(storage.shape) + " " + dtype_text(storage.dtype);
}

int64_t end_time_us(const TimelineData& data) {
  return std::chrono::duration_cast<std::chrono::microseconds>(
             data.recording.end_time.time_since_epoch())
      .count();
}

// Writes one event per line, with commas between. What all events have is written as text: there
// are millions of them, and as values they take twice the time.
class ChromeTrace {
 public:
  ChromeTrace(std::ostream& out, int64_t begin_ns) : out_(out), begin_ns_(begin_ns) {
    out_ << "{\"traceEvents\":[";
  }

  // `more` has further members, each with a comma in front.
  void event(char phase, int process, uint64_t thread, int64_t time_ns, std::string_view name,
             std::string_view more = "") {
    // Microseconds with all the clock's digits.
    const int64_t since_ns = std::max<int64_t>(0, time_ns - begin_ns_);
    out_ << std::exchange(line_end_, ",\n")
         << fmt::format("{{\"ph\":\"{}\",\"pid\":{},\"tid\":{},\"ts\":{}.{:03},\"name\":{}{}}}",
                        phase, process, thread, since_ns / 1000, since_ns % 1000, json_string(name),
                        more);
  }
  void process_name(int process, std::string_view name) {
    event('M', process, 0, begin_ns_, "process_name", name_argument(name));
  }
  void thread_name(int process, uint64_t thread, std::string_view name) {
    event('M', process, thread, begin_ns_, "thread_name", name_argument(name));
  }
  void counter(int process, int64_t time_ns, std::string_view name, int64_t bytes) {
    event('C', process, 0, time_ns, name, fmt::format(",\"args\":{{\"bytes\":{}}}", bytes));
  }
  void end(const Json& other) {
    // Last: Perfetto's reader stops at a member that it does not know.
    out_ << "\n],\"displayTimeUnit\":\"ns\",\"otherData\":" << to_text(other) << "}\n";
  }

 private:
  static std::string name_argument(std::string_view name) {
    return ",\"args\":{\"name\":" + json_string(name) + "}";
  }

  std::ostream& out_;
  const int64_t begin_ns_;
  const char* line_end_ = "\n";
};

Json slice_arguments(const Lifetime& life, const TimelineData& data, const std::string& series) {
  const StorageInfo& storage = life.storage;
  const TimelineName* const name = name_of(life, data);
  return JsonRow()
      .add("bytes", storage.nbytes)
      .add("storage_id", storage.id)
      .add("name", name == nullptr ? Json(nullptr) : Json(name->name))
      .add("series", series)
      .add("role", machine_name(role_of(life, data)))
      .add("storage_kind", machine_name(storage.kind))
      .add("shape", shape_json(shape_of(storage)))
      .add("dtype", or_null(known_dtype(storage.dtype)))
      .add("op", storage.op)
      .add("autograd_node", storage.autograd_node)
      .add("label", storage.label)
      .add("phase", storage.adopted ? Json(nullptr) : Json(to_string(storage.phase)))
      .add("thread", storage.thread == 0 ? Json(nullptr) : Json(storage.thread))
      .add("alive_at_the_end", !life.died_ns.has_value())
      .end();
}

// Returns what is alive at the beginning, by series.
std::map<std::string, int64_t> bytes_at_begin(
    const std::vector<const Lifetime*>& lives,
    const std::unordered_map<const Lifetime*, std::string>& series) {
  std::map<std::string, int64_t> bytes;
  for (const Lifetime* life : lives)
    bytes[series.at(life)] += is_born(*life) ? 0 : life->storage.nbytes;
  return bytes;
}

void write_counters(ChromeTrace& trace, const TimelineData& data, int process,
                    const std::vector<const Lifetime*>& lives,
                    const std::unordered_map<const Lifetime*, std::string>& series) {
  std::map<std::string, int64_t> bytes = bytes_at_begin(lives, series);
  int64_t all = 0;
  for (const auto& [name, value] : bytes) all += value;
  const auto write_all = [&](int64_t time_ns) {
    trace.counter(process, time_ns, "all", all);
    for (const auto& [name, value] : bytes) trace.counter(process, time_ns, name, value);
  };
  write_all(data.recording.begin_ns);
  for (const Event& event : events_of(lives)) {
    const int64_t change = event.birth ? event.life->storage.nbytes : -event.life->storage.nbytes;
    const std::string& name = series.at(event.life);
    trace.counter(process, event.time_ns, "all", all += change);
    trace.counter(process, event.time_ns, name, bytes[name] += change);
  }
  write_all(data.recording.end_ns);
}

void write_device(ChromeTrace& trace, const TimelineData& data, int process,
                  const std::vector<const Lifetime*>& lives) {
  std::unordered_map<const Lifetime*, std::string> series;
  for (const Lifetime* life : lives) series.emplace(life, series_of(*life, data));
  write_counters(trace, data, process, lives, series);

  const int64_t begin_ns = data.recording.begin_ns, end_ns = data.recording.end_ns;
  for (const Lifetime* life : lives) {
    const TimelineName* const known = name_of(*life, data);
    const std::string name = known == nullptr ? maker_of(life->storage) : known->name;
    const std::string id = fmt::format(",\"cat\":\"storage\",\"id\":\"{:#x}\"", life->storage.id);
    const std::string arguments = to_text(slice_arguments(*life, data, series[life]));
    trace.event('b', process, 0, is_born(*life) ? *life->born_ns : begin_ns, name,
                fmt::format("{},\"args\":{}", id, arguments));
    trace.event('e', process, 0, life->died_ns.value_or(end_ns), name, id);
  }
}

std::vector<std::string_view> parts_of(std::string_view path) {
  std::vector<std::string_view> parts;
  while (!path.empty()) {
    const size_t slash = path.find('/');
    parts.push_back(path.substr(0, slash));
    path = slash == std::string_view::npos ? std::string_view() : path.substr(slash + 1);
  }
  return parts;
}

void write_marks(ChromeTrace& trace, const TimelineData& data, int process) {
  for (const TimelineMark& mark : data.marks)
    trace.event('i', process, 0, mark.time_ns, mark.label, ",\"s\":\"g\"");
}

// A slice for each part of a label, nested.
void write_labels(ChromeTrace& trace, const TimelineData& data, int process) {
  std::map<uint32_t, std::vector<std::string_view>> open;  // by thread
  const auto begin = [&](uint32_t thread, int64_t time_ns, std::string_view part) {
    trace.event('B', process, thread, time_ns, part);
    open[thread].push_back(part);
  };
  const auto end = [&](uint32_t thread, int64_t time_ns) {
    trace.event('E', process, thread, time_ns, open[thread].back());
    open[thread].pop_back();
  };
  for (const LabelChange& change : data.recording.label_changes) {
    const auto [entry, is_new] = open.try_emplace(change.thread);
    if (is_new) trace.thread_name(process, change.thread, fmt::format("thread {}", change.thread));
    const std::vector<std::string_view>& stack = entry->second;
    const std::vector<std::string_view> parts = parts_of(change.label);
    size_t common = 0;
    while (common < stack.size() && common < parts.size() && stack[common] == parts[common])
      ++common;
    while (stack.size() > common) end(change.thread, change.time_ns);
    while (stack.size() < parts.size()) begin(change.thread, change.time_ns, parts[stack.size()]);
  }
  for (const auto& [thread, stack] : open) {
    while (!stack.empty()) end(thread, data.recording.end_ns);
  }
}

// Writes the part of pickle's protocol 2 that memory_viz's own unpickler knows. It takes long lists
// in small pieces only.
class Pickle {
 public:
  explicit Pickle(std::ostream& out) : out_(out) { out_ << "\x80\x02"; }

  void begin_dict() { out_ << "}("; }
  void end_dict() { out_ << 'u'; }
  void key(const char* text) { string(text); }

  void begin_list() { out_ << ']'; }
  // Goes before each element of a list, end_list() behind the last.
  void next(size_t index) {
    if (index % kPiece == 0) out_ << (index == 0 ? "(" : "e(");
  }
  void end_list(size_t count) {
    if (count > 0) out_ << 'e';
  }

  void integer(int64_t value) {
    if (value >= 0 && value < 256) {
      out_ << 'K' << static_cast<char>(value);
    } else if (value >= INT32_MIN && value <= INT32_MAX) {
      out_ << 'J';
      bytes(static_cast<uint64_t>(value), 4);
    } else {
      out_ << '\x8a' << '\x08';
      bytes(static_cast<uint64_t>(value), 8);
    }
  }
  void boolean(bool value) { out_ << (value ? '\x88' : '\x89'); }
  void none() { out_ << 'N'; }
  // Writes a text once, and refers to it afterwards.
  void string(std::string_view text) {
    const auto known = strings_.find(text);
    if (known != strings_.end()) {
      get(known->second);
      return;
    }
    const std::string utf8 = valid_utf8(text);
    out_ << 'X';
    bytes(utf8.size(), 4);
    out_ << utf8;
    if (strings_.size() < kMostStrings) strings_.emplace(std::string(text), put());
  }
  void pair(int64_t a, int64_t b) {
    integer(a);
    integer(b);
    out_ << '\x86';
  }

  // Numbers what was written last, for get().
  uint32_t put() {
    out_ << 'r';
    bytes(next_memo_, 4);
    return next_memo_++;
  }
  void get(uint32_t memo) {
    out_ << 'j';
    bytes(memo, 4);
  }
  void stop() { out_ << '.'; }

 private:
  static constexpr size_t kPiece = 1000;
  static constexpr size_t kMostStrings = 100000;
  void bytes(uint64_t value, int count) {
    for (int i = 0; i < count; ++i) out_.put(static_cast<char>(value >> (8 * i) & 0xff));
  }

  std::ostream& out_;
  std::map<std::string, uint32_t, std::less<>> strings_;
  uint32_t next_memo_ = 0;
};

struct Frame {
  std::string name, filename;
  int64_t line = 0;
};

std::vector<Frame> frames_of(const Lifetime& life, const TimelineData& data) {
  const StorageInfo& storage = life.storage;
  std::vector<Frame> frames;
  const auto add = [&](const char* what, std::string_view text) {
    if (!text.empty()) frames.push_back({std::string(text), what, 0});
  };
  if (const TimelineName* const name = name_of(life, data)) add("name", name->name);
  add("series", series_of(life, data));
  add("tensor", looks_of(storage));
  add("operator", maker_of(storage));
  add("autograd", storage.autograd_node);
  if (!storage.forward_op.empty()) add("forward operator", storage.forward_op);
  add("label", storage.label);
  if (storage.stack != 0) {
    for (const StackFrame& frame : stack_frames(storage.stack)) {
      frames.push_back({frame.function, frame.file, frame.line});
    }
  }
  return frames;
}

// Writes equal lists of frames once.
class FrameLists {
 public:
  FrameLists(Pickle& pickle, const TimelineData& data) : pickle_(pickle), data_(data) {}

  void write(const Lifetime& life) {
    std::vector<Frame> frames = frames_of(life, data_);
    std::string key;
    for (const Frame& frame : frames)
      key += fmt::format("{}\n{}\n{}\n", frame.name, frame.filename, frame.line);
    const auto known = lists_.find(key);
    if (known != lists_.end()) {
      pickle_.get(known->second);
      return;
    }
    pickle_.begin_list();
    const uint32_t memo = pickle_.put();
    for (size_t i = 0; i < frames.size(); ++i) {
      pickle_.next(i);
      pickle_.begin_dict();
      pickle_.key("name");
      pickle_.string(frames[i].name);
      pickle_.key("filename");
      pickle_.string(frames[i].filename);
      pickle_.key("line");
      pickle_.integer(frames[i].line);
      pickle_.end_dict();
    }
    pickle_.end_list(frames.size());
    lists_.emplace(std::move(key), memo);
  }

 private:
  Pickle& pickle_;
  const TimelineData& data_;
  std::unordered_map<std::string, uint32_t> lists_;
};

// Gives cuda:N the number N, and all other devices the numbers behind the last of them.
std::map<DeviceKey, int64_t> numbers_of(
    const std::map<DeviceKey, std::vector<const Lifetime*>>& devices) {
  std::map<DeviceKey, int64_t> numbers;
  int64_t next = 0;
  for (const auto& [key, lives] : devices) {
    if (key.first != c10::DeviceType::CUDA) continue;
    const auto number = static_cast<int64_t>(static_cast<int>(key.second));
    numbers[key] = number;
    next = std::max(next, number + 1);
  }
  for (const auto& [key, lives] : devices) {
    if (key.first != c10::DeviceType::CUDA) numbers[key] = next++;
  }
  return numbers;
}

void write_block(Pickle& pickle, FrameLists& frames, const Lifetime& life) {
  pickle.begin_dict();
  pickle.key("address");
  pickle.integer(static_cast<int64_t>(life.storage.address));
  for (const char* size : {"size", "requested_size"}) {
    pickle.key(size);
    pickle.integer(life.storage.nbytes);
  }
  pickle.key("state");
  pickle.string("active_allocated");
  pickle.key("frames");
  frames.write(life);
  pickle.end_dict();
}

// A segment with one block.
void write_segment(Pickle& pickle, FrameLists& frames, const Lifetime& life, int64_t device) {
  const StorageInfo& storage = life.storage;
  pickle.begin_dict();
  pickle.key("device");
  pickle.integer(device);
  pickle.key("address");
  pickle.integer(static_cast<int64_t>(storage.address));
  for (const char* size : {"total_size", "allocated_size", "active_size", "requested_size"}) {
    pickle.key(size);
    pickle.integer(storage.nbytes);
  }
  pickle.key("stream");
  pickle.integer(0);
  pickle.key("segment_type");
  pickle.string(storage.nbytes > (1 << 20) ? "large" : "small");
  pickle.key("segment_pool_id");
  pickle.pair(0, 0);
  pickle.key("is_expandable");
  pickle.boolean(false);
  pickle.key("frames");
  frames.write(life);
  pickle.key("blocks");
  pickle.begin_list();
  pickle.next(0);
  write_block(pickle, frames, life);
  pickle.end_list(1);
  pickle.end_dict();
}

void write_trace_entry(Pickle& pickle, FrameLists& frames, const Lifetime& life, const char* action,
                       int64_t time_us) {
  pickle.begin_dict();
  pickle.key("action");
  pickle.string(action);
  pickle.key("addr");
  pickle.integer(static_cast<int64_t>(life.storage.address));
  pickle.key("size");
  pickle.integer(life.storage.nbytes);
  pickle.key("stream");
  pickle.integer(0);
  pickle.key("time_us");
  pickle.integer(time_us);
  pickle.key("frames");
  frames.write(life);
  pickle.end_dict();
}

void write_device_trace(Pickle& pickle, FrameLists& frames, const TimelineData& data,
                        const std::vector<const Lifetime*>& lives) {
  static const std::vector<const char*> kBirth = {"segment_alloc", "alloc"};
  static const std::vector<const char*> kDeath = {"free_requested", "free_completed",
                                                  "segment_free"};
  pickle.begin_list();
  size_t entries = 0;
  for (const Event& event : events_of(lives)) {
    const int64_t time_us = end_time_us(data) - (data.recording.end_ns - event.time_ns) / 1000;
    for (const char* action : event.birth ? kBirth : kDeath) {
      pickle.next(entries++);
      write_trace_entry(pickle, frames, *event.life, action, time_us);
    }
  }
  pickle.end_list(entries);
}

}  // namespace

std::string series_of(const Lifetime& life, const TimelineData& data) {
  const TimelineName* const name = name_of(life, data);
  const bool has_role = name != nullptr && name->role != Role::kTensor;
  if (!has_role && life.storage.kind != StorageKind::kTensor)
    return std::string(to_string(life.storage.kind));
  const Role role = role_of(life, data);
  if (role != Role::kTensor) return std::string(to_string(role));
  return "Tensor [" + std::string(to_string(life.storage.phase)) + "]";
}

void write_chrome_trace(const TimelineData& data, std::ostream& out) {
  ChromeTrace trace(out, data.recording.begin_ns);
  int process = 1;
  for (const auto& [key, lives] : by_device(data)) {
    trace.process_name(process, c10::Device(key.first, key.second).str());
    write_device(trace, data, process++, lives);
  }
  trace.process_name(process, "labels");
  write_marks(trace, data, process);
  write_labels(trace, data, process);
  trace.end({{"schema", "memledger.timeline/2"},
             {"dropped_events", data.recording.dropped_events},
             {"dropped_label_changes", data.recording.dropped_label_changes},
             {"dropped_marks", data.dropped_marks},
             {"end_time_us", end_time_us(data)},
             {"unit", "bytes"}});
}

void write_memory_viz(const TimelineData& data, std::ostream& out) {
  const auto devices = by_device(data);
  const std::map<DeviceKey, int64_t> numbers = numbers_of(devices);
  Pickle pickle(out);
  FrameLists frames(pickle, data);
  pickle.begin_dict();
  pickle.key("segments");
  pickle.begin_list();
  size_t segments = 0;
  for (const auto& [key, lives] : devices) {
    for (const Lifetime* life : lives) {
      if (life->died_ns.has_value()) continue;
      pickle.next(segments++);
      write_segment(pickle, frames, *life, numbers.at(key));
    }
  }
  pickle.end_list(segments);

  // One list per number: a GPU that nothing was seen of has an empty one.
  std::vector<const std::vector<const Lifetime*>*> by_number;
  for (const auto& [key, number] : numbers) {
    by_number.resize(std::max(by_number.size(), static_cast<size_t>(number) + 1));
    by_number[static_cast<size_t>(number)] = &devices.at(key);
  }
  pickle.key("device_traces");
  pickle.begin_list();
  for (size_t device = 0; device < by_number.size(); ++device) {
    pickle.next(device);
    write_device_trace(
        pickle, frames, data,
        by_number[device] == nullptr ? std::vector<const Lifetime*>() : *by_number[device]);
  }
  pickle.end_list(by_number.size());

  pickle.key("external_annotations");
  pickle.begin_list();
  pickle.key("allocator_settings");
  pickle.begin_dict();
  pickle.key("memledger_dropped_events");
  pickle.integer(data.recording.dropped_events);
  pickle.end_dict();
  pickle.end_dict();
  pickle.stop();
}

void write_timeline(const TimelineData& data, const std::string& path, std::ostream& out) {
  const std::string ending = file_ending(path);
  if (ending == ".pickle" || ending == ".pkl") {
    write_memory_viz(data, out);
  } else {
    write_chrome_trace(data, out);
  }
}

}  // namespace memledger
