#pragma once

// What a saved file says, as values: accounts of memory, each with its rows, and figures.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace memledger::compare {

enum class FileKind : uint8_t {
  kRunReport,
  kReport,
  kTimeline,
  kPrediction,
  kFit,
  kLineProfile,
  kSavedTensors,
  kSavedGroups,
};

// A moment of a run that a report of it has.
enum class Moment : uint8_t { kPeak, kStep, kEnd };

// A storage; in a prediction a layer, in a line profile a line. A text is empty if there is none or
// the file does not have it.
struct Row {
  std::string name;
  std::string role;
  std::string layer, op, node, shape, dtype, line;
  int64_t bytes = 0;  // not negative
};

// What some of the rows take together: activations, say.
struct Part {
  std::string name;
  int64_t bytes = 0;
};

// A figure that is no sum of rows, as an interval.
struct Figure {
  std::string name;
  int64_t low = 0, high = 0;
  bool is_bytes = true;
};

// Something other than bytes that may be a reason for a difference.
struct Fact {
  std::string name;
  std::string value;
};

// The memory of one device at one moment, or what takes its place in other files.
struct Account {
  std::optional<int64_t> rank;
  std::string device;            // cuda:0; a function in a line profile
  std::string moment;            // `peak`; also says what the bytes are
  std::optional<int64_t> total;  // empty: not known
  std::vector<Row> rows;
  size_t rows_without_bytes = 0;  // further ones, whose size is not known
  bool has_all_rows = true;       // else there are more, which are too small to be listed
  std::vector<Part> parts;        // none: the roles of the rows say what they are for
  std::vector<Figure> figures;
  std::vector<Fact> facts;
};

struct SavedFile {
  FileKind kind = FileKind::kRunReport;
  std::string name;  // the path
  std::vector<Account> accounts;
  std::vector<Figure> figures;
  std::vector<Fact> facts;
};

// The longest sum of rows that is read: far below what overflows.
constexpr int64_t kMaxBytes = int64_t{1} << 60;

}  // namespace memledger::compare
