#include "virtual_gpu/unwatched_reads.h"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <string_view>

#include "prediction/measure_variables.h"
#include "virtual_gpu/argument_words.h"
#include "virtual_gpu/host_memory.h"
#include "virtual_gpu/machine.h"
#include "virtual_gpu/reads.h"
#include "virtual_gpu/use_file.h"

namespace memledger::virtual_gpu {
namespace {

using prediction::DeviceUseFile;

// Larger copies, such as those of a checkpoint, take no memory while they are zeros. They are
// counted, and the verdict is open.
constexpr size_t kMaxAssumedBytes = size_t{256} << 20;

// What a copy is taken for, if not for what the run assumes of all: kBase.
enum class Way : uint8_t { kBase, kTruths, kNumbers, kFractions, kMixed };

// How large numbers and fractions are.
enum class Level : uint8_t { kSmall, kOne, kMiddle, kLarge, kLess, kHuge };

struct Assumed {
  Way way = Way::kBase;
  Level level = Level::kSmall;
};

struct Word {
  const char* word;
  Level level;
};
constexpr Word kWords[] = {
    {prediction::kAssumeSmall, Level::kSmall},   {prediction::kAssumeOne, Level::kOne},
    {prediction::kAssumeMiddle, Level::kMiddle}, {prediction::kAssumeLarge, Level::kLarge},
    {prediction::kAssumeMillion, Level::kLess},  {prediction::kAssumeHuge, Level::kHuge},
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
      if (value == word.word) return {is_fraction ? Way::kFractions : Way::kNumbers, word.level};
    }
  }
  return {};
}

const Assumed& assumed() {
  static const Assumed value = find_assumed();
  return value;
}

// Numbers that follow each other by no short period.
uint64_t scattered(uint64_t number) {
  number = (number + 1) * 0x9e3779b97f4a7c15;
  number ^= number >> 29;
  return (number * 0xbf58476d1ce4e5b9) >> 32;
}

// One value of a copy: a program may compare those of a block, and of copies that follow each
// other.
struct Place {
  uint64_t number = 0;  // another for each
  double position = 0;  // from 0 to 1 within the block, or within four copies
};

// Rises from half of it to all of it, or falls.
double between(double most, bool rises, double position) {
  return most / 2 * (rises ? 1 + position : 2 - position);
}

// More than those of a watched process: the driver does not see what finds room in a cache.
constexpr double kLarge = 1 << 24, kLess = 1 << 27;

double number_at(Level level, size_t width, const Place& place) {
  // One of eight bytes that counts bytes must leave room for sums and products.
  const double most = width == 1 ? 255 : width == 2 ? 32767 : width == 4 ? 2147483647.0 : 1e12;
  switch (level) {
    case Level::kSmall:
      return 0;
    case Level::kOne:
      return 1;
    case Level::kMiddle:
      return 2 + static_cast<double>(scattered(place.number) % (width == 1 ? 98 : 3999));
    case Level::kLarge:
      return between(std::min(kLarge, most * 0.75), true, place.position);
    case Level::kLess:
      return between(std::min(kLess, most), true, place.position);
    case Level::kHuge:
      break;
  }
  return between(most, false, place.position);
}

double fraction_at(Level level, const Place& place) {
  switch (level) {
    case Level::kSmall:
      return 0;
    case Level::kOne:
      return 1;
    case Level::kMiddle:
      return 0.05 + static_cast<double>(scattered(place.number) % 1000) / 1111;
    case Level::kLarge:
      return between(kLarge, true, place.position);
    case Level::kLess:
      return between(kLess, true, place.position);
    case Level::kHuge:
      break;
  }
  return std::numeric_limits<double>::quiet_NaN();
}

// Returns the bits of a bfloat16 or a half, as programs use both. A half has no larger number than
// 65504, and none below 6e-5 here.
uint16_t half_of(double fraction, bool is_bfloat) {
  const auto single = static_cast<float>(fraction);
  uint32_t bits = 0;
  std::memcpy(&bits, &single, sizeof bits);
  constexpr uint16_t kLargest = 0x7bff, kNan = 0x7fff;
  if (fraction != fraction) return kNan;
  if (is_bfloat) return static_cast<uint16_t>(bits >> 16);
  if (std::abs(fraction) >= 65504) return kLargest;
  const int exponent = static_cast<int>(bits >> 23 & 0xff) - 127 + 15;
  if (exponent <= 0) return 0;
  return static_cast<uint16_t>((bits >> 16 & 0x8000) | static_cast<uint32_t>(exponent) << 10 |
                               (bits >> 13 & 0x3ff));
}

void put_number(double number, void* at, size_t width) {
  const auto whole = static_cast<int64_t>(number);
  std::memcpy(at, &whole, width);  // the lower bytes
}

void put_fraction(double fraction, void* at, size_t width, const Place& place) {
  if (width == sizeof(double)) {
    std::memcpy(at, &fraction, sizeof fraction);
  } else if (width == sizeof(float)) {
    const auto single = static_cast<float>(fraction);
    std::memcpy(at, &single, sizeof single);
  } else if (width == sizeof(uint16_t)) {
    const uint16_t half = half_of(fraction, place.number % 2 != 0);
    std::memcpy(at, &half, sizeof half);
  } else {
    put_number(fraction, at, width);
  }
}

// Some conditions hold and others do not.
void put_mixed(void* at, size_t width, const Place& place) {
  const uint64_t turn = scattered(place.number);
  if (width == 1) return put_number(static_cast<double>(turn & 1), at, width);
  const auto part = static_cast<double>(turn >> 3 & 7);
  switch (turn % 5) {
    case 0:
      return put_number(0, at, width);
    case 1:
      return put_number(part + 1, at, width);
    case 2:
      return put_number(-1, at, width);
    case 3:
      return put_number(number_at(Level::kMiddle, width, place), at, width);
    default:
      return put_fraction((part - 3.5) / 2, at, width, place);
  }
}

bool are_ones_likely() { return Machine::get().specification().numbers_are_one; }

void put(const Assumed& what, void* at, size_t width, const Place& place) {
  switch (what.way) {
    case Way::kBase:
      return put_number(are_ones_likely() ? 1 : 0, at, width);
    case Way::kTruths:
      return put_number((width == 1) != are_ones_likely() ? 1 : 0, at, width);
    case Way::kNumbers:
      return put_number(number_at(what.level, width, place), at, width);
    case Way::kFractions:
      return put_fraction(fraction_at(what.level, place), at, width, place);
    case Way::kMixed:
      break;
  }
  put_mixed(at, width, place);
}

// The width of a block's values, which is written nowhere: the largest that divides it; of
// fractions floats, and of truths bytes.
size_t width_of(const Assumed& what, size_t bytes) {
  if (bytes == 2 || bytes == 4 || bytes == 8) return bytes;
  if (what.way == Way::kTruths) return 1;
  for (const size_t width : {size_t{8}, size_t{4}, size_t{2}}) {
    const bool is_double = what.way == Way::kFractions && width == sizeof(double);
    if (bytes % width == 0 && !is_double) return width;
  }
  return 1;
}

void assume(const Assumed& what, void* destination, size_t bytes) {
  static std::atomic<uint64_t> copies{0};
  const uint64_t copy = copies.fetch_add(1, std::memory_order_relaxed);
  const size_t width = width_of(what, bytes), count = bytes / width;
  auto* at = static_cast<unsigned char*>(destination);
  for (size_t i = 0; i < count; ++i, at += width) {
    Place place;
    place.number = copy + i * 0x10001;
    place.position = count > 1 ? static_cast<double>(i) / static_cast<double>(count - 1)
                               : static_cast<double>(copy % 4) / 3;
    put(what, at, width, place);
  }
}

bool is_word(size_t bytes) { return bytes == 2 || bytes == 4 || bytes == 8; }

void count_copy(DeviceUseFile& file, size_t bytes) {
  prediction::UnwatchedCopies& copies = file.copies;
  if (bytes > kMaxAssumedBytes) return UseFile::add(copies.too_large);
  UseFile::add(bytes == 1 ? copies.single_bytes : is_word(bytes) ? copies.words : copies.blocks);
}

bool is_in_trusted_file(const void* origin) {
  Dl_info info;
  if (dladdr(origin, &info) == 0 || info.dli_fname == nullptr) return false;
  const char* const slash = std::strrchr(info.dli_fname, '/');
  const std::string_view name = slash == nullptr ? info.dli_fname : slash + 1;
  const auto is_of = [name](std::string_view library) {
    return name.substr(0, library.size()) == library;
  };
  return is_of("libtorch_cuda") || is_of("libcudnn") || is_of("libcublas");
}

// Whether the file that the code is mapped from is a library whose kernels write to no memory of
// the host that a program reads. Remembers the last answers, without a lock, as a process forks.
bool is_trusted(const void* origin) {
  constexpr size_t kAnswers = 4096;
  static std::array<std::atomic<uint64_t>, kAnswers>
      answers{};  // twice the address, and the answer
  const auto key = uint64_t{2} * reinterpret_cast<uintptr_t>(origin);
  std::atomic<uint64_t>& answer = answers[scattered(key) % kAnswers];
  const uint64_t known = answer.load(std::memory_order_relaxed);
  if ((known & ~uint64_t{1}) == key) return (known & 1) != 0;
  const bool result = is_in_trusted_file(origin);
  answer.store(key | (result ? 1 : 0), std::memory_order_relaxed);
  return result;
}

// Whether a kernel got an address of the host's memory, as far as the launch shows.
bool may_write_to_host(const memledger_virtual_gpu_work& work) {
  try {
    bool has_one = false;
    const bool is_told = for_each_argument_word(
        work, [&](uintptr_t word) { has_one = has_one || Machine::get().is_host_memory(word); });
    return has_one || !is_told;
  } catch (...) {
    return true;  // no memory to look
  }
}

}  // namespace

bool read_unknown(void* destination, size_t bytes) {
  DeviceUseFile* const file = reads_are_observed() ? nullptr : UseFile::current();
  if (file != nullptr && bytes > 0) count_copy(*file, bytes);
  const Assumed& what = assumed();
  const bool are_zeros = what.way == Way::kBase && !are_ones_likely();
  if (file == nullptr || bytes > kMaxAssumedBytes || are_zeros) {
    fill_with_zeros(destination, bytes);
    return false;
  }
  assume(what, destination, bytes);
  return what.way != Way::kBase;
}

void note_host_addresses(const memledger_virtual_gpu_work& work, const void* origin) {
  DeviceUseFile* const file = reads_are_observed() ? nullptr : UseFile::current();
  if (file == nullptr || work.kernel == nullptr || !Machine::get().has_host_memory()) return;
  const bool has_arguments = work.arguments != nullptr || work.argument_bytes != nullptr;
  if (!has_arguments || (origin != nullptr && is_trusted(origin))) return;
  if (may_write_to_host(work)) UseFile::add(file->host_addresses);
}

void note_host_address_asked(const void* caller) {
  DeviceUseFile* const file = reads_are_observed() ? nullptr : UseFile::current();
  if (file != nullptr && !is_trusted(caller)) UseFile::add(file->host_addresses);
}

void note_managed_allocation() {
  DeviceUseFile* const file = reads_are_observed() ? nullptr : UseFile::current();
  if (file != nullptr) UseFile::add(file->managed_allocations);
}

}  // namespace memledger::virtual_gpu
