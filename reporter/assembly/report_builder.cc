#include "reporter/assembly/report_builder.h"

#include <algorithm>
#include <array>
#include <deque>
#include <iterator>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <unordered_map>

#include "registry/core/ascending.h"
#include "registry/core/huge_pages.h"
#include "registry/hooks/calling_frame.h"
#include "registry/stacks.h"
#include "reporter/assembly/memory_maps.h"
#include "reporter/names/program_name.h"

namespace memledger {
namespace {

using DeviceId = std::pair<c10::DeviceType, c10::DeviceIndex>;

bool wanted(c10::Device device, const std::optional<c10::Device>& filter) {
  if (!filter.has_value()) return true;
  return filter->type() == device.type() &&
         (!filter->has_index() || !device.has_index() || filter->index() == device.index());
}

std::string_view number_at_start_of(std::string_view text) {
  return text.substr(0, std::min(text.find_first_not_of("0123456789"), text.size()));
}

// Returns what PyTorch's own scopes among the labels say that a storage without a parameter belongs
// to: a graph that torch.compile made (`compiled graph 0/1`), a model that AOTInductor compiled, a
// wrapper (DDP's buckets), a module for which FSDP2 gathers or scatters, the optimizer that steps.
// Empty if none says. An optimizer's step computes the loss again where it is given a closure:
// that is not the optimizer's.
std::string part_named_by(std::string_view label, bool may_be_step) {
  constexpr std::string_view kGraph = "Torch-Compiled Region: ";
  if (const size_t graph = label.rfind(kGraph); graph != std::string_view::npos) {
    const std::string_view numbers = label.substr(graph + kGraph.size());
    const std::string_view frame = number_at_start_of(numbers);
    std::string name = "compiled graph " + std::string(frame);
    if (frame.size() < numbers.size() && numbers[frame.size()] == '/')
      name.append("/").append(number_at_start_of(numbers.substr(frame.size() + 1)));
    return name;
  }
  if (label.find(kCompiledModel) != std::string_view::npos) return kCompiledModel;
  if (label == kMnist) return kMnist;
  if (const std::string_view name = may_be_step ? optimizer_of(label) : ""; !name.empty())
    return std::string(name);
  // What FSDP2 makes on behalf of a module: FSDP::all_gather (blocks.2)
  constexpr std::string_view kFsdp = "FSDP::";
  if (const size_t fsdp = label.rfind(kFsdp); fsdp != std::string_view::npos) {
    const size_t begin = label.find(" (", fsdp), end = label.find(')', fsdp);
    if (begin == std::string_view::npos || end == std::string_view::npos || end < begin)
      return "FSDP";
    return std::string(label.substr(begin + 2, end - begin - 2));
  }
  for (const std::string_view wrapper :
       {"DistributedDataParallel", "FullyShardedDataParallel", "DataParallel"}) {
    for (size_t at = label.find(wrapper); at != std::string_view::npos;
         at = label.find(wrapper, at + 1)) {
      const std::string_view rest = label.substr(at + wrapper.size());
      for (const std::string_view function : {".forward", ".__init__"}) {
        if (rest.substr(0, function.size()) == function) return std::string(wrapper);
      }
    }
  }
  return "";
}

// How many bytes of their storage all these tensors can reach: the union of where they lie.
int64_t visible_bytes(const std::vector<const NamedTensorFacts*>& tensors, int64_t storage_bytes) {
  std::vector<std::pair<int64_t, int64_t>> pieces;
  for (const NamedTensorFacts* tensor : tensors) {
    // Nobody knows where the elements of a nested tensor lie.
    if (!tensor->extent_bytes.has_value() || !tensor->offset_bytes.has_value())
      return storage_bytes;
    pieces.emplace_back(*tensor->offset_bytes, *tensor->offset_bytes + *tensor->extent_bytes);
  }
  std::sort(pieces.begin(), pieces.end());
  int64_t visible = 0, end = 0;
  for (const auto& [from, to] : pieces) {
    visible += std::max<int64_t>(0, to - std::max(from, end));
    end = std::max(end, to);
  }
  return std::min(visible, storage_bytes);
}

ReportRow row_of(const NamedTensorFacts& tensor, RowKind kind) {
  ReportRow row;
  row.kind = kind;
  row.name = tensor.name;
  row.role = tensor.role;
  row.module = tensor.module;
  if (tensor.shape.has_value()) row.shape.emplace(tensor.shape->begin(), tensor.shape->end());
  row.dtype = tensor.dtype;
  row.requires_grad = tensor.requires_grad;
  row.storage_offset_bytes = tensor.offset_bytes;
  row.extent_bytes = tensor.extent_bytes;
  return row;
}

// Returns the rows of one storage: one per tensor object; the same object under two names is a+b.
// The bytes are counted in the first, which has the storage's role, and the user's name rather than
// a graph's slot. `least` is the role unless a tensor has a better one.
std::vector<ReportRow> rows_of(std::vector<const NamedTensorFacts*> tensors, Role least) {
  std::stable_sort(tensors.begin(), tensors.end(),
                   [](const NamedTensorFacts* a, const NamedTensorFacts* b) {
                     return std::make_pair(a->role == Role::kSaved, a->role) <
                            std::make_pair(b->role == Role::kSaved, b->role);
                   });
  struct NamesOfRow {
    size_t row;
    std::vector<std::string_view> names;
  };
  std::unordered_map<uintptr_t, NamesOfRow> rows_of_tensors;
  std::optional<int64_t> references;
  bool requires_grad = false;
  Role role = least;
  std::vector<ReportRow> rows;
  for (const NamedTensorFacts* tensor : tensors) {
    role = std::min(role, tensor->role);
    if (tensor->references.has_value()) references = tensor->references;
    requires_grad = requires_grad || tensor->requires_grad.value_or(false);
    const auto [entry, is_new] =
        rows_of_tensors.try_emplace(tensor->identity, NamesOfRow{rows.size(), {}});
    auto& [row, names] = entry->second;
    if (!is_new && tensor->identity != 0) {
      if (tensor->role == Role::kSaved ||
          std::find(names.begin(), names.end(), tensor->name) != names.end())
        continue;
      rows[row].name += "+" + tensor->name;
      names.push_back(tensor->name);
      continue;
    }
    names.push_back(tensor->name);
    rows.push_back(row_of(*tensor, rows.empty() ? RowKind::kStorage : RowKind::kShared));
    rows.back().nbytes = 0;
  }
  ReportRow& counted = rows.front();
  counted.role = role;
  if (requires_grad) counted.requires_grad = true;
  for (size_t i = 1; i < rows.size(); ++i) rows[i].owner = counted.name;
  if (references.has_value()) {
    counted.more_references =
        std::max<int64_t>(0, *references - static_cast<int64_t>(rows_of_tensors.size()));
  }
  return rows;
}

// Says whose memory a kExternal row of the CPU is.
void tell_mapping(ReportRow& row, uintptr_t address, std::optional<MemoryMaps>& maps) {
  if (!maps.has_value()) maps.emplace();
  const MemoryMaps::Mapping* const mapping = maps->find(address);
  if (mapping == nullptr) return;
  row.external =
      mapping->shared_memory ? ExternalMemory::kSharedMemory : ExternalMemory::kMappedFile;
  row.mapped_from = mapping->path;
}

// Fills in what is known of a storage that the registry does not have.
void explain_elsewhere(ReportRow& row, const std::vector<const NamedTensorFacts*>& tensors,
                       bool followed, std::optional<MemoryMaps>& maps) {
  std::optional<int64_t> bytes;
  bool has_storage = false;
  bool pinned = false;
  bool lent = false;
  for (const NamedTensorFacts* tensor : tensors) {
    has_storage = has_storage || tensor->has_storage;
    lent = lent || tensor->lent;
    pinned = pinned || tensor->pinned;
    if (tensor->storage_bytes.has_value())
      bytes = std::max(bytes.value_or(0), *tensor->storage_bytes);
  }
  const bool is_empty = has_storage ? bytes == 0 : row.shape.has_value() && row.elements() == 0;
  if (is_empty) return;
  const c10::Device device = tensors.front()->device;
  if (tensors.front()->unread) {
    row.kind = RowKind::kUnread;
    row.nbytes = std::nullopt;
  } else if (device.is_meta() || lent) {
    row.kind = lent ? RowKind::kLent : RowKind::kMeta;
    row.claimed_bytes = bytes;
  } else if (!followed) {
    row.kind = RowKind::kNotFollowed;
    row.nbytes = std::nullopt;
    row.claimed_bytes = bytes;
  } else if (!bytes.has_value()) {
    row.kind = RowKind::kUnknown;
    row.nbytes = std::nullopt;
  } else {
    row.kind = RowKind::kExternal;
    row.external_bytes = *bytes;
    if (pinned) row.external = ExternalMemory::kPinned;
    if (pinned || !device.is_cpu()) return;
    tell_mapping(row, tensors.front()->address, maps);
  }
}

// Groups tensors by storage, in order of the first tensor on each.
std::vector<std::vector<const NamedTensorFacts*>> by_address(
    const std::vector<const NamedTensorFacts*>& tensors) {
  std::vector<std::vector<const NamedTensorFacts*>> groups;
  // Where no storage can be seen (opaque tensors) the tensor object stands for it.
  std::map<std::tuple<c10::DeviceType, c10::DeviceIndex, bool, uintptr_t>, size_t> indices;
  for (const NamedTensorFacts* tensor : tensors) {
    const uintptr_t identity = tensor->has_storage ? tensor->address : tensor->identity;
    size_t index = groups.size();
    if (identity != 0) {
      index = indices
                  .try_emplace({tensor->device.type(), tensor->device.index(), tensor->has_storage,
                                identity},
                               index)
                  .first->second;
    }
    if (index == groups.size()) groups.emplace_back();
    groups[index].push_back(tensor);
  }
  return groups;
}

// Copies LibTorch's own figures of a CUDA device, and the driver's.
void take_figures(DeviceReport& report, const AllocatorView& view) {
  const DeviceStatistics& statistics = *view.statistics;
  if (!statistics.caching) return;
  report.allocator_bytes = statistics.allocated_bytes.current;
  report.reserved_bytes = statistics.reserved_bytes.current;
  report.cached_free_bytes = statistics.reserved_bytes.current - statistics.active_bytes.current;
  report.fragmented_bytes = statistics.inactive_split_bytes.current;
  if (view.memory.has_value()) {
    report.device_total_bytes = view.memory->total_bytes;
    report.device_used_bytes = view.memory->total_bytes - view.memory->free_bytes;
    report.outside_allocator_bytes = *report.device_used_bytes - *report.reserved_bytes;
  }
  if (!view.blocks.has_value()) return;
  report.requested_bytes = statistics.requested_bytes.current;
  report.awaited_bytes = view.blocks->awaiting_free_requested_bytes;
  report.largest_free_block = view.blocks->largest_free_block;
}

void explain(DeviceReport& report) {
  int64_t requested = report.total_bytes;
  int64_t beyond = 0;
  for (const ReportItem& item : report.items) {
    const bool was_requested = item.kind < ReportItemKind::kRounding;
    (was_requested ? requested : beyond) += item.bytes;
  }
  if (report.allocator_bytes.has_value())
    report.unexplained_bytes = *report.allocator_bytes - requested - beyond;
  if (report.requested_bytes.has_value()) {
    report.unexplained_requested_bytes =
        *report.requested_bytes - requested - report.awaited_bytes.value_or(0);
  }
}

// What becomes the rows of one storage, or of one piece of memory that is not in the registry.
// Small, as there may be millions to sort.
struct Draft {
  static constexpr uint32_t kAnonymous = ~uint32_t{0};
  int64_t bytes = 0;
  const StorageInfo* storage = nullptr;
  size_t number = 0;            // of an anonymous one
  uint32_t named = kAnonymous;  // index of its rows in named_
};
using Drafts = core::LargeVector<Draft>;

class Builder {
 public:
  Builder(const ReportOptions& options, const std::vector<NamedTensorFacts>& tensors,
          const Instant& instant, AnonymousNumbers& numbers)
      : options_(options),
        tensors_(tensors),
        instant_(instant),
        snapshot_(instant.snapshot),
        numbers_(numbers),
        parameters_(parameters_by_storage(tensors)) {}

  Report build() {
    report_.options = options_;
    report_.of_peak = instant_.of_peak;
    report_.complete = snapshot_.complete();
    report_.deaths_known = snapshot_.deaths_known();
    report_.labels_known = snapshot_.labels_known();
    report_.time = snapshot_.time();
    report_.unseen_before_tracking = snapshot_.unseen_before_tracking();
    report_.tracking_was_off = snapshot_.tracking_was_off();
    report_.names_only = snapshot_.names_only();
    sort_tensors();
    count_gradients();
    sort_segments();
    draft_storages();
    draft_elsewhere();
    draft_nameless_externals();
    number_anonymous();
    for (auto& [id, device] : devices_) {
      emit(device, drafts_[id]);
      explain(device);
      report_.devices.push_back(std::move(device));
    }
    return std::move(report_);
  }

 private:
  // By id, as an address may belong to another storage by now.
  void sort_tensors() {
    for (const NamedTensorFacts& tensor : tensors_) {
      if (tensor.storage_id != 0) {
        by_storage_.emplace_back(tensor.storage_id, &tensor);
        continue;
      }
      if (!is_now()) continue;
      if (tensor.unread) gradients_unread_.insert(tensor.name);
      const StorageInfo* const around =
          tensor.address == 0 ? nullptr : storage_around(tensor.device, tensor.address);
      if (around == nullptr || around->raw_block || around->kind != StorageKind::kTensor) {
        elsewhere_.push_back(&tensor);
      } else {
        by_storage_.emplace_back(around->id, &parts_of_others_.emplace_back(tensor));
        lay_into(parts_of_others_.back(), *around);
      }
    }
    // Those on one storage stay in order of registration.
    std::stable_sort(by_storage_.begin(), by_storage_.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
  }

  bool is_now() const { return !instant_.of_peak && !instant_.of_past; }

  // What from_blob() has wrapped is a part of the storage around it.
  static void lay_into(NamedTensorFacts& tensor, const StorageInfo& around) {
    tensor.storage_id = around.id;
    tensor.references.reset();
    if (tensor.offset_bytes.has_value())
      *tensor.offset_bytes += static_cast<int64_t>(tensor.address - around.address);
  }

  void sort_segments() {
    for (const auto& [index, view] : instant_.views) {
      if (!view.blocks.has_value()) continue;
      std::vector<const DeviceSegment*>& segments = segments_[index];
      for (const DeviceSegment& segment : view.blocks->segments) segments.push_back(&segment);
      std::sort(segments.begin(), segments.end(),
                [](const auto* a, const auto* b) { return a->address < b->address; });
    }
  }

  DeviceReport& report_of(c10::Device device) {
    const auto [entry, is_new] = devices_.try_emplace({device.type(), device.index()});
    DeviceReport& report = entry->second;
    if (!is_new) return report;
    report.device = device;
    report.peak_maker = snapshot_.peak_maker();
    report.bytes_by_role.resize(static_cast<size_t>(Role::kTensor) + 1);
    report.followed = instant_.active && instant_.follows(device);
    for (const DeviceInfo& info : snapshot_.devices()) {
      if (info.device != device) continue;
      report.followed = instant_.follows(device);
      report.counters = info.counters;
      report.adopted_bytes = info.adopted_bytes;
    }
    if (report.followed) report.allocator_bytes = report.counters.current_bytes;
    if (const auto view = instant_.views.find(device.index());
        device.is_cuda() && view != instant_.views.end())
      take_figures(report, view->second);
    report.allocator_moved = device.is_cuda() && instant_.moved.count(device.index()) > 0;
    return report;
  }

  void draft_storages() {
    std::set<DeviceId> seen;
    for (const DeviceInfo& info : snapshot_.devices())
      seen.insert({info.device.type(), info.device.index()});
    for (const auto& [index, view] : instant_.views) {
      if (view.statistics->reserved_bytes.current > 0) seen.insert({c10::kCUDA, index});
    }
    for (const auto& [type, index] : seen) {
      const c10::Device device(type, index);
      if (!wanted(device, options_.device)) continue;
      DeviceReport& report = report_of(device);
      CudaReconciliation reconciliation;
      if (const auto view = instant_.views.find(index);
          device.is_cuda() && view != instant_.views.end()) {
        reconciliation = reconcile(device, snapshot_, view->second);
        report.items = std::move(reconciliation.items);
      }
      draft_storages(device, reconciliation);
    }
  }

  void draft_storages(c10::Device device, const CudaReconciliation& reconciliation) {
    const c10::ArrayRef<StorageInfo> storages = snapshot_.storages(device);
    Drafts& drafts = drafts_[{device.type(), device.index()}];
    drafts.reserve(storages.size());
    // Both ascend. Tensors whose storage is not there: it was freed before the snapshot's instant,
    // by a thread that runs backward, say.
    auto tensor = by_storage_.begin();
    for (const StorageInfo& storage : storages) {
      while (tensor != by_storage_.end() && tensor->first < storage.id) ++tensor;
      if (!reconciliation.not_rows.empty() && reconciliation.not_rows.count(storage.id) > 0)
        continue;
      Draft draft;
      draft.bytes = storage.nbytes;
      draft.storage = &storage;
      if (tensor != by_storage_.end() && tensor->first == storage.id) {
        std::vector<const NamedTensorFacts*> on_storage;
        for (; tensor != by_storage_.end() && tensor->first == storage.id; ++tensor)
          on_storage.push_back(tensor->second);
        std::vector<ReportRow> rows = rows_of(on_storage, least_role(storage));
        rows.front().nbytes = storage.nbytes;
        rows.front().visible_bytes = visible_bytes(on_storage, storage.nbytes);
        for (ReportRow& row : rows) add_birthplace(row, storage);
        if (on_storage.front()->has_ended) describe(rows.front(), storage);
        draft.named = keep(std::move(rows));
      } else if (const NamedTensorFacts* const leaf = leaf_of(storage)) {
        NamedTensorFacts gradient;
        gradient.name = leaf->name + ".grad";
        gradient.role = Role::kGradient;
        gradient.module = leaf->module;
        std::vector<ReportRow> rows = rows_of({&gradient}, Role::kGradient);
        rows.front().nbytes = storage.nbytes;
        add_birthplace(rows.front(), storage);
        describe(rows.front(), storage);
        draft.named = keep(std::move(rows));
      }
      drafts.push_back(draft);
    }
  }

  // For a row whose tensor has gone.
  static void describe(ReportRow& row, const StorageInfo& storage) {
    if (!storage.dtype.has_value()) return;
    row.dtype = storage.dtype;
    row.shape.emplace(storage.shape.begin(), storage.shape.end());
  }

  // Returns the parameter whose gradient backward has made here; null where it is another storage's
  // by now, or may be.
  const NamedTensorFacts* leaf_of(const StorageInfo& storage) const {
    const NamedTensorFacts* const leaf = made_gradient_of(storage);
    if (leaf == nullptr) return nullptr;
    const bool is_known = is_now() ? gradients_unread_.count(leaf->name + ".grad") > 0
                                   : gradients_of_.find(storage.parameter)->second == 1;
    return is_known ? leaf : nullptr;
  }

  const NamedTensorFacts* made_gradient_of(const StorageInfo& storage) const {
    if (!storage.is_gradient) return nullptr;
    const auto leaf = parameters_.find(storage.parameter);
    return leaf == parameters_.end() ? nullptr : leaf->second;
  }

  void count_gradients() {
    if (is_now()) return;
    for (const DeviceInfo& info : snapshot_.devices()) {
      for (const StorageInfo& storage : snapshot_.storages(info.device)) {
        if (storage.is_gradient) ++gradients_of_[storage.parameter];
      }
    }
  }

  void draft_elsewhere() {
    std::optional<MemoryMaps> maps;
    for (const std::vector<const NamedTensorFacts*>& on_storage : by_address(elsewhere_)) {
      const c10::Device device = on_storage.front()->device;
      if (!wanted(device, options_.device)) continue;
      DeviceReport& report = report_of(device);
      std::vector<ReportRow> rows = rows_of(on_storage, Role::kTensor);
      ReportRow& row = rows.front();
      explain_elsewhere(row, on_storage, instant_.active && report.followed, maps);
      if (row.kind == RowKind::kExternal) {
        add_external(report, row);
        named_externals_.insert(on_storage.front()->address);
      }
      if (row.kind == RowKind::kMeta) report.would_be_bytes += row.claimed_bytes.value_or(0);
      Drafts& drafts = drafts_[{device.type(), device.index()}];
      Draft draft;
      draft.named = keep(std::move(rows));
      drafts.push_back(draft);
    }
  }

  // Millions of rows have few stacks.
  void add_place(ReportRow& row, uint32_t stack) const {
    if (stack == 0) return;
    const auto [known, is_new] = places_.try_emplace(stack);
    if (is_new) known->second = {to_string(program_frame(stack)), to_string(calling_frame(stack))};
    row.where = known->second.first;
    row.called_from = known->second.second;
  }

  static void add_external(DeviceReport& report, const ReportRow& row) {
    report.external_bytes += row.external_bytes;
    if (row.external == ExternalMemory::kMappedFile) report.mapped_bytes += row.external_bytes;
    if (row.external == ExternalMemory::kSharedMemory) report.shared_bytes += row.external_bytes;
  }

  // External storages that no name leads to. If several have the same memory, the largest counts.
  void draft_nameless_externals() {
    std::map<uintptr_t, const ExternalStorage*> by_address;
    for (const ExternalStorage& storage : instant_.externals) {
      if (named_externals_.count(storage.address) > 0 || is_within_a_row(storage)) continue;
      const ExternalStorage*& largest = by_address[storage.address];
      if (largest == nullptr || largest->nbytes < storage.nbytes) largest = &storage;
    }
    std::optional<MemoryMaps> maps;
    uintptr_t end = 0;
    for (const auto& [address, storage] : by_address) {
      if (address < end || !wanted(storage->device, options_.device)) continue;  // or part of one
      end = address + static_cast<uint64_t>(storage->nbytes);
      draft_nameless_external(*storage, maps);
    }
  }

  void draft_nameless_external(const ExternalStorage& storage, std::optional<MemoryMaps>& maps) {
    ReportRow row;
    row.kind = RowKind::kExternal;
    row.name = "External" + std::to_string(storage.number);
    row.anonymous = true;
    static_cast<Birthplace&>(row) = storage;
    row.nbytes = 0;
    row.external_bytes = storage.nbytes;
    row.dtype = storage.dtype;
    if (storage.dtype.has_value()) row.shape.emplace(storage.shape.begin(), storage.shape.end());
    add_place(row, storage.stack);
    if (storage.pinned) {
      row.external = ExternalMemory::kPinned;
    } else if (storage.device.is_cpu()) {
      tell_mapping(row, storage.address, maps);
    }
    add_external(report_of(storage.device), row);
    Draft draft;
    draft.named = keep({std::move(row)});
    drafts_[{storage.device.type(), storage.device.index()}].push_back(draft);
  }

  // Whether its memory is that of a storage with a row: a part that somebody has wrapped, or one
  // that is copied when it is written to.
  bool is_within_a_row(const ExternalStorage& storage) {
    return storage_around(storage.device, storage.address) != nullptr;
  }

  // Returns the storage in whose memory the address lies; null if there is none.
  const StorageInfo* storage_around(c10::Device device, uintptr_t address) {
    std::vector<std::pair<uintptr_t, const StorageInfo*>>& ranges =
        ranges_[{device.type(), device.index()}];
    if (ranges.empty()) {
      for (const StorageInfo& row : snapshot_.storages(device))
        ranges.emplace_back(row.address, &row);
      std::sort(ranges.begin(), ranges.end());
    }
    const auto after =
        std::upper_bound(ranges.begin(), ranges.end(), address,
                         [](uintptr_t wanted, const auto& range) { return wanted < range.first; });
    if (after == ranges.begin()) return nullptr;
    const StorageInfo* const before = std::prev(after)->second;
    return address - before->address < static_cast<uint64_t>(before->nbytes) ? before : nullptr;
  }

  uint32_t keep(std::vector<ReportRow> rows) {
    named_.push_back(std::move(rows));
    return static_cast<uint32_t>(named_.size() - 1);
  }

  void number_anonymous() {
    std::vector<uint64_t> ids;
    for (const auto& [device, drafts] : drafts_) {
      for (const Draft& draft : drafts) {
        if (draft.named == Draft::kAnonymous) ids.push_back(draft.storage->id);
      }
    }
    if (!std::is_sorted(ids.begin(), ids.end()))
      std::sort(ids.begin(), ids.end());  // several devices
    numbers_.number(ids);
    for (auto& [device, drafts] : drafts_) {
      auto reader = numbers_.reader();
      for (Draft& draft : drafts) {
        if (draft.named == Draft::kAnonymous) draft.number = reader.of(draft.storage->id);
      }
    }
  }

  static Role least_role(const StorageInfo& storage) {
    return storage.temporary ? Role::kTemporary : Role::kTensor;
  }
  // What nobody has named may still have been seen as something.
  Role anonymous_role(const StorageInfo& storage) const {
    // What a checkpoint detaches of a layer's result is a leaf, but no parameter.
    const bool is_of_layer =
        storage.phase == Phase::kForward && parameters_.count(storage.parameter) > 0;
    if (storage.used_as_parameter && !is_of_layer) return Role::kParameter;
    // The .grad of a named leaf has been read, and is another.
    if (storage.is_gradient)
      return is_now() && made_gradient_of(storage) != nullptr ? least_role(storage)
                                                              : Role::kGradient;
    const bool was_made_for_layers =
        storage.phase == Phase::kForward || storage.phase == Phase::kOther;
    if (was_made_for_layers && !storage.temporary && reader_of(storage) != nullptr)
      return Role::kInput;
    return least_role(storage);
  }

  // Returns the parameter of the layer that first read what no layer has made, directly or through
  // what was made of it; null where that is not known.
  const NamedTensorFacts* reader_of(const StorageInfo& storage) const {
    constexpr int kMostSteps = 8;
    const StorageInfo* at = &storage;
    for (int step = 0; step < kMostSteps && at != nullptr; ++step) {
      const uint64_t next = at->parameter != 0 ? at->parameter : at->consumer;
      if (next == 0) return nullptr;
      const auto parameter = parameters_.find(next);
      if (parameter != parameters_.end())
        return step == 0 && at->parameter != 0 ? nullptr : parameter->second;
      at = find(next);
    }
    return nullptr;
  }

  const StorageInfo* find(uint64_t id) const {
    for (const DeviceInfo& device : snapshot_.devices()) {
      const c10::ArrayRef<StorageInfo> storages = snapshot_.storages(device.device);
      const auto* const found =
          std::lower_bound(storages.begin(), storages.end(), id,
                           [](const StorageInfo& one, uint64_t its) { return one.id < its; });
      if (found != storages.end() && found->id == id) return found;
    }
    return nullptr;
  }

  // Returns null where the allocator does not say.
  const DeviceSegment* segment_of(const StorageInfo& storage) const {
    if (!storage.device.is_cuda()) return nullptr;
    const auto of_device = segments_.find(storage.device.index());
    if (of_device == segments_.end()) return nullptr;
    const std::vector<const DeviceSegment*>& segments = of_device->second;
    auto after = std::upper_bound(
        segments.begin(), segments.end(), storage.address,
        [](uintptr_t address, const DeviceSegment* segment) { return address < segment->address; });
    if (after == segments.begin()) return nullptr;
    const DeviceSegment* const segment = *--after;
    return storage.address - segment->address < static_cast<uint64_t>(segment->nbytes) ? segment
                                                                                       : nullptr;
  }

  void add_birthplace(ReportRow& row, const StorageInfo& storage) const {
    row.storage_id = storage.id;
    static_cast<Birthplace&>(row) = storage;
    add_place(row, storage.stack);
    // It may have been frozen since.
    const bool is_unknown = row.role == Role::kParameter && !row.requires_grad.has_value();
    if (is_unknown && storage.used_as_parameter) row.requires_grad = true;
    // What is frozen now has trained by then: until when is not known.
    if (!is_now() && storage.used_as_parameter && !row.requires_grad.value_or(true))
      row.requires_grad.reset();
    row.used_as_parameter = storage.used_as_parameter;
    row.storage_kind = storage.kind;
    if (const DeviceSegment* const segment = segment_of(storage)) {
      row.stream = segment->stream;
      row.pool = segment->pool;
    }
    if (!row.module.empty()) return;
    if (const auto parameter = parameters_.find(storage.parameter);
        parameter != parameters_.end()) {
      const NamedTensorFacts& its = *parameter->second;
      row.module =
          its.tied.is_of_other(storage.parameter_looked_up) ? its.tied.other_module : its.module;
      row.is_output = !storage.parameter_inferred;
      return;
    }
    const bool may_be_step = storage.phase == Phase::kOptimizer || storage.phase == Phase::kOther;
    row.module = part_of(storage.label, may_be_step);
    if (row.module.empty()) row.module = part_of(storage.forward_label, may_be_step);
  }

  // Millions of storages have few labels, or none.
  const std::string& part_of(std::string_view label, bool may_be_step) const {
    const auto [known, is_new] = parts_[may_be_step ? 1 : 0].try_emplace(label);
    if (is_new) known->second = part_named_by(label, may_be_step);
    return known->second;
  }

  static std::string name_of(const Draft& anonymous) {
    return "Tensor" + std::to_string(anonymous.number);
  }

  void fill_anonymous(ReportRow& row, const Draft& draft) const {
    const StorageInfo& storage = *draft.storage;
    row.anonymous = true;
    row.name = name_of(draft);
    row.role = anonymous_role(storage);
    row.dtype = storage.dtype;
    if (storage.dtype.has_value()) row.shape.emplace(storage.shape.begin(), storage.shape.end());
    row.storage_offset_bytes = 0;
    row.extent_bytes = storage.nbytes;
    row.nbytes = storage.nbytes;
    add_birthplace(row, storage);
    if (row.role == Role::kInput && row.module.empty()) row.module = reader_of(storage)->module;
  }

  // Keeps the order of equal keys.
  template <typename Key>
  static void sort_by(Drafts& drafts, const Key& key) {
    core::LargeVector<core::Keyed> order;
    order.reserve(drafts.size());
    for (size_t i = 0; i < drafts.size(); ++i)
      order.push_back({key(drafts[i]), static_cast<uint32_t>(i)});
    core::sort_ascending(order);
    Drafts sorted;
    sorted.reserve(drafts.size());
    for (const core::Keyed& keyed : order) sorted.push_back(drafts[keyed.place]);
    drafts = std::move(sorted);
  }

  int64_t elements_of(const Draft& draft) const {
    if (draft.named != Draft::kAnonymous) return named_[draft.named].front().elements();
    if (!draft.storage->dtype.has_value()) return 0;
    int64_t elements = 1;
    for (const int64_t size : draft.storage->shape) elements *= std::max<int64_t>(size, 0);
    return elements;
  }

  void sort_by_name(Drafts& drafts) const {
    std::vector<std::pair<std::string, size_t>> order;
    order.reserve(drafts.size());
    for (const Draft& draft : drafts) {
      order.emplace_back(
          draft.named != Draft::kAnonymous ? named_[draft.named].front().name : name_of(draft),
          order.size());
    }
    std::sort(order.begin(), order.end());
    Drafts sorted;
    sorted.reserve(drafts.size());
    for (const auto& [name, i] : order) sorted.push_back(drafts[i]);
    drafts = std::move(sorted);
  }

  void sort(Drafts& drafts) const {
    switch (options_.sort) {
      case SortBy::kBytes:
        return sort_by(drafts,
                       [](const Draft& draft) { return ~static_cast<uint64_t>(draft.bytes); });
      case SortBy::kSize:
        return sort_by(drafts, [this](const Draft& draft) {
          return ~static_cast<uint64_t>(elements_of(draft));
        });
      case SortBy::kName:
        return sort_by_name(drafts);
      case SortBy::kBirth:
        return sort_by(drafts, [](const Draft& draft) {
          return draft.storage == nullptr ? 0 : draft.storage->id;
        });
    }
  }

  static void count(DeviceReport& report, const ReportRow& row) {
    const int64_t bytes = row.nbytes.value_or(0);
    report.total_bytes += bytes;
    (row.anonymous ? report.anonymous_bytes : report.named_bytes) += bytes;
    // A graph's slot is not one of the program's tensors.
    if (row.kind != RowKind::kShared || row.role != Role::kSaved) report.elements += row.elements();
    report.bytes_by_role[static_cast<size_t>(row.role)] += bytes;
  }

  // Sharing rows stay behind the row they point at.
  void emit(DeviceReport& report, Drafts& drafts) {
    sort(drafts);
    size_t rows = drafts.size();
    for (const Draft& draft : drafts)
      rows += draft.named == Draft::kAnonymous ? 0 : named_[draft.named].size() - 1;
    report.rows.reserve(rows);
    core::prefer_huge_pages(report.rows.data(), rows * sizeof(ReportRow));
    for (const Draft& draft : drafts) {
      if (draft.named == Draft::kAnonymous) {
        fill_anonymous(report.rows.emplace_back(), draft);
        count(report, report.rows.back());
        continue;
      }
      for (ReportRow& row : named_[draft.named]) {
        count(report, row);
        report.rows.push_back(std::move(row));
      }
    }
  }

  const ReportOptions& options_;
  const std::vector<NamedTensorFacts>& tensors_;
  const Instant& instant_;
  const Snapshot& snapshot_;
  AnonymousNumbers& numbers_;
  const std::map<uint64_t, const NamedTensorFacts*> parameters_;
  mutable std::array<std::unordered_map<std::string_view, std::string>, 2> parts_;    // by label
  mutable std::unordered_map<uint32_t, std::pair<std::string, std::string>> places_;  // by stack
  std::vector<std::pair<uint64_t, const NamedTensorFacts*>> by_storage_;
  std::vector<const NamedTensorFacts*> elsewhere_;     // no row in the registry
  std::set<uintptr_t> named_externals_;                // by address
  std::deque<NamedTensorFacts> parts_of_others_;       // as parts of storages of the registry
  std::set<std::string> gradients_unread_;             // by name
  std::unordered_map<uint64_t, size_t> gradients_of_;  // how many, by leaf; not of now
  std::map<DeviceId, std::vector<std::pair<uintptr_t, const StorageInfo*>>> ranges_;  // of rows
  std::map<c10::DeviceIndex, std::vector<const DeviceSegment*>> segments_;            // by address
  std::map<DeviceId, DeviceReport> devices_;
  std::map<DeviceId, Drafts> drafts_;
  std::vector<std::vector<ReportRow>> named_;
  Report report_;
};

}  // namespace

void AnonymousNumbers::forget_all_but(const std::vector<uint64_t>& alive) {
  auto living = alive.begin();
  const auto is_dead = [&](const std::pair<uint64_t, size_t>& entry) {
    while (living != alive.end() && *living < entry.first) ++living;
    return living == alive.end() || *living != entry.first;
  };
  // Not std::remove_if, which may ask in any order.
  size_t kept = 0;
  for (size_t i = 0; i < numbers_.size(); ++i) {
    if (!is_dead(numbers_[i])) numbers_[kept++] = numbers_[i];
  }
  numbers_.resize(kept);
}

void AnonymousNumbers::number(const std::vector<uint64_t>& anonymous) {
  const size_t before = numbers_.size();
  numbers_.reserve(before + anonymous.size());  // all or nothing
  size_t known = 0;
  for (const uint64_t id : anonymous) {
    while (known < before && numbers_[known].first < id) ++known;
    if (known < before && numbers_[known].first == id) continue;
    numbers_.emplace_back(id, next_++);
  }
  std::inplace_merge(numbers_.begin(), numbers_.begin() + static_cast<std::ptrdiff_t>(before),
                     numbers_.end());
}

size_t AnonymousNumbers::Reader::of(uint64_t id) {
  while (next_->first < id) ++next_;
  return next_->second;
}

std::optional<uint64_t> AnonymousNumbers::find(size_t number) const {
  for (const auto& [id, known] : numbers_) {
    if (known == number) return id;
  }
  return std::nullopt;
}

std::vector<uint64_t> ids_alive(const Snapshot& snapshot) {
  std::vector<uint64_t> ids;
  for (const DeviceInfo& info : snapshot.devices()) {
    const c10::ArrayRef<StorageInfo> storages = snapshot.storages(info.device);
    ids.reserve(ids.size() + storages.size());
    for (const StorageInfo& storage : storages) ids.push_back(storage.id);
  }
  if (!std::is_sorted(ids.begin(), ids.end())) std::sort(ids.begin(), ids.end());
  return ids;
}

std::map<uint64_t, const NamedTensorFacts*> parameters_by_storage(
    const std::vector<NamedTensorFacts>& tensors) {
  std::map<uint64_t, const NamedTensorFacts*> result;
  for (const NamedTensorFacts& tensor : tensors) {
    if (tensor.role == Role::kParameter && tensor.storage_id != 0 && !tensor.module.empty())
      result.emplace(tensor.storage_id, &tensor);
  }
  return result;
}

Report build_report(const ReportOptions& options, const std::vector<NamedTensorFacts>& tensors,
                    const Instant& instant, AnonymousNumbers& numbers) {
  return Builder(options, tensors, instant, numbers).build();
}

}  // namespace memledger
