#include "virtual_gpu/unwatched_reads.h"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <mutex>
#include <string_view>
#include <unordered_map>

#include "prediction/measure_variables.h"
#include "virtual_gpu/argument_words.h"
#include "virtual_gpu/host_memory.h"
#include "virtual_gpu/machine.h"
#include "virtual_gpu/reads.h"
#include "virtual_gpu/use_file.h"

namespace memledger::virtual_gpu {
namespace {

using prediction::DeviceUseFile;

// Larger copies, such as those of a checkpoint, steer nothing, and take no memory while they are
// zeros.
constexpr size_t kMaxAssumedBytes = size_t{1} << 20;

enum class Way : uint8_t { kZeros, kTruths, kNumbers, kFractions, kMixed };

struct Assumed {
  Way way = Way::kZeros;
  int64_t number = 0;   // std::numeric_limits<int64_t>::max(): the largest of its size
  double fraction = 0;  // may be NaN
};

struct Word {
  const char* word;
  int64_t number;
  double fraction;
};
// Larger than those of a watched process: the driver does not see what finds room in a cache.
constexpr int64_t kLarge = int64_t{1} << 24, kLess = int64_t{1} << 27;
constexpr Word kWords[] = {
    {prediction::kAssumeSmall, 0, 0},
    {prediction::kAssumeOne, 1, 1},
    {prediction::kAssumeLarge, kLarge, static_cast<double>(kLarge)},
    {prediction::kAssumeMillion, kLess, static_cast<double>(kLess)},
    {prediction::kAssumeHuge, std::numeric_limits<int64_t>::max(),
     std::numeric_limits<double>::quiet_NaN()},
};

// Finds the line of kAssumptionsVariable that is about copies.
Assumed find_assumed() {
  const char* const text = secure_getenv(prediction::kAssumptionsVariable);
  std::string_view rest = text == nullptr ? "" : text;
  while (!rest.empty()) {
    const std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(rest.size(), line.size() + 1));
    const size_t tab = line.find('\t');
    if (tab == std::string_view::npos) continue;
    const std::string_view site = line.substr(0, tab), value = line.substr(tab + 1);
    if (site == prediction::kCopiedTruths) return {Way::kTruths};
    if (site == prediction::kCopiedMixed) return {Way::kMixed};
    const bool is_fraction = site == prediction::kCopiedFractions;
    if (!is_fraction && site != prediction::kCopiedNumbers) continue;
    for (const Word& word : kWords) {
      if (value == word.word)
        return {is_fraction ? Way::kFractions : Way::kNumbers, word.number, word.fraction};
    }
  }
  return {};
}

const Assumed& assumed() {
  static const Assumed value = find_assumed();
  return value;
}

template <typename T>
void repeat(T value, void* destination, size_t bytes) {
  auto* at = static_cast<unsigned char*>(destination);
  for (size_t left = bytes; left > 0;) {
    const size_t part = std::min(left, sizeof value);
    std::memcpy(at, &value, part);
    at += part;
    left -= part;
  }
}

template <typename T>
T limited(int64_t number) {
  return static_cast<T>(std::min<int64_t>(number, std::numeric_limits<T>::max()));
}

// As whole numbers of the copy's own size; of a block, as int64_t or what divides it.
void write_numbers(int64_t number, void* destination, size_t bytes) {
  // An int64_t that counts bytes must leave room for sums and products.
  constexpr int64_t kHuge = int64_t{1} << 40;
  if (bytes % 8 == 0) return repeat(std::min(number, kHuge), destination, bytes);
  if (bytes % 4 == 0) return repeat(limited<int32_t>(number), destination, bytes);
  if (bytes % 2 == 0) return repeat(limited<int16_t>(number), destination, bytes);
  repeat(limited<int8_t>(number), destination, bytes);
}

// The 16 bits of a half, which has no larger number than 65504. Only for 0, 1 and what is larger.
uint16_t half_of(double fraction) {
  constexpr uint16_t kOne = 0x3c00, kLargest = 0x7bff, kNan = 0x7e00;
  if (fraction != fraction) return kNan;
  if (fraction <= 0) return 0;
  return fraction == 1 ? kOne : kLargest;
}

// As double, float or half, by the size; a block is of floats where they divide it.
void write_fractions(double fraction, void* destination, size_t bytes) {
  if (bytes == sizeof(double)) return repeat(fraction, destination, bytes);
  if (bytes % sizeof(float) == 0) return repeat(static_cast<float>(fraction), destination, bytes);
  if (bytes % 2 == 0) return repeat(half_of(fraction), destination, bytes);
  std::memset(destination, 0, bytes);
}

// Each copy is another value, so that some conditions hold and others do not.
void write_mixed(void* destination, size_t bytes) {
  static std::atomic<uint64_t> copies{0};
  // Numbers that follow each other by no short period.
  uint64_t turn = copies.fetch_add(1, std::memory_order_relaxed) + 1;
  turn = (turn * 0x9e3779b97f4a7c15) >> 32;
  if (bytes == 1) return repeat<uint8_t>(turn & 1, destination, bytes);
  constexpr std::array<double, 3> kFractions = {0.5, 1, -1};
  switch (turn % 4) {
    case 0:
      return static_cast<void>(std::memset(destination, 0, bytes));
    case 1:
      return write_numbers(static_cast<int64_t>(turn / 4 % 7), destination, bytes);
    case 2:
      return static_cast<void>(std::memset(destination, 0xff, bytes));
    default:
      return write_fractions(kFractions[turn / 4 % kFractions.size()], destination, bytes);
  }
}

bool is_word(size_t bytes) { return bytes == 2 || bytes == 4 || bytes == 8; }

void count_copy(DeviceUseFile& file, size_t bytes) {
  prediction::UnwatchedCopies& copies = file.copies;
  UseFile::add(bytes == 1 ? copies.single_bytes : is_word(bytes) ? copies.words : copies.blocks);
}

// Whether the file that the code is mapped from is LibTorch's.
bool is_of_libtorch(const void* origin) {
  static std::mutex mutex;
  static auto* const known = new std::unordered_map<const void*, bool>;
  {
    const std::lock_guard<std::mutex> lock(mutex);
    if (const auto found = known->find(origin); found != known->end()) return found->second;
  }
  Dl_info info;
  const bool is_mapped = dladdr(origin, &info) != 0 && info.dli_fname != nullptr;
  const char* const name = is_mapped ? std::strrchr(info.dli_fname, '/') : nullptr;
  const bool result = name != nullptr && std::strncmp(name, "/libtorch_cuda", 14) == 0;
  const std::lock_guard<std::mutex> lock(mutex);
  known->emplace(origin, result);
  return result;
}

}  // namespace

void read_unknown(void* destination, size_t bytes) {
  DeviceUseFile* const file = reads_are_observed() ? nullptr : UseFile::current();
  if (file != nullptr && bytes > 0) count_copy(*file, bytes);
  const Assumed& what = assumed();
  if (file == nullptr || bytes > kMaxAssumedBytes || what.way == Way::kZeros)
    return fill_with_zeros(destination, bytes);
  switch (what.way) {
    case Way::kTruths:
      return static_cast<void>(std::memset(destination, is_word(bytes) ? 0 : 1, bytes));
    case Way::kNumbers:
      return write_numbers(what.number, destination, bytes);
    case Way::kFractions:
      return write_fractions(what.fraction, destination, bytes);
    case Way::kMixed:
      return write_mixed(destination, bytes);
    case Way::kZeros:
      break;
  }
}

void note_host_addresses(const memledger_virtual_gpu_work& work, const void* origin) {
  DeviceUseFile* const file = reads_are_observed() ? nullptr : UseFile::current();
  if (file == nullptr || work.kernel == nullptr || !Machine::get().has_host_memory()) return;
  if (origin != nullptr && is_of_libtorch(origin)) return;
  bool has_one = false;
  const bool is_told = for_each_argument_word(
      work, [&](uintptr_t word) { has_one = has_one || Machine::get().is_host_memory(word); });
  if (has_one || !is_told) UseFile::add(file->host_addresses);
}

void note_managed_allocation() {
  DeviceUseFile* const file = reads_are_observed() ? nullptr : UseFile::current();
  if (file != nullptr) UseFile::add(file->managed_allocations);
}

}  // namespace memledger::virtual_gpu
