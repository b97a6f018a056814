#include "runner/kept_files.h"

#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <set>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "prediction/measure_variables.h"
#include "text/names.h"
#include "text/output.h"

namespace memledger::runner {
namespace {

namespace fs = std::filesystem;

// One file: its path, and where it is kept.
using Kept = std::pair<std::string, std::string>;

std::vector<Kept> read_journal(const std::string& scratch) {
  std::ifstream file(fs::path(scratch) / prediction::kKeptJournal, std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  const std::vector<std::string> words = absl::StrSplit(text, '\0');
  std::vector<Kept> all;
  for (size_t i = 0; i + 1 < words.size(); i += 2) all.emplace_back(words[i], words[i + 1]);
  return all;
}

bool is_there(const std::string& path) {
  struct stat status = {};
  return lstat(path.c_str(), &status) == 0;
}

bool is_same_file(const std::string& a, const std::string& b) {
  struct stat of_a = {}, of_b = {};
  return lstat(a.c_str(), &of_a) == 0 && lstat(b.c_str(), &of_b) == 0 &&
         of_a.st_ino == of_b.st_ino && of_a.st_dev == of_b.st_dev;
}

// A copy, where the file system has no links: its content goes back, as the file is the same.
std::error_code put_content_back(const Kept& kept) {
  std::error_code error;
  const fs::file_time_type time = fs::last_write_time(kept.second, error);
  fs::copy_file(kept.second, kept.first, fs::copy_options::overwrite_existing, error);
  std::error_code ignored;
  if (!error) fs::last_write_time(kept.first, time, ignored);
  return error;
}

std::error_code put_back(const Kept& kept) {
  std::error_code error;
  fs::create_directories(fs::path(kept.first).parent_path(), error);
  fs::rename(kept.second, kept.first, error);
  return error == std::errc::cross_device_link ? put_content_back(kept) : error;
}

// Whether a path is one of those, or in one of those folders.
bool came_by_rename(const std::string& path, const std::set<std::string>& renamed) {
  for (fs::path outer = path; outer.has_relative_path(); outer = outer.parent_path()) {
    if (renamed.count(outer.string()) != 0) return true;
  }
  return false;
}

// `/home/me/.memledger-XXXXXX`, of where a file is kept; empty: in the scratch folder.
std::string folder_of(const std::string& where, const std::string& scratch) {
  const std::string name = absl::StrCat("/.", fs::path(scratch).filename().string(), "/");
  const size_t begin = where.find(name);
  return begin == std::string::npos ? "" : where.substr(0, begin + name.size() - 1);
}

}  // namespace

KeptFiles::KeptFiles(std::string scratch) : scratch_(std::move(scratch)) {
  std::ofstream(fs::path(scratch_) / prediction::kKeptMarker) << '\n';
}

KeptFiles::~KeptFiles() { restore(); }

void KeptFiles::restore() {
  std::map<std::string, bool> folders;  // whether all of them is back
  std::set<std::string> renamed;
  std::map<std::string, bool> wanted;  // by path: was there before
  for (const Kept& kept : read_journal(scratch_)) {
    if (kept.second.empty()) {
      renamed.insert(kept.first);
      continue;
    }
    const auto [path, is_new] = wanted.try_emplace(kept.first, false);
    if (is_new) path->second = !came_by_rename(kept.first, renamed);
    if (!path->second) continue;
    bool& is_whole = folders.try_emplace(folder_of(kept.second, scratch_), true).first->second;
    if (!is_there(kept.second) || is_same_file(kept.first, kept.second)) continue;
    if (const std::error_code error = put_back(kept)) {
      is_whole = false;
      tell({"memledger: ", printable(kept.first), " was there before and cannot be put back (",
            error.message(), "): it is ", printable(kept.second)});
    } else {
      restored_.insert(kept.first);
    }
  }
  std::error_code ignored;
  for (const auto& [folder, is_whole] : folders) {
    has_lost_ = has_lost_ || !is_whole;
    if (is_whole && !folder.empty()) fs::remove_all(folder, ignored);
  }
  fs::remove(fs::path(scratch_) / prediction::kKeptJournal, ignored);
}

}  // namespace memledger::runner
