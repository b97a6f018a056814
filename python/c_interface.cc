#include "python/c_interface.h"

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/util/Exception.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_split.h"
#include "graph/saved_tensors.h"
#include "prediction/predict.h"
#include "registry/registry.h"
#include "registry/scoped.h"
#include "registry/training_paused.h"
#include "registry/version.h"
#include "reporter/mem_reporter.h"
#include "runner/inside/python_program.h"
#include "text/output.h"
#include "tracker/courtesy.h"
#include "tracker/line_profiler.h"
#include "tracker/mem_tracker.h"
#include "tracker/memory_profiler.h"
#include "tracker/model_size.h"
#include "tracker/values_text.h"

namespace memledger {
namespace {

char* copy_of(std::string_view text) {
  char* const copy = static_cast<char*>(std::malloc(text.size() + 1));
  if (copy == nullptr) return nullptr;
  std::memcpy(copy, text.data(), text.size());
  copy[text.size()] = '\0';
  return copy;
}

void give(char** out, std::string_view text) {
  if (out == nullptr) return;
  char* const copy = copy_of(text);
  if (copy == nullptr) throw std::bad_alloc();
  *out = copy;
}

// Both or neither.
void give_two(char** first, std::string_view first_text, char** second,
              std::string_view second_text) {
  char* copy = nullptr;
  give(first == nullptr ? nullptr : &copy, first_text);
  try {
    give(second, second_text);
  } catch (const std::bad_alloc&) {
    std::free(copy);
    throw;
  }
  if (first != nullptr) *first = copy;
}

// Without memory for a sentence the error must not be taken for success. Nobody may free this.
char no_memory[] = "memledger: out of memory";

char* sentence(std::string_view text) {
  char* const copy = copy_of(first_line(text));
  return copy == nullptr ? no_memory : copy;
}

void let_go_of(char* text) {
  if (text != no_memory) std::free(text);
}

// Runs what may throw.
template <typename Function>
char* guarded(Function function) noexcept {
  try {
    function();
    return nullptr;
  } catch (const c10::Error& error) {
    // what() would symbolize a whole stack.
    return sentence(error.what_without_backtrace());
  } catch (const std::bad_alloc&) {
    return sentence("memledger: out of memory");
  } catch (const std::exception& error) {
    return sentence(error.what());
  } catch (...) {
    return sentence("memledger: an exception of an unknown type");
  }
}

void check(const absl::Status& status) {
  if (!status.ok()) throw std::runtime_error(std::string(status.message()));
}

std::string text_or_empty(const char* text) { return text == nullptr ? "" : text; }

std::optional<c10::Device> device_or_none(const char* device) {
  if (device == nullptr) return std::nullopt;
  return c10::Device(device);
}

c10::Device device_of(const char* device) {
  return device == nullptr ? default_device() : c10::Device(device);
}

// A tensor that the caller keeps alive for a call. Takes no reference of its own.
class Borrowed {
 public:
  explicit Borrowed(void* address)
      : tensor_(
            address == nullptr
                ? at::Tensor()
                : at::Tensor(c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>::reclaim(
                      static_cast<c10::TensorImpl*>(address)))) {}
  ~Borrowed() {
    if (tensor_.defined()) tensor_.unsafeReleaseTensorImpl();
  }
  Borrowed(const Borrowed&) = delete;
  Borrowed& operator=(const Borrowed&) = delete;
  const at::Tensor& operator*() const { return tensor_; }

 private:
  at::Tensor tensor_;
};

std::vector<at::Tensor> tensors_of(void* const* addresses, size_t count) {
  std::vector<at::Tensor> tensors;
  tensors.reserve(count);
  for (size_t i = 0; i < count; ++i) tensors.push_back(*Borrowed(addresses[i]));
  return tensors;
}

// LibTorch's modules cannot let go of a buffer. An explicit instantiation may name a private
// member, and so hands it out.
using Tensors = torch::OrderedDict<std::string, at::Tensor>;
template <Tensors torch::nn::Module::*buffers>
struct PrivateBuffers {
  friend Tensors& buffers_of(torch::nn::Module& module) { return module.*buffers; }
};
Tensors& buffers_of(torch::nn::Module& module);
template struct PrivateBuffers<&torch::nn::Module::buffers_>;

// A part of a module of another language.
class ForeignModule final : public torch::nn::Module {
 public:
  explicit ForeignModule(std::string type) : torch::nn::Module(std::move(type)) {}

  ForeignModule& part(const std::string& path, const char* type) {
    if (path.empty()) return *this;
    const size_t dot = path.find('.');
    const std::string first = path.substr(0, dot);
    auto known = std::find_if(parts_.begin(), parts_.end(),
                              [&](const auto& part) { return part.first == first; });
    if (known == parts_.end()) {
      const bool is_last = dot == std::string::npos;
      auto made = std::make_shared<ForeignModule>(is_last && type != nullptr ? type : "Module");
      register_module(first, made);
      parts_.emplace_back(first, std::move(made));
      known = parts_.end() - 1;
    }
    ForeignModule& found = *known->second;
    return dot == std::string::npos ? found : found.part(path.substr(dot + 1), type);
  }

  // Past register_parameter(), which would write to the tensor.
  void put(const std::string& name, bool is_parameter, const at::Tensor& tensor) {
    Tensors& tensors = is_parameter ? parameters_ : buffers_of(*this);
    if (tensors.contains(name)) {
      tensors[name] = tensor;
    } else {
      tensors.insert(name, tensor);
    }
  }

  void let_go() {
    parameters_.clear();
    buffers_of(*this).clear();
    for (const auto& part : parts_) part.second->let_go();
  }

 private:
  std::vector<std::pair<std::string, std::shared_ptr<ForeignModule>>> parts_;
};

// Names of files and functions, as long as the process: a value may refer to them.
const char* kept_text(const char* text) {
  static auto* const lock = new std::mutex;
  static auto* const texts = new std::set<std::string>;
  const std::lock_guard<std::mutex> hold(*lock);
  return texts->insert(text_or_empty(text)).first->c_str();
}

SourceLocation location(const char* file, const char* function, int line) {
  return SourceLocation::current(kept_text(file), kept_text(function), line);
}

[[noreturn]] void refuse(std::string_view what, std::string_view given, std::string_view right) {
  throw std::invalid_argument(std::string("memledger: there is no ") + std::string(what) + " `" +
                              std::string(given) + "`; there are " + std::string(right));
}

SortBy sort_of(const char* name) {
  const std::string sort = name == nullptr ? "bytes" : name;
  if (sort == "bytes") return SortBy::kBytes;
  if (sort == "size") return SortBy::kSize;
  if (sort == "name") return SortBy::kName;
  if (sort == "birth") return SortBy::kBirth;
  refuse("order", sort, "bytes, size, name and birth");
}

GroupBy group_of(const char* name) {
  const std::string group = name == nullptr ? "alike" : name;
  if (group == "alike") return GroupBy::kAlike;
  if (group == "nothing") return GroupBy::kNothing;
  if (group == "role") return GroupBy::kRole;
  if (group == "module") return GroupBy::kModule;
  if (group == "operator") return GroupBy::kOperator;
  refuse("grouping", group, "alike, nothing, role, module and operator");
}

template <typename Value>
std::string printed(const Value& value) {
  std::ostringstream out;
  out << value;
  return out.str();
}

std::string formatted(const Report& report, const std::string& format) {
  if (format == "text") return printed(report);
  if (format == "json") return report.to_json();
  if (format == "csv") return report.to_csv();
  if (format == "html") return report.to_html();
  refuse("format", format, "text, json, csv and html");
}

CourtesyOptions::Place place_of(const char* name) {
  const std::string place = name == nullptr ? "pageable" : name;
  if (place == "pageable") return CourtesyOptions::Place::kPageable;
  if (place == "pinned") return CourtesyOptions::Place::kPinned;
  if (place == "file") return CourtesyOptions::Place::kFile;
  refuse("place", place, "pageable, pinned and file");
}

SavedTensorOptions saved_options(const memledger_saved_options* given) {
  SavedTensorOptions options;
  if (given == nullptr) return options;
  options.exclude = tensors_of(given->exclude, given->excluded);
  options.inputs = tensors_of(given->inputs, given->input_count);
  options.device = device_or_none(given->device);
  if (given->cuda_blocks != 0) options.rounding = Rounding::kCudaBlocks;
  return options;
}

}  // namespace
}  // namespace memledger

// The handles.
struct memledger_label {
  explicit memledger_label(const std::string& text) : label(text) {}
  memledger::ScopedLabel label;
};
struct memledger_module {
  explicit memledger_module(const char* type)
      : module(std::make_shared<memledger::ForeignModule>(memledger::text_or_empty(type))) {}
  std::shared_ptr<memledger::ForeignModule> module;
};
struct memledger_reporter {
  memledger::MemReporter reporter;
};
struct memledger_tracker {
  explicit memledger_tracker(memledger::TrackerOptions options) : tracker(std::move(options)) {}
  memledger::MemTracker tracker;
};
struct memledger_saved {
  memledger::SavedTensors saved;
};
struct memledger_size_run {
  memledger_size_run(torch::nn::Module* module, const memledger::ModelSizeOptions& options)
      : run(module, options) {}
  memledger::model_size_internal::Run run;
};
struct memledger_profiler {
  std::ostringstream out;
  std::optional<memledger::MemoryProfiler> profiler;
};
struct memledger_lines {
  memledger_lines() : profiler({}, of_python()) {}
  static memledger::LineProfilerOptions of_python() {
    memledger::LineProfilerOptions options;
    options.python = true;
    return options;
  }
  memledger::LineProfiler profiler;
};
struct memledger_courtesy {
  explicit memledger_courtesy(memledger::CourtesyOptions options) : courtesy(std::move(options)) {}
  memledger::Courtesy courtesy;
};

using namespace memledger;  // NOLINT: what follows are the bodies of C functions

int memledger_c_interface(void) { return MEMLEDGER_C_INTERFACE; }
const char* memledger_version(void) { return MEMLEDGER_VERSION; }
const char* memledger_built_for(void) { return MEMLEDGER_LIBTORCH; }
void memledger_free(char* text) { let_go_of(text); }

char* memledger_start(void) {
  return guarded([] {
    static auto* const tracking = new ScopedTracking;  // never ends
    check(tracking->status());
    inside::tell_python_names_now();
  });
}

void memledger_training_paused(int begins) {
  static thread_local std::vector<std::unique_ptr<ScopedTrainingPaused>> scopes;
  if (begins != 0) {
    let_go_of(guarded([] { scopes.push_back(std::make_unique<ScopedTrainingPaused>()); }));
  } else if (!scopes.empty()) {
    scopes.pop_back();
  }
}

uint64_t memledger_know(void* tensor) {
  uint64_t id = 0;
  let_go_of(guarded([&] { id = Registry::global().storage_id(*Borrowed(tensor)); }));
  return id;
}

char* memledger_read_counters(const char* device, struct memledger_counters* counters) {
  return guarded([&] {
    const Counters now = Registry::global().counters(device_of(device));
    *counters = {now.current_bytes, now.peak_bytes, now.allocated_bytes, now.freed_bytes,
                 now.current_count, now.peak_count, now.allocated_count, now.freed_count};
  });
}

char* memledger_reset_peak(const char* device) {
  return guarded([&] { Registry::global().reset_peak(device_of(device)); });
}

char* memledger_enter_label(const char* text, memledger_label** label) {
  return guarded([&] { *label = new memledger_label(text_or_empty(text)); });
}
void memledger_leave_label(memledger_label* label) { delete label; }

char* memledger_module_new(const char* type, memledger_module** module) {
  return guarded([&] { *module = new memledger_module(type); });
}
char* memledger_module_part(memledger_module* module, const char* path, const char* type) {
  return guarded([&] { module->module->part(text_or_empty(path), type); });
}
char* memledger_module_tensor(memledger_module* module, const char* path, const char* name,
                              int role, void* tensor) {
  return guarded([&] {
    module->module->part(text_or_empty(path), nullptr)
        .put(text_or_empty(name), role == MEMLEDGER_PARAMETER, *Borrowed(tensor));
  });
}
void memledger_module_let_go(memledger_module* module) {
  if (module != nullptr) module->module->let_go();
}
void memledger_module_free(memledger_module* module) { delete module; }

char* memledger_reporter_new(memledger_reporter** reporter) {
  return guarded([&] { *reporter = new memledger_reporter; });
}
char* memledger_reporter_add_module(memledger_reporter* reporter, const char* prefix,
                                    const memledger_module* module) {
  return guarded([&] { reporter->reporter.add_module(text_or_empty(prefix), *module->module); });
}
char* memledger_reporter_add_tensor(memledger_reporter* reporter, const char* name, void* tensor,
                                    int is_input) {
  return guarded([&] {
    const Borrowed borrowed(tensor);
    if (is_input != 0) {
      reporter->reporter.add_input(text_or_empty(name), *borrowed);
    } else {
      reporter->reporter.add_tensor(text_or_empty(name), *borrowed);
    }
  });
}
char* memledger_reporter_add_graph(memledger_reporter* reporter, void* loss) {
  return guarded([&] { reporter->reporter.add_graph(*Borrowed(loss)); });
}
char* memledger_reporter_add_state(memledger_reporter* reporter, const char* name, void* tensor) {
  return guarded([&] { reporter->reporter.add_state(text_or_empty(name), *Borrowed(tensor)); });
}
char* memledger_reporter_remove(memledger_reporter* reporter, const char* name) {
  return guarded([&] { reporter->reporter.remove(text_or_empty(name)); });
}
char* memledger_reporter_text(const memledger_reporter* reporter, const char* format,
                              const struct memledger_report_options* given, char** text) {
  return guarded([&] {
    ReportOptions options;
    options.verbose = given->verbose != 0;
    options.device = device_or_none(given->device);
    if (given->max_rows >= 0) options.max_rows = static_cast<size_t>(given->max_rows);
    options.sort = sort_of(given->sort);
    options.group = group_of(given->group);
    options.colour = Colour::kNever;
    const Report report = given->of_peak != 0
                              ? reporter->reporter.collect_peak(device_of(given->device), options)
                              : reporter->reporter.collect(options);
    give(text, formatted(report, text_or_empty(format)));
  });
}
char* memledger_reporter_why(const memledger_reporter* reporter, void* tensor, const char* name,
                             const char* format, char** text) {
  return guarded([&] {
    const WhyAlive why = tensor != nullptr ? reporter->reporter.why(*Borrowed(tensor))
                                           : reporter->reporter.why(text_or_empty(name));
    give(text, text_or_empty(format) == "json" ? why.to_json() : printed(why));
  });
}
void memledger_reporter_free(memledger_reporter* reporter) { delete reporter; }

char* memledger_tracker_new(const struct memledger_tracker_options* given,
                            memledger_tracker** tracker) {
  return guarded([&] {
    TrackerOptions options;
    options.detail = given->detail != 0;
    options.verbose = given->verbose != 0;
    options.colons = given->colons != 0;
    options.echo = given->echo != 0;
    options.path = text_or_empty(given->path);
    options.file_name = text_or_empty(given->file_name);
    options.device = device_of(given->device);
    *tracker = new memledger_tracker(std::move(options));
  });
}
char* memledger_tracker_add_module(memledger_tracker* tracker, const char* prefix,
                                   const memledger_module* module) {
  return guarded([&] { tracker->tracker.add_module(text_or_empty(prefix), *module->module); });
}
char* memledger_tracker_add_tensor(memledger_tracker* tracker, const char* name, void* tensor) {
  return guarded([&] { tracker->tracker.add_tensor(text_or_empty(name), *Borrowed(tensor)); });
}
char* memledger_tracker_add_state(memledger_tracker* tracker, const char* name, void* tensor) {
  return guarded([&] { tracker->tracker.add_state(text_or_empty(name), *Borrowed(tensor)); });
}
char* memledger_tracker_remove(memledger_tracker* tracker, const char* name) {
  return guarded([&] { tracker->tracker.remove(text_or_empty(name)); });
}
char* memledger_tracker_track(memledger_tracker* tracker, const char* label, const char* file,
                              const char* function, int line, char** text, char** json) {
  return guarded([&] {
    const SourceLocation where = location(file, function, line);
    const SnapshotDiff diff = label == nullptr || *label == '\0'
                                  ? tracker->tracker.track(where)
                                  : tracker->tracker.track(std::string(label), where);
    give_two(text, printed(diff), json, diff.to_json());
  });
}
char* memledger_tracker_log_path(const memledger_tracker* tracker, char** path) {
  return guarded([&] { give(path, tracker->tracker.log_path()); });
}
char* memledger_tracker_clear_cache(memledger_tracker* tracker) {
  return guarded([&] { tracker->tracker.clear_cache(); });
}
char* memledger_tracker_tensors(const memledger_tracker* tracker, char** text) {
  return guarded([&] {
    std::ostringstream out;
    tracker->tracker.print_all_gpu_tensor(out);
    give(text, out.str());
  });
}
char* memledger_tracker_usage(const memledger_tracker* tracker, double* tensors,
                              double* allocated) {
  return guarded([&] {
    *tensors = tracker->tracker.get_tensor_usage();
    *allocated = tracker->tracker.get_allocate_usage();
  });
}
void memledger_tracker_free(memledger_tracker* tracker) { delete tracker; }

char* memledger_saved_new(void* const* roots, size_t count, const memledger_module* module,
                          const struct memledger_saved_options* given, memledger_saved** saved) {
  return guarded([&] {
    const std::vector<at::Tensor> tensors = tensors_of(roots, count);
    const SavedTensorOptions options = saved_options(given);
    *saved = new memledger_saved{module == nullptr
                                     ? saved_for_backward(tensors, options)
                                     : saved_for_backward(*module->module, tensors, options)};
  });
}
char* memledger_saved_by_storage(void* root, const memledger_module* module, int duplicate,
                                 memledger_saved** saved) {
  return guarded([&] {
    *saved = new memledger_saved{
        get_tensors_saved_for_backward(*module->module, *Borrowed(root), duplicate != 0)};
  });
}
int64_t memledger_saved_total_bytes(const memledger_saved* saved) {
  return saved->saved.total_bytes();
}
int memledger_saved_is_complete(const memledger_saved* saved) {
  return saved->saved.complete() ? 1 : 0;
}
char* memledger_saved_text(const memledger_saved* saved, const char* format, char** text) {
  return guarded([&] {
    const std::string wanted = text_or_empty(format);
    if (wanted == "text") return give(text, printed(saved->saved));
    if (wanted == "json") return give(text, saved->saved.to_json());
    if (wanted == "csv") return give(text, saved->saved.to_csv());
    if (wanted == "dot") return give(text, saved->saved.to_dot());
    refuse("format", wanted, "text, json, csv and dot");
  });
}
void memledger_saved_free(memledger_saved* saved) { delete saved; }

char* memledger_size_begin(memledger_module* module, int64_t type_size, void* const* inputs,
                           size_t count, memledger_size_run** run) {
  return guarded([&] {
    ModelSizeOptions options;
    if (type_size != 0) options.type_size = type_size;
    auto made = std::make_unique<memledger_size_run>(
        module == nullptr ? nullptr : module->module.get(), options);
    for (const at::Tensor& input : tensors_of(inputs, count)) made->run.note_input(input);
    made->run.begin();
    *run = made.release();
  });
}
char* memledger_size_end(memledger_size_run* run, void* const* outputs, size_t count, char** text,
                         char** json) {
  return guarded([&] {
    const std::unique_ptr<memledger_size_run> owned(run);
    for (const at::Tensor& output : tensors_of(outputs, count)) owned->run.note_output(output);
    const ModelSize size = owned->run.end();
    give_two(text, printed(size), json, size.to_json());
  });
}
void memledger_size_free(memledger_size_run* run) { delete run; }

char* memledger_profiler_new(memledger_module* module, int print_period, int csv,
                             const char* csv_folder, const char* device,
                             memledger_profiler** profiler) {
  return guarded([&] {
    auto made = std::make_unique<memledger_profiler>();
    MemoryProfilerOptions options;
    options.print_period = print_period;
    options.csv = csv != 0;
    if (csv_folder != nullptr) options.csv_folder = csv_folder;
    options.device = device_or_none(device);
    options.out = &made->out;
    made->profiler.emplace(*module->module, std::move(options));
    *profiler = made.release();
  });
}

namespace {
void give_output(memledger_profiler* profiler, char** text) {
  give(text, profiler->out.str());
  profiler->out.str("");
}
}  // namespace

char* memledger_profiler_record_stats(memledger_profiler* profiler, char** text) {
  return guarded([&] {
    profiler->profiler->record_stats();
    give_output(profiler, text);
  });
}
char* memledger_profiler_epoch_end(memledger_profiler* profiler, char** text) {
  return guarded([&] {
    profiler->profiler->epoch_end();
    give_output(profiler, text);
  });
}
char* memledger_profiler_csv_path(const memledger_profiler* profiler, char** path) {
  return guarded([&] { give(path, profiler->profiler->csv_path()); });
}
void memledger_profiler_free(memledger_profiler* profiler) { delete profiler; }

char* memledger_set_target(const char* device) {
  return guarded([&] { set_target_device(device_of(device)); });
}
char* memledger_lines_new(memledger_lines** lines) {
  return guarded([&] { *lines = new memledger_lines; });
}
char* memledger_lines_add_function(memledger_lines* lines, const char* name, const char* frame_name,
                                   const char* file, int first_line, const char* source) {
  return guarded([&] {
    lines->profiler.add_python_function({text_or_empty(name), text_or_empty(frame_name),
                                         text_or_empty(file), first_line,
                                         absl::StrSplit(text_or_empty(source), '\n')});
  });
}
char* memledger_lines_enable(memledger_lines* lines) {
  return guarded([&] { lines->profiler.enable().release(); });
}
char* memledger_lines_disable(memledger_lines* lines) {
  return guarded([&] { lines->profiler.disable(); });
}
char* memledger_lines_clear(memledger_lines* lines) {
  return guarded([&] { lines->profiler.clear(); });
}
char* memledger_lines_text(const memledger_lines* lines, const char* format, const char* function,
                           const char* columns, char** text) {
  return guarded([&] {
    const std::vector<std::string> names =
        absl::StrSplit(text_or_empty(columns), '\n', absl::SkipEmpty());
    const std::string wanted = text_or_empty(format);
    std::ostringstream out;
    if (wanted == "text") {
      check(lines->profiler.print_stats(out, names, text_or_empty(function)));
    } else if (wanted == "json") {
      check(lines->profiler.write_json(out, names));
    } else if (wanted == "html") {
      check(lines->profiler.write_html(
          out, names, absl::StrSplit(text_or_empty(function), '\n', absl::SkipEmpty())));
    } else {
      refuse("format", wanted, "text, json and html");
    }
    give(text, out.str());
  });
}
void memledger_lines_free(memledger_lines* lines) { delete lines; }

char* memledger_courtesy_new(const struct memledger_courtesy_options* given,
                             memledger_courtesy** courtesy) {
  return guarded([&] {
    CourtesyOptions options;
    options.place = place_of(given->place);
    options.folder = text_or_empty(given->folder);
    options.device = device_or_none(given->device);
    if (given->workspaces >= 0) options.workspaces = given->workspaces != 0;
    *courtesy = new memledger_courtesy(std::move(options));
  });
}
char* memledger_courtesy_add_tensor(memledger_courtesy* courtesy, void* tensor) {
  return guarded([&] { courtesy->courtesy.add_tensor(*Borrowed(tensor)); });
}
char* memledger_courtesy_yield(memledger_courtesy* courtesy) {
  return guarded([&] { check(courtesy->courtesy.yield_memory()); });
}
char* memledger_courtesy_restore(memledger_courtesy* courtesy) {
  return guarded([&] { check(courtesy->courtesy.restore()); });
}
int64_t memledger_courtesy_yielded_bytes(const memledger_courtesy* courtesy) {
  return courtesy->courtesy.yielded_bytes();
}
char* memledger_courtesy_unmoved(const memledger_courtesy* courtesy, char** text) {
  return guarded([&] {
    std::ostringstream out;
    for (const Unmoved& unmoved : courtesy->courtesy.unmoved()) out << unmoved << '\n';
    give(text, out.str());
  });
}
void memledger_courtesy_free(memledger_courtesy* courtesy) { delete courtesy; }

char* memledger_predict(memledger_step step, const struct memledger_predict_options* given,
                        const char* file, const char* function, int line, char** text,
                        char** json) {
  return guarded([&] {
    PredictOptions options;
    options.gpu = text_or_empty(given->gpu);
    if (given->capacity_bytes >= 0) options.capacity_bytes = given->capacity_bytes;
    options.least_runs = given->least_runs;
    options.most_runs = given->most_runs;
    options.timeout_s = given->timeout_s;
    const auto run = [step] {
      if (const char* const failure = step()) throw std::runtime_error(failure);
    };
    const absl::StatusOr<Prediction> prediction =
        predict(run, options, location(file, function, line));
    check(prediction.status());
    give_two(text, prediction->sentence(), json, prediction->to_json());
  });
}
