#include "prediction/run_files.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <system_error>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "prediction/device_use_file.h"
#include "text/file_text.h"
#include "text/json.h"

namespace memledger::prediction {
namespace {

namespace fs = std::filesystem;

constexpr size_t kProgressLength = 128;

// Takes a number and the space behind it off the text.
template <typename Number>
bool take_number(std::string_view& text, Number& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc()) return false;
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  const bool has_space = !text.empty() && text.front() == ' ';
  if (has_space) text.remove_prefix(1);
  return has_space;
}

std::optional<Progress> progress_of(const fs::path& path) {
  Progress progress;
  const std::string name = path.stem().string(), content = file_text(path);
  if (std::from_chars(name.data(), name.data() + name.size(), progress.process).ec != std::errc())
    return std::nullopt;
  std::string_view text = content;
  if (!take_number(text, progress.steps) || !take_number(text, progress.settled_at))
    return std::nullopt;
  progress.label = text;
  absl::StripAsciiWhitespace(&progress.label);
  return progress;
}

// The number that a file's name begins with.
std::optional<int> process_of(const fs::path& path) {
  const std::string name = path.stem().string();
  int process = 0;
  if (std::from_chars(name.data(), name.data() + name.size(), process).ec != std::errc())
    return std::nullopt;
  return process;
}

// Nothing where the file is cut short.
std::optional<DeviceUseFile> read_use_file(const fs::path& path) {
  const std::string content = file_text(path);
  DeviceUseFile file;
  if (content.size() < sizeof file) return std::nullopt;
  std::memcpy(&file, content.data(), sizeof file);
  return file;
}

template <size_t Size>
std::string text_in(const char (&field)[Size]) {
  return std::string(field, strnlen(field, Size));
}

uint64_t copies_of(const UnwatchedCopies& copies) {
  return copies.single_bytes + copies.words + copies.blocks;
}

std::vector<DeviceUse> uses_of(const DeviceUseFile& file, int process, bool is_watched) {
  std::vector<DeviceUse> uses;
  for (int index = 0; index < kMaxDeviceUses; ++index) {
    const DeviceUseRow& row = file.devices[index];
    if (row.peak_bytes == 0) continue;
    DeviceUse use;
    use.process = process;
    use.is_watched = is_watched;
    use.index = index;
    use.gpu = text_in(row.gpu);
    use.capacity_bytes = static_cast<int64_t>(row.capacity_bytes);
    use.context_bytes = static_cast<int64_t>(row.context_bytes);
    use.process_peak = static_cast<int64_t>(row.peak_bytes);
    use.times_taken = static_cast<int64_t>(row.times_taken);
    use.taken_in_all = static_cast<int64_t>(row.taken_in_all);
    use.times_refused = static_cast<int64_t>(row.times_refused);
    use.first_refused_bytes = static_cast<int64_t>(row.first_refused_bytes);
    use.copies_to_host = static_cast<int64_t>(copies_of(file.copies));
    uses.push_back(std::move(use));
  }
  return uses;
}

// A use file that no measurement has taken the place of.
struct UnwatchedFile {
  int process = 0;
  bool is_watched = false;  // it was killed before it could leave a measurement
  bool is_last = false;     // of its process
  DeviceUseFile content;
};

// By process, of each one for every program that it was, in the order of their times.
std::map<int, std::vector<fs::path>> use_files_of(const std::string& folder) {
  std::map<int, std::vector<std::pair<size_t, fs::path>>> files;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
    const std::optional<int> process = process_of(entry.path());
    if (!process || entry.path().extension() != kDeviceUseExtension) continue;
    files[*process].emplace_back(entry.path().filename().string().size(), entry.path());
  }
  std::map<int, std::vector<fs::path>> result;
  for (auto& [process, of_process] : files) {
    std::sort(of_process.begin(), of_process.end());
    for (auto& [length, path] : of_process) result[process].push_back(std::move(path));
  }
  return result;
}

std::vector<UnwatchedFile> unwatched_files_of(const std::string& folder) {
  std::vector<UnwatchedFile> result;
  for (auto& [process, paths] : use_files_of(folder)) {
    const auto has = [&, process = process](const char* extension) {
      std::error_code error;
      return fs::exists(fs::path(folder) / absl::StrCat(process, extension), error);
    };
    // What is measured is the last.
    const bool is_measured = has(".json");
    if (is_measured) paths.pop_back();
    for (const fs::path& path : paths) {
      const bool is_last = !is_measured && path == paths.back();
      if (const std::optional<DeviceUseFile> file = read_use_file(path))
        result.push_back({process, is_last && has(kWatchedExtension), is_last, *file});
    }
  }
  return result;
}

MeasuredRead copies(const char* op, const char* site, MeasuredRead::Kind kind, uint64_t count) {
  MeasuredRead read;
  read.op = op;
  read.site = site;
  read.kind = kind;
  read.count = static_cast<int64_t>(count);
  // Until other values are tried.
  read.has_upper_bound = false;
  return read;
}

// What they are at first; of fractions the bits of a whole number, which is none of those tried.
double assumed_of(const DeviceUseFile& file, MeasuredRead::Kind kind) {
  if (file.are_ones_likely == 0) return 0;
  return kind == MeasuredRead::Kind::kFraction ? 1e-45 : 1;
}

std::vector<MeasuredRead> reads_of(const DeviceUseFile& file) {
  using Kind = MeasuredRead::Kind;
  std::vector<MeasuredRead> reads;
  const auto add = [&](const char* op, const char* site, Kind kind, uint64_t count) {
    if (count == 0) return;
    reads.push_back(copies(op, site, kind, count));
    reads.back().assumed = assumed_of(file, kind);
  };
  const UnwatchedCopies& of_kinds = file.copies;
  const uint64_t all = copies_of(of_kinds);
  add("copies to the host, taken for truths", kCopiedTruths, Kind::kBranch,
      of_kinds.single_bytes + of_kinds.blocks);
  add("copies to the host, taken for whole numbers", kCopiedNumbers, Kind::kNumber, all);
  add("copies to the host, each taken for something else", kCopiedMixed, Kind::kBranch, all);
  add("copies to the host, taken for fractions", kCopiedFractions, Kind::kFraction,
      of_kinds.words + of_kinds.blocks);
  add("copies to the host of more than 256 MiB", "", Kind::kNumber, of_kinds.too_large);
  if (file.managed_allocations > 0) {
    reads.push_back(copies("managed memory, which is read without a copy", "", Kind::kNumber,
                           file.managed_allocations));
  }
  if (file.host_addresses > 0) {
    reads.push_back(copies("kernels that may write to the host's memory", "", Kind::kNumber,
                           file.host_addresses));
  }
  for (const LibrarySizeRow& row : file.library_sizes) {
    if (row.count == 0) continue;
    MeasuredRead read = copies("", "", Kind::kSize, row.count);
    read.op = text_in(row.what);
    read.has_upper_bound = row.has_upper_bound != 0;
    if (!read.has_upper_bound) read.kind = Kind::kModel;
    reads.push_back(std::move(read));
  }
  return reads;
}

// What torch said of a device itself takes the place of what the driver saw of its parts.
void add_torchs_figures(const Json& figures, Measurement& measurement) {
  for (const Json& of_device : figures) {
    const auto device = std::find_if(
        measurement.devices.begin(), measurement.devices.end(),
        [&](const MeasuredDevice& one) { return one.index == of_device.at("index").get<int>(); });
    if (device == measurement.devices.end()) continue;
    device->allocated_peak = of_device.at("allocated_peak");
    device->reserved_peak = of_device.at("reserved_peak");
    // In addition to the driver's, as others in the process may take memory, too.
    device->allocations += of_device.at("allocations").get<int64_t>();
    device->requested_in_all += of_device.at("requested_in_all").get<int64_t>();
    // What torch was refused came once its cache was empty, after two tries at most. More was
    // refused to others.
    constexpr int64_t kMaxTries = 2;
    const bool came_later = device->failures <= kMaxTries * of_device.at("retries").get<int64_t>();
    if (of_device.at("failures").get<int64_t>() == 0 && came_later) {
      std::swap(device->retries, device->failures);
      measurement.failure.reset();
    }
    const Json& peak = of_device.at("peak");
    if (peak.is_null() || measurement.peak) continue;
    measurement.peak.emplace();
    measurement.peak->device = device->index;
    measurement.peak->op = "an operator";
    measurement.peak->place = peak.at("place");
    measurement.peak->parts.push_back({kUnknownPart, peak.at("bytes").get<int64_t>(), 0});
    for (const Json& largest : peak.at("largest")) {
      MeasuredRow row;
      row.op = "an operator";
      row.place = largest.at("place");
      row.bytes = largest.at("bytes");
      row.count = largest.at("count");
      row.each_bytes = largest.at("each_bytes");
      measurement.peak->largest.push_back(std::move(row));
    }
  }
}

// Does nothing where torch said nothing, as where the process did not return.
void add_torchs_figures(const std::string& folder, Measurement& measurement) {
  const std::string text =
      file_text(fs::path(folder) / absl::StrCat(measurement.process, kTorchExtension));
  if (text.empty()) return;
  Measurement with_figures = measurement;
  try {
    add_torchs_figures(Json::parse(text), with_figures);
    measurement = std::move(with_figures);
  } catch (const Json::exception&) {  // cut short
  }
}

}  // namespace

std::string progress_text(const Progress& progress) {
  std::string text = absl::StrCat(progress.steps, " ", progress.settled_at, " ", progress.label);
  std::replace(text.begin(), text.end(), '\n', ' ');
  text.resize(kProgressLength - 1, ' ');
  return text + "\n";
}

std::vector<Progress> read_all_progress(const std::string& folder) {
  std::vector<Progress> all;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
    if (entry.path().extension() != kProgressExtension) continue;
    if (std::optional<Progress> progress = progress_of(entry.path()))
      all.push_back(*std::move(progress));
  }
  std::sort(all.begin(), all.end(),
            [](const Progress& a, const Progress& b) { return a.process < b.process; });
  return all;
}

Progress read_progress(const std::string& folder) {
  Progress furthest;
  for (const Progress& progress : read_all_progress(folder)) {
    if (progress.steps >= furthest.steps) furthest = progress;
  }
  return furthest;
}

std::string size_loop_text(const SizeLoop& loop) {
  // The last byte shows that it is whole.
  return absl::StrCat(loop.driver, "\t", loop.is_same ? "same" : "new", "\t", loop.place, "\n");
}

std::optional<SizeLoop> read_size_loop(const std::string& folder) {
  const std::string text = file_text(fs::path(folder) / kSizeLoop);
  const std::vector<std::string> words = absl::StrSplit(text.substr(0, text.find('\n')), '\t');
  if (words.size() != 3 || text.back() != '\n') return std::nullopt;
  return SizeLoop{words[0], words[2], words[1] == "same"};
}

WrittenFiles read_written_files(const std::string& folder) {
  const std::string text = file_text(fs::path(folder) / kWrittenFiles);
  std::set<std::string> paths;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\0', begin), text.size());
    std::error_code error;
    std::string path = text.substr(begin, end - begin);
    if (fs::is_regular_file(path, error)) paths.insert(std::move(path));
    begin = end + 1;
  }
  WrittenFiles written;
  written.count = static_cast<int64_t>(paths.size());
  for (const std::string& path : paths) {
    if (written.paths.size() == kMostWrittenPaths) break;
    written.paths.push_back(path);
  }
  return written;
}

std::string read_why_unwatched(const std::string& folder) {
  const std::string text = file_text(fs::path(folder) / kUnwatchedProcesses);
  return text.substr(0, text.find('\n'));
}

std::vector<DeviceUse> read_unwatched_uses(const std::string& folder) {
  std::vector<DeviceUse> all;
  for (const UnwatchedFile& file : unwatched_files_of(folder)) {
    const std::vector<DeviceUse> uses = uses_of(file.content, file.process, file.is_watched);
    all.insert(all.end(), uses.begin(), uses.end());
  }
  return all;
}

std::vector<Measurement> read_driver_measurements(const std::string& folder) {
  std::vector<Measurement> all;
  for (const UnwatchedFile& file : unwatched_files_of(folder)) {
    Measurement measurement;
    measurement.process = file.process;
    measurement.is_by_driver = true;
    measurement.ended = Ended::kAtExit;
    for (const DeviceUse& use : uses_of(file.content, file.process, file.is_watched)) {
      MeasuredDevice device;
      device.index = use.index;
      device.gpu = use.gpu;
      device.capacity_bytes = use.capacity_bytes;
      device.process_peak = use.process_peak;
      device.context_bytes = use.context_bytes;
      // A caller that was refused may have made do with less, or with another way.
      device.failures = use.times_refused;
      if (use.times_refused > 0 && !measurement.failure) {
        measurement.failure.emplace();
        measurement.failure->device = use.index;
        measurement.failure->requested_bytes = use.first_refused_bytes;
      }
      device.allocations = use.times_taken;
      device.requested_in_all = use.taken_in_all;
      measurement.devices.push_back(std::move(device));
    }
    if (file.is_last) add_torchs_figures(folder, measurement);
    measurement.unknown_reads = reads_of(file.content);
    measurement.libraries = text_in(file.content.libraries);
    if (!file.is_watched && !measurement.devices.empty()) all.push_back(std::move(measurement));
  }
  return all;
}

std::vector<MeasuredRead> read_copies_of(const std::string& folder, int process) {
  const std::map<int, std::vector<fs::path>> files = use_files_of(folder);
  const auto of_process = files.find(process);
  if (of_process == files.end()) return {};
  const std::optional<DeviceUseFile> file = read_use_file(of_process->second.back());
  if (!file) return {};
  // The process itself has reported the sizes of libraries.
  DeviceUseFile without_sizes = *file;
  std::memset(without_sizes.library_sizes, 0, sizeof without_sizes.library_sizes);
  return reads_of(without_sizes);
}

std::vector<Refusal> read_refusals(const std::string& folder) {
  const std::string text = file_text(fs::path(folder) / kRefusedFiles);
  std::vector<Refusal> refusals;
  std::set<std::pair<std::string, std::string>> known;
  for (size_t begin = 0;;) {
    const size_t end_of_what = text.find('\0', begin);
    if (end_of_what == std::string::npos) break;
    const size_t end = text.find('\0', end_of_what + 1);
    if (end == std::string::npos) break;
    Refusal refusal = {text.substr(begin, end_of_what - begin),
                       text.substr(end_of_what + 1, end - end_of_what - 1)};
    if (known.emplace(refusal.what, refusal.path).second) refusals.push_back(std::move(refusal));
    begin = end + 1;
  }
  return refusals;
}

}  // namespace memledger::prediction
