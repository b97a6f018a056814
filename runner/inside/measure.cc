#include "runner/inside/measure.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/record_function.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <iterator>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "prediction/measure_variables.h"
#include "prediction/measured_call.h"
#include "prediction/measurement.h"
#include "prediction/run_files.h"
#include "registry/allocation_failure.h"
#include "registry/core/fork_safe_mutex.h"
#include "registry/hooks/block_observer.h"
#include "registry/hooks/close_books.h"
#include "registry/hooks/stack_sampler.h"
#include "registry/hooks/step_observer.h"
#include "registry/registry.h"
#include "registry/stacks.h"
#include "registry/step_history.h"
#include "reporter/names/program_name.h"
#include "runner/environment.h"
#include "runner/inside/calibrate.h"
#include "runner/inside/interrupted_call.h"
#include "runner/inside/measured_values.h"
#include "runner/inside/process_end.h"
#include "runner/inside/python_program.h"
#include "runner/inside/real_devices.h"
#include "runner/inside/settled_peak.h"
#include "runner/inside/stage_recorder.h"
#include "runner/inside/trained_parameters.h"
#include "runner/inside/write_in_copy.h"
#include "text/output.h"
#include "virtual_gpu/values/size_reads.h"

namespace memledger::inside {
namespace {

using prediction::Ended;
using prediction::Measurement;
using std::chrono::steady_clock;

// Stacks of smaller blocks cost more than they are worth.
constexpr int64_t kStackFrom = int64_t{1} << 20;
// Python's are cheaper.
constexpr int64_t kPythonStackFrom = int64_t{64} << 10;
// Number of failed allocations that are written down at once. A program that goes on after them is
// written down when it ends.
constexpr int kMaxWritesAtFailures = 8;
constexpr auto kProgressEvery = std::chrono::milliseconds(100);
// The figures are also written while the program runs, in case that it is killed: after so long,
// twice as long and so on.
constexpr auto kFirstWriteAfter = std::chrono::seconds(4);

// The peak as it was when Python's modules were still there to name it.
struct NamedPeak {
  int64_t allocated_peak = 0;
  prediction::MeasuredPeak peak;
};

struct Measure {
  std::string folder;
  bool until_step = false;
  bool goes_on = false;           // after that, until it learns that this is enough
  bool until_call = false;        // of memledger::predict()
  std::atomic<pid_t> process{0};  // 0: not this one
  int expected_processes = 1;     // that train together
  TrainedParameters parameters;
  StageRecorder stages;
  std::atomic<bool> has_shown_enough{false};
  std::atomic<int64_t> peak_when_settled{0};
  std::atomic<bool> is_done{false};
  std::atomic<int64_t> calls{0};  // of the step of memledger::predict()
  std::atomic<int> writes_at_failures{0};
  std::atomic<steady_clock::rep> next_progress{0}, next_write{0};
  steady_clock::time_point began;

  ForkSafeMutex mutex;  // of what follows
  SettledPeak peak;
  int64_t settled_at = 0;
  std::optional<prediction::MeasuredFailure> failure;
  std::optional<NamedPeak> named_peak;
};

// Never destroyed: the figures are written while the process goes down.
Measure& measure() {
  static auto* const measure = new Measure;
  return *measure;
}

thread_local const void* stepping = nullptr;  // the first parameter of the step that runs
// While an optimizer of Python steps: the first shard among what it reads.
thread_local const void* stepping_shard = nullptr;
thread_local int step_scopes = 0;                   // of Python's optimizers that run
thread_local int nodes = 0;                         // of backward that run
thread_local int running_operators = 0;             // one inside another
thread_local bool began_without_gradients = false;  // the outermost of them
thread_local bool is_measuring = false;

const char* value_of(const char* variable) { return secure_getenv(variable); }

bool is_measured() {
  return !is_measuring && measure().process.load(std::memory_order_relaxed) != 0;
}

std::string path_of_this_process(const char* extension) {
  return measure().folder + "/" + std::to_string(measure().process.load()) + extension;
}

std::string allocator_settings() {
  for (const char* const variable : {"PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"}) {
    if (const char* const value = value_of(variable)) return value;
  }
  return "";
}

// Lines of the program, and who was alive at the peak, take the longest to find out.
enum class Detail : uint8_t { kFigures, kAll };

const prediction::MeasuredDevice* fullest(const std::vector<prediction::MeasuredDevice>& devices) {
  const auto most = std::max_element(
      devices.begin(), devices.end(),
      [](const auto& a, const auto& b) { return a.process_peak < b.process_peak; });
  return most == devices.end() ? nullptr : &*most;
}

// The one with names, unless the peak has moved since.
prediction::MeasuredPeak peak_of(const prediction::MeasuredDevice& device) {
  {
    const std::lock_guard<ForkSafeMutex> hold(measure().mutex);
    const std::optional<NamedPeak>& named = measure().named_peak;
    if (named && named->peak.device == device.index &&
        named->allocated_peak == device.allocated_peak)
      return named->peak;
  }
  return measured_peak(device.index);
}

void keep_named_peak() {
  const std::vector<prediction::MeasuredDevice> devices = measured_devices();
  const prediction::MeasuredDevice* const device = fullest(devices);
  if (device == nullptr) return;
  NamedPeak named{device->allocated_peak, measured_peak(device->index)};
  const std::lock_guard<ForkSafeMutex> hold(measure().mutex);
  measure().named_peak = std::move(named);
}

// Whether the runner wants to know no more.
bool is_enough() {
  return measure().has_shown_enough.load(std::memory_order_relaxed) &&
         access((measure().folder + "/" + prediction::kUntilEnough).c_str(), F_OK) == 0;
}

// Sampled where something is allocated, but the whole peak is known exactly.
std::vector<prediction::MeasuredStage> stages_of(
    const std::vector<prediction::MeasuredDevice>& devices) {
  std::vector<prediction::MeasuredStage> stages = measure().stages.stages();
  for (const prediction::MeasuredDevice& device : devices) {
    const auto highest = [&](int64_t prediction::MeasuredStage::*peak) {
      prediction::MeasuredStage* result = nullptr;
      for (prediction::MeasuredStage& stage : stages) {
        if (stage.device == device.index && (result == nullptr || stage.*peak > result->*peak))
          result = &stage;
      }
      return result;
    };
    using prediction::MeasuredStage;
    if (MeasuredStage* const stage = highest(&MeasuredStage::allocated_peak))
      stage->allocated_peak = std::max(stage->allocated_peak, device.allocated_peak);
    if (MeasuredStage* const stage = highest(&MeasuredStage::process_peak))
      stage->process_peak = std::max(stage->process_peak, device.process_peak);
  }
  return stages;
}

void write(Ended ended, const std::string& cause, Detail detail) {
  Measure& measure = inside::measure();
  // Processes that train together fail where one of them is made to end.
  if (ended != Ended::kAfterStep && is_enough()) return;
  Measurement measurement;
  measurement.process = measure.process.load();
  measurement.rank = environment::rank(&value_of);
  measurement.ended = ended;
  measurement.cause = cause;
  measurement.devices = measured_devices();
  if (measurement.devices.empty()) return;  // a launcher, or a worker of a data loader
  {
    const std::lock_guard<ForkSafeMutex> hold(measure.mutex);
    measurement.steps = measure.peak.steps();
    measurement.failure = measure.failure;
    if (ended == Ended::kAfterStep) measurement.kind_of_steps = measure.peak.kind();
  }
  if (measure.has_shown_enough) {
    measurement.has_grown_since = measured_totals().peak_bytes > measure.peak_when_settled;
    const std::lock_guard<ForkSafeMutex> hold(measure.mutex);
    measurement.kind_when_settled = measure.peak.kind();
  }
  measurement.calls = measure.calls;
  measurement.stages = stages_of(measurement.devices);
  if (ended == Ended::kAfterStep)
    measurement.unstepped_parameters = static_cast<int64_t>(measure.parameters.unstepped());
  measurement.unknown_reads = measured_reads(/*with_lines=*/detail == Detail::kAll);
  measurement.allocator_settings = allocator_settings();
  measurement.missing_cudnn = missing_cudnn();
  measurement.libraries = real_libraries();
  if (detail == Detail::kAll) measurement.peak = peak_of(*fullest(measurement.devices));
  const absl::Status status =
      write_file(path_of_this_process(".json"), "measurement", prediction::to_json(measurement));
  if (!status.ok()) tell({std::string(status.message())});
}

void write_safely(Ended ended, const std::string& cause = "",
                  Detail detail = Detail::kAll) noexcept {
  is_measuring = true;
  try {
    if (ended != Ended::kNot) write_calibration();
    write(ended, cause, detail);
  } catch (const std::exception& error) {
    tell({"memledger: no measurement: ", first_line(error.what())});
  }
  is_measuring = false;
}

// A program may end here for good, so what is known is written down.
void note_failure(const AllocationFailure& failed) noexcept {
  if (!is_measured()) return;
  is_measuring = true;
  try {
    bool is_first = false;
    {
      const std::lock_guard<ForkSafeMutex> hold(measure().mutex);
      is_first = !measure().failure;
    }
    if (is_first) {
      prediction::MeasuredFailure failure = measured_failure(failed);  // calls out
      const std::lock_guard<ForkSafeMutex> hold(measure().mutex);
      if (!measure().failure) measure().failure = std::move(failure);
    }
    if (measure().writes_at_failures.fetch_add(1) < kMaxWritesAtFailures) write_safely(Ended::kNot);
  } catch (...) {
    // What was written before stays.
  }
  is_measuring = false;
}

// In place, so that whoever reads it always finds a whole line.
void write_progress(const std::string& label, int64_t settled_at) {
  int64_t steps = 0;
  {
    const std::lock_guard<ForkSafeMutex> hold(measure().mutex);
    steps = measure().peak.steps();
  }
  const int file = open(path_of_this_process(prediction::kProgressExtension).c_str(),
                        O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
  if (file < 0) return;
  const std::string text = prediction::progress_text({0, steps, settled_at, label});
  [[maybe_unused]] const ssize_t written = pwrite(file, text.data(), text.size(), 0);
  close(file);
}

// Processes that train together end after the same step, as one alone would wait for the others for
// ever: the step after the last of them has settled, by when all know that.
bool may_end(int64_t step, int64_t settled_at) {
  const pid_t self = measure().process.load();
  int others = 0;
  int64_t last = settled_at;
  for (const prediction::Progress& other : prediction::read_all_progress(measure().folder)) {
    if (other.process == self || other.steps == 0) continue;
    if (other.settled_at == 0) return false;
    last = std::max(last, other.settled_at);
    ++others;
  }
  if (others + 1 < measure().expected_processes) return false;
  return others == 0 || step > last;
}

std::vector<const void*> ended_optimizers() {
  std::vector<const void*> optimizers;
  {
    const std::lock_guard<ForkSafeMutex> hold(measure().mutex);
    optimizers = measure().peak.optimizers();
  }
  const auto ended = std::remove_if(
      optimizers.begin(), optimizers.end(),
      [](const void* optimizer) { return measure().parameters.is_alive(optimizer); });
  optimizers.erase(ended, optimizers.end());
  return optimizers;
}

// Returns whether the program has shown what it takes.
bool note_step(const void* parameter) {
  Measure& measure = inside::measure();
  virtual_gpu::forget_size_loops();
  const Totals totals = measured_totals();
  const size_t unstepped = measure.parameters.unstepped();
  const bool looks = measure.until_step && !measure.has_shown_enough;
  const uint64_t blocks = looks ? hash_of_blocks() : 0;
  int64_t step = 0, settled_at = 0;
  const std::vector<const void*> ended = ended_optimizers();
  {
    const std::lock_guard<ForkSafeMutex> hold(measure.mutex);
    for (const void* const optimizer : ended) measure.peak.forget(optimizer);
    const bool is_settled = measure.peak.note(
        {parameter, totals.peak_bytes, totals.used_bytes, unstepped, totals.allocations,
         totals.requested_in_all, blocks,
         std::chrono::duration_cast<std::chrono::seconds>(steady_clock::now() - measure.began)
             .count()});
    step = measure.peak.steps();
    if (is_settled && measure.settled_at == 0) measure.settled_at = step;
    settled_at = measure.settled_at;
  }
  write_progress("", settled_at);
  return measure.until_step && settled_at > 0 && may_end(step, settled_at);
}

// Called before an operator that writes under no_grad: writing to a parameter begins a step.
void on_write(const at::Tensor& written) noexcept {
  const void* const parameter = measure().parameters.note_written(written);
  if (parameter == nullptr || stepping != nullptr) return;
  stepping = parameter;
  measure().stages.note_step();
}

void end_now() {
  if (measure().is_done.exchange(true)) return;
  write_safely(Ended::kAfterStep);
  _exit(EXIT_SUCCESS);
}

// The program has shown enough. One that goes on is written down, as it may be killed.
void end_or_go_on() {
  Measure& measure = inside::measure();
  if (!measure.goes_on) return end_now();
  if (measure.has_shown_enough) return;
  measure.peak_when_settled = measured_totals().peak_bytes;
  measure.has_shown_enough = true;
  write_safely(Ended::kAfterStep);
}

void tell_progress(const char* op) {
  Measure& measure = inside::measure();
  thread_local uint32_t operators = 0;
  if (++operators % 64 != 0) return;
  const steady_clock::time_point now = steady_clock::now();
  const auto is_due = [&](std::atomic<steady_clock::rep>& next, steady_clock::duration period) {
    steady_clock::rep due = next.load(std::memory_order_relaxed);
    return now.time_since_epoch().count() >= due &&
           next.compare_exchange_strong(due, (now + period).time_since_epoch().count());
  };
  if (!is_due(measure.next_progress, kProgressEvery)) return;
  int64_t settled_at = 0;
  {
    const std::lock_guard<ForkSafeMutex> hold(measure.mutex);
    settled_at = measure.settled_at;
  }
  write_progress(op, settled_at);
  if (is_enough()) end_now();
  if (is_due(measure.next_write, now - measure.began))
    write_safely(measure.has_shown_enough ? Ended::kAfterStep : Ended::kNot);
}

// A loop that would not end in time: the runner ends this run and makes it again with a cap.
void tell_size_loop() {
  const std::optional<virtual_gpu::SizeLoop> loop = virtual_gpu::found_size_loop();
  static std::atomic<bool> is_told{false};
  if (!loop || is_told.exchange(true)) return;
  const std::string text = prediction::size_loop_text({loop->driver, loop->place, loop->is_same});
  (void)write_file(measure().folder + "/" + prediction::kSizeLoop, "loop", text);
}

bool is_optimizer_step(const at::RecordFunction& fn) {
  return fn.scope() == at::RecordScope::USER_SCOPE &&
         std::string_view(fn.name()).substr(0, kOptimizerStep.size()) == kOptimizerStep;
}

// Operators of which forward passes are made. A pass without any is seen by its backward.
bool is_of_forward(std::string_view op) {
  constexpr std::string_view kPrefix = "aten::";
  constexpr std::string_view kOperators[] = {"_convolution",
                                             "_native_multi_head_attention",
                                             "addmm",
                                             "baddbmm",
                                             "batch_norm",
                                             "bmm",
                                             "conv1d",
                                             "conv2d",
                                             "conv3d",
                                             "convolution",
                                             "embedding",
                                             "embedding_bag",
                                             "group_norm",
                                             "gru",
                                             "layer_norm",
                                             "linear",
                                             "lstm",
                                             "matmul",
                                             "mm",
                                             "rms_norm",
                                             "scaled_dot_product_attention"};
  if (op.substr(0, kPrefix.size()) != kPrefix) return false;
  return std::binary_search(std::begin(kOperators), std::end(kOperators),
                            op.substr(kPrefix.size()));
}

bool has_cuda_input(const at::RecordFunction& fn) {
  const auto inputs = fn.inputs();
  return std::any_of(inputs.begin(), inputs.end(), [](const c10::IValue& input) {
    return input.isTensor() && input.toTensor().defined() && input.toTensor().is_cuda();
  });
}

// An operator that runs without gradients and is no optimizer's. Inside another one that began with
// gradients, such as a function of the program's own, it belongs to that one.
void note_evaluation(const at::RecordFunction& fn) {
  StageRecorder& stages = measure().stages;
  if (nodes > 0 || !began_without_gradients || stages.is_evaluation_noted()) return;
  if (is_of_forward(fn.name()) && has_cuda_input(fn)) {
    stages.note_forward_without_gradients();
  } else if (!stages.is_without_gradients_noted()) {
    stages.note_without_gradients();
  }
}

// Modules in eval() mode may keep gradients.
void note_mode(const at::RecordFunction& fn) {
  using ModeOf = StageRecorder::ModeOf;
  struct Mode {
    std::string_view op;
    size_t place;  // of the argument that says whether it trains
    ModeOf module;
  };
  constexpr Mode kModes[] = {{"aten::dropout", 2, ModeOf::kDropout},
                             {"aten::feature_dropout", 2, ModeOf::kDropout},
                             {"aten::batch_norm", 5, ModeOf::kNormalization}};
  const std::string_view op = fn.name();
  for (const Mode& mode : kModes) {
    if (op == mode.op && fn.inputs().size() > mode.place && fn.inputs()[mode.place].isBool())
      measure().stages.note_mode(mode.module, fn.inputs()[mode.place].toBool());
  }
}

// An operator that runs with gradients.
void note_forward(const at::RecordFunction& fn, bool reads_parameter) {
  if (nodes > 0) return;
  StageRecorder& stages = measure().stages;
  if (reads_parameter && !stages.is_forward_open() && is_of_forward(fn.name()))
    stages.note_forward();
  if (stages.is_forward_open()) note_mode(fn);
}

void on_block(const BlockEvent& event) noexcept {
  if (!event.birth || !event.device.is_cuda() || !is_measured()) return;
  try {
    const int device = static_cast<unsigned char>(event.device.index());
    const BytesNow now = bytes_now(device);
    measure().stages.note_bytes(device, now.allocated, now.process);
  } catch (...) {  // a sample less
  }
}

void note_ended(const at::RecordFunction& fn) {
  if (fn.scope() == at::RecordScope::BACKWARD_FUNCTION) --nodes;
  if (fn.scope() == at::RecordScope::FUNCTION) --running_operators;
}

void on_step_end(const at::RecordFunction& fn, at::ObserverContext* /*context*/) {
  note_ended(fn);
  if (!is_optimizer_step(fn) || step_scopes == 0 || --step_scopes > 0) return;
  const void* const shard = std::exchange(stepping_shard, nullptr);
  if (shard == nullptr) return;
  try {
    if (measure().parameters.note_gathered() && stepping == nullptr) stepping = shard;
  } catch (...) {  // a step less
    return;
  }
}

void note_began(const at::RecordFunction& fn) {
  if (fn.scope() == at::RecordScope::BACKWARD_FUNCTION) ++nodes;
  if (fn.scope() == at::RecordScope::FUNCTION && ++running_operators == 1)
    began_without_gradients = !at::GradMode::is_enabled();
}

// The first operator of the next forward pass ends the step.
std::unique_ptr<at::ObserverContext> on_operator_or_step(const at::RecordFunction& fn) {
  note_began(fn);
  if (!is_measured()) return nullptr;
  if (fn.scope() == at::RecordScope::BACKWARD_FUNCTION) {
    if (nodes == 1 && measure().stages.is_forward_open()) measure().stages.note_backward();
    return nullptr;
  }
  if (fn.scope() == at::RecordScope::USER_SCOPE) {
    if (is_optimizer_step(fn)) ++step_scopes;
    return nullptr;
  }
  try {
    tell_progress(fn.name());
    tell_size_loop();
    if (!at::GradMode::is_enabled()) {
      if (step_scopes == 0) {
        note_evaluation(fn);
        return nullptr;
      }
      const void* const shard = measure().parameters.note_shards(fn);
      if (stepping_shard == nullptr) stepping_shard = shard;
      return nullptr;
    }
    note_forward(fn, measure().parameters.note_inputs(fn));
    if (stepping == nullptr) return nullptr;
    if (note_step(std::exchange(stepping, nullptr))) end_or_go_on();
  } catch (...) {  // a step less
  }
  return nullptr;
}

// Others need not wait for this process.
void write_last_progress() noexcept {
  try {
    int64_t steps = 0;
    {
      const std::lock_guard<ForkSafeMutex> hold(measure().mutex);
      steps = measure().peak.steps();
    }
    if (steps > 0) write_progress("", steps);
  } catch (...) {
    // They go on to their own ends.
  }
}

// For a program that ends anywhere, where the process itself could wait for its own locks.
void write_ended_in_copy() {
  write_in_copy(
      [](void*) {
        write_safely(Ended::kAtExit, "", Detail::kFigures);
        write_last_progress();
        write_safely(Ended::kAtExit);
      },
      nullptr);
}

void write_at_exit() {
  if (!is_measured() || measure().is_done.exchange(true)) return;
  if (runs_in_signal_handler()) {
    write_ended_in_copy();
    close_books();
    return;
  }
  write_safely(Ended::kAtExit);
  write_last_progress();
  if (!measure().until_call) return;
  std::fflush(nullptr);
  _exit(prediction::kNoCall);
}

void write_deadly(void* signal) {
  std::string cause = static_cast<const char*>(signal);
  if (const std::string exception = uncaught_exception(); !exception.empty())
    cause += ", uncaught exception: " + exception;
  // In a broken process the rest may not come to its end.
  write_safely(Ended::kNot, cause, Detail::kFigures);
  write_safely(Ended::kNot, cause);
}

// A child of vfork has our memory.
bool is_in_copy() { return getpid() != measure().process.load(); }

void note_deadly(const char* signal) noexcept {
  if (is_measured() && !is_in_copy() && !measure().is_done.load())
    write_in_copy(&write_deadly, const_cast<char*>(signal));
}

// Called in the place of _exit(), maybe in a signal handler.
void note_sudden_exit(int /*status*/) noexcept {
  if (!is_measured() || is_in_copy() || measure().is_done.exchange(true)) return;
  write_ended_in_copy();
}

// A child that begins before its parent has used a GPU may use one itself. It is measured as a
// process of its own; any other child has its parent's figures, and nothing to add.
std::atomic<bool> child_is_measured{false};

void begin_fork() {
  try {
    child_is_measured.store(measure().process.load() != 0 && !has_used_a_gpu());
  } catch (...) {
    child_is_measured.store(false);
  }
}

void begin_in_child() { measure().process.store(child_is_measured.load() ? getpid() : 0); }

// Torchrun's variables; programs with several devices and one process have none.
int processes_that_train_together() {
  for (const char* const variable : {"LOCAL_WORLD_SIZE", "WORLD_SIZE"}) {
    const char* const value = value_of(variable);
    const long number = value == nullptr ? 0 : std::strtol(value, nullptr, 10);
    if (number > 0 && number <= 1024) return static_cast<int>(number);
  }
  return 1;
}

}  // namespace

void measure_if_asked() {
  const char* const folder = value_of(prediction::kMeasureVariable);
  if (folder == nullptr || *folder == '\0') return;
  Measure& measure = inside::measure();
  measure.folder = folder;
  const char* const value = value_of(prediction::kUntilVariable);
  const std::string_view until = value == nullptr ? "" : value;
  const bool goes_on_with_any = until == prediction::kUntilEnoughAnyStep;
  const bool takes_any = goes_on_with_any || until == prediction::kUntilAnyStep;
  measure.goes_on = goes_on_with_any || until == prediction::kUntilEnough;
  measure.until_step = takes_any || measure.goes_on || until == "step";
  if (takes_any) measure.peak.take_any_steps();
  measure.until_call = until == prediction::kUntilCall;
  measure.expected_processes = processes_that_train_together();
  measure.began = steady_clock::now();
  measure.next_write = (measure.began + kFirstWriteAfter).time_since_epoch().count();
  RegistryOptions options;
  // The stack of a Python program has the interpreter's functions.
  if (dlsym(RTLD_DEFAULT, "Py_IsInitialized") == nullptr) {
    options.stacks = StackOptions::from(kStackFrom);
  } else {
    StackSampler::set_default(StackOptions::from(kPythonStackFrom));
  }
  StackSampler::follow_nodes();
  static const auto* const tracking = new ScopedTracking(options);  // never ends
  if (!tracking->status().ok()) return;
  keep_steps();
  measure.process = getpid();
  close(open(path_of_this_process(prediction::kWatchedExtension).c_str(),
             O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
  set_allocation_failure_observer(&note_failure);
  prepare_copies();
  note_deadly_signals(&note_deadly);
  observe_sudden_exit(&note_sudden_exit);
  has_used_a_gpu();  // looks its function up now, not in the middle of a fork
  pthread_atfork(&begin_fork, nullptr, &begin_in_child);
  std::atexit(&write_at_exit);
  std::at_quick_exit(&write_at_exit);
  add_step_observer(&on_write);
  set_block_observer(&on_block);
  calibrate_if_asked();  // may set an observer of its own
  at::addGlobalCallback(at::RecordFunctionCallback(&on_operator_or_step, &on_step_end)
                            .needsInputs(true)
                            .scopes({at::RecordScope::FUNCTION, at::RecordScope::USER_SCOPE,
                                     at::RecordScope::BACKWARD_FUNCTION}));
  tell_python_names_soon();
}

void measure_main_begins() {
  if (measure().process.load() == 0) return;
  std::atexit(&write_at_exit);
  tell_python_names_now();
}

void measure_before_python_ends() {
  if (!is_measured() || measure().is_done.load()) return;
  is_measuring = true;
  try {
    keep_named_peak();
  } catch (...) {
    // The names that are there at the end have to do.
  }
  is_measuring = false;
}

}  // namespace memledger::inside

extern "C" void memledger_measured_call_begins() {
  memledger::inside::reset_measured_peaks();
  memledger::inside::measure().stages.forget_peaks();
}

extern "C" int64_t memledger_measured_call_peaks() {
  ++memledger::inside::measure().calls;
  return memledger::inside::measured_totals().peak_bytes;
}

extern "C" void memledger_measured_call_ended(const char* cause) {
  using memledger::prediction::Ended;
  if (memledger::inside::measure().is_done.exchange(true)) return;
  memledger::inside::write_safely(Ended::kAfterCall, cause == nullptr ? "" : cause);
}
