#include "virtual_gpu/cudnn_version.h"

#include <charconv>
#include <system_error>

namespace memledger::virtual_gpu {
namespace {

// What the wheels' METADATA requires, nvidia-cudnn-cu13==9.26.0.51.
struct Release {
  int newest_minor;  // of LibTorch 2
  size_t cudnn;
};
constexpr Release kReleases[] = {{10, 91002}, {11, 91900}, {13, 92000}, {14, 92400}};
constexpr size_t kNewest = 92600;  // LibTorch 2.15

}  // namespace

size_t cudnn_version_of(std::string_view libtorch) {
  int minor = 0;
  if (libtorch.substr(0, 2) != "2.") return kNewest;
  libtorch.remove_prefix(2);
  const char* const end = libtorch.data() + libtorch.size();
  // NOLINTNEXTLINE(bugprone-suspicious-stringview-data-usage): it reads no further than `end`.
  if (std::from_chars(libtorch.data(), end, minor).ec != std::errc()) return kNewest;
  for (const Release& release : kReleases) {
    if (minor <= release.newest_minor) return release.cudnn;
  }
  return kNewest;
}

size_t default_cudnn_version() { return cudnn_version_of(MEMLEDGER_LIBTORCH_RELEASE); }

}  // namespace memledger::virtual_gpu
