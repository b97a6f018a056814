#include "runner/locations.h"

#include <filesystem>
#include <fstream>
#include <system_error>

#include "absl/strings/str_cat.h"

namespace memledger::runner {
namespace {

namespace fs = std::filesystem;

bool exists(const std::string& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

}  // namespace

absl::StatusOr<Locations> find_locations() {
  std::error_code error;
  const fs::path self = fs::read_symlink("/proc/self/exe", error);
  if (error)
    return absl::NotFoundError(
        "cannot read /proc/self/exe, where memledger's libraries are looked for");
  const fs::path root = self.parent_path().parent_path();
  const Locations installed{
      root / "lib/libmemledger.so", root / "lib/memledger/libmemledger_preload.so",
      root / "lib/memledger/libmemledger_measure.so", root / "lib/memledger/virtual_gpu"};
  if (exists(installed.preload_library) && exists(installed.library)) return installed;
  const Locations built{
      root / "runner/inside/libmemledger.so", root / "runner/inside/libmemledger_preload.so",
      root / "runner/inside/libmemledger_measure.so", root / "virtual_gpu/virtual_gpu_libraries"};
  for (const std::string& path : {built.library, built.preload_library, built.measure_library}) {
    if (!exists(path)) {
      return absl::NotFoundError(
          absl::StrCat("found neither ", installed.library, " nor ", path,
                       ": memledger was moved without its libraries; install it again"));
    }
  }
  return built;
}

absl::StatusOr<std::vector<std::string>> virtual_gpu_libraries(const std::string& folder) {
  const std::string list = folder + "/preload.txt";
  std::ifstream in(list);
  if (!in)
    return absl::NotFoundError(
        absl::StrCat("the virtual GPU's libraries are missing: cannot read ", list));
  std::vector<std::string> libraries;
  for (std::string name; std::getline(in, name);) {
    if (!name.empty()) libraries.push_back(folder + "/" + name);
  }
  if (libraries.empty()) {
    return absl::NotFoundError(
        "this memledger was built for a LibTorch without CUDA: it has no virtual GPU");
  }
  return libraries;
}

}  // namespace memledger::runner
