#include "virtual_gpu/real_libraries.h"

#include <dlfcn.h>
#include <link.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace {

// The three numbers of a release; 0 of all where a library does not say it.
struct Release {
  int major = 0, minor = 0, patch = 0;
};

template <typename F>
F* function_of(void* library, const char* name) {
  return reinterpret_cast<F*>(dlsym(library, name));
}

// Most have such a function: 0, 1 and 2 ask for the three numbers.
Release from_properties(void* library, const char* name) {
  Release release;
  const auto ask = function_of<int(int, int*)>(library, name);
  if (ask == nullptr) return {};
  int* const numbers[] = {&release.major, &release.minor, &release.patch};
  for (int i = 0; i < 3; ++i) {
    if (ask(i, numbers[i]) != 0) return {};
  }
  return release;
}

Release of_runtime(void* library, const char* name) {
  int version = 0;
  const auto ask = function_of<int(int*)>(library, name);
  if (ask == nullptr || ask(&version) != 0) return {};
  return {version / 1000, version % 1000 / 10, version % 10};
}

Release of_cudnn(void* library, const char* name) {
  constexpr size_t kFirstWithFiveDigits = 90000;
  const auto ask = function_of<size_t()>(library, name);
  if (ask == nullptr) return {};
  const size_t version = ask();
  const size_t major = version >= kFirstWithFiveDigits ? 10000 : 1000;
  return {static_cast<int>(version / major), static_cast<int>(version % major / 100),
          static_cast<int>(version % 100)};
}

Release of_nccl(void* library, const char* name) {
  int version = 0;
  const auto ask = function_of<int(int*)>(library, name);
  if (ask == nullptr || ask(&version) != 0) return {};
  return {version / 10000, version % 10000 / 100, version % 100};
}

Release of_nvrtc(void* library, const char* name) {
  Release release;
  const auto ask = function_of<int(int*, int*)>(library, name);
  if (ask != nullptr) ask(&release.major, &release.minor);
  return release;
}

struct Library {
  std::string_view stem;  // of its file
  const char* name;
  Release (*release)(void* library, const char* function);
  const char* function;
  // Other files of it, one of which is there once the program uses it; empty: that is not looked
  // at.
  std::array<std::string_view, 2> used = {};
};

constexpr Library kLibraries[] = {
    {"libcudart", "CUDA runtime", of_runtime, "cudaRuntimeGetVersion"},
    {"libcublas", "cuBLAS", from_properties, "cublasGetProperty"},
    {"libcudnn",
     "cuDNN",
     of_cudnn,
     "cudnnGetVersion",
     {"libcudnn_engines_precompiled", "libcudnn_cnn_infer"}},
    {"libcufft", "cuFFT", from_properties, "cufftGetProperty"},
    {"libcurand", "cuRAND", from_properties, "curandGetProperty"},
    {"libcusolver", "cuSOLVER", from_properties, "cusolverGetProperty"},
    {"libcusparse", "cuSPARSE", from_properties, "cusparseGetProperty"},
    {"libcusparseLt", "cuSPARSELt", nullptr, nullptr},
    {"libnccl", "NCCL", of_nccl, "ncclGetVersion"},
    {"libnvrtc", "NVRTC", of_nvrtc, "nvrtcVersion"},
};

// Libraries that nobody asks for a release, in the words of kLibraries.
constexpr std::array<std::pair<std::string_view, const char*>, 2> kOthers = {
    {{"libcufile", "cuFile"}, {"libnvshmem_host", "NVSHMEM"}}};

// The folder below ours of what stands for a library that was not found.
constexpr std::string_view kAbsent = "/absent";

std::string_view folder_of(std::string_view path) { return path.substr(0, path.rfind('/')); }
std::string_view file_of(std::string_view path) { return path.substr(path.rfind('/') + 1); }

std::string our_folder() {
  Dl_info info{};
  const bool is_known =
      dladdr(reinterpret_cast<void*>(&memledger_virtual_gpu_real_libraries), &info) != 0;
  return is_known && info.dli_fname ? std::string(folder_of(info.dli_fname)) : "";
}

int note_path(dl_phdr_info* info, size_t, void* paths) {
  if (info->dlpi_name != nullptr && *info->dlpi_name != '\0')
    static_cast<std::vector<std::string>*>(paths)->emplace_back(info->dlpi_name);
  return 0;
}

// Wheels have libcudart.so.13, and libcudart-8774224f.so.12.
bool is_file_of(std::string_view file, std::string_view stem) {
  if (file.substr(0, stem.size()) != stem || file.size() == stem.size()) return false;
  const char next = file[stem.size()];
  return next == '.' || next == '-';
}

const char* name_of_file(std::string_view file) {
  for (const Library& library : kLibraries) {
    if (is_file_of(file, library.stem)) return library.name;
  }
  for (const auto& [stem, name] : kOthers) {
    if (is_file_of(file, stem)) return name;
  }
  return nullptr;
}

std::string text_of(const Library& library, const std::string& path) {
  std::string text = library.name;
  if (library.release == nullptr) return text;
  void* const handle = dlopen(path.c_str(), RTLD_LAZY | RTLD_NOLOAD);
  if (handle == nullptr) return text;
  const Release release = library.release(handle, library.function);
  dlclose(handle);
  if (release.major == 0) return text;
  return text + " " + std::to_string(release.major) + "." + std::to_string(release.minor) + "." +
         std::to_string(release.patch);
}

}  // namespace

void memledger_virtual_gpu_real_libraries(char* text, size_t room) {
  if (room == 0) return;
  std::string all;
  const std::string ours = our_folder(), absent = ours + std::string(kAbsent);
  std::vector<std::string> paths;
  dl_iterate_phdr(&note_path, &paths);
  const auto find = [&](std::string_view stem) {
    return std::find_if(paths.begin(), paths.end(), [&](const std::string& path) {
      return is_file_of(file_of(path), stem) && folder_of(path) != ours &&
             folder_of(path) != absent;
    });
  };
  for (const Library& library : kLibraries) {
    const auto path = find(library.stem);
    const auto is_there = [&](std::string_view stem) { return find(stem) != paths.end(); };
    const bool is_used =
        library.used[0].empty() || std::any_of(library.used.begin(), library.used.end(), is_there);
    if (path == paths.end() || !is_used) continue;
    all += (all.empty() ? "" : ", ") + text_of(library, *path);
  }
  const char* before = "; not found: ";
  for (const std::string& path : paths) {
    const char* const name = name_of_file(file_of(path));
    if (folder_of(path) != absent || name == nullptr) continue;
    all += std::exchange(before, ", ") + std::string(name);
  }
  text[all.copy(text, room - 1)] = '\0';
}
