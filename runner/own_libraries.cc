#include "runner/own_libraries.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <string_view>
#include <system_error>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "runner/linker_trace.h"
#include "runner/program_file.h"
#include "runner/program_kind.h"
#include "virtual_gpu/specification.h"

namespace memledger::runner {
namespace {

namespace fs = std::filesystem;

// The driver's own, libcuda and libnvidia-ml, are the virtual GPU's in any case.
bool is_library_of_nvidia(const std::string& name) {
  constexpr const char* kStems[] = {"libcudart",   "libcublas", "libcudnn",     "libcufft",
                                    "libcufile",   "libcupti",  "libcurand",    "libcusolver",
                                    "libcusparse", "libnccl",   "libnvJitLink", "libnvrtc",
                                    "libnvshmem"};
  return std::any_of(std::begin(kStems), std::end(kStems),
                     [&](const char* stem) { return absl::StartsWith(name, stem); });
}

struct Needs {
  int libraries = 0;  // of NVIDIA's
  std::vector<std::string> missing;
  std::string libtorch;  // its folder
};

Needs needs_of(const std::string& path) {
  const std::vector<NeededLibrary> libraries = needed_libraries(trace_linker(path).value_or(""));
  Needs needs;
  needs.libtorch = folder_of_libtorch(libraries);
  for (const NeededLibrary& library : libraries) {
    if (!is_library_of_nvidia(library.name)) continue;
    ++needs.libraries;
    if (library.path.empty()) needs.missing.push_back(library.name);
  }
  return needs;
}

// What a program or library needs. Programs of LibTorch need not be linked with its part for CUDA,
// which memledger loads into them.
Needs needs_with_libtorch(const std::string& path) {
  Needs needs = needs_of(path);
  if (needs.libtorch.empty()) return needs;
  Needs with_cuda = needs_of(needs.libtorch + "/libtorch_cuda.so");
  with_cuda.libraries = std::min(with_cuda.libraries, needs.libraries);
  with_cuda.missing.insert(with_cuda.missing.end(), needs.missing.begin(), needs.missing.end());
  return with_cuda;
}

bool finds_all(const Needs& needs) { return needs.libraries > 0 && needs.missing.empty(); }

std::string name_of(const std::string& path) { return fs::path(path).filename().string(); }

// python, python3, python3.11.
bool is_python(const std::string& path) {
  const std::string name = name_of(path);
  constexpr char kPrefix[] = "python";
  if (!absl::StartsWith(name, kPrefix)) return false;
  return std::all_of(name.begin() + sizeof kPrefix - 1, name.end(),
                     [](char c) { return absl::ascii_isdigit(c) || c == '.'; });
}

// Starts what stands behind its own options.
bool runs_another(const std::string& path) {
  constexpr std::string_view kNames[] = {"env",    "ionice", "nice",    "nohup",   "numactl",
                                         "setsid", "stdbuf", "taskset", "timeout", "time"};
  const std::string name = name_of(path);
  return std::find(std::begin(kNames), std::end(kNames), name) != std::end(kNames);
}

// The program that a script names behind `#!`, or behind env there; empty where it is no script.
std::string interpreter_of(const std::string& path) {
  std::error_code error;
  if (!fs::is_regular_file(path, error)) return "";  // opening a FIFO would wait
  std::ifstream file(path, std::ios::binary);
  char line[256] = "";
  file.read(line, sizeof line - 1);
  std::string text(line, static_cast<size_t>(file.gcount()));
  if (!absl::StartsWith(text, "#!")) return "";
  text = text.substr(2, text.find('\n') - 2);
  const std::vector<std::string> words =
      absl::StrSplit(text, absl::ByAnyChar(" \t"), absl::SkipEmpty());
  if (words.empty() || name_of(words[0]) != "env") return words.empty() ? "" : words[0];
  const auto program = std::find_if(words.begin() + 1, words.end(), [](const std::string& word) {
    return word[0] != '-' && !absl::StrContains(word, "=");
  });
  return program == words.end() ? words[0] : *program;
}

bool can_be_run(const std::string& path) {
  std::error_code error;
  return fs::is_regular_file(path, error) && kind_of_program(path.c_str()) == ProgramKind::kGlibc;
}

// What really runs: the interpreter of a script, or the program that another one starts. Empty
// where it is not known.
std::string what_runs(const std::vector<std::string>& words) {
  constexpr int kMaxScripts = 4;  // as Linux has it
  for (size_t i = 0; i < words.size(); ++i) {
    std::string path = find_program(words[i]);
    for (int scripts = 0; scripts < kMaxScripts; ++scripts) {
      const std::string interpreter = interpreter_of(path);
      if (interpreter.empty()) break;
      path = find_program(interpreter);
    }
    if (!can_be_run(path)) {
      if (i == 0) return "";
      continue;
    }
    if (!runs_another(path)) return path;
  }
  return "";
}

void add_folder(const fs::path& folder, std::vector<fs::path>& folders) {
  std::error_code error;
  if (fs::is_directory(folder, error)) folders.push_back(folder);
}

// Where a Python of this prefix has packages: lib/python3.11/site-packages and the like.
void add_packages(const fs::path& prefix, std::vector<fs::path>& folders) {
  std::error_code error;
  for (const char* const library : {"lib", "lib64"}) {
    for (const fs::directory_entry& entry : fs::directory_iterator(prefix / library, error)) {
      if (!absl::StartsWith(entry.path().filename().string(), "python3")) continue;
      add_folder(entry.path() / "site-packages", folders);
      add_folder(entry.path() / "dist-packages", folders);
    }
  }
}

// The folders that files *.pth of a folder of packages name.
void add_paths_of_files(const fs::path& packages, std::vector<fs::path>& folders) {
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(packages, error)) {
    if (entry.path().extension() != ".pth") continue;
    std::ifstream file(entry.path());
    for (std::string line; std::getline(file, line);) {
      if (!line.empty() && line[0] != '#' && !absl::StartsWith(line, "import"))
        add_folder(packages / line, folders);
    }
  }
}

// What a virtual environment's file says of a key; empty where there is no such file.
std::string configured(const fs::path& prefix, const std::string& key) {
  std::ifstream file(prefix / "pyvenv.cfg");
  for (std::string line; std::getline(file, line);) {
    const std::vector<std::string> sides = absl::StrSplit(line, absl::MaxSplits('=', 1));
    if (sides.size() == 2 && std::string(absl::StripAsciiWhitespace(sides[0])) == key)
      return std::string(absl::StripAsciiWhitespace(sides[1]));
  }
  return "";
}

// In the order in which Python searches them.
std::vector<fs::path> folders_of_packages(const std::string& python) {
  std::vector<fs::path> folders;
  if (const char* const path = std::getenv("PYTHONPATH")) {
    for (const std::string& folder :
         std::vector<std::string>(absl::StrSplit(path, ':', absl::SkipEmpty())))
      add_folder(folder, folders);
  }
  const fs::path prefix = fs::path(python).parent_path().parent_path();
  std::error_code error;
  const std::string home = configured(prefix, "home");
  const bool is_alone =
      !home.empty() && configured(prefix, "include-system-site-packages") != "true";
  std::vector<fs::path> packages;
  add_packages(prefix, packages);
  if (!is_alone) {
    if (const char* const of_user = std::getenv("HOME"))
      add_packages(fs::path(of_user) / ".local", packages);
    const fs::path base = fs::canonical(python, error).parent_path().parent_path();
    if (!error && base != prefix) add_packages(base, packages);
    if (base == "/usr") add_packages("/usr/local", packages);
  }
  for (const fs::path& folder : packages) {
    folders.push_back(folder);
    add_paths_of_files(folder, folders);
  }
  return folders;
}

bool has_cublas(const fs::path& folder) {
  std::error_code error;
  const fs::directory_iterator files(folder, error);
  return std::any_of(begin(files), end(files), [](const fs::directory_entry& file) {
    return absl::StartsWith(file.path().filename().string(), "libcublas.so");
  });
}

// Whether packages without torch, such as CuPy or JAX, find cuBLAS in wheels.
bool has_wheels(const fs::path& nvidia) {
  std::error_code error;
  const fs::directory_iterator packages(nvidia, error);
  return std::any_of(begin(packages), end(packages), [](const fs::directory_entry& package) {
    return has_cublas(package.path() / "lib");
  });
}

// Whether they find it in the CUDA Toolkit that the user names.
bool has_toolkit() {
  const char* const path = std::getenv("LD_LIBRARY_PATH");
  const std::vector<std::string> folders =
      absl::StrSplit(path == nullptr ? "" : path, ':', absl::SkipEmpty());
  return std::any_of(folders.begin(), folders.end(),
                     [](const std::string& folder) { return has_cublas(folder); });
}

// What the torch that an interpreter would import needs; nothing without torch.
std::optional<Needs> needs_of_torch(const std::vector<fs::path>& folders) {
  std::error_code error;
  for (const fs::path& folder : folders) {
    if (fs::is_directory(folder / "torch", error))
      return needs_of((folder / "torch/lib/libtorch_cuda.so").string());
  }
  return std::nullopt;
}

bool python_finds_its_libraries(const std::string& python) {
  const std::vector<fs::path> folders = folders_of_packages(python);
  if (const auto needs = needs_of_torch(folders)) return finds_all(*needs);
  return has_toolkit() || std::any_of(folders.begin(), folders.end(), [](const fs::path& folder) {
           return has_wheels(folder / "nvidia");
         });
}

// torchrun starts it instead of a Python program.
std::vector<std::string> behind_no_python(const std::vector<std::string>& program) {
  const auto option = std::find_if(program.begin(), program.end(), [](const std::string& word) {
    return word == "--no-python" || word == "--no_python";
  });
  if (option == program.end()) return program;
  std::vector<std::string> rest(std::next(option), program.end());
  rest.insert(rest.begin(), "env");  // options may stand before the program
  return rest;
}

// The program that these words start; empty where that is not known.
std::string program_of(const std::vector<std::string>& words) {
  const std::string path = what_runs(behind_no_python(words));
  return path.empty() || gains_privileges(path) ? "" : path;
}

}  // namespace

std::string with_library_choice(std::string specification,
                                const std::vector<std::string>& program) {
  const auto parsed = virtual_gpu::parse_specification(specification).specification;
  if (!parsed || parsed->libraries != virtual_gpu::LibraryChoice::kAsFound) return specification;
  const std::string path = program_of(program);
  bool are_real = false;
  if (!path.empty())
    are_real =
        is_python(path) ? python_finds_its_libraries(path) : finds_all(needs_with_libtorch(path));
  return absl::StrCat(specification, are_real ? ",libraries=real" : ",libraries=stand-ins");
}

std::vector<std::string> missing_libraries(const std::vector<std::string>& program) {
  const std::string path = program_of(program);
  if (path.empty()) return {};
  if (!is_python(path)) return needs_with_libtorch(path).missing;
  return needs_of_torch(folders_of_packages(path)).value_or(Needs{}).missing;
}

}  // namespace memledger::runner
