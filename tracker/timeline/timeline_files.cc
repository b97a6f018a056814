// TimelineData in the formats of Chrome's trace viewer (Perfetto) and of PyTorch's memory_viz.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <ostream>
#include <set>
#include <string_view>
#include <utility>

#include "registry/stacks.h"
#include "text/json.h"
#include "text/names.h"
#include "text/utf8.h"
#include "tracker/log/log_text.h"
#include "tracker/timeline.h"

namespace memledger {
namespace {

// A birth or death in the recording.
struct Event {
  int64_t time_ns;
  const Lifetime* life;
  bool birth;
};

// What was adopted was there before, too.
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
  const auto found = data.names.find(life.storage.id);
  return found == data.names.end() ? nullptr : &found->second;
}

std::string shape_text(const StorageInfo& storage) {
  if (!storage.dtype.has_value()) return "?";
  return log_text::size(c10::IntArrayRef(storage.shape).vec()) + " " +
         log_text::dtype(storage.dtype);
}

// One JSON object after the other, with commas between.
class ChromeTrace {
 public:
  ChromeTrace(std::ostream& out, int64_t begin_ns) : out_(out), begin_ns_(begin_ns) {
    out_ << "{\"traceEvents\":[";
  }

  void event(char phase, int process, uint64_t thread, int64_t time_ns, const std::string& name,
             const std::string& rest) {
    // Microseconds with all the clock's digits.
    const int64_t since = std::max<int64_t>(0, time_ns - begin_ns_);
    out_ << (first_ ? "\n" : ",\n")
         << fmt::format("{{\"ph\":\"{}\",\"pid\":{},\"tid\":{},\"ts\":{}.{:03},\"name\":{}{}}}",
                        phase, process, thread, since / 1000, since % 1000, json_string(name),
                        rest);
    first_ = false;
  }
  void process_name(int process, const std::string& name) {
    event('M', process, 0, begin_ns_, "process_name",
          ",\"args\":{\"name\":" + json_string(name) + "}");
  }
  void thread_name(int process, uint64_t thread, const std::string& name) {
    event('M', process, thread, begin_ns_, "thread_name",
          ",\"args\":{\"name\":" + json_string(name) + "}");
  }
  void end(const std::string& other) {
    out_ << "\n],\"displayTimeUnit\":\"ns\",\"otherData\":" << other << "}\n";
  }

 private:
  std::ostream& out_;
  const int64_t begin_ns_;
  bool first_ = true;
};

std::string slice_arguments(const Lifetime& life, const TimelineData& data,
                            const std::string& series) {
  const StorageInfo& storage = life.storage;
  const TimelineName* const name = name_of(life, data);
  return fmt::format(
      ",\"args\":{{\"bytes\":{},\"id\":{},\"name\":{},\"role\":{},\"shape\":{},\"operator\":{},"
      "\"autograd_node\":{},\"label\":{},"
      "\"phase\":{},\"thread\":{},\"alive_at_the_end\":{}}}",
      storage.nbytes, storage.id, name == nullptr ? "null" : json_string(name->name),
      json_string(series), json_string(shape_text(storage)), json_string(storage.op),
      json_string(storage.autograd_node), json_string(storage.label),
      json_string(to_string(storage.phase)), storage.thread, !life.died_ns.has_value());
}

void write_device(ChromeTrace& trace, const TimelineData& data, int process,
                  const std::vector<const Lifetime*>& lives) {
  const int64_t begin_ns = data.recording.begin_ns, end_ns = data.recording.end_ns;
  std::map<std::string, int64_t> bytes;
  std::unordered_map<const Lifetime*, std::string> series;
  int64_t all = 0;
  for (const Lifetime* life : lives) {
    const std::string& name = series.emplace(life, series_of(*life, data)).first->second;
    bytes.try_emplace(name, 0);
    if (is_born(*life)) continue;
    bytes[name] += life->storage.nbytes;
    all += life->storage.nbytes;
  }
  const auto counter = [&](int64_t time_ns, const std::string& name, int64_t value) {
    trace.event('C', process, 0, time_ns, name,
                ",\"args\":{\"bytes\":" + std::to_string(value) + "}");
  };
  counter(begin_ns, "all", all);
  for (const auto& [name, value] : bytes) counter(begin_ns, name, value);
  for (const Event& event : events_of(lives)) {
    const int64_t change = event.birth ? event.life->storage.nbytes : -event.life->storage.nbytes;
    const std::string& name = series[event.life];
    counter(event.time_ns, "all", all += change);
    counter(event.time_ns, name, bytes[name] += change);
  }
  counter(end_ns, "all", all);
  for (const auto& [name, value] : bytes) counter(end_ns, name, value);

  for (const Lifetime* life : lives) {
    const TimelineName* const known = name_of(*life, data);
    const std::string name = known == nullptr ? maker_of(life->storage) : known->name;
    const std::string id = fmt::format(",\"cat\":\"storage\",\"id\":\"{:#x}\"", life->storage.id);
    trace.event('b', process, 0, is_born(*life) ? *life->born_ns : begin_ns, name,
                id + slice_arguments(*life, data, series[life]));
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

void write_labels(ChromeTrace& trace, const TimelineData& data, int process) {
  trace.process_name(process, "labels");
  for (const TimelineMark& mark : data.marks)
    trace.event('i', process, 0, mark.time_ns, mark.label, ",\"s\":\"g\"");
  std::map<uint32_t, std::vector<std::string_view>> open;  // by thread
  for (const LabelChange& change : data.recording.label_changes) {
    const auto [place, is_new] = open.try_emplace(change.thread);
    if (is_new) trace.thread_name(process, change.thread, fmt::format("thread {}", change.thread));
    std::vector<std::string_view>& stack = place->second;
    const std::vector<std::string_view> parts = parts_of(change.label);
    size_t common = 0;
    while (common < stack.size() && common < parts.size() && stack[common] == parts[common])
      ++common;
    for (; stack.size() > common; stack.pop_back())
      trace.event('E', process, change.thread, change.time_ns, std::string(stack.back()), "");
    for (; stack.size() < parts.size(); stack.push_back(parts[stack.size()])) {
      trace.event('B', process, change.thread, change.time_ns, std::string(parts[stack.size()]),
                  "");
    }
  }
  for (auto& [thread, stack] : open) {
    for (; !stack.empty(); stack.pop_back()) {
      trace.event('E', process, thread, data.recording.end_ns, std::string(stack.back()), "");
    }
  }
}

// What memory_viz's own unpickler knows of protocol 2: it takes long lists in small pieces only.
class Pickle {
 public:
  explicit Pickle(std::ostream& out) : out_(out) { out_ << "\x80\x02"; }

  void begin_dict() { out_ << "}("; }
  void end_dict() { out_ << 'u'; }
  void key(const char* text) { string(text); }

  void begin_list() { out_ << ']'; }
  // Before each element of a list, and after the last.
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
  // Told once, and referred to afterwards.
  void string(std::string_view text) {
    const auto found = strings_.find(text);
    if (found != strings_.end()) {
      get(found->second);
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
  add("tensor", shape_text(storage));
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

// Frames of storages that were made alike are one list.
class FrameLists {
 public:
  FrameLists(Pickle& pickle, const TimelineData& data) : pickle_(pickle), data_(data) {}

  void write(const Lifetime& life) {
    std::vector<Frame> frames = frames_of(life, data_);
    std::string key;
    for (const Frame& frame : frames)
      key += fmt::format("{}\n{}\n{}\n", frame.name, frame.filename, frame.line);
    const auto found = lists_.find(key);
    if (found != lists_.end()) {
      pickle_.get(found->second);
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

}  // namespace

std::string series_of(const Lifetime& life, const TimelineData& data) {
  if (const TimelineName* const name = name_of(life, data)) {
    if (name->role != Role::kTensor) return std::string(to_string(name->role));
  }
  if (life.storage.kind != StorageKind::kTensor) return std::string(to_string(life.storage.kind));
  if (life.used_as_parameter) return std::string(to_string(Role::kParameter));
  return "Tensor [" + std::string(to_string(life.storage.phase)) + "]";
}

void write_chrome_trace(const TimelineData& data, std::ostream& out) {
  ChromeTrace trace(out, data.recording.begin_ns);
  int process = 1;
  for (const auto& [key, lives] : by_device(data)) {
    trace.process_name(process, c10::Device(key.first, key.second).str());
    write_device(trace, data, process++, lives);
  }
  write_labels(trace, data, process);
  const auto end_us = std::chrono::duration_cast<std::chrono::microseconds>(
                          data.recording.end_time.time_since_epoch())
                          .count();
  trace.end(fmt::format(
      "{{\"schema\":\"memledger.timeline\",\"version\":1,\"dropped_events\":{},"
      "\"dropped_label_changes\":{},\"dropped_marks\":{},\"end_time_us\":{},\"unit\":\"bytes\"}}",
      data.recording.dropped_events, data.recording.dropped_label_changes, data.dropped_marks,
      end_us));
}

void write_memory_viz(const TimelineData& data, std::ostream& out) {
  const auto devices = by_device(data);
  // cuda:N at N, all others behind.
  std::map<DeviceKey, int64_t> numbers;
  int64_t next = 0;
  for (const auto& [key, lives] : devices) {
    if (key.first == c10::DeviceType::CUDA)
      next = std::max<int64_t>(next, (numbers[key] = key.second) + 1);
  }
  for (const auto& [key, lives] : devices) {
    if (key.first != c10::DeviceType::CUDA) numbers[key] = next++;
  }
  const auto end_us = std::chrono::duration_cast<std::chrono::microseconds>(
                          data.recording.end_time.time_since_epoch())
                          .count();
  const auto time_us = [&](int64_t time_ns) {
    return end_us - (data.recording.end_ns - time_ns) / 1000;
  };

  Pickle pickle(out);
  FrameLists frames(pickle, data);
  pickle.begin_dict();
  pickle.key("segments");
  pickle.begin_list();
  size_t count = 0;
  for (const auto& [key, lives] : devices) {
    for (const Lifetime* life : lives) {
      if (life->died_ns.has_value()) continue;
      const StorageInfo& storage = life->storage;
      pickle.next(count++);
      pickle.begin_dict();
      pickle.key("device");
      pickle.integer(numbers[key]);
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
      frames.write(*life);
      pickle.key("blocks");
      pickle.begin_list();
      pickle.next(0);
      pickle.begin_dict();
      pickle.key("address");
      pickle.integer(static_cast<int64_t>(storage.address));
      pickle.key("size");
      pickle.integer(storage.nbytes);
      pickle.key("requested_size");
      pickle.integer(storage.nbytes);
      pickle.key("state");
      pickle.string("active_allocated");
      pickle.key("frames");
      frames.write(*life);
      pickle.end_dict();
      pickle.end_list(1);
      pickle.end_dict();
    }
  }
  pickle.end_list(count);

  pickle.key("device_traces");
  pickle.begin_list();
  for (int64_t device = 0; device < next; ++device) {
    pickle.next(static_cast<size_t>(device));
    pickle.begin_list();
    size_t entries = 0;
    for (const auto& [key, lives] : devices) {
      if (numbers[key] != device) continue;
      for (const Event& event : events_of(lives)) {
        const std::array<const char*, 3> birth = {"segment_alloc", "alloc", nullptr};
        const std::array<const char*, 3> death = {"free_requested", "free_completed",
                                                  "segment_free"};
        for (const char* action : event.birth ? birth : death) {
          if (action == nullptr) continue;
          pickle.next(entries++);
          pickle.begin_dict();
          pickle.key("action");
          pickle.string(action);
          pickle.key("addr");
          pickle.integer(static_cast<int64_t>(event.life->storage.address));
          pickle.key("size");
          pickle.integer(event.life->storage.nbytes);
          pickle.key("stream");
          pickle.integer(0);
          pickle.key("time_us");
          pickle.integer(time_us(event.time_ns));
          pickle.key("frames");
          frames.write(*event.life);
          pickle.end_dict();
        }
      }
    }
    pickle.end_list(entries);
  }
  pickle.end_list(static_cast<size_t>(next));

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
  const std::string_view name = path;
  const auto ends_with = [name](std::string_view end) {
    return name.size() > end.size() && name.substr(name.size() - end.size()) == end;
  };
  if (ends_with(".pickle") || ends_with(".pkl")) {
    write_memory_viz(data, out);
  } else {
    write_chrome_trace(data, out);
  }
}

}  // namespace memledger
