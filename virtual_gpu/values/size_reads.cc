// Compiled with NDEBUG whatever the build mode: see SEES_LIBTORCH_INLINES_COPTS.
#include "virtual_gpu/values/size_reads.h"

#include <ATen/core/function_schema.h>
#include <ATen/record_function.h>
#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>
#include <utility>

#include "registry/core/fork_safe_mutex.h"
#include "runner/environment.h"
#include "text/output.h"
#include "virtual_gpu/reads.h"
#include "virtual_gpu/values/program_line.h"
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
  struct Planned {
    uint32_t depth;  // of its operator
    ReadPlan plan;
  };
  uint32_t depth = 0;
  uint32_t plans = 0;
  // Asking for values runs operators of its own.
  bool is_asking = false;
  // The row of the last assumed read within the outermost operator, plus 1.
  uint32_t row = 0;
  // The innermost operator that reads whole tensors, where it is, and what the tensor's type is.
  uint32_t reader_depth = 0;
  c10::ScalarType read_type = c10::ScalarType::Undefined;
  std::array<const char*, kMostNames> names{};
  std::array<Planned, kMostPlans> planned{};

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
};

struct Rows {
  ForkSafeMutex mutex;
  std::vector<Row> rows;
  pid_t process = 0;
  bool is_quiet = false;
  bool has_short_report = false;  // of the run
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

// Another share of each tensor, as long as it is not written to: where sizes go up and down,
// LibTorch's cache falls into more pieces than with the largest ones alone. Keeps nothing alive.
class VariedShares {
 public:
  // Returns the same shares in each run. More than nothing, as programs fail that find nothing.
  uint32_t share_of(const at::Tensor& tensor) {
    c10::StorageImpl* const storage = tensor.storage().unsafeGetStorageImpl();
    const uint32_t version =
        tensor.is_inference() ? 0
                              : tensor.unsafeGetTensorImpl()->version_counter().current_version();
    std::vector<Share> ended;  // end without the lock
    const std::lock_guard<ForkSafeMutex> lock(mutex_);
    if (shares_.size() >= sweep_at_) sweep(ended);
    const auto [found, is_new] = shares_.try_emplace({storage, tensor.storage_offset(), version});
    if (is_new) {
      c10::raw::weak_intrusive_ptr::incref(storage);
      found->second.owner = c10::weak_intrusive_ptr<c10::StorageImpl>::reclaim(storage);
      found->second.millionths = 1 + static_cast<uint32_t>(mix(++count_) % 1'000'000);
    }
    return found->second.millionths;
  }

 private:
  // While there is a weak reference to a storage, no other gets its address.
  using Key = std::tuple<c10::StorageImpl*, int64_t, uint32_t>;
  struct Share {
    c10::weak_intrusive_ptr<c10::StorageImpl> owner{c10::intrusive_ptr<c10::StorageImpl>()};
    uint32_t millionths = 0;
  };

  // SplitMix64.
  static uint64_t mix(uint64_t number) {
    uint64_t z = number * 0x9e3779b97f4a7c15;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return z ^ z >> 31;
  }

  void sweep(std::vector<Share>& ended) {
    for (auto share = shares_.begin(); share != shares_.end();) {
      if (!share->second.owner.expired()) {
        ++share;
        continue;
      }
      ended.push_back(std::move(share->second));
      share = shares_.erase(share);
    }
    sweep_at_ = std::max(sweep_at_, 2 * shares_.size());
  }

  ForkSafeMutex mutex_;
  std::map<Key, Share> shares_;
  uint64_t count_ = 0;
  size_t sweep_at_ = 1024;
};

uint32_t share_of(const at::RecordFunction& fn) {
  const uint32_t share = millionths();
  if (share != kVariedMillionths || fn.inputs().empty() || !fn.inputs()[0].isTensor()) return share;
  const at::Tensor& tensor = fn.inputs()[0].toTensor();
  if (!tensor.defined() || !tensor.has_storage()) return share;
  static auto* const shares = new VariedShares;  // never destroyed, as rows()
  return shares->share_of(tensor);
}

std::optional<at::Tensor> known_on_cpu(const at::Tensor& tensor) { return known_values(tensor); }

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
    // That values were read as zero stands in the report of the run.
    if (rows().has_short_report)
      reads.erase(std::stable_partition(reads.begin(), reads.end(), &is_size), reads.end());
    const std::string text = read_list_text(reads, millionths());
    if (!text.empty()) write_standard_error(text);
  } catch (...) {  // no memory for the list
  }
}

// Returns the row's number plus 1.
uint32_t note(const std::string& op, ReadKind kind) {
  Rows& all = rows();
  const auto find = [&] {
    return std::find_if(all.rows.begin(), all.rows.end(),
                        [&](const Row& row) { return row.kind == kind && row.op == op; });
  };
  {
    const std::lock_guard<ForkSafeMutex> lock(all.mutex);
    if (const auto row = find(); row != all.rows.end()) {
      ++row->count;
      return static_cast<uint32_t>(row - all.rows.begin()) + 1;
    }
  }
  const ProgramLine where = take_program_line();  // calls out
  const std::lock_guard<ForkSafeMutex> lock(all.mutex);
  if (all.rows.empty()) {
    all.process = getpid();
    // Now, so that it runs before the end of LibTorch's libraries.
    if (!all.is_quiet) std::atexit(&print_at_exit);
  }
  auto row = find();
  if (row == all.rows.end()) row = all.rows.insert(row, {op, kind, 0, 0, where});
  ++row->count;
  return static_cast<uint32_t>(row - all.rows.begin()) + 1;
}

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

// A truth that the program or the operator around asked for, or a check that passes with zero.
bool is_asked_for_truth(const RunningOps& ops) {
  for (const char* const name : {"aten::is_nonzero", "aten::equal", "aten::allclose",
                                 "aten::_assert_async", "aten::_linalg_check_errors"}) {
    if (ops.is_running(name)) return true;
  }
  return false;
}

// A copy that the program asked for: its values may steer the program, and no operator.
bool is_copy(const char* op) {
  for (const char* const name :
       {"aten::to", "aten::_to_copy", "aten::copy_", "aten::clone", "aten::contiguous"}) {
    if (std::strcmp(op, name) == 0) return true;
  }
  return false;
}

// What a copy whose values are not known may do. Where no operator tells what is copied, it is
// taken for the worst.
ReadKind kind_of_copy(const RunningOps& ops, size_t bytes) {
  if (is_asked_for_truth(ops)) return ReadKind::kScalar;
  if (ops.depth == 0 || ops.reader_depth != ops.depth) return ReadKind::kNumber;
  if (ops.read_type == c10::ScalarType::Bool)
    return bytes == 1 ? ReadKind::kScalar : ReadKind::kNumber;  // a mask may be counted
  return c10::isIntegralType(ops.read_type, /*includeBool=*/true) ? ReadKind::kNumber
                                                                  : ReadKind::kScalar;
}

// The specification may want whole numbers to read as one, to see whether it makes a difference.
void assume_numbers(void* destination, const RunningOps& ops, size_t bytes) {
  constexpr size_t kMostBytes = size_t{1} << 16;
  if (!numbers_are_one() || bytes > kMostBytes) return;
  const bool has_type = ops.depth > 0 && ops.reader_depth == ops.depth;
  const size_t item = has_type                       ? c10::elementSize(ops.read_type)
                      : bytes == sizeof(int32_t)     ? sizeof(int32_t)
                      : bytes % sizeof(int64_t) == 0 ? sizeof(int64_t)
                                                     : 1;
  auto* const begin = static_cast<unsigned char*>(destination);
  for (size_t at = 0; at + item <= bytes; at += item) begin[at] = 1;  // little-endian
}

void note_unknown_copy(void* destination, const void* source, const RunningOps& ops, size_t bytes) {
  const char* const op = ops.depth == 0 ? nullptr : ops.outermost();
  note_zero_read(op);
  ReadKind kind = kind_of_copy(ops, bytes);
  if (kind == ReadKind::kNumber && ask_if_sent != nullptr && ask_if_sent(source, bytes) != 0)
    kind = ReadKind::kReceived;
  if (kind == ReadKind::kNumber) assume_numbers(destination, ops, bytes);
  // Tensors of fractions are results.
  if (op != nullptr && is_copy(op) && kind == ReadKind::kScalar) return;
  note(op == nullptr ? "a copy of the program's own" : op, kind);
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
        write_parts(destination, read);
        if (planned.plan.source != ReadPlan::Source::kKnown) note_unreal_value();
        if (!read.is_size || planned.plan.source == ReadPlan::Source::kKnown) return;
        const bool bounded = planned.plan.source == ReadPlan::Source::kAssumed;
        ops.row = note(label(ops.names[planned.depth - 1], ops.outermost()),
                       bounded ? ReadKind::kAssumedSize : ReadKind::kUnboundedSize);
        return;
      }
    }
    if (!last_copy_was_known()) note_unknown_copy(destination, source, ops, bytes);
  } catch (...) {  // a row less
  }
}

void plan_reads(RunningOps& ops, ReadRule rule, const at::RecordFunction& fn) {
  if (ops.plans == RunningOps::kMostPlans || ops.depth > RunningOps::kMostNames) return;
  ReadContext context;
  context.known = &known_on_cpu;
  for (uint32_t i = ops.plans; i-- > 0 && !context.mask_count;) {
    context.mask_count = ops.planned[i].plan.mask_count;
    context.mask_count_is_assumed = ops.planned[i].plan.mask_count_is_assumed;
  }
  ops.is_asking = true;
  try {
    const PlainCpu plain;
    context.millionths = share_of(fn);
    if (millionths() == kVariedMillionths) context.whole_up_to = kLeastVaried;
    ops.planned[ops.plans] = {ops.depth, rule(fn.inputs(), context)};
    ++ops.plans;
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
}

std::unique_ptr<at::ObserverContext> on_start(const at::RecordFunction& fn) {
  RunningOps& ops = running_ops;
  const char* const name = fn.name();
  if (ops.is_asking || fn.isAsync() || is_engine_scope(name)) return nullptr;
  if (ops.depth < RunningOps::kMostNames) ops.names[ops.depth] = name;
  ++ops.depth;
  note_reader(ops, fn);
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
    result.push_back({row.op, row.kind, row.count, row.dependent_bytes,
                      with_lines ? to_string(row.where) : row.where.python});
  }
  return result;
}

}  // namespace memledger::virtual_gpu
