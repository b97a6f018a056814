#include "reporter/formats/run_summary.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdlib>
#include <map>
#include <set>
#include <unordered_map>
#include <unordered_set>

#include "reporter/formats/peak_holders.h"
#include "reporter/formats/report_format.h"
#include "reporter/formats/run_causes.h"
#include "reporter/names/program_name.h"
#include "text/bytes.h"
#include "text/names.h"
#include "text/places.h"
#include "text/table_names.h"

namespace memledger {
namespace {

constexpr size_t kWidth = 116;  // of a line; few terminals are narrower
constexpr size_t kLargest = 10;
constexpr size_t kLargestBesideGpu = 3;  // of the CPU
constexpr size_t kLayers = 6;
constexpr size_t kGrowing = 3;

using Ids = std::unordered_set<uint64_t>;

Ids ids_of(const std::optional<DeviceReport>& device) {
  Ids ids;
  if (!device) return ids;
  for (const ReportRow& row : device->rows) {
    if (row.storage_id != 0) ids.insert(row.storage_id);
  }
  return ids;
}

// Finds what rows are for.
class Sorter {
 public:
  Sorter(const DeviceReport& rows, const RunOfDevice& run)
      : after_steps_(ids_of(run.last)), after_baseline_(ids_of(run.baseline)) {
    if (run.end) {
      for (const ReportRow& row : run.end->rows) {
        if (row.storage_id != 0 && is_called_cache(row)) caches_at_end_.insert(row.storage_id);
      }
    }
    for (const ReportRow& row : rows.rows) {
      if (row.role != Role::kParameter) continue;
      parameters_.emplace(row.storage_id, &row);
      are_parameters_told_ = are_parameters_told_ || !row.anonymous;
    }
  }

  PartOfRow part_of(const ReportRow& row) const {
    switch (row.role) {
      case Role::kParameter:
        if (!row.anonymous || !are_parameters_told_) return {Part::kParameters, row.anonymous};
        return {is_result_of_layer(row) ? Part::kActivations : Part::kLeaves, true};
      case Role::kBuffer:
        return {is_cache(row) ? Part::kCaches : Part::kBuffers};
      case Role::kGradient:
        return {Part::kGradients};
      case Role::kOptimizerState:
        return {Part::kOptimizerState};
      case Role::kInput:
        if (row.anonymous && row.checkpointed && !is_from_outside(row)) return {Part::kActivations};
        return {Part::kInputs};
      default:
        break;
    }
    if (is_cache(row)) return {Part::kCaches};
    if (row.checkpointed && !is_from_outside(row)) return {Part::kActivations};
    if (is_buffer_of_compiled_code(row)) return {Part::kCompiled, true};
    if (row.storage_kind != StorageKind::kTensor) return {Part::kWorkspaces};
    if (is_bucket(row)) return {Part::kBuckets, true};
    switch (row.phase) {
      case Phase::kOptimizer:
        return {is_kept(row) ? Part::kOptimizerState : Part::kOptimizerTemporaries, true};
      case Phase::kBackward:
        if (looks_like_gradient(row)) return {Part::kGradients, true};
        return {Part::kGradientsOfActivations};
      case Phase::kForward:
        if (comes_of_parameters(row)) return {Part::kActivations, true};
        return {is_from_outside(row) ? Part::kInputs : Part::kResults, true};
      default:
        break;
    }
    // A forward pass under no_grad.
    if (!row.adopted && !row.module.empty()) return {Part::kActivations};
    if (row.op.empty() || row.adopted) return {Part::kOther, true};
    return {is_from_outside(row) ? Part::kInputs : Part::kResults, true};
  }

 private:
  // Whether a layer has computed the leaf, a frozen embedding say, and the program asked for
  // its gradient.
  static bool is_result_of_layer(const ReportRow& row) {
    return !row.adopted && (row.checkpointed || !row.module.empty()) && !is_from_outside(row);
  }
  // Variables are looked up at the end.
  bool is_cache(const ReportRow& row) const {
    return is_called_cache(row) || (row.anonymous && caches_at_end_.count(row.storage_id) > 0);
  }
  // Whether the program itself calls it a cache of keys or values: model.layers.3.k_cache, or, of
  // the variable that holds it, past_key_values[3][0].
  static bool is_called_cache(const ReportRow& row) {
    static const auto* const kNames = new std::unordered_set<std::string_view>{
        "k_cache",  "v_cache",  "kv_cache",  "key_cache",   "value_cache",     "cache_k",
        "cache_v",  "cache_kv", "kv_caches", "key_caches",  "past_key_values", "past_key_value",
        "k_caches", "v_caches", "past_kv",   "value_caches"};
    const std::string_view name = row.anonymous ? row.held_by : row.name;
    // What a graph keeps for a variable is no part of it.
    if (row.anonymous && name.find("graph") != std::string_view::npos) return false;
    const auto is_of_word = [](unsigned char c) { return std::isalnum(c) != 0 || c == '_'; };
    for (auto begin = name.begin(); begin != name.end();) {
      begin = std::find_if(begin, name.end(), is_of_word);
      const auto end = std::find_if_not(begin, name.end(), is_of_word);
      if (begin != end &&
          kNames->count(std::string_view(&*begin, static_cast<size_t>(end - begin))) > 0)
        return true;
      begin = end;
    }
    return false;
  }
  // What a compiled graph makes for itself: it shows no tensor, or none that outlives the step.
  bool is_buffer_of_compiled_code(const ReportRow& row) const {
    if (row.adopted || compiled_graph(row).empty() ||
        row.storage_kind == StorageKind::kLibraryWorkspace)
      return false;
    return row.phase == Phase::kBackward ? !is_kept(row) : !row.dtype.has_value();
  }
  // Whether the operator read a parameter, or what was computed with one.
  static bool comes_of_parameters(const ReportRow& row) {
    return row.parameter != 0 || row.awaits_backward || !row.module.empty() ||
           row.role == Role::kSaved;
  }
  // Whether an operator made it that computes nothing from other tensors: it creates, reads or
  // copies.
  static bool is_from_outside(const ReportRow& row) {
    static const auto* const kOperators = new std::unordered_set<std::string_view>{
        "arange",       "bernoulli",     "cat",           "clone",    "complex",   "contiguous",
        "copy",         "empty",         "empty_strided", "eye",      "from_file", "frombuffer",
        "full",         "lift",          "lift_fresh",    "linspace", "logspace",  "normal",
        "ones",         "pin_memory",    "rand",          "randint",  "randn",     "random",
        "randperm",     "scalar_tensor", "stack",         "tensor",   "to",        "to_copy",
        "tril_indices", "triu_indices",  "uniform",       "zeros"};
    std::string_view name = row.op;
    const auto drop_front = [&](std::string_view part) {
      if (name.rfind(part, 0) == 0) name.remove_prefix(part.size());
    };
    drop_front("aten::");
    drop_front("_");
    drop_front("new_");
    for (const std::string_view end : {"_", "_like"}) {
      if (name.size() > end.size() && name.substr(name.size() - end.size()) == end)
        name.remove_suffix(end.size());
    }
    return kOperators->count(name) > 0;
  }
  // DistributedDataParallel's reducer makes one flat tensor for each bucket, outside any layer.
  static bool is_bucket(const ReportRow& row) {
    return row.anonymous && row.op == "aten::empty" && row.shape && row.shape->size() == 1 &&
           row.module == "DistributedDataParallel";
  }
  // Whether it outlives steps.
  bool is_kept(const ReportRow& row) const {
    return after_steps_.count(row.storage_id) + after_baseline_.count(row.storage_id) > 0;
  }
  // Backward made it, and it outlives the step or is as large as the parameter that its node
  // belongs to.
  bool looks_like_gradient(const ReportRow& row) const {
    if (is_kept(row)) return true;
    const auto parameter = parameters_.find(row.parameter);
    return parameter != parameters_.end() && parameter->second->nbytes == row.nbytes &&
           parameter->second->shape == row.shape;
  }

  const Ids after_steps_, after_baseline_;
  Ids caches_at_end_;
  bool are_parameters_told_ = false;
  std::unordered_map<uint64_t, const ReportRow*> parameters_;
};

std::string parent_of(const std::string& module) {
  const size_t dot = module.rfind('.');
  return dot == std::string::npos ? "" : module.substr(0, dot);
}

// Finds low-rank adapters (LoRA): in a module that has one frozen matrix, two matrices which train
// and whose product has that one's shape, through a dimension smaller than both of its.
class AdapterFinder {
 public:
  explicit AdapterFinder(const DeviceReport& rows) {
    for (const ReportRow& row : rows.rows) {
      if (row.role != Role::kParameter || row.anonymous || !row.shape) continue;
      ++parameters_of_[row.module];
      if (row.shape->size() < 2 || !row.requires_grad) continue;
      for (std::string home = row.module; !home.empty(); home = parent_of(home))
        (*row.requires_grad ? homes_[home].training : homes_[home].frozen).push_back(&row);
    }
  }

  Ids find() const {
    Ids found;
    for (const auto& [home, matrices] : homes_) {
      constexpr size_t kMaxMatrices = 64;
      const std::vector<const ReportRow*>& training = matrices.training;
      if (matrices.frozen.size() != 1 || training.size() > kMaxMatrices) continue;
      const ReportRow& frozen = *matrices.frozen.front();
      if (frozen.module != home && parent_of(frozen.module) != home) continue;
      for (size_t i = 0; i < training.size(); ++i) {
        for (size_t j = 0; j < i; ++j) {
          if (!is_factor(*training[i], home) || !is_factor(*training[j], home) ||
              !multiply_to(*training[i]->shape, *training[j]->shape, *frozen.shape))
            continue;
          found.insert({training[i]->storage_id, training[j]->storage_id});
        }
      }
    }
    return found;
  }

 private:
  struct Matrices {
    std::vector<const ReportRow*> frozen, training;
  };

  // It lies in `home`, or has a module of its own two levels below that, or less: with a bias it
  // would be a layer.
  bool is_factor(const ReportRow& row, const std::string& home) const {
    if (row.module == home) return true;
    const std::string parent = parent_of(row.module);
    return (parent == home || parent_of(parent) == home) && parameters_of_.at(row.module) == 1;
  }
  static bool multiply_to(const c10::DimVector& a, const c10::DimVector& b,
                          const c10::DimVector& product) {
    const auto sorted = [](int64_t x, int64_t y) {
      return std::pair(std::min(x, y), std::max(x, y));
    };
    for (size_t i : {0, 1}) {
      for (size_t j : {0, 1}) {
        if (a[i] == b[j] && a[i] < std::min(product[0], product[1]) &&
            sorted(a[1 - i], b[1 - j]) == sorted(product[0], product[1]))
          return true;
      }
    }
    return false;
  }

  std::unordered_map<std::string, Matrices> homes_;
  std::unordered_map<std::string, int> parameters_of_;  // by module
};

Ids low_rank_adapters(const DeviceReport& rows) { return AdapterFinder(rows).find(); }

// Returns the layer: the module, or the innermost label.
std::string layer_of(const ReportRow& row) {
  if (!row.module.empty()) return row.module;
  if (std::string graph = compiled_graph(row); !graph.empty()) return "compiled " + graph;
  const std::string_view label = row.forward_label.empty() ? row.label : row.forward_label;
  return std::string(label);
}

bool is_number(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(),
                                      [](unsigned char c) { return std::isdigit(c) != 0; });
}

// A name with its first number apart: transformer.h. 3 .mlp.c_fc.weight, or Block# 2 .weight.
struct Numbered {
  std::string before, after;
  int64_t number = -1;  // none
};
Numbered numbered(const std::string& name) {
  size_t begin = 0;
  while (begin <= name.size()) {
    const size_t end = std::min(name.find('.', begin), name.size());
    const std::string_view part(&name[begin], end - begin);
    const size_t sign = part.find('#');
    const std::string_view number = part.substr(sign == std::string_view::npos ? 0 : sign + 1);
    if (is_number(number) && number.size() < 9)
      return {name.substr(0, end - number.size()), name.substr(end),
              std::stoll(std::string(number))};
    begin = end + 1;
  }
  return {name, "", -1};
}

using Layers = std::map<std::string, int64_t>;

// Sums up layers of layers: transformer.h.3.mlp.c_fc and transformer.h.3.attn become
// transformer.h.3.
Layers blocks_of(const Layers& layers) {
  Layers blocks;
  for (const auto& [layer, bytes] : layers) {
    const Numbered name = numbered(layer);
    blocks[name.number < 0 ? layer : name.before + std::to_string(name.number)] += bytes;
  }
  return blocks;
}

// Layers that one entry of a list shows.
struct LayerEntry {
  std::string name;          // of the first
  std::string before;        // of equal ones: what stands before their numbers
  int64_t last_number = -1;  // of equal ones
  int64_t count = 1;
  int64_t bytes = 0;  // of all
  int64_t least = 0, most = 0;
  bool is_sum = false;  // of what lies in a module: layer1.*
  bool has_sums = false;

  // Among its siblings a sum is one: its name does not show how many layers it has.
  int64_t weight() const { return is_sum ? 1 : count; }
  int64_t smallest() const { return is_sum ? bytes : least; }
  int64_t largest() const { return is_sum ? bytes : most; }
  std::string parent() const { return parent_of(is_sum ? parent_of(name) : name); }
};

// Returns blocks, those that follow each other and take the same as one.
std::vector<LayerEntry> entries_of(const Layers& layers) {
  std::vector<std::pair<Numbered, int64_t>> sorted;
  for (const auto& [layer, bytes] : blocks_of(layers)) sorted.emplace_back(numbered(layer), bytes);
  std::stable_sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) {
    return std::tie(a.first.before, a.first.number) < std::tie(b.first.before, b.first.number);
  });
  std::vector<LayerEntry> entries;
  for (const auto& [name, bytes] : sorted) {
    const bool is_next = !entries.empty() && name.number >= 0 &&
                         entries.back().before == name.before &&
                         entries.back().last_number + 1 == name.number &&
                         readable_size(entries.back().least) == readable_size(bytes);
    if (!is_next) {
      entries.push_back({name.number < 0 ? name.before : name.before + std::to_string(name.number),
                         name.before, name.number, 1, bytes, bytes, bytes, false});
      continue;
    }
    LayerEntry& entry = entries.back();
    entry.last_number = name.number;
    ++entry.count;
    entry.bytes += bytes;
    entry.least = std::min(entry.least, bytes);
    entry.most = std::max(entry.most, bytes);
  }
  return entries;
}

// Returns those of a module's layers that one sum may stand for: each has between half and twice
// their median.
std::vector<size_t> alike_of(const std::vector<LayerEntry>& entries,
                             const std::vector<size_t>& places) {
  std::vector<int64_t> sizes;
  for (const size_t place : places)
    sizes.insert(sizes.end(), static_cast<size_t>(entries[place].weight()),
                 entries[place].smallest());
  std::sort(sizes.begin(), sizes.end());
  const int64_t median = sizes[(sizes.size() - 1) / 2];
  std::vector<size_t> alike;
  for (const size_t place : places) {
    if (entries[place].smallest() * 2 >= median && entries[place].largest() <= 2 * median)
      alike.push_back(place);
  }
  return alike;
}

// Makes one entry of the layers of each module that lies deepest. Returns false if there is none.
bool sum_up_deepest(std::vector<LayerEntry>& entries) {
  std::map<std::string, std::vector<size_t>> by_parent;
  for (size_t i = 0; i < entries.size(); ++i) {
    if (const std::string parent = entries[i].parent(); !parent.empty())
      by_parent[parent].push_back(i);
  }
  const auto depth = [](const std::string& path) {
    return std::count(path.begin(), path.end(), '.');
  };
  std::ptrdiff_t deepest = -1;
  for (auto& [parent, places] : by_parent) {
    places = alike_of(entries, places);
    if (places.size() > 1) deepest = std::max<std::ptrdiff_t>(deepest, depth(parent));
  }
  std::vector<LayerEntry> result;
  std::set<size_t> gone;
  for (const auto& [parent, places] : by_parent) {
    if (places.size() < 2 || depth(parent) != deepest) continue;
    LayerEntry sum;
    sum.name = parent + ".*";
    sum.count = 0;
    sum.least = entries[places.front()].smallest();
    sum.is_sum = true;
    for (const size_t place : places) {
      const LayerEntry& one = entries[place];
      sum.count += one.weight();
      sum.bytes += one.bytes;
      sum.least = std::min(sum.least, one.smallest());
      sum.most = std::max(sum.most, one.largest());
      sum.has_sums = sum.has_sums || one.is_sum;
      gone.insert(place);
    }
    result.push_back(std::move(sum));
  }
  if (result.empty()) return false;
  for (size_t i = 0; i < entries.size(); ++i) {
    if (gone.count(i) == 0) result.push_back(std::move(entries[i]));
  }
  entries = std::move(result);
  return true;
}

// Returns `layer1.* 28.00M (3 layers, 8.00M to 12.00M each)`.
std::string sum_text(const LayerEntry& sum, const std::string& name) {
  const std::string least = readable_size(sum.least), most = readable_size(sum.most);
  return fmt::format("{} {} ({} {}, {} each)", name, readable_size(sum.bytes), sum.count,
                     sum.has_sums ? "modules" : "layers",
                     least == most ? least : least + " to " + most);
}

// Returns `transformer.h.0 … 11: 0.82M each, wte 3.00M`, the largest first.
std::string layers_text(const Layers& layers) {
  std::vector<LayerEntry> entries = entries_of(layers);
  while (entries.size() > kLayers && sum_up_deepest(entries)) {
  }  // until they are few
  std::stable_sort(entries.begin(), entries.end(),
                   [](const LayerEntry& a, const LayerEntry& b) { return a.bytes > b.bytes; });
  std::vector<NameInTable> long_names;
  for (size_t i = 0; i < std::min(entries.size(), kLayers); ++i)
    long_names.push_back({entries[i].name, 60});
  const std::vector<std::string> names = table_names(long_names);
  std::string text;
  for (size_t i = 0; i < names.size(); ++i) {
    const LayerEntry& entry = entries[i];
    if (i > 0) text += ", ";
    if (entry.is_sum) {
      text += sum_text(entry, names[i]);
    } else if (entry.count == 1) {
      text += fmt::format("{} {}", names[i], readable_size(entry.bytes));
    } else {
      text +=
          fmt::format("{} … {}: {} each", names[i], entry.last_number, readable_size(entry.least));
    }
  }
  if (entries.size() <= kLayers) return text;
  int64_t rest = 0;
  for (size_t i = kLayers; i < entries.size(); ++i) rest += entries[i].bytes;
  return text + fmt::format(", {} more {}", entries.size() - kLayers, readable_size(rest));
}

std::string place_of(const ReportRow& row) {
  return row.where.empty() ? "" : " at " + short_line_text(row);
}

// Returns `, at step 2, backward of conv1, by aten::convolution_backward at train.cc:12 main`.
std::string moment_text(const RunReport& run, const RunOfDevice& device) {
  std::string text;
  if (device.peak_step > 0) {
    text = fmt::format(", at step {}", device.peak_step);
  } else if (run.steps > 0) {
    text = fmt::format(", after step {}", run.steps);
  }
  const ReportRow* const last = device.peak.row_that_made_peak();
  if (last == nullptr) return text;
  // A model is made outside any pass.
  const bool is_of_model = last->role == Role::kParameter || last->role == Role::kBuffer;
  if (last->phase != Phase::kOther && !is_of_model) {
    text += fmt::format(", {}", to_string(last->phase));
    if (!last->module.empty()) text += " of " + table_name(last->module);
  }
  if (!last->op.empty()) text += fmt::format(", by {}", printable(last->op));
  return text + place_of(*last);
}

std::string head_of(const RunReport& run, const RunOfDevice& device) {
  const PeakFigures& figures = device.figures;
  std::string text = device.peak.device.str();
  if (!figures.gpu.empty()) text += fmt::format(" ({})", printable(figures.gpu));
  text += "  peak ";
  // The CPU's allocator gives what is asked for.
  const bool is_cpu = device.peak.device.is_cpu();
  text += figures.allocated_peak
              ? "allocated " + readable_size(*figures.allocated_peak)
              : (is_cpu ? "allocated " : "requested ") + readable_size(device.peak.total_bytes);
  if (figures.reserved_peak) text += ", reserved " + readable_size(*figures.reserved_peak);
  if (figures.capacity) text += " of " + readable_size(*figures.capacity);
  return text + moment_text(run, device);
}

struct OfParameters {
  int64_t frozen = 0;
  int64_t trainable = 0;
  int64_t adapters = 0;  // part of trainable
};

struct Composition {
  std::array<int64_t, kParts> bytes{};
  OfParameters parameters;
  std::array<int64_t, kParts> inferred{};
  int64_t recomputed = 0, checkpointed = 0;  // of activations
  std::array<Layers, kParts> layers;
  std::array<Layers, kParts> dtypes;
  int64_t nameless = 0;
};

Composition compose(const DeviceReport& rows, const RunOfDevice& run) {
  Composition result;
  const Sorter sorter(rows, run);
  const Ids adapters = low_rank_adapters(rows);
  for (const ReportRow& row : rows.rows) {
    const int64_t bytes = row.nbytes.value_or(0);
    const PartOfRow part = sorter.part_of(row);
    if (part.part == Part::kParameters && row.requires_grad.has_value()) {
      OfParameters& its = result.parameters;
      (*row.requires_grad ? its.trainable : its.frozen) += bytes;
      if (adapters.count(row.storage_id) > 0) its.adapters += bytes;
    }
    const auto index = static_cast<size_t>(part.part);
    result.bytes[index] += bytes;
    if (part.part == Part::kActivations) {
      result.recomputed += row.recomputed ? bytes : 0;
      result.checkpointed += row.checkpointed ? bytes : 0;
    }
    if (part.inferred) result.inferred[index] += bytes;
    if (row.dtype) result.dtypes[index][dtype_name(*row.dtype)] += bytes;
    std::string layer = layer_of(row);
    if (row.anonymous && layer.empty() && part.part != Part::kWorkspaces) result.nameless += bytes;
    if (!layer.empty()) result.layers[index][std::move(layer)] += bytes;
  }
  return result;
}

// Returns ` bfloat16+float32`, the largest first; what has less than a hundredth is left out.
std::string dtypes_text(const Layers& dtypes, int64_t bytes) {
  std::vector<std::pair<int64_t, std::string>> sorted;
  for (const auto& [dtype, of_it] : dtypes) {
    if (of_it * 100 >= bytes) sorted.emplace_back(-of_it, dtype);
  }
  std::sort(sorted.begin(), sorted.end());
  std::string text;
  for (const auto& [of_it, dtype] : sorted) text += (text.empty() ? " " : "+") + dtype;
  return text;
}

// Returns ` (frozen 89.68M, trainable 1.21M)`; empty where nothing is known to be frozen.
std::string frozen_text(const OfParameters& parameters, int64_t all) {
  if (parameters.frozen == 0) return "";
  if (parameters.frozen == all) return " (frozen)";
  std::string text = " (frozen " + readable_size(parameters.frozen);
  if (parameters.trainable > 0) text += ", trainable " + readable_size(parameters.trainable);
  if (parameters.adapters == parameters.trainable && parameters.adapters > 0) {
    text += ": low-rank adapters";
  } else if (parameters.adapters > 0) {
    text += ", of it low-rank adapters " + readable_size(parameters.adapters);
  }
  const int64_t rest = all - parameters.frozen - parameters.trainable;
  if (rest > 0) text += ", not known " + readable_size(rest);
  return text + ")";
}

// Returns `parameters 0.46M float32, activations 2.85M (conv1 2.85M)`.
std::string composition_text(const Composition& composition, bool with_layers) {
  std::string text;
  for (size_t i = 0; i < kParts; ++i) {
    if (composition.bytes[i] == 0) continue;
    const auto part = static_cast<Part>(i);
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", to_string(part),
                        readable_size(composition.bytes[i]));
    // Other parts are always inferred.
    const bool may_be_told =
        part == Part::kParameters || part == Part::kGradients || part == Part::kOptimizerState;
    if (may_be_told) text += dtypes_text(composition.dtypes[i], composition.bytes[i]);
    if (may_be_told && composition.inferred[i] > 0) {
      text += composition.inferred[i] == composition.bytes[i]
                  ? " (inferred)"
                  : fmt::format(" ({} of it inferred)", readable_size(composition.inferred[i]));
    }
    if (part == Part::kParameters)
      text += frozen_text(composition.parameters, composition.bytes[i]);
    if (part == Part::kActivations && composition.checkpointed > 0)
      text +=
          fmt::format(", of it inputs of checkpoints {}", readable_size(composition.checkpointed));
    if (part == Part::kActivations && composition.recomputed > 0)
      text +=
          fmt::format(", of it recomputed in backward {}", readable_size(composition.recomputed));
    const bool has_layers = part == Part::kActivations || part == Part::kGradientsOfActivations;
    if (with_layers && has_layers && !composition.layers[i].empty())
      text += fmt::format(" ({})", layers_text(composition.layers[i]));
  }
  return text;
}

// What rows on one line have in common.
struct Group {
  std::string what;
  size_t number_at = std::string::npos;  // where `what` lacks its number
  std::string place;
  bool lines_differ = false;  // so that none is shown
  std::string shape, dtype;
  std::string held_by;  // of the first row that has one, without its index where several differ
  int64_t bytes = 0;
  size_t count = 0;
  int64_t first_number = -1, last_number = -1;
  bool same_size = true;
  int64_t each = 0;
  const ReportRow* first = nullptr;
};

// The storage may be far larger than the tensor that an operator has shown.
std::string shape_of(const ReportRow& row) {
  if (row.storage_kind != StorageKind::kTensor && !row.shape) return "workspace";
  const std::string shape = table_shape(row.shape);
  if (!row.anonymous || !row.shape || !row.dtype || !row.nbytes) return shape;
  const int64_t shown = row.elements() * static_cast<int64_t>(c10::elementSize(*row.dtype));
  return shown > 0 && shown <= *row.nbytes / 2 ? "a part: " + shape : shape;
}

std::string short_dtype(const ReportRow& row) {
  if (!row.dtype) return "";
  return dtype_name(*row.dtype);
}

// Stands for a number in a text that is about to lose it.
constexpr char kNumberMark = '\x01';

// Takes the first number of a name out, so that names that differ in it are the same.
void take_number_out(Group& group, const std::string& name, const std::string& text_with_mark) {
  const Numbered parts = numbered(name);
  group.first_number = group.last_number = parts.number;
  group.what = text_with_mark;
  group.number_at = text_with_mark.find(kNumberMark);
  if (group.number_at != std::string::npos) group.what.erase(group.number_at, 1);
}

// Returns the row's name with a mark for its first number, if it has one.
std::string with_mark(const std::string& name) {
  const Numbered parts = numbered(name);
  return parts.number < 0 ? name : parts.before + kNumberMark + parts.after;
}

// Whether a row has the name of a library's workspace (LibraryWorkspace::name()).
bool is_named_workspace(const ReportRow& row) {
  return row.storage_kind == StorageKind::kLibraryWorkspace &&
         row.name.find(" workspace") != std::string::npos;
}

// Returns the key of the row's group but for its line, and fills in what the group shows.
std::string describe(const ReportRow& row, PartOfRow part, Group& group) {
  group.dtype = short_dtype(row);
  group.shape = shape_of(row);
  group.place = place_of(row);
  if (is_named_workspace(row)) {
    group.what = row.name.substr(0, row.name.find(" ("));
    group.place.clear();  // of what needed it first
    return "workspace " + group.what;
  }
  if (!row.anonymous) {
    const std::string name = with_mark(row.name);
    take_number_out(group, row.name, name);
    if (group.first_number < 0) return "named " + row.name;
    return "numbered " + name + '\n' + group.shape + '\n' + group.dtype;
  }
  if (part.part == Part::kOptimizerState) {
    const std::string_view optimizer = optimizer_of(row.label);
    group.what = std::string(optimizer.empty() ? "optimizer" : optimizer) + " state";
    group.place.clear();
    group.shape = "various";
    return "state " + group.what + '\n' + group.dtype;
  }
  if (part.part == Part::kCompiled) {
    group.what = fmt::format("buffers of compiled {} [{}]", printable(compiled_graph(row)),
                             to_string(row.phase));
    group.shape = "various";
    return "compiled " + group.what;
  }
  ReportRow marked = row;
  marked.where.clear();
  marked.called_from.clear();
  marked.module = with_mark(row.module);
  std::string made_by = producer(marked);
  if (row.checkpointed && part.part == Part::kActivations) made_by += ", a checkpoint's input";
  take_number_out(group, row.module, made_by.empty() ? "made outside operators" : made_by);
  return "made " + made_by + '\n' + group.shape + '\n' + group.dtype;
}

void add_holder(Group& group, const std::string& held_by) {
  if (held_by.empty() || held_by == group.held_by) return;
  if (group.held_by.empty()) {
    group.held_by = held_by;
  } else if (without_indices(group.held_by) == without_indices(held_by)) {
    group.held_by = without_indices(held_by);
  }
}

std::string holder_text(const Group& group) {
  return group.held_by.empty() ? "" : ", held by " + table_name(group.held_by);
}

// Collects rows in groups. Those without a name are apart where their lines differ; such whose
// lines were not noted are of the group that has a line, where that is the only one: lines are
// sampled.
class Grouper {
 public:
  // `sign` -1: takes its bytes away. Rows of the storages `left_out` are passed over.
  void add(const DeviceReport& rows, const RunOfDevice& run, int sign = 1,
           const Ids& left_out = Ids()) {
    const Sorter sorter(rows, run);
    for (const ReportRow& row : rows.rows) {
      if (row.kind != RowKind::kStorage || row.nbytes.value_or(0) == 0) continue;
      if (left_out.count(row.storage_id) > 0) continue;
      Group described;
      const std::string key = describe(row, sorter.part_of(row), described);
      add(row, sign, key, std::move(described));
    }
  }

  // Returns those that have bytes, the largest first.
  std::vector<Group> take() {
    for (const auto& [key, of_kind] : kinds_) {
      const bool has_one_line = of_kind.size() == 2 && groups_[of_kind.front()].place.empty() !=
                                                           groups_[of_kind.back()].place.empty();
      if (has_one_line) merge(groups_[of_kind.front()], groups_[of_kind.back()]);
    }
    groups_.erase(std::remove_if(groups_.begin(), groups_.end(),
                                 [](const Group& group) { return group.bytes == 0; }),
                  groups_.end());
    std::stable_sort(groups_.begin(), groups_.end(), [](const Group& a, const Group& b) {
      return std::abs(a.bytes) > std::abs(b.bytes);
    });
    return std::move(groups_);
  }

 private:
  void add(const ReportRow& row, int sign, const std::string& key, Group described) {
    const std::string line = row.anonymous ? '\n' + described.place : "";
    const auto [entry, is_new] = index_of_.try_emplace(key + line, groups_.size());
    const int64_t bytes = *row.nbytes;
    if (is_new) {
      kinds_[key].push_back(groups_.size());
      groups_.push_back(std::move(described));
      Group& group = groups_.back();
      group.first = &row;
      group.each = bytes;
      group.bytes = sign * bytes;
      group.count = 1;
      add_holder(group, row.held_by);
      return;
    }
    described.first = &row;
    described.each = bytes;
    described.bytes = sign * bytes;
    described.count = 1;
    described.held_by = row.held_by;
    add_to(groups_[entry->second], described);
  }

  static void add_to(Group& group, const Group& more) {
    group.bytes += more.bytes;
    group.count += more.count;
    add_holder(group, more.held_by);
    if (group.place.empty() && !group.lines_differ) group.place = more.place;
    group.lines_differ = group.lines_differ || (!more.place.empty() && group.place != more.place);
    if (group.lines_differ) group.place.clear();
    group.same_size = group.same_size && more.same_size && group.each == more.each;
    if (group.first_number >= 0) {
      group.first_number = std::min(group.first_number, more.first_number);
      group.last_number = std::max(group.last_number, more.last_number);
    }
  }

  // Into the one that has a line.
  static void merge(Group& a, Group& b) {
    Group& with_line = a.place.empty() ? b : a;
    Group& without = a.place.empty() ? a : b;
    add_to(with_line, without);
    without.bytes = 0;
  }

  std::vector<Group> groups_;
  std::unordered_map<std::string, size_t> index_of_;
  std::map<std::string, std::vector<size_t>> kinds_;  // by key without a line
};

std::vector<Group> groups_of(const DeviceReport& rows, const RunOfDevice& run) {
  Grouper grouper;
  grouper.add(rows, run);
  return grouper.take();
}

// Returns h.0…11.mlp.weight, or aten::linear [output of h.0…11.mlp, forward].
std::string what_of(const Group& group) {
  if (group.number_at == std::string::npos) {
    const bool is_of_handles = group.count > 1 && is_named_workspace(*group.first);
    return group.what + (is_of_handles ? ", one for each thread and stream" : "");
  }
  std::string number = std::to_string(group.first_number);
  if (group.last_number != group.first_number) number += "…" + std::to_string(group.last_number);
  std::string what = group.what;
  return what.insert(group.number_at, number);
}

// Returns what is shown of the first groups: names that differ still do.
std::vector<std::string> whats_of(const std::vector<Group>& groups, size_t most) {
  std::vector<NameInTable> names;
  for (size_t i = 0; i < std::min(most, groups.size()); ++i) names.push_back({what_of(groups[i])});
  return table_names(names);
}

// Returns `0…63.k` of the name, whose first number is the group's.
std::string with_numbers(const std::string& name, const Group& group) {
  const Numbered parts = numbered(name);
  if (parts.number < 0 || group.first_number == group.last_number) return name;
  return fmt::format("{}{}…{}{}", parts.before, group.first_number, group.last_number, parts.after);
}

std::string shape_and_dtype(const Group& group) {
  return group.dtype.empty() ? group.shape : group.shape + " " + group.dtype;
}

// Returns ` at train.py:81` of ` at train.py:81 forward`.
std::string without_one_function(const std::string& place) {
  size_t end = place.size();
  for (size_t colon = place.find(':'); colon != std::string::npos;
       colon = place.find(':', colon + 1)) {
    const size_t after = place.find_first_not_of("0123456789", colon + 1);
    if (after != colon + 1) end = std::min(after, place.size());
  }
  return place.substr(0, end);
}

// Does the same for both lines, where there are two.
std::string without_function(const std::string& place) {
  const size_t from = place.find(", from ");
  if (from == std::string::npos) return without_one_function(place);
  return without_one_function(place.substr(0, from)) + without_one_function(place.substr(from));
}

// Returns `  110.25M  12 x 9.19M  (768, 3072) float32  h.0…11.mlp.weight at train.py:81` for each.
std::vector<std::string> group_texts(const std::vector<Group>& groups, size_t most) {
  constexpr size_t kLeast = 72;  // of a layer's path the middle says most, too
  std::vector<std::string> figures, places;
  std::vector<NameInTable> whats;
  for (size_t i = 0; i < std::min(most, groups.size()); ++i) {
    const Group& group = groups[i];
    const std::string count = group.count == 1 ? ""
                              : group.same_size
                                  ? fmt::format("{} x {}", group.count, readable_size(group.each))
                                  : fmt::format("{} x", group.count);
    figures.push_back(fmt::format("  {:>9s}  {:<12s} {:<26s} ", readable_size(group.bytes), count,
                                  shape_and_dtype(group)));
    const std::string what = what_of(group);
    std::string place = group.place;
    const size_t room = kWidth - std::min(kWidth, count_characters(figures.back()));
    if (count_characters(what) + count_characters(place) > room) place = without_function(place);
    const size_t taken = count_characters(place);
    whats.push_back({what, taken + kLeast < room ? room - taken : kLeast});
    places.push_back(place);
  }
  std::vector<std::string> texts = table_names(whats);
  for (size_t i = 0; i < texts.size(); ++i) texts[i] = figures[i] + texts[i] + places[i];
  return texts;
}

std::string signed_size(int64_t bytes) {
  return (bytes < 0 ? "-" : "+") + readable_size(bytes < 0 ? -bytes : bytes);
}

// Returns what holds more after the last step than after the baseline, and what holds less, the
// largest difference first: without the storages that were there both times.
std::vector<Group> differences_of(const RunOfDevice& device) {
  Ids stayed = ids_of(device.baseline);
  const Ids after = ids_of(device.last);
  for (auto id = stayed.begin(); id != stayed.end();)
    after.count(*id) > 0 ? void(++id) : void(id = stayed.erase(id));
  Grouper grouper;
  grouper.add(*device.last, device, 1, stayed);
  grouper.add(*device.baseline, device, -1, stayed);
  return grouper.take();
}

// Returns how many of the differences are shown: the largest, and more until there is one of each
// sign.
size_t shown_differences(const std::vector<Group>& groups) {
  const size_t most = std::min(groups.size(), kGrowing);
  const auto is_other = [&](const Group& group) {
    return (group.bytes < 0) != (groups.front().bytes < 0);
  };
  const auto other = std::find_if(groups.begin(), groups.end(), is_other);
  const auto place = static_cast<size_t>(other - groups.begin());
  return other == groups.end() || place < most ? most : most + 1;
}

std::string growth_text(const RunReport& run, const RunOfDevice& device) {
  const int64_t difference = device.last->total_bytes - device.baseline->total_bytes;
  // Rows of compiled code have other names from one step to the next, and no more bytes.
  if (difference == 0) return fmt::format("nothing has grown since step {}", run.baseline_step);
  std::vector<Group> groups = differences_of(device);
  const size_t shown = shown_differences(groups);
  if (shown > kGrowing) {
    const auto other = std::find_if(groups.begin(), groups.end(), [&](const Group& group) {
      return (group.bytes < 0) != (groups.front().bytes < 0);
    });
    std::rotate(groups.begin() + kGrowing, other, other + 1);
  }
  std::string text = fmt::format("since step {}: {}", run.baseline_step, signed_size(difference));
  int64_t rest = difference;
  const std::vector<std::string> whats = whats_of(groups, shown);
  for (size_t i = 0; i < shown; ++i) {
    text +=
        fmt::format("{} {} {} {}{}{}", i == 0 ? ", namely" : ",", signed_size(groups[i].bytes),
                    shape_and_dtype(groups[i]), whats[i], groups[i].place, holder_text(groups[i]));
    rest -= groups[i].bytes;
  }
  if (groups.size() > shown)
    text += fmt::format(", {} more {}", groups.size() - shown, signed_size(rest));
  return text;
}

// Returns `33.00M of workspaces (cuBLAS 32.00M, cuBLASLt 1.00M)`; empty: there are none.
std::string workspaces_text(const DeviceReport& device) {
  int64_t bytes = 0;
  std::map<std::string, std::pair<int64_t, size_t>> libraries;
  for (const ReportItem& item : device.items) {
    if (item.kind != ReportItemKind::kLibraryWorkspace) continue;
    auto& [its_bytes, its_count] = libraries[item.name.substr(0, item.name.find(' '))];
    its_bytes += item.bytes;
    its_count += item.count;
    bytes += item.bytes;
  }
  if (bytes == 0) return "";
  std::string text;
  for (const auto& [library, its] : libraries) {
    text += text.empty() ? "" : ", ";
    if (its.second > 1) text += fmt::format("{} x ", its.second);
    text += fmt::format("{} {}", library, readable_size(its.first));
  }
  return fmt::format("{} of workspaces ({})", readable_size(bytes), text);
}

void add_states(std::vector<std::string>& lines, const RunReport& run, const RunOfDevice& device) {
  if (device.last) {
    add_wrapped(lines, fmt::format("  after the last step ({}): {}: {}", run.steps,
                                   readable_size(device.last->total_bytes),
                                   composition_text(compose(*device.last, device), false)));
    if (device.baseline && run.steps > run.baseline_step)
      add_wrapped(lines, "    " + growth_text(run, device));
  }
  if (!device.end) return;
  std::string text = run.goes_on ? "  alive now" : "  not freed at the end";
  text += run.holders_unknown ? " (who holds it: not looked up): " : ": ";
  text += device.end->total_bytes == 0
              ? "nothing"
              : fmt::format("{}: {}", readable_size(device.end->total_bytes),
                            largest_rows(*device.end, device, 3));
  if (const std::string workspaces = workspaces_text(*device.end); !workspaces.empty())
    text += ", and LibTorch keeps " + workspaces;
  if (device.end->unexplained_bytes.value_or(0) != 0)
    text += fmt::format("; {} unexplained: please report a bug",
                        readable_size(*device.end->unexplained_bytes));
  add_wrapped(lines, text);
  for (const std::string& advice : device.advice) add_wrapped(lines, "    " + advice);
}

// Named tensors on memory that is not LibTorch's, such as a mapped checkpoint.
void add_external(std::vector<std::string>& lines, const RunOfDevice& device) {
  if (!device.end || device.end->external_bytes == 0) return;
  std::string text = "  external memory, not counted: " + readable_size(device.end->external_bytes);
  if (device.end->mapped_bytes > 0)
    text += ", of it mapped files " + readable_size(device.end->mapped_bytes);
  if (device.end->shared_bytes > 0)
    text += ", of it shared memory " + readable_size(device.end->shared_bytes);
  lines.push_back(std::move(text));
}

void add_cause(std::vector<std::string>& lines, const std::string& text) {
  if (!text.empty()) add_wrapped(lines, "  " + text);
}

// All that is reported of a device, in the order in which it is printed.
struct Told {
  std::vector<std::string> head, largest, states;
};

Told tell_of(const RunReport& run, const RunOfDevice& device, bool is_beside_gpu) {
  Told told;
  add_wrapped(told.head, head_of(run, device));
  const Composition composition = compose(device.peak, device);
  const std::string parts = composition_text(composition, true);
  const bool is_rounded = device.figures.allocated_peak.has_value() &&
                          *device.figures.allocated_peak != device.peak.total_bytes;
  const std::string requested =
      is_rounded ? readable_size(device.peak.total_bytes) + " requested: " : "";
  if (!parts.empty()) add_wrapped(told.head, "  " + requested + parts);
  if (composition.nameless > 0)
    told.head.push_back("  without a name or a layer: " + readable_size(composition.nameless));
  add_cause(told.head, unused_graph_text(run, device));
  add_cause(told.head, rounds_text(run, device));
  add_cause(told.head, recurring_text(run, device));
  add_cause(told.head, cache_text(run, device));
  add_cause(told.head, held_at_peak_text(run, device));
  const std::vector<Group> groups = groups_of(device.peak, device);
  const size_t most = is_beside_gpu ? kLargestBesideGpu : kLargest;
  told.largest = group_texts(groups, most);
  if (!is_beside_gpu) add_states(told.states, run, device);
  add_external(told.states, device);
  return told;
}

std::string reads_text(const ZeroReads& reads) {
  return fmt::format("read back, not known: {} value{}, first in {}{}", reads.count,
                     reads.count == 1 ? "" : "s", printable(reads.first_op),
                     reads.first_place.empty() ? "" : " at " + short_place(reads.first_place));
}

std::string libraries_text(const std::string& libraries) {
  return "NVIDIA's own libraries: " + printable(libraries);
}

std::string files_text(const UnrealFiles& files, const std::string& folder) {
  constexpr size_t kShown = 5;
  std::string list;
  for (size_t i = 0; i < std::min(kShown, files.paths.size()); ++i) {
    const std::string& path = files.paths[i];
    const bool is_below = !folder.empty() && path.rfind(folder + "/", 0) == 0;
    list += (i == 0 ? "" : ", ") + printable(is_below ? path.substr(folder.size() + 1) : path);
  }
  if (files.count > kShown) list += fmt::format(" and {} more", files.count - kShown);
  return fmt::format(
      "{}{} written while the GPU's values were not real: {} ({} may hold zeros or made-up "
      "numbers)",
      files.is_complete ? "" : "at least ",
      files.count == 1 ? "1 file was" : fmt::format("{} files were", files.count), list,
      files.count == 1 ? "it" : "they");
}

size_t count_lines(const std::vector<Told>& devices, size_t largest, bool with_states) {
  size_t lines = 0;
  for (const Told& told : devices) {
    lines += told.head.size() + std::min(told.largest.size(), largest) +
             (with_states ? told.states.size() : 0);
  }
  return lines;
}

void append(std::vector<std::string>& lines, const std::vector<std::string>& more, size_t most) {
  lines.insert(lines.end(), more.begin(),
               more.begin() + static_cast<std::ptrdiff_t>(std::min(more.size(), most)));
}

// Returns whether the comma is one of a shape's, as of (16, 2048, 128).
bool is_in_shape(std::string_view text, size_t comma) {
  constexpr std::string_view kOfShape = "0123456789, ";
  const size_t open = text.substr(0, comma).find_last_not_of(kOfShape);
  const size_t close = text.find_first_not_of(kOfShape, comma);
  return open != std::string_view::npos && close != std::string_view::npos && text[open] == '(' &&
         text[close] == ')';
}

// Returns where a line may be broken: behind the next comma that is none of a shape's.
size_t end_of_piece(std::string_view text, size_t begin) {
  size_t comma = text.find(", ", begin);
  while (comma != std::string_view::npos && is_in_shape(text, comma))
    comma = text.find(", ", comma + 1);
  return comma == std::string_view::npos ? text.size() : comma + 2;
}

}  // namespace

void add_wrapped(std::vector<std::string>& lines, const std::string& text) {
  std::string line;
  size_t begin = 0;
  while (begin < text.size()) {
    const size_t end = end_of_piece(text, begin);
    const std::string_view piece(&text[begin], end - begin);
    if (!line.empty() && count_characters(line) + count_characters(piece) > kWidth) {
      lines.push_back(line);
      line = "    ";
    }
    line += piece;
    begin = end;
  }
  if (!line.empty()) lines.push_back(line);
}

std::string largest_rows(const DeviceReport& rows, const RunOfDevice& run, size_t most) {
  std::string text;
  const std::vector<Group> groups = groups_of(rows, run);
  const std::vector<std::string> whats = whats_of(groups, most);
  for (size_t i = 0; i < whats.size(); ++i) {
    text += fmt::format("{}{} {}{}", text.empty() ? "" : ", ", readable_size(groups[i].bytes),
                        whats[i], holder_text(groups[i]));
  }
  if (groups.size() > most) text += fmt::format(", {} more", groups.size() - most);
  return text;
}

std::string without_indices(std::string text) {
  for (size_t begin = text.find('['); begin != std::string::npos; begin = text.find('[', begin)) {
    const size_t end = text.find(']', begin);
    if (end == std::string::npos) break;
    text.replace(begin + 1, end - begin - 1, "…");
    begin += 1;
  }
  return text;
}

std::vector<GroupedRows> grouped_rows(const DeviceReport& rows, const RunOfDevice& run) {
  std::vector<GroupedRows> result;
  for (const Group& group : groups_of(rows, run)) {
    const ReportRow& row = *group.first;
    GroupedRows grouped;
    grouped.first = &row;
    grouped.is_of_state = row.anonymous && group.shape == "various" && group.place.empty();
    if (!row.anonymous) grouped.name = with_numbers(row.name, group);
    if (grouped.is_of_state) grouped.name = group.what;
    grouped.module = row.anonymous ? with_numbers(row.module, group) : row.module;
    grouped.bytes = group.bytes;
    grouped.each = group.same_size ? group.each : 0;
    grouped.count = static_cast<int64_t>(group.count);
    result.push_back(std::move(grouped));
  }
  return result;
}

std::string_view to_string(Part part) {
  switch (part) {
    case Part::kParameters:
      return "parameters";
    case Part::kBuffers:
      return "buffers";
    case Part::kCaches:
      return "KV caches";
    case Part::kGradients:
      return "gradients";
    case Part::kBuckets:
      return "DDP's buckets";
    case Part::kLeaves:
      return "other leaves that require grad";
    case Part::kOptimizerState:
      return "optimizer state";
    case Part::kInputs:
      return "inputs";
    case Part::kActivations:
      return "activations";
    case Part::kGradientsOfActivations:
      return "gradients of activations";
    case Part::kOptimizerTemporaries:
      return "optimizer's temporaries";
    case Part::kCompiled:
      return "compiled code's buffers";
    case Part::kResults:
      return "results outside layers";
    case Part::kWorkspaces:
      return "workspaces";
    case Part::kOther:
      break;
  }
  return "other";
}

std::vector<PartOfRow> parts_of(const DeviceReport& rows, const RunOfDevice& run) {
  const Sorter sorter(rows, run);
  std::vector<PartOfRow> parts;
  parts.reserve(rows.rows.size());
  for (const ReportRow& row : rows.rows) parts.push_back(sorter.part_of(row));
  return parts;
}

std::vector<PartBytes> composition_of(const DeviceReport& rows, const RunOfDevice& run) {
  const Composition composition = compose(rows, run);
  std::vector<PartBytes> result;
  for (size_t i = 0; i < kParts; ++i) {
    if (composition.bytes[i] == 0) continue;
    result.push_back({static_cast<Part>(i), composition.bytes[i], composition.inferred[i]});
    if (result.back().part != Part::kParameters) continue;
    result.back().frozen_bytes = composition.parameters.frozen;
    result.back().trainable_bytes = composition.parameters.trainable;
    result.back().adapter_bytes = composition.parameters.adapters;
  }
  return result;
}

std::string run_summary(const RunReport& run, size_t most_lines) {
  constexpr size_t kFewRows = 3;
  const bool has_gpu =
      std::any_of(run.devices.begin(), run.devices.end(),
                  [](const RunOfDevice& device) { return device.peak.device.is_cuda(); });
  std::vector<Told> devices;
  for (const RunOfDevice& device : run.devices)
    devices.push_back(tell_of(run, device, has_gpu && device.peak.device.is_cpu()));
  const bool has_reads = run.reads && run.reads->count > 0;
  const bool has_files = run.unreal_files && run.unreal_files->count > 0;
  const bool has_libraries = !run.libraries.empty();
  std::vector<std::string> pinned;
  if (run.pinned) add_wrapped(pinned, pinned_text(*run.pinned));
  const size_t room = most_lines - 1 - (has_reads ? 1 : 0) - (has_files ? 1 : 0) -
                      (has_libraries ? 1 : 0) - pinned.size();
  size_t largest = kLargest;
  while (largest > kFewRows && count_lines(devices, largest, true) > room) --largest;
  const bool with_states = count_lines(devices, largest, true) <= room;
  while (largest > 0 && count_lines(devices, largest, with_states) > room) --largest;

  std::vector<std::string> lines = {"memledger: " + run.title +
                                    (run.hint.empty() ? "" : "; " + run.hint)};
  for (const Told& told : devices) {
    append(lines, told.head, told.head.size());
    append(lines, told.largest, largest);
    if (with_states) append(lines, told.states, told.states.size());
  }
  if (lines.size() > room + 1) {
    const size_t left_out = lines.size() - room;
    lines.resize(room);
    lines.push_back(fmt::format("… {} more lines", left_out));
  }
  append(lines, pinned, pinned.size());
  if (has_libraries) lines.push_back(libraries_text(run.libraries));
  if (has_reads) lines.push_back(reads_text(*run.reads));
  if (has_files) lines.push_back(files_text(*run.unreal_files, run.folder));
  std::string text;
  for (std::string& line : lines) {
    line.resize(line.find_last_not_of(' ') + 1);
    text.append(line).append("\n");
  }
  return text;
}

}  // namespace memledger
