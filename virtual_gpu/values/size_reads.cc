// Compiled with NDEBUG whatever the build mode: see SEES_LIBTORCH_INLINES_COPTS.
#include "virtual_gpu/values/size_reads.h"

#include <ATen/Functions.h>
#include <ATen/core/function_schema.h>
#include <ATen/record_function.h>
#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>
#include <utility>

#include "prediction/measure_variables.h"
#include "registry/core/fork_safe_mutex.h"
#include "runner/environment.h"
#include "text/output.h"
#include "virtual_gpu/reads.h"
#include "virtual_gpu/values/assumptions.h"
#include "virtual_gpu/values/likely.h"
#include "virtual_gpu/values/operators.h"
#include "virtual_gpu/values/program_line.h"
#include "virtual_gpu/values/reach.h"
#include "virtual_gpu/values/read_list_text.h"
#include "virtual_gpu/values/read_rules.h"
#include "virtual_gpu/values/shadows.h"
#include "virtual_gpu/values/values.h"
#include "virtual_gpu/values/zero_reads.h"

namespace memledger::virtual_gpu {
namespace {

// The operators that a thread runs, one inside another, and what those with a rule read.
//
// Trivial, so that it can be used in thread-local destructors.
struct RunningOps {
  static constexpr uint32_t kMostNames = 64;
  static constexpr uint32_t kMostPlans = 8;
  static constexpr uint32_t kMostLikely = 8;
  struct Planned {
    uint32_t depth;  // of its operator
    ReadPlan plan;
    uint64_t before_cap;  // its size, where that is capped; else 0
  };
  struct LikelyResult {
    uint32_t depth;
    Likely likely;
  };
  uint32_t depth = 0;
  uint32_t plans = 0;
  uint32_t likely_results = 0;
  bool is_asking = false;
  // The row of the last assumed read within the outermost operator, plus 1.
  uint32_t row = 0;
  // The innermost operator that reads whole tensors, where it is, and what the tensor's type is.
  uint32_t reader_depth = 0;
  c10::ScalarType read_type = c10::ScalarType::Undefined;
  bool read_is_noted = false;
  Likely read_likely;
  std::array<const char*, kMostNames> names{};
  std::array<Planned, kMostPlans> planned{};
  std::array<LikelyResult, kMostLikely> likely{};

  const char* outermost() const { return names[0]; }
  bool is_running(const char* name) const {
    const uint32_t known = std::min(depth, kMostNames);
    return std::any_of(names.begin(), names.begin() + known,
                       [&](const char* running) { return std::strcmp(running, name) == 0; });
  }
};

thread_local RunningOps running_ops;

// What is smaller is not varied: the list of experts that were chosen.
constexpr uint64_t kLeastVaried = 64;

struct Row {
  std::string op;
  ReadKind kind;
  uint64_t count = 0;
  uint64_t dependent_bytes = 0;
  ProgramLine where;
  std::string site = {};
  double assumed = 0;
  uint64_t before_cap = 0;
  uint64_t last_read = 0;
};

struct Rows {
  ForkSafeMutex mutex;
  std::vector<Row> rows;
  uint64_t reads = 0;
  pid_t process = 0;
  bool is_quiet = false;
  bool has_short_report = false;  // of the run

  // With the lock held.
  void count(Row& row) {
    ++row.count;
    row.last_read = ++reads;
  }
};

// Never destroyed: operators may run until the end.
Rows& rows() {
  static auto* const rows = new Rows;
  return *rows;
}

using Ask = uint32_t (*)();
Ask ask_millionths = nullptr;
Ask ask_number = nullptr;
decltype(&memledger_virtual_gpu_is_as_sent) ask_if_sent = nullptr;

uint32_t millionths() {
  // When the first operator needs it: the device is there by then.
  static const uint32_t known = ask_millionths();
  return known;
}

bool numbers_are_one() {
  static const bool are_one = ask_number != nullptr && ask_number() != 0;
  return are_one;
}

// Asking for values runs operators of its own.
class Asking {
 public:
  explicit Asking(RunningOps& ops) : ops_(ops), before_(std::exchange(ops.is_asking, true)) {}
  ~Asking() { ops_.is_asking = before_; }
  Asking(const Asking&) = delete;
  Asking& operator=(const Asking&) = delete;

 private:
  RunningOps& ops_;
  const bool before_;
};

// SplitMix64.
uint64_t mixed(uint64_t number) {
  uint64_t z = number * 0x9e3779b97f4a7c15;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
  z = (z ^ z >> 27) * 0x94d049bb133111eb;
  return z ^ z >> 31;
}

// What was assumed of a tensor holds as long as it is not written to. Keeps nothing alive.
struct AssumedOfTensor {
  c10::weak_intrusive_ptr<c10::StorageImpl> owner{c10::intrusive_ptr<c10::StorageImpl>()};
  // Another one of each tensor: where sizes go up and down, LibTorch's cache falls into more pieces
  // than with the largest ones alone.
  uint32_t millionths = 0;
  uint64_t last_count = 0;  // see ReadContext
};

class AssumedOfTensors {
 public:
  // Never destroyed, as rows().
  static AssumedOfTensors& get() {
    static auto* const all = new AssumedOfTensors;
    return *all;
  }

  // Returns the share and the last count. Shares are the same in each run; more than nothing, as
  // programs fail that find nothing.
  std::pair<uint32_t, uint64_t> find(const at::Tensor& tensor) { return look_up(tensor, {}); }
  void set_last_count(const at::Tensor& tensor, uint64_t count) { look_up(tensor, count); }

 private:
  // While there is a weak reference to a storage, no other gets its address.
  using Key = std::tuple<c10::StorageImpl*, int64_t, int64_t, uint32_t>;

  std::pair<uint32_t, uint64_t> look_up(const at::Tensor& tensor, std::optional<uint64_t> count) {
    c10::StorageImpl* const storage = tensor.storage().unsafeGetStorageImpl();
    const uint32_t version =
        tensor.is_inference() ? 0
                              : tensor.unsafeGetTensorImpl()->version_counter().current_version();
    std::vector<AssumedOfTensor> ended;  // end without the lock
    const std::lock_guard<ForkSafeMutex> lock(mutex_);
    if (all_.size() >= sweep_at_) sweep(ended);
    const auto [found, is_new] =
        all_.try_emplace({storage, tensor.storage_offset(), tensor.numel(), version});
    AssumedOfTensor& assumed = found->second;
    if (is_new) {
      c10::raw::weak_intrusive_ptr::incref(storage);
      assumed.owner = c10::weak_intrusive_ptr<c10::StorageImpl>::reclaim(storage);
      assumed.millionths = 1 + static_cast<uint32_t>(mixed(++count_) % 1'000'000);
    }
    if (count) assumed.last_count = *count;
    return {assumed.millionths, assumed.last_count};
  }

  void sweep(std::vector<AssumedOfTensor>& ended) {
    for (auto one = all_.begin(); one != all_.end();) {
      if (!one->second.owner.expired()) {
        ++one;
        continue;
      }
      ended.push_back(std::move(one->second));
      one = all_.erase(one);
    }
    sweep_at_ = std::max(sweep_at_, 2 * all_.size());
  }

  ForkSafeMutex mutex_;
  std::map<Key, AssumedOfTensor> all_;
  uint64_t count_ = 0;
  size_t sweep_at_ = 1024;
};

// The tensor that an operator with a rule looks into; nullptr where it is none with memory.
const at::Tensor* subject_of(const at::RecordFunction& fn) {
  if (fn.inputs().empty() || !fn.inputs()[0].isTensor()) return nullptr;
  const at::Tensor& tensor = fn.inputs()[0].toTensor();
  return tensor.defined() && tensor.has_storage() ? &tensor : nullptr;
}

std::optional<at::Tensor> known_on_cpu(const at::Tensor& tensor) { return known_values(tensor); }
uint64_t distinct_on_device(const at::Tensor& tensor) { return max_distinct_values(tensor); }

bool is_on(const char* value) {
  return value != nullptr && *value != '\0' && std::strcmp(value, "0") != 0;
}

bool is_size(const ReadRow& row) {
  return row.kind == ReadKind::kAssumedSize || row.kind == ReadKind::kUnboundedSize;
}

void print_at_exit() {
  if (getpid() != rows().process) return;
  try {
    std::vector<ReadRow> reads = unknown_reads();
    // That values were read stands in the report of the run.
    if (rows().has_short_report)
      reads.erase(std::stable_partition(reads.begin(), reads.end(), &is_size), reads.end());
    const std::string text = read_list_text(reads, millionths());
    if (!text.empty()) write_standard_error(text);
  } catch (...) {  // no memory for the list
  }
}

// Adds a row, if there is none like it, and counts. Returns its number.
size_t count_in_row(const Row& wanted) {
  Rows& all = rows();
  const std::lock_guard<ForkSafeMutex> lock(all.mutex);
  if (all.rows.empty()) {
    all.process = getpid();
    // Now, so that it runs before the end of LibTorch's libraries.
    if (!all.is_quiet) std::atexit(&print_at_exit);
  }
  auto row = std::find_if(all.rows.begin(), all.rows.end(), [&](const Row& other) {
    return other.kind == wanted.kind && other.site == wanted.site && other.op == wanted.op;
  });
  if (row == all.rows.end()) row = all.rows.insert(row, wanted);
  all.count(*row);
  return static_cast<size_t>(row - all.rows.begin());
}

// Returns the row's number plus 1.
uint32_t note(const std::string& op, ReadKind kind) {
  Rows& all = rows();
  {
    const std::lock_guard<ForkSafeMutex> lock(all.mutex);
    const auto row = std::find_if(all.rows.begin(), all.rows.end(), [&](const Row& other) {
      return other.kind == kind && other.op == op && other.site.empty();
    });
    if (row != all.rows.end()) {
      all.count(*row);
      return static_cast<uint32_t>(row - all.rows.begin()) + 1;
    }
  }
  return static_cast<uint32_t>(count_in_row({op, kind, 0, 0, take_program_line()})) + 1;
}

// How often a site was read so far.
uint64_t reads_of(const std::string& site) {
  Rows& all = rows();
  const std::lock_guard<ForkSafeMutex> lock(all.mutex);
  const auto row = std::find_if(all.rows.begin(), all.rows.end(),
                                [&](const Row& other) { return other.site == site; });
  return row == all.rows.end() ? 0 : row->count;
}

// Looks for loops that sizes drive, in programs that can be run again with a cap.
class LoopWatch {
 public:
  // Never destroyed, as rows().
  static LoopWatch& get() {
    static auto* const watch = new LoopWatch;
    return *watch;
  }

  // Whether a read with this value can matter. Finding its line takes some microseconds.
  bool wants(uint64_t value) const {
    return is_on_ && (value > kMinLoop || has_driver_.load(std::memory_order_relaxed));
  }
  void note(const SiteRead& read, const ProgramLine& line) {
    std::optional<SizeLoop> loop;
    {
      const std::lock_guard<ForkSafeMutex> lock(mutex_);
      loop = loops_.note(read, SizeLoops::Clock::now());
      has_driver_ = loops_.has_driver();
    }
    if (!loop) return;
    loop->place = to_string(line);
    const std::lock_guard<ForkSafeMutex> lock(mutex_);
    if (!found_) found_ = loop;
    has_found_.store(true, std::memory_order_release);
  }
  std::optional<SizeLoop> found() {
    if (!has_found_.load(std::memory_order_acquire)) return {};
    const std::lock_guard<ForkSafeMutex> lock(mutex_);
    return found_;
  }
  void forget() {
    if (!has_driver_.load(std::memory_order_relaxed)) return;
    const std::lock_guard<ForkSafeMutex> lock(mutex_);
    loops_.forget();
    has_driver_ = false;
  }

 private:
  const bool is_on_ = secure_getenv(prediction::kMeasureVariable) != nullptr;
  std::atomic<bool> has_driver_{false}, has_found_{false};
  ForkSafeMutex mutex_;
  SizeLoops loops_;
  std::optional<SizeLoop> found_;
};

void write_parts(void* destination, const ReadPlan::Read& read) {
  auto* at = static_cast<unsigned char*>(destination);
  uint64_t rest = read.value;
  const uint32_t parts = read.bytes / read.part_bytes;
  for (uint32_t i = 0; i < parts; ++i, at += read.part_bytes) {
    // The last takes what is left.
    const uint64_t part = i + 1 == parts ? rest : std::min(rest, uint64_t{1} << 30);
    std::memcpy(at, &part, read.part_bytes);  // little-endian, as CUDA's hosts are
    rest -= part;
  }
}

std::string label(const char* inner, const char* outer) {
  return std::strcmp(inner, outer) == 0 ? std::string(inner) : std::string(inner) + " in " + outer;
}

// The argument that an operator reads to the host as it is, in its own type; -1 for nearly all.
int argument_read(std::string_view op) {
  if (op == "aten::_local_scalar_dense") return 0;
  return op == "aten::copy_" ? 1 : -1;
}

bool is_running_one_of(const RunningOps& ops, std::initializer_list<const char*> names) {
  return std::any_of(names.begin(), names.end(),
                     [&](const char* name) { return ops.is_running(name); });
}

// A check of LibTorch's own that passes with zero, and throws else.
bool is_check(const RunningOps& ops) {
  return is_running_one_of(ops, {"aten::_assert_async", "aten::_linalg_check_errors"});
}

// A truth that the program or the operator around asked for.
bool is_asked_for_truth(const RunningOps& ops) {
  return is_running_one_of(ops, {"aten::is_nonzero", "aten::equal", "aten::allclose"});
}

// What Gloo reads to send it steers nothing here.
bool is_sent(const char* op) { return op != nullptr && std::strncmp(op, "c10d::", 6) == 0; }

// A copy to the host whose content is not known, or not all.
struct UnknownCopy {
  void* destination;
  uintptr_t source;
  size_t bytes;
  // Where no operator shows what is copied, it is taken for whole numbers.
  c10::ScalarType type;
  size_t item;
  std::optional<Likely> likely;
  bool is_truth;

  bool is_alone() const { return bytes == item; }
  // Some of its elements may be true. Checks that find nothing are no choice of elements.
  bool is_mask() const {
    return type == c10::ScalarType::Bool && !is_alone() && !(likely && likely->is_sure);
  }
};

UnknownCopy describe(void* destination, const void* source, const RunningOps& ops, size_t bytes) {
  UnknownCopy copy{destination, reinterpret_cast<uintptr_t>(source), bytes, at::kLong, 0, {},
                   false};
  const bool has_type = ops.depth > 0 && ops.reader_depth == ops.depth;
  if (has_type) {
    copy.type = ops.read_type;
    if (ops.read_is_noted) copy.likely = ops.read_likely;
  } else {
    copy.type = bytes % sizeof(int64_t) == 0   ? at::kLong
                : bytes % sizeof(int32_t) == 0 ? at::kInt
                                               : at::kChar;
  }
  copy.item = c10::elementSize(copy.type);
  const bool is_sure = copy.likely && copy.likely->is_sure &&
                       (copy.type == at::kBool || copy.is_alone()) &&
                       (copy.likely->value == 0 || copy.likely->value == 1);
  copy.is_truth = is_asked_for_truth(ops) || is_sure || (copy.type == at::kBool && copy.is_alone());
  return copy;
}

void repeat(const std::vector<unsigned char>& element, unsigned char* to, size_t bytes) {
  size_t done = std::min(element.size(), bytes);
  std::memcpy(to, element.data(), done);
  while (done < bytes) {
    const size_t more = std::min(done, bytes - done);
    std::memcpy(to + done, to, more);
    done += more;
  }
}

bool are_zeros(const unsigned char* bytes, size_t count) {
  return count == 0 || (bytes[0] == 0 && std::memcmp(bytes, bytes + 1, count - 1) == 0);
}

// Puts the element wherever the copy has zeros, but for those that are known.
void fill(const UnknownCopy& copy, const std::vector<unsigned char>& element, size_t elements) {
  auto* const bytes = static_cast<unsigned char*>(copy.destination);
  const size_t item = element.size();
  elements = std::min(elements, copy.bytes / item);
  if (are_zeros(element.data(), item) || elements == 0) return;
  if (are_zeros(bytes, copy.bytes)) {
    repeat(element, bytes, elements * item);
  } else {
    for (size_t i = 0; i < elements; ++i) {
      if (are_zeros(bytes + i * item, item)) std::memcpy(bytes + i * item, element.data(), item);
    }
  }
  // Zeros that are known are zeros.
  Shadows::get().read(copy.destination, copy.source, copy.bytes);
}

// Elements of a mask that the host takes are sizes, too: the number of true ones.
void fill_mask(const UnknownCopy& copy, const std::string& op) {
  uint32_t share = millionths();
  static std::atomic<uint64_t> masks{0};
  if (share == kVariedMillionths) share = 1 + static_cast<uint32_t>(mixed(++masks) % 1'000'000);
  fill(copy, {1}, assumed_size(copy.bytes, share, kLeastVaried));
  note(op, ReadKind::kAssumedSize);
}

ReadKind kind_of(const UnknownCopy& copy) {
  if (copy.is_truth) return ReadKind::kScalar;
  return c10::isIntegralType(copy.type, /*includeBool=*/true) ? ReadKind::kNumber
                                                              : ReadKind::kFraction;
}

const char* name_of(ReadKind kind) {
  return kind == ReadKind::kScalar ? "truth" : kind == ReadKind::kNumber ? "number" : "fraction";
}

// The user's own word for a line; nothing for most.
std::optional<double> said_of(const ProgramLine& line) {
  const Assumptions& assumptions = Assumptions::get();
  return assumptions.has_lines() ? assumptions.at(to_string(line)) : std::nullopt;
}

// What this run assumes of it.
double assumed_value(const UnknownCopy& copy, const std::string& site, double likely) {
  const Assumed assumed = Assumptions::get().of(site, copy.is_truth);
  if (!copy.is_truth) {
    const bool is_one = numbers_are_one() && kind_of(copy) == ReadKind::kNumber;
    return is_one ? 1 : assumed_number(assumed, copy.type, copy.is_alone(), likely, reads_of(site));
  }
  const bool is_other = assumed == Assumed::kOther && is_other_truth(reads_of(site));
  return is_other ? (likely == 0 ? 1 : 0) : likely;
}

// What is likely to be there: what a collective left, or `keep=`, else what the type says.
double likely_content(const UnknownCopy& copy) {
  const auto* const bytes = static_cast<const unsigned char*>(copy.destination);
  if (copy.source != 0 && copy.is_alone() && !are_zeros(bytes, copy.bytes)) {
    const at::Tensor content = at::empty({1}, at::TensorOptions(at::kCPU).dtype(copy.type));
    std::memcpy(content.mutable_data_ptr(), bytes, copy.bytes);
    return content.to(at::kDouble).item<double>();
  }
  return copy.likely ? copy.likely->value : likely_of_type(copy.type);
}

// Puts the element wherever it is not known what is there.
void overwrite(const UnknownCopy& copy, const std::vector<unsigned char>& element) {
  repeat(element, static_cast<unsigned char*>(copy.destination), copy.bytes);
  if (copy.source != 0) Shadows::get().read(copy.destination, copy.source, copy.bytes);
}

void assume(RunningOps& ops, const UnknownCopy& copy, const std::string& op) {
  const ProgramLine line = take_program_line();
  const ReadKind kind = kind_of(copy);
  Row row{op, kind, 0, 0, line, site_of(name_of(kind), op, key_of(line)), 0};
  const Asking asking(ops);
  const PlainCpu plain;
  const double likely = likely_content(copy);
  const std::optional<double> said = said_of(line);
  const double value = said ? *said : assumed_value(copy, row.site, likely);
  if (said) row.kind = ReadKind::kSaid;
  row.assumed = value;
  count_in_row(row);
  if (LoopWatch::get().wants(0)) LoopWatch::get().note({row.site, 0, false}, line);
  const std::vector<unsigned char> element = element_bytes(copy.type, value);
  if (value != likely || copy.source == 0) {
    overwrite(copy, element);
  } else {
    fill(copy, element, copy.bytes / copy.item);
  }
}

void note_unknown_copy(void* destination, const void* source, RunningOps& ops, size_t bytes) {
  const char* const op = ops.depth == 0 ? nullptr : ops.outermost();
  note_zero_read(op);
  if (is_check(ops)) return;
  const UnknownCopy copy = describe(destination, source, ops, bytes);
  const std::string name = op == nullptr ? "a copy of the program's own" : op;
  const bool is_whole = kind_of(copy) == ReadKind::kNumber;
  if (is_whole && ask_if_sent != nullptr && ask_if_sent(source, bytes) != 0) {
    note(name, ReadKind::kReceived);
  } else if (is_sent(op) && !is_whole) {
    note(name, ReadKind::kScalar);
  } else if (copy.is_mask()) {
    fill_mask(copy, name);
  } else {
    assume(ops, copy, name);
  }
}

std::string op_of(const RunningOps& ops, const RunningOps::Planned& planned) {
  return label(ops.names[planned.depth - 1], ops.outermost());
}

std::string size_site(const std::string& op, const ProgramLine& line) {
  return site_of("size", op, key_of(line));
}

// Whether the user has said how large it is.
bool is_said(const RunningOps& ops, const RunningOps::Planned& planned, ReadPlan::Read read,
             void* destination) {
  if (!read.is_size || planned.plan.source == ReadPlan::Source::kKnown ||
      !Assumptions::get().has_lines())
    return false;
  const ProgramLine line = take_program_line();
  const std::optional<double> said = said_of(line);
  if (!said || *said < 0) return false;
  const std::string op = op_of(ops, planned);
  constexpr double kMaxSize = 9.2e18;
  read.value = static_cast<uint64_t>(std::min(*said, kMaxSize));
  write_parts(destination, read);
  count_in_row({op, ReadKind::kSaid, 0, 0, line, size_site(op, line), *said});
  return true;
}

void note_in_loop(const std::string& op, const ProgramLine& line, uint64_t value, bool is_capped) {
  const std::string site = size_site(op, line);
  if (Assumptions::get().drives_nothing(site)) value = 0;
  LoopWatch::get().note({site, value, is_capped}, line);
}

// Puts an assumed size among the reads.
void note_assumed_size(RunningOps& ops, const RunningOps::Planned& planned, uint64_t value) {
  const bool bounded = planned.plan.source == ReadPlan::Source::kAssumed;
  const ReadKind kind = bounded ? ReadKind::kAssumedSize : ReadKind::kUnboundedSize;
  const std::string op = op_of(ops, planned);
  const bool is_capped = planned.before_cap > 0;
  const bool is_watched = is_capped || LoopWatch::get().wants(value);
  const ProgramLine line = is_watched ? take_program_line() : ProgramLine();
  if (is_watched) note_in_loop(op, line, value, is_capped);
  if (!is_capped) {
    ops.row = note(op, kind);
    return;
  }
  Row row{op, kind, 0, 0, line, size_site(op, line), static_cast<double>(value)};
  row.before_cap = planned.before_cap;
  ops.row = static_cast<uint32_t>(count_in_row(row)) + 1;
}

void on_read(void* destination, const void* source, size_t bytes) {
  RunningOps& ops = running_ops;
  if (ops.is_asking) return;
  try {
    for (uint32_t i = ops.plans; i-- > 0;) {
      const RunningOps::Planned& planned = ops.planned[i];
      for (uint32_t r = 0; r < planned.plan.count; ++r) {
        const ReadPlan::Read& read = planned.plan.reads[r];
        if (read.bytes != bytes) continue;
        if (planned.plan.source != ReadPlan::Source::kKnown && last_copy_was_known()) return;
        if (is_said(ops, planned, read, destination)) return;
        write_parts(destination, read);
        if (planned.plan.source != ReadPlan::Source::kKnown) note_unreal_value();
        if (!read.is_size || planned.plan.source == ReadPlan::Source::kKnown) return;
        note_assumed_size(ops, planned, read.value);
        return;
      }
    }
    if (!last_copy_was_known()) note_unknown_copy(destination, source, ops, bytes);
  } catch (...) {  // a row less
  }
}

// Caps the size where it drives a loop, also when the same mask comes back.
void cap_size(const RunningOps& ops, RunningOps::Planned& planned, uint64_t& last_count) {
  if (!Assumptions::get().has_sizes() || planned.plan.source == ReadPlan::Source::kKnown) return;
  for (uint32_t i = 0; i < planned.plan.count; ++i) {
    ReadPlan::Read& read = planned.plan.reads[i];
    if (!read.is_size || read.value <= kCappedSize) continue;
    const std::string site = size_site(op_of(ops, planned), take_program_line());
    if (Assumptions::get().loop_of(site) == nullptr) return;
    planned.before_cap = std::max(planned.before_cap, read.value);
    read.value = kCappedSize;
    if (last_count != 0) last_count = kCappedSize + 1;
  }
}

void plan_reads(RunningOps& ops, ReadRule rule, const at::RecordFunction& fn) {
  if (ops.plans == RunningOps::kMostPlans || ops.depth > RunningOps::kMostNames) return;
  ReadContext context;
  context.known = &known_on_cpu;
  context.max_distinct = &distinct_on_device;
  for (uint32_t i = ops.plans; i-- > 0 && !context.mask_count;) {
    context.mask_count = ops.planned[i].plan.mask_count;
    context.mask_count_is_assumed = ops.planned[i].plan.mask_count_is_assumed;
  }
  ops.is_asking = true;
  try {
    const PlainCpu plain;
    const at::Tensor* const subject = subject_of(fn);
    uint64_t last_count = 0;
    context.millionths = millionths();
    if (subject != nullptr) {
      const auto [share, count] = AssumedOfTensors::get().find(*subject);
      if (context.millionths == kVariedMillionths) context.millionths = share;
      last_count = count;
      context.last_count = &last_count;
    }
    if (millionths() == kVariedMillionths) context.whole_up_to = kLeastVaried;
    ops.planned[ops.plans] = {ops.depth, rule(fn.inputs(), context), 0};
    cap_size(ops, ops.planned[ops.plans], last_count);
    ++ops.plans;
    if (subject != nullptr && last_count != 0)
      AssumedOfTensors::get().set_last_count(*subject, last_count);
  } catch (...) {  // an input that cannot be looked into
  }
  ops.is_asking = false;
}

// The engine brackets each node's work in a scope that looks like an operator.
bool is_engine_scope(const char* name) {
  constexpr std::string_view kEngineScope = "autograd::engine::";
  return name[1] == 'u' && std::strncmp(name, kEngineScope.data(), kEngineScope.size()) == 0;
}

void note_reader(RunningOps& ops, const at::RecordFunction& fn) {
  const int argument = argument_read(fn.name());
  if (argument < 0 || fn.inputs().size() <= static_cast<size_t>(argument)) return;
  const c10::IValue& read = fn.inputs()[static_cast<size_t>(argument)];
  if (!read.isTensor() || !read.toTensor().defined()) return;
  ops.reader_depth = ops.depth;
  ops.read_type = read.toTensor().scalar_type();
  const std::optional<Likely> likely = likely_value(read.toTensor());
  ops.read_is_noted = likely.has_value();
  if (likely) ops.read_likely = *likely;
}

void begin_likely(RunningOps& ops, const at::RecordFunction& fn) {
  if (ops.likely_results == RunningOps::kMostLikely || !may_have_likely_result(fn)) return;
  const Asking asking(ops);
  try {
    const PlainCpu plain;
    if (const std::optional<Likely> likely = likely_result(fn))
      ops.likely[ops.likely_results++] = {ops.depth, *likely};
  } catch (...) {  // no guess, then
  }
}

void forget_written(const at::RecordFunction& fn) {
  try {
    forget_likely(fn);
  } catch (...) {  // an older guess, then
  }
}

void end_likely(RunningOps& ops, const at::RecordFunction& fn) {
  if (ops.likely_results == 0 || ops.likely[ops.likely_results - 1].depth != ops.depth) return;
  --ops.likely_results;
  try {
    keep_likely(fn, ops.likely[ops.likely_results].likely);
  } catch (...) {  // no guess, then
  }
}

// A tensor of the host that a kernel of others may have written to gets a value, too, when the
// program looks into it.
void assume_on_host(RunningOps& ops, const at::Tensor& tensor, bool is_written) {
  if (!tensor.defined() || !tensor.is_cpu() || !tensor.has_storage() || !tensor.is_contiguous() ||
      tensor.numel() == 0)
    return;
  void* const data = const_cast<void*>(tensor.const_data_ptr());
  const auto address = reinterpret_cast<uintptr_t>(data);
  if (!WrittenHostMemory::get().overlaps(address, tensor.nbytes())) return;
  WrittenHostMemory::get().remove(address, tensor.nbytes());
  if (is_written) return;
  UnknownCopy copy{data, 0, tensor.nbytes(), tensor.scalar_type(), tensor.itemsize(), {}, false};
  copy.is_truth = copy.type == at::kBool && copy.is_alone();
  note_zero_read(ops.outermost());
  assume(ops, copy, ops.outermost());
}

void look_at_host_memory(RunningOps& ops, const at::RecordFunction& fn) {
  if (WrittenHostMemory::get().is_empty()) return;
  const OperatorInfo* const info = operator_info(fn);
  if (info == nullptr || info->is_view) return;
  const auto inputs = fn.inputs();
  for (size_t i = 0; i < inputs.size(); ++i) {
    const bool is_written =
        i < info->is_written.size() && info->is_written[i] && (info->overwrites || info->is_out[i]);
    if (inputs[i].isTensor()) assume_on_host(ops, inputs[i].toTensor(), is_written);
  }
}

void begin_on_host(RunningOps& ops, const at::RecordFunction& fn) {
  try {
    look_at_host_memory(ops, fn);
  } catch (...) {  // a row less
  }
}

std::unique_ptr<at::ObserverContext> on_start(const at::RecordFunction& fn) {
  RunningOps& ops = running_ops;
  const char* const name = fn.name();
  if (ops.is_asking || fn.isAsync() || is_engine_scope(name)) return nullptr;
  if (ops.depth < RunningOps::kMostNames) ops.names[ops.depth] = name;
  ++ops.depth;
  note_reader(ops, fn);
  begin_likely(ops, fn);
  forget_written(fn);
  begin_on_host(ops, fn);
  if (const ReadRule rule = find_read_rule(name)) plan_reads(ops, rule, fn);
  return nullptr;
}

template <typename Visit>
void for_each_storage(const c10::IValue& value, const Visit& visit) {
  if (value.isTensor()) {
    const at::Tensor& tensor = value.toTensor();
    if (!tensor.defined() || !tensor.is_cuda()) return;
    if (tensor.is_sparse()) {
      for_each_storage(tensor._indices(), visit);
      for_each_storage(tensor._values(), visit);
    } else if (tensor.has_storage()) {
      visit(tensor.storage().unsafeGetStorageImpl());
    }
  } else if (value.isTensorList() || value.isOptionalTensorList() || value.isList()) {
    for (const c10::IValue& element : value.toListRef()) for_each_storage(element, visit);
  }
}

// The outermost operator's results have the size that was read within it, where they are new. Its
// inputs cannot be looked into any more.
void count_results(RunningOps& ops, const at::RecordFunction& fn) {
  const std::optional<c10::FunctionSchema> schema = fn.operator_schema();
  const std::vector<c10::IValue>& outputs = fn.outputs();
  std::vector<const c10::StorageImpl*> seen;
  uint64_t bytes = 0;
  for (size_t i = 0; i < outputs.size(); ++i) {
    const bool is_new =
        !schema || i >= schema->returns().size() || schema->returns()[i].alias_info() == nullptr;
    if (!is_new) continue;
    for_each_storage(outputs[i], [&](const c10::StorageImpl* storage) {
      if (std::find(seen.begin(), seen.end(), storage) != seen.end()) return;
      seen.push_back(storage);
      bytes += storage->nbytes();
    });
  }
  const std::lock_guard<ForkSafeMutex> lock(rows().mutex);
  rows().rows[ops.row - 1].dependent_bytes += bytes;
}

// What is assumed to be true has coordinates: a loop over them visits each.
void keep_coordinates(RunningOps& ops, const ReadPlan& plan, const at::RecordFunction& fn) {
  if (plan.dims <= 0 || !values_are_followed()) return;
  ops.is_asking = true;
  try {
    const PlainCpu plain;
    const std::vector<c10::IValue>& outputs = fn.outputs();
    if (outputs.size() == 1 && outputs[0].isTensor() && outputs[0].toTensor().defined()) {
      const std::optional<Place> place = Place::of(outputs[0].toTensor());
      if (place && place->sizes.size() == 2 && place->sizes[1] == plan.dims &&
          place->sizes[0] > 0 && Shadows::get().may_hold(*place))
        Shadows::get().set(*place, {first_coordinates(plan, place->sizes[0]), at::Tensor()});
    }
  } catch (...) {  // no values, then
  }
  ops.is_asking = false;
}

void on_end(const at::RecordFunction& fn, at::ObserverContext*) {
  RunningOps& ops = running_ops;
  if (ops.is_asking || fn.isAsync() || ops.depth == 0 || is_engine_scope(fn.name())) return;
  if (ops.plans > 0 && ops.planned[ops.plans - 1].depth == ops.depth) {
    --ops.plans;
    keep_coordinates(ops, ops.planned[ops.plans].plan, fn);
  }
  end_likely(ops, fn);
  if (ops.reader_depth == ops.depth) ops.reader_depth = 0;
  if (--ops.depth > 0 || ops.row == 0) return;
  ops.is_asking = true;
  try {
    count_results(ops, fn);
  } catch (...) {  // a result that cannot be looked into
  }
  ops.is_asking = false;
  ops.row = 0;
}

// After values.cc (104), whose callbacks then come first: it has forgotten what an operator wrote
// before this knows more of it.
__attribute__((constructor(105))) void begin() {
  const auto observe = reinterpret_cast<decltype(&memledger_virtual_gpu_observe_reads)>(
      dlsym(RTLD_DEFAULT, "memledger_virtual_gpu_observe_reads"));
  ask_millionths =
      reinterpret_cast<Ask>(dlsym(RTLD_DEFAULT, "memledger_virtual_gpu_assumed_millionths"));
  ask_number = reinterpret_cast<Ask>(dlsym(RTLD_DEFAULT, "memledger_virtual_gpu_assumed_number"));
  ask_if_sent = reinterpret_cast<decltype(ask_if_sent)>(
      dlsym(RTLD_DEFAULT, "memledger_virtual_gpu_is_as_sent"));
  if (observe == nullptr || ask_millionths == nullptr) return;
  rows().is_quiet = is_on(secure_getenv(environment::kQuiet));
  const char* const report = secure_getenv(environment::kReport);
  rows().has_short_report = is_on(report) && std::strcmp(report, environment::kFullReport) != 0;
  if (observe(&on_read) == 0) return;  // another copy of memledger does it
  at::addGlobalCallback(at::RecordFunctionCallback(&on_start, &on_end)
                            .needsInputs(true)
                            .needsOutputs(true)
                            .scopes({at::RecordScope::FUNCTION}));
}

}  // namespace

int memledger_note_own_copies(int are_own) {
  return std::exchange(running_ops.is_asking, are_own != 0) ? 1 : 0;
}

std::optional<SizeLoop> found_size_loop() { return LoopWatch::get().found(); }

void forget_size_loops() { LoopWatch::get().forget(); }

std::vector<ReadRow> unknown_reads(bool with_lines) {
  std::vector<Row> copy;
  {
    const std::lock_guard<ForkSafeMutex> lock(rows().mutex);
    copy = rows().rows;
  }
  std::stable_sort(copy.begin(), copy.end(), [](const Row& a, const Row& b) {
    const auto order = [](const Row& row) {
      return std::make_tuple(std::max(row.kind, ReadKind::kUnboundedSize), ~row.dependent_bytes,
                             ~row.count);
    };
    return order(a) < order(b);
  });
  std::vector<ReadRow> result;
  for (const Row& row : copy) {
    const bool is_settled = row.kind == ReadKind::kSaid || row.before_cap > 0;
    const std::string* const loop =
        row.before_cap > 0 ? Assumptions::get().loop_of(row.site) : nullptr;
    result.push_back({row.op, row.kind, row.count, row.dependent_bytes,
                      with_lines ? to_string(row.where) : row.where.python,
                      is_settled ? "" : row.site, row.assumed, row.before_cap,
                      loop == nullptr ? "" : *loop, row.last_read});
  }
  return result;
}

}  // namespace memledger::virtual_gpu
