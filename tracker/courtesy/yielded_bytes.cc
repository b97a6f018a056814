#include "tracker/courtesy/yielded_bytes.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <new>
#include <utility>

namespace memledger {
namespace {

constexpr int64_t kSlabBytes = int64_t{64} << 20;
constexpr int64_t kAlignment = 64;

int64_t aligned(int64_t nbytes) { return (nbytes + kAlignment - 1) / kAlignment * kAlignment; }

}  // namespace

YieldedBytes YieldedBytes::in_memory(c10::Allocator* pinned) {
  YieldedBytes bytes;
  bytes.pinned_ = pinned;
  return bytes;
}

absl::StatusOr<YieldedBytes> YieldedBytes::in_file(const std::string& folder) {
  YieldedBytes bytes;
  bytes.folder_ = folder;
  std::string path = folder + "/memledger-yielded-XXXXXX";
  bytes.file_ = mkostemp(path.data(), O_CLOEXEC);
  if (bytes.file_ < 0) {
    return absl::UnavailableError(
        fmt::format("memledger: no file for yielded memory can be made in {}: {}", folder,
                    std::strerror(errno)));
  }
  unlink(path.c_str());
  return bytes;
}

YieldedBytes::YieldedBytes(YieldedBytes&& other) noexcept
    : pinned_(other.pinned_),
      slabs_(std::move(other.slabs_)),
      file_(std::exchange(other.file_, -1)),
      folder_(std::move(other.folder_)),
      file_end_(other.file_end_) {}

YieldedBytes& YieldedBytes::operator=(YieldedBytes&& other) noexcept {
  std::swap(pinned_, other.pinned_);
  std::swap(slabs_, other.slabs_);
  std::swap(file_, other.file_);
  std::swap(folder_, other.folder_);
  std::swap(file_end_, other.file_end_);
  return *this;
}

YieldedBytes::~YieldedBytes() {
  if (file_ >= 0) close(file_);
}

absl::StatusOr<YieldedBytes::Place> YieldedBytes::reserve(int64_t nbytes) {
  const int64_t needed = aligned(nbytes);
  if (is_file()) {
    const Place place{0, file_end_};
    file_end_ += needed;
    return place;
  }
  if (slabs_.empty() || slabs_.back().used + needed > slabs_.back().nbytes) {
    Slab slab;
    slab.nbytes = std::max(kSlabBytes, needed);
    try {
      if (pinned_ != nullptr) {
        slab.pinned = pinned_->allocate(static_cast<size_t>(slab.nbytes));
      } else {
        slab.pageable.reset(new char[static_cast<size_t>(slab.nbytes)]);
      }
      slabs_.push_back(std::move(slab));
    } catch (const std::exception& error) {
      return absl::ResourceExhaustedError(
          fmt::format("memledger: no {} host memory for {} bytes: {}",
                      pinned_ != nullptr ? "pinned" : "pageable", slab.nbytes, error.what()));
    }
  }
  Slab& slab = slabs_.back();
  const Place place{slabs_.size() - 1, slab.used};
  slab.used += needed;
  return place;
}

char* YieldedBytes::memory_at(Place place) { return slabs_[place.slab].begin() + place.offset; }

absl::Status YieldedBytes::write(Place place, const void* data, int64_t nbytes) {
  const char* from = static_cast<const char*>(data);
  for (int64_t done = 0; done < nbytes;) {
    const ssize_t wrote =
        pwrite(file_, from + done, static_cast<size_t>(nbytes - done), place.offset + done);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) {
      return absl::ResourceExhaustedError(
          fmt::format("memledger: cannot write yielded memory to {}: {}", folder_,
                      std::strerror(wrote < 0 ? errno : ENOSPC)));
    }
    done += wrote;
  }
  return absl::OkStatus();
}

absl::Status YieldedBytes::read(Place place, void* data, int64_t nbytes) {
  char* const to = static_cast<char*>(data);
  for (int64_t done = 0; done < nbytes;) {
    const ssize_t got =
        pread(file_, to + done, static_cast<size_t>(nbytes - done), place.offset + done);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) {
      return absl::DataLossError(
          fmt::format("memledger: cannot read yielded memory back from {}: {}", folder_,
                      got < 0 ? std::strerror(errno) : "it is shorter than written"));
    }
    done += got;
  }
  return absl::OkStatus();
}

}  // namespace memledger
