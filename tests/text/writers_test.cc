// Every writer against every fault. A new writer is another row in one of the two tables, or in
// both.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <ATen/Functions.h>
#include <torch/nn/modules/linear.h>

#include <cctype>
#include <list>

#include "graph/saved_groups.h"
#include "graph/saved_tensors.h"
#include "registry/registry.h"
#include "registry/values_text.h"
#include "reporter/mem_reporter.h"
#include "reporter/out_of_memory.h"
#include "reporter/why_alive.h"
#include "tests/support/doctest_beside_torch.h"
#include "tests/text/faults.h"
#include "text/names.h"
#include "text/output.h"
#include "tracker/growth_finder.h"
#include "tracker/line_table.h"
#include "tracker/log/log_writer.h"
#include "tracker/memory_profiler.h"
#include "tracker/model_size.h"
#include "tracker/snapshot_diff.h"
#include "tracker/timeline.h"

namespace memledger {
namespace {

using testing::fresh_folder;
using testing::harm_in;
using testing::HostileName;
using testing::names_in;
using testing::read_file;
using testing::status_of_child;
namespace fs = std::filesystem;

// Texts -----------------------------------------------------------------------

enum class Format { kText, kCsv, kJson, kPage, kBinary };

struct TextWriter {
  std::string what;
  Format format;
  std::function<std::string(const std::string& name)> write;
  bool shows_name = true;
};

// Keeps strings that values only view.
std::string_view kept(const std::string& text) {
  static std::list<std::string> all;
  return all.emplace_back(text);
}

template <typename Value>
std::string streamed(const Value& value) {
  std::ostringstream out;
  out << value;
  return out.str();
}

Report report_with(const std::string& name) {
  Report report;
  report.options.verbose = true;
  DeviceReport device;
  device.followed = true;
  device.total_bytes = 4096;
  device.allocator_bytes = 4096;
  device.unexplained_bytes = 0;
  device.bytes_by_role.resize(static_cast<size_t>(Role::kTensor) + 1);
  ReportRow named;
  named.name = name;
  named.module = name;
  named.nbytes = 2048;
  named.shape = c10::DimVector{16, 32};
  named.role = Role::kParameter;
  named.storage_id = 1;
  ReportRow shared = named;
  shared.kind = RowKind::kShared;
  shared.owner = name;
  shared.nbytes = 0;
  ReportRow anonymous;
  anonymous.name = "Tensor0";
  anonymous.anonymous = true;
  anonymous.nbytes = 2048;
  anonymous.storage_id = 2;
  anonymous.op = anonymous.label = anonymous.autograd_node = anonymous.forward_op =
      anonymous.forward_label = kept(name);
  anonymous.where = name;
  ReportRow mapped = named;
  mapped.kind = RowKind::kExternal;
  mapped.external = ExternalMemory::kMappedFile;
  mapped.mapped_from = name;
  mapped.nbytes = 0;
  device.rows = {named, shared, anonymous, mapped};
  device.items = {{ReportItemKind::kLibraryWorkspace, name, 512, 1}};
  report.devices = {device};
  report.modelled_workspaces.resize(1);
  report.modelled_workspaces[0].name = name;
  return report;
}

WhyAlive why_with(const std::string& name) {
  WhyAlive why;
  why.row = report_with(name).devices[0].rows[2];
  why.row.name = name;
  why.names = {{name, Role::kGradient, false, 0, 16}};
  why.saved = {{name, name, {name, name}}};
  return why;
}

IterationStats stats_with(const std::string& name) {
  IterationStats stats;
  stats.feature_maps = stats.weights = stats.weight_gradients = stats.buffers =
      stats.optimizer_state = {{name, 1024}};
  return stats;
}

SnapshotDiff diff_with(const std::string& name) {
  SnapshotDiff diff;
  DiffRow named;
  named.names = {name};
  DiffRow anonymous;
  anonymous.sign = '-';
  anonymous.op = anonymous.label = name;
  diff.rows = {named, anonymous};
  diff.label = name;
  diff.unread = {name};
  return diff;
}

LineProfile lines_with(const std::string& name) {
  LineProfile profile;
  profile.device = "cpu";
  LineTable table;
  table.function = table.file = name;
  table.rows = {{1, name, LineFigures()}};
  table.notes = {name};
  profile.tables = {table};
  profile.notes = {name};
  return profile;
}

std::string lines_by(void (*write)(std::ostream&, const LineProfile&,
                                   const std::vector<LineColumn>&),
                     const std::string& name) {
  std::ostringstream out;
  write(out, lines_with(name), default_line_columns());
  return out.str();
}

TimelineData timeline_with(const std::string& name) {
  TimelineData data;
  Lifetime life;
  life.storage.id = 1;
  life.storage.nbytes = 512;
  life.storage.op = life.storage.label = life.storage.autograd_node = kept(name);
  life.born_ns = 1;
  data.recording.end_ns = 3;
  data.recording.lifetimes = {life};
  data.recording.label_changes = {{1, 1, kept(name)}, {2, 1, ""}};
  data.marks = {{2, name}};
  data.names[1] = {Role::kParameter, name};
  return data;
}

std::string timeline_by(void (*write)(const TimelineData&, std::ostream&),
                        const std::string& name) {
  std::ostringstream out;
  write(timeline_with(name), out);
  return out.str();
}

GrowthReport growth_with(const std::string& name) {
  GrowthReport report;
  report.steps = report.steps_needed = 20;
  GrowthRow row;
  row.place.op = row.place.label = row.place.autograd_node = kept(name);
  row.growth = {true, 1024, 3, 4096};
  report.rows = {row};
  report.unit = "step";
  return report;
}

ModelSize size_with(const std::string& name) {
  ModelSize size;
  size.model = name;
  LayerSize layer;
  layer.name = layer.type = name;
  size.layers = {layer};
  return size;
}

SavedTensors saved_with(const std::string& name) {
  const at::Tensor weight = at::ones({4}).requires_grad_();
  SavedTensorOptions options;
  options.parameters = {{name + ".weight", weight}};
  return saved_for_backward({weight.exp().mul(2).tanh().sum()}, options);
}

SavedGroups groups_with(const std::string& name) { return {name, {{name, 1024, 1, 1}}}; }

StorageInfo storage_with(const std::string& name) {
  StorageInfo storage = timeline_with(name).recording.lifetimes[0].storage;
  return storage;
}

const std::vector<TextWriter>& text_writers() {
  static const std::vector<TextWriter> all = {
      {"report", Format::kText, [](const auto& name) { return streamed(report_with(name)); }},
      {"report.csv", Format::kCsv, [](const auto& name) { return report_with(name).to_csv(); }},
      {"report.json", Format::kJson, [](const auto& name) { return report_with(name).to_json(); }},
      {"report.html", Format::kPage, [](const auto& name) { return report_with(name).to_html(); }},
      {"a report's row", Format::kText,
       [](const auto& name) { return streamed(report_with(name).devices[0].rows[2]); }},
      {"a report's item", Format::kText,
       [](const auto& name) { return streamed(report_with(name).devices[0].items[0]); }},
      {"why", Format::kText, [](const auto& name) { return streamed(why_with(name)); }},
      {"why.json", Format::kJson, [](const auto& name) { return why_with(name).to_json(); }},
      {"iteration", Format::kText, [](const auto& name) { return to_string(stats_with(name)); }},
      {"iteration.csv", Format::kCsv,
       [](const auto& name) { return std::string(kProfilerCsvHeader) + to_csv(stats_with(name)); }},
      {"diff", Format::kText, [](const auto& name) { return streamed(diff_with(name)); }},
      {"diff.json", Format::kJson, [](const auto& name) { return diff_with(name).to_json(); }},
      {"log", Format::kText,
       [](const auto& name) {
         return log_block(diff_with(name), {true, true}, false);
       }},
      {"lines", Format::kText,
       [](const auto& name) {
         return lines_by([](std::ostream& out, const LineProfile& p,
                            const std::vector<LineColumn>& c) { write_text(out, p, c); },
                         name);
       }},
      {"lines.json", Format::kJson, [](const auto& name) { return lines_by(&write_json, name); }},
      {"lines.html", Format::kPage, [](const auto& name) { return lines_by(&write_html, name); }},
      {"timeline.json", Format::kJson,
       [](const auto& name) { return timeline_by(&write_chrome_trace, name); }},
      {"timeline.pickle", Format::kBinary,
       [](const auto& name) { return timeline_by(&write_memory_viz, name); }},
      {"growth", Format::kText, [](const auto& name) { return to_string(growth_with(name)); }},
      {"growth.json", Format::kJson, [](const auto& name) { return growth_with(name).to_json(); }},
      {"model size", Format::kText, [](const auto& name) { return streamed(size_with(name)); }},
      {"model size.json", Format::kJson,
       [](const auto& name) { return size_with(name).to_json(); }},
      {"saved.dot", Format::kText, [](const auto& name) { return saved_with(name).to_dot(); }},
      {"saved by layer", Format::kText,
       [](const auto& name) { return streamed(by_layer(saved_with(name))); }},
      {"saved by layer.csv", Format::kCsv,
       [](const auto& name) { return by_layer(saved_with(name)).to_csv(); }},
      {"saved by layer.json", Format::kJson,
       [](const auto& name) { return by_layer(saved_with(name)).to_json(); }},
      {"saved groups", Format::kText, [](const auto& name) { return streamed(groups_with(name)); }},
      {"saved groups.csv", Format::kCsv,
       [](const auto& name) { return groups_with(name).to_csv(); }},
      {"checkpoint", Format::kText,
       [](const auto& name) { return streamed(if_checkpointed(saved_with(name), name)); }},
      {"saved.csv", Format::kCsv, [](const auto& name) { return saved_with(name).to_csv(); },
       false},
      {"storage", Format::kText, [](const auto& name) { return streamed(storage_with(name)); }},
  };
  return all;
}

// A minimal JSON reader: whether it is JSON, and its strings.
class Json {
 public:
  explicit Json(std::string_view text) : text_(text) {}
  bool read() { return value() && (skip(), at_ == text_.size()); }
  const std::vector<std::string>& strings() const { return strings_; }

 private:
  char now() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  void skip() {
    while (at_ < text_.size() && std::string_view(" \t\r\n").find(now()) != std::string_view::npos)
      ++at_;
  }
  bool take(char c) {
    skip();
    if (now() != c) return false;
    ++at_;
    return true;
  }
  bool list(char end, bool members) {
    if (take(end)) return true;
    do {
      if (members && !(skip(), string() && take(':'))) return false;
      if (!value()) return false;
    } while (take(','));
    return take(end);
  }
  bool value() {
    skip();
    if (take('{')) return list('}', true);
    if (take('[')) return list(']', false);
    if (now() == '"') return string();
    const size_t begin = at_;
    while (std::isalnum(static_cast<unsigned char>(now())) || now() == '-' || now() == '+' ||
           now() == '.')
      ++at_;
    return at_ > begin;
  }
  bool string() {
    if (now() != '"') return false;
    std::string result;
    for (++at_; now() != '"'; ++at_) {
      if (at_ >= text_.size() || static_cast<unsigned char>(now()) < 0x20) return false;
      if (now() != '\\') {
        result += now();
        continue;
      }
      ++at_;
      const std::string_view plain = "\"\\/bfnrt", meant = "\"\\/\b\f\n\r\t";
      if (const size_t which = plain.find(now());
          which != std::string_view::npos && now() != '\0') {
        result += meant[which];
      } else if (now() == 'u' && at_ + 4 < text_.size()) {
        result += static_cast<char>(std::stoi(std::string(text_.substr(at_ + 1, 4)), nullptr, 16));
        at_ += 4;
      } else {
        return false;
      }
    }
    ++at_;
    strings_.push_back(std::move(result));
    return true;
  }

  std::string_view text_;
  size_t at_ = 0;
  std::vector<std::string> strings_;
};

std::vector<std::vector<std::string>> csv_rows(const std::string& text) {
  std::vector<std::vector<std::string>> rows(1, {""});
  bool quoted = false;
  for (size_t i = 0; i < text.size(); ++i) {
    std::string& field = rows.back().back();
    if (quoted) {
      if (text[i] != '"') {
        field += text[i];
      } else if (i + 1 < text.size() && text[i + 1] == '"') {
        field += text[i++];
      } else {
        quoted = false;
      }
    } else if (text[i] == '"') {
      quoted = true;
    } else if (text[i] == ',') {
      rows.back().emplace_back();
    } else if (text[i] == '\n') {
      rows.push_back({""});
    } else {
      field += text[i];
    }
  }
  rows.pop_back();
  return rows;
}

size_t lines_in(const std::string& text) {
  return static_cast<size_t>(std::count(text.begin(), text.end(), '\n'));
}

size_t longest_line(const std::string& text) {
  size_t longest = 0;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) longest = std::max(longest, line.size());
  return longest;
}

void check_text(const std::string& text, const std::string& ordinary) {
  CHECK(harm_in(text) == "");
  CHECK(lines_in(text) == lines_in(ordinary));
}

void check_csv(const std::string& text, const std::string& ordinary) {
  check_text(text, ordinary);
  const auto rows = csv_rows(text);
  for (const auto& row : rows) {
    CHECK(row.size() == rows[0].size());
    for (const std::string& field : row) {
      const bool number =
          !field.empty() && field.find_first_not_of("-0123456789.") == std::string::npos;
      if (!number)
        CHECK(std::string_view("=+-@\t\r").find(field.substr(0, 1)) ==
              (field.empty() ? 0 : std::string_view::npos));
    }
  }
}

TEST_CASE("no name that a user can choose does harm in what a writer writes") {
  for (const TextWriter& writer : text_writers()) {
    const std::string ordinary = writer.write("weight");
    for (const HostileName& hostile : testing::hostile_names()) {
      CAPTURE(writer.what);
      CAPTURE(hostile.what);
      const std::string text = writer.write(hostile.name);
      switch (writer.format) {
        case Format::kText:
          check_text(text, ordinary);
          // The log keeps names whole, in its last column; the drawing is no table.
          if (writer.what != "log" && writer.what != "diff" && writer.what != "saved.dot")
            CHECK(longest_line(text) < 2500);
          break;
        case Format::kCsv:
          check_csv(text, ordinary);
          break;
        case Format::kJson: {
          Json json(text);
          CHECK(json.read());
          CHECK(valid_utf8(text) == text);
          // The exact name, or a longer text with it; only ASCII characters are escaped.
          const std::string exact = valid_utf8(hostile.name);
          CHECK(std::any_of(
              json.strings().begin(), json.strings().end(),
              [&](const std::string& one) { return one.find(exact) != std::string::npos; }));
          break;
        }
        case Format::kPage:
          CHECK(valid_utf8(text) == text);
          CHECK(std::none_of(text.begin(), text.end(),
                             [](char c) { return c >= 0 && c < 0x20 && c != '\n' && c != '\t'; }));
          CHECK(std::count(text.begin(), text.end(), '<') ==
                std::count(ordinary.begin(), ordinary.end(), '<'));
          break;
        case Format::kBinary:
          CHECK(text.find(valid_utf8(hostile.name)) != std::string::npos);
          break;
      }
    }
    if (writer.shows_name) CHECK(ordinary.find("weight") != std::string::npos);
  }
}

TEST_CASE("an out-of-memory report of hostile labels forges no line") {
  const ScopedTracking tracking;
  for (const HostileName& hostile : testing::hostile_names()) {
    CAPTURE(hostile.what);
    const auto report_of = [](const std::string& name) {
      const ScopedLabel label(name);
      const at::Tensor held = at::ones({1024});
      AllocationFailure failure;
      failure.requested_bytes = 1 << 20;
      failure.op = failure.label = kept(name);
      failure.message = kept(name);
      return out_of_memory_report(failure, 10, nullptr);
    };
    const std::string text = report_of(hostile.name);
    CHECK(harm_in(text) == "");
    std::istringstream in(text);
    for (std::string line; std::getline(in, line);)
      CHECK((line.rfind("Total Tensors: 0", 0) == std::string::npos));
  }
}

// Files -----------------------------------------------------------------------

std::chrono::system_clock::time_point fixed_time() {
  setenv("TZ", "UTC", 1);
  tzset();
  return std::chrono::system_clock::from_time_t(1619814329);
}

// Returns what it says went wrong.
template <typename Body>
std::string said(const Body& body) {
  try {
    return body();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
}

std::string text_of(const absl::Status& status) { return std::string(status.message()); }

struct FileWriter {
  std::string what;
  std::function<std::string(const std::string& path)> write;
  bool appends = false;
};

// Their path is the user's own.
const std::vector<FileWriter>& user_writers() {
  static const std::vector<FileWriter> all = {
      {"a report to a file",
       [](const auto& path) {
         return text_of(write_file(path, "report", report_with("weight").to_html()));
       }},
      {"a run's file",
       [](const auto& path) {
         return text_of(
             RunFile(path)
                 .write("report", [](std::ostream& out) { out << report_with("weight"); })
                 .status());
       }},
      {"a timeline", [](const auto& path) { return text_of(Timeline().write(path)); }},
      {"a tracker's log of a given name",
       [](const auto& path) {
         return said([&] {
           LogWriter::Options options;
           options.folder = fs::path(path).parent_path();
           options.file_name = fs::path(path).filename();
           options.time = fixed_time();
           LogWriter writer(options);
           writer.write_header(0, 0);
           return std::string();
         });
       },
       true},
  };
  return all;
}

struct FolderWriter {
  std::string what;
  std::function<std::string(const std::string& folder)> write;
  std::function<std::vector<std::string>()> first_names;  // that it would take
};

std::vector<std::string> oom_names() {
  std::vector<std::string> names;
  const std::time_t now = std::time(nullptr);
  for (int i = 0; i < 30; ++i) {
    const std::time_t then = now + i;
    std::tm parts{};
    localtime_r(&then, &parts);
    std::array<char, 64> text{};
    std::strftime(text.data(), text.size(), "oom-%Y%m%d-%H%M%S-", &parts);
    names.push_back(text.data() + std::to_string(getpid()) + ".txt");
  }
  return names;
}

// They choose the names.
const std::vector<FolderWriter>& folder_writers() {
  static const std::vector<FolderWriter> all = {
      {"the report at the end",
       [](const auto& folder) {
         return text_of(
             write_new_file(folder + "/memledger-exit", ".txt", "report", "text").status());
       },
       [] { return std::vector<std::string>{"memledger-exit.txt"}; }},
      {"a tracker's log",
       [](const auto& folder) {
         return said([&] {
           LogWriter::Options options;
           options.folder = folder;
           options.time = fixed_time();
           LogWriter writer(options);
           writer.write_header(0, 0);
           return std::string();
         });
       },
       [] { return std::vector<std::string>{"30-Apr-21-20:25:29-gpu_mem_track.txt"}; }},
      {"the profiler's CSV",
       [](const auto& folder) {
         return said([&] {
           const torch::nn::Linear net(2, 2);
           ProfilerOptions options;
           options.csv = true;
           options.csv_folder = folder;
           options.clock = &fixed_time;
           MemoryProfiler profiler(net, options);
           return std::string();
         });
       },
       [] {
         return std::vector<std::string>{"20210430-202529-" + std::to_string(getpid()) + ".csv"};
       }},
      {"an out-of-memory report",
       [](const auto& folder) {
         const ScopedTracking tracking;
         OutOfMemoryOptions options;
         options.folder = folder;
         options.max_reports = 1000;
         options.quiet = true;
         if (const absl::Status status = write_out_of_memory_reports(options); !status.ok())
           return text_of(status);
         try {
           at::empty({int64_t{1} << 45}, at::kByte);
         } catch (const c10::Error&) {
         }
         stop_out_of_memory_reports();
         return std::string();
       },
       &oom_names},
  };
  return all;
}

TEST_CASE("a full disk is told by name, and a path under a file too") {
  const fs::path folder = fresh_folder("told");
  std::ofstream(folder / "occupied") << "file";
  for (const FileWriter& writer : user_writers()) {
    CAPTURE(writer.what);
    if (!writer.appends)
      CHECK(writer.write("/dev/full").find("/dev/full: No space left on device") !=
            std::string::npos);
    const std::string error = writer.write(folder / "occupied/x.json");
    CHECK(error.find("occupied") != std::string::npos);
    CHECK(error.find("Not a directory") != std::string::npos);
  }
  for (const FolderWriter& writer : folder_writers()) {
    CAPTURE(writer.what);
    const std::string error = writer.write(folder / "occupied/x");
    CHECK(error.find("occupied") != std::string::npos);
    CHECK(error.find("Not a directory") != std::string::npos);
  }
  CHECK(names_in(folder) == std::vector<std::string>{"occupied"});
  CHECK(read_file(folder / "occupied") == "file");
}

TEST_CASE("a path of the user's goes through a link and replaces what is there") {
  for (const FileWriter& writer : user_writers()) {
    CAPTURE(writer.what);
    const fs::path folder = fresh_folder("user");
    fs::create_directories(folder / "elsewhere");
    std::ofstream(folder / "elsewhere/there.json") << "before";
    fs::permissions(folder / "elsewhere/there.json", fs::perms::owner_all);
    fs::create_symlink("elsewhere/there.json", folder / "link.json");
    CHECK(writer.write(folder / "link.json") == "");
    CHECK(fs::is_symlink(folder / "link.json"));
    const std::string text = read_file(folder / "elsewhere/there.json");
    CHECK(text.size() > 20);
    CHECK((text.rfind("before", 0) == 0) == writer.appends);
    CHECK(fs::status(folder / "elsewhere/there.json").permissions() == fs::perms::owner_all);
    CHECK(names_in(folder) == std::vector<std::string>{"elsewhere", "link.json"});
    CHECK(names_in(folder / "elsewhere") == std::vector<std::string>{"there.json"});
  }
}

TEST_CASE("a name of ours follows no link and replaces nothing") {
  for (const FolderWriter& writer : folder_writers()) {
    for (const bool link : {true, false}) {
      CAPTURE(writer.what);
      CAPTURE(link);
      const fs::path folder = fresh_folder("ours");
      const fs::path victim = fresh_folder("victims") / "victim";
      std::ofstream(victim) << "precious";
      const std::vector<std::string> taken = writer.first_names();
      for (const std::string& name : taken) {
        if (link) {
          fs::create_symlink(victim, folder / name);
        } else {
          std::ofstream(folder / name) << "precious";
        }
      }
      CHECK(writer.write(folder) == "");
      CHECK(read_file(victim) == "precious");
      for (const std::string& name : taken) CHECK(read_file(folder / name) == "precious");
      CHECK(names_in(folder).size() == taken.size() + 1);
    }
  }
}

TEST_CASE(
    "with standard streams closed files are written all the same, and under none of their "
    "numbers") {
  const auto closed = [](const std::function<std::string()>& write) {
    return status_of_child([&] {
      for (const int descriptor : {0, 1, 2}) close(descriptor);
      if (!write().empty()) return 1;
      for (const int descriptor : {0, 1, 2}) {
        if (fcntl(descriptor, F_GETFD) != -1) return 2 + descriptor;
      }
      return 0;
    });
  };
  for (const FileWriter& writer : user_writers()) {
    CAPTURE(writer.what);
    const fs::path folder = fresh_folder("closed");
    CHECK(closed([&] { return writer.write(folder / "x.json"); }) == 0);
    CHECK(names_in(folder) == std::vector<std::string>{"x.json"});
  }
  for (const FolderWriter& writer : folder_writers()) {
    CAPTURE(writer.what);
    const fs::path folder = fresh_folder("closed");
    CHECK(closed([&] { return writer.write(folder); }) == 0);
    CHECK(names_in(folder).size() == 1);
  }
}

}  // namespace
}  // namespace memledger
