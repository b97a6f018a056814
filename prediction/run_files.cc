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

std::vector<DeviceUse> uses_of(const fs::path& path, int process, bool is_watched) {
  std::vector<DeviceUse> uses;
  const std::string content = file_text(path);
  for (int index = 0; index < kMaxDeviceUses; ++index) {
    DeviceUseRow row;
    if (content.size() < (static_cast<size_t>(index) + 1) * sizeof row) break;
    std::memcpy(&row, content.data() + static_cast<size_t>(index) * sizeof row, sizeof row);
    if (row.peak_bytes == 0) continue;
    uses.push_back({process, is_watched, index,
                    std::string(row.gpu, strnlen(row.gpu, sizeof row.gpu)),
                    static_cast<int64_t>(row.capacity_bytes),
                    static_cast<int64_t>(row.context_bytes), static_cast<int64_t>(row.peak_bytes)});
  }
  return uses;
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
  // By process, one for each program that it was, in the order of their times.
  std::map<int, std::vector<std::pair<size_t, fs::path>>> files;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
    const std::optional<int> process = process_of(entry.path());
    if (!process || entry.path().extension() != kDeviceUseExtension) continue;
    const std::string name = entry.path().filename().string();
    files[*process].emplace_back(name.size(), entry.path());
  }
  std::vector<DeviceUse> all;
  for (auto& [process, of_process] : files) {
    std::sort(of_process.begin(), of_process.end());
    const auto has = [&, process = process](const char* extension) {
      return fs::exists(fs::path(folder) / absl::StrCat(process, extension), error);
    };
    // What is measured is the last.
    if (has(".json")) of_process.pop_back();
    const bool is_watched = !has(".json") && has(kWatchedExtension);
    for (const auto& [length, path] : of_process) {
      const bool is_last = path == of_process.back().second;
      const std::vector<DeviceUse> uses = uses_of(path, process, is_watched && is_last);
      all.insert(all.end(), uses.begin(), uses.end());
    }
  }
  return all;
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
