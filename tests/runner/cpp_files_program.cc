// Writes files as C++ programs do: std::filesystem, streams, C's stdio. Prints what it finds.

// NOLINTBEGIN: it does on purpose what clang-tidy warns of.
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <set>
#include <string>

namespace fs = std::filesystem;

namespace {

std::string content_of(const fs::path& path) {
  std::ifstream file(path);
  return std::string((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
}

void print_all(const fs::path& folder) {
  std::set<std::string> lines;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(folder)) {
    std::string line = entry.path().string();
    if (entry.is_regular_file()) line += " " + std::to_string(entry.file_size());
    lines.insert(line);
  }
  for (const std::string& line : lines) std::cout << line << '\n';
}

}  // namespace

int main() {
  // A checkpoint, written next to the old one and renamed over it.
  fs::create_directories("out/deep/er");
  std::cout << "again: " << fs::create_directories("out/deep/er") << '\n';
  std::ofstream("out/model.tmp", std::ios::binary) << "new weights";
  fs::rename("out/model.tmp", "data.bin");
  std::cout << content_of("data.bin") << '\n';

  std::ofstream("log.txt", std::ios::app) << "appended\n";
  std::cout << content_of("log.txt");
  std::fstream both("a.txt", std::ios::in | std::ios::out);
  std::string word;
  both >> word;
  std::cout << "read " << word << '\n';
  both.clear();
  both.seekp(0);
  both << "X";
  both.close();
  std::cout << content_of("a.txt");

  if (FILE* const file = std::fopen("out/c.txt", "w+")) {
    std::fprintf(file, "%d %s\n", 5, "five");
    std::rewind(file);
    int number = 0;
    std::cout << "scanned " << std::fscanf(file, "%d", &number) << ' ' << number << '\n';
    std::fclose(file);
  }
  if (FILE* const file = std::freopen("out/reopened", "w", stderr)) std::fputs("to stderr", file);
  std::fclose(stderr);
  std::cout << content_of("out/reopened") << '\n';
  if (FILE* const file = std::tmpfile()) {
    std::fputs("x", file);
    std::cout << "temporary " << std::ftell(file) << '\n';
    std::fclose(file);
  }
  char name[] = "out/tmpXXXXXX";
  const int temporary = mkstemp(name);
  std::cout << "mkstemp " << (temporary >= 0) << fs::exists(name) << '\n';
  fs::remove(name);

  fs::copy_file("a.txt", "out/copy", fs::copy_options::overwrite_existing);
  fs::copy("d", "out/d", fs::copy_options::recursive);
  fs::create_symlink("copy", "out/link");
  fs::create_hard_link("out/copy", "out/hard");
  std::cout << fs::hard_link_count("out/copy") << fs::read_symlink("out/link") << '\n';
  fs::permissions("out/copy", fs::perms::owner_read | fs::perms::owner_write);
  std::cout << static_cast<unsigned>(fs::status("out/copy").permissions()) << '\n';
  fs::resize_file("out/copy", 2);
  std::cout << fs::file_size("out/hard") << '\n';
  fs::last_write_time("out/hard", fs::file_time_type::min() + std::chrono::hours(1 << 21));
  std::cout << "removed " << fs::remove_all("d/sub") << ' ' << fs::remove("readonly") << ' '
            << fs::exists("d/sub") << '\n';
  fs::create_directory("d/sub");
  std::ofstream("d/sub/anew") << "x";
  fs::rename("d", "e");
  std::error_code error;
  fs::rename("e", "out", error);
  std::cout << "onto one that is not empty: " << error.value() << '\n';
  fs::create_directory("e/empty");
  fs::rename("out/d", "e/empty");
  fs::current_path("out/deep");
  std::cout << fs::current_path().filename() << fs::canonical("../link").filename() << '\n';
  fs::current_path("../..");
  std::cout << fs::equivalent("out/hard", "out/copy") << fs::is_empty("out/deep/er") << '\n';
  print_all(".");
  return 0;
}
// NOLINTEND
