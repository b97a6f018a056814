#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

// The grammar of the log: the words that the writer puts and the reader looks for, and the figures
// between them. Changing any of it changes what users parse. Nothing depends on the locale.
//
//   GPU Memory Track | DATE | TOTALS
//
//   SIGN | COUNT * Size:SIZE | Memory: MIB M | ROLE | DTYPE | NAMES
//
//   At FILE line LINE: FUNCTION [LABEL] TOTALS
//     NOTE
//
// with TOTALS being `Total Tensor Used Memory:MIB Mb Total Allocated Memory:MIB Mb`. A block is
// rows and the At line that ends them; notes on missing blocks stand above the rows, those of
// `verbose` below the At line.
namespace memledger::log_text {

// Line beginnings.
constexpr char kHeader[] = "GPU Memory Track | ";
constexpr char kAt[] = "At ";
constexpr char kNote[] = "  ";

constexpr char kTensorTotal[] = "Total Tensor Used Memory:";
constexpr char kAllocatedTotal[] = "Total Allocated Memory:";
constexpr char kTotalUnit[] = "Mb";

constexpr char kColumnEnd[] = " | ";
constexpr char kSize[] = " * Size:";
constexpr char kMemory[] = "Memory: ";
constexpr char kMemoryUnit[] = " M";

// Parts of the notes that stand above their block.
constexpr char kBlocksMissing[] = "blocks are missing here";
constexpr char kNoEarlierInstant[] = "no earlier instant";

constexpr size_t kLocationWidth = 50;
constexpr size_t kTotalWidth = 7;
constexpr size_t kSizeWidth = 20;
constexpr size_t kRoleWidth = 20;

constexpr double kBytesPerMib = 1048576.0;

// Returns the figure of the Memory column: MiB, the shortest decimal with at least one decimal
// place, cut to 6 characters but never inside the integer part; below 0.0001 as 3.815e-06. Python
// prints the same for str(x)[:6], except that it cuts exponents, too.
std::string memory(int64_t bytes);

// Returns MiB as {:<7.1f}; ? where unknown.
std::string total(std::optional<int64_t> bytes);

// Returns TOTALS.
std::string totals(std::optional<int64_t> tensor_bytes, std::optional<int64_t> allocated_bytes);

// Returns MiB as Python prints a float: 0.006591796875, 90.0, 3.814697265625e-06.
std::string exact_mib(int64_t bytes);

// Returns the local time as 30-Apr-21-20:25:29.
std::string date(std::chrono::system_clock::time_point time);

// Appends spaces up to `width` characters of UTF-8.
std::string padded(std::string text, size_t width);

}  // namespace memledger::log_text
