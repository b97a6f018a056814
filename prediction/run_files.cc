#include "prediction/run_files.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <system_error>

#include "absl/strings/str_cat.h"

namespace memledger::prediction {
namespace {

namespace fs = std::filesystem;

constexpr size_t kProgressLength = 128;

std::string content_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return std::string((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
}

Progress progress_of(std::string_view text) {
  Progress progress;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), progress.steps);
  if (error != std::errc()) return {};
  std::string_view label = text.substr(static_cast<size_t>(end - text.data()));
  const size_t first = label.find_first_not_of(' ');
  const size_t last = label.find_last_not_of(" \n");
  if (first <= last && last != std::string_view::npos)
    progress.label = label.substr(first, last - first + 1);
  return progress;
}

}  // namespace

std::string progress_text(const Progress& progress) {
  std::string text = absl::StrCat(progress.steps, " ", progress.label);
  std::replace(text.begin(), text.end(), '\n', ' ');
  text.resize(kProgressLength - 1, ' ');
  return text + "\n";
}

Progress read_progress(const std::string& folder) {
  Progress furthest;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
    if (entry.path().extension() != kProgressExtension) continue;
    const Progress progress = progress_of(content_of(entry.path()));
    if (progress.steps >= furthest.steps) furthest = progress;
  }
  return furthest;
}

WrittenFiles read_written_files(const std::string& folder) {
  const std::string text = content_of(fs::path(folder) / kWrittenFiles);
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

}  // namespace memledger::prediction
