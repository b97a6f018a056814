#include "registry/hooks/inlined_calls.h"

#include <cxxabi.h>
#include <fcntl.h>
#include <link.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "registry/core/foreign_libraries.h"
#include "registry/core/loaded_libraries.h"
#include "registry/core/lock.h"
#include "registry/hooks/libdw.h"

namespace memledger {
namespace {

using libdw::Entry;

const libdw::Functions& dw() { return *libdw::Functions::get(); }

// Addresses of a library as its file has them.
struct Range {
  uint64_t begin = 0, end = 0;

  bool has(uint64_t address) const { return address - begin < end - begin; }
};

std::vector<Range> ranges_of(Entry& entry) {
  std::vector<Range> ranges;
  uint64_t base = 0;
  Range range;
  for (ptrdiff_t at = 0; (at = dw().ranges(&entry, at, &base, &range.begin, &range.end)) > 0;) {
    // The linker gives a function that it left out an address of 0 or near it.
    if (range.begin < range.end && range.begin > 1) ranges.push_back(range);
  }
  return ranges;
}

bool any_has(const std::vector<Range>& ranges, uint64_t address) {
  return std::any_of(ranges.begin(), ranges.end(),
                     [address](const Range& range) { return range.has(address); });
}

template <typename Visit>
void for_each_child(Entry& parent, const Visit& visit) {
  Entry child;
  if (dw().child(&parent, &child) != 0) return;
  do {
    visit(child);
  } while (dw().sibling(&child, &child) == 0);
}

std::string demangled(const char* name) {
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> text(
      abi::__cxa_demangle(name, nullptr, nullptr, &status), &std::free);
  return status == 0 && text ? text.get() : name;
}

// Returns the function's for an inlined call, too.
std::string name_of(Entry& entry) {
  for (const unsigned name : {libdw::kLinkageName, libdw::kMipsLinkageName, libdw::kName}) {
    libdw::Attribute attribute;
    const char* const text = dw().text(dw().inherited(&entry, name, &attribute));
    if (text != nullptr) return demangled(text);
  }
  return "";
}

uint64_t number_of(Entry& entry, unsigned name) {
  libdw::Attribute attribute;
  uint64_t number = 0;
  return dw().number(dw().attribute(&entry, name, &attribute), &number) == 0 ? number : 0;
}

struct InlinedCall {
  std::vector<Range> ranges;
  std::string function;
  std::string file;  // of the call
  int64_t line = 0;
};

struct Function {
  Entry entry;
  bool is_read = false;
  std::string name;
  std::vector<InlinedCall> calls;  // each behind the one that it was inlined into
};

// What was compiled from one source file.
class Unit {
 public:
  explicit Unit(Entry entry) : entry_(entry) {
    find_functions(entry_);
    std::sort(ranges_.begin(), ranges_.end(),
              [](const auto& a, const auto& b) { return a.first.begin < b.first.begin; });
    if (dw().source_files(&entry_, &files_, &file_count_) != 0) file_count_ = 0;
    if (dw().source_lines(&entry_, &lines_, &line_count_) != 0) line_count_ = 0;
  }

  size_t bytes() const {
    constexpr size_t kLineBytes = 48;  // libdw's
    return line_count_ * kLineBytes + functions_.size() * sizeof(Function) +
           ranges_.size() * sizeof ranges_.front();
  }

  std::vector<StackFrame> frames_at(uint64_t address) {
    std::vector<StackFrame> frames;
    Function* const function = function_at(address);
    libdw::Line* const line = line_at(address);
    if (function == nullptr || line == nullptr) return frames;
    StackFrame frame = place_of(line);
    const std::vector<InlinedCall>& calls = function->calls;
    for (auto call = calls.rbegin(); call != calls.rend(); ++call) {
      if (!any_has(call->ranges, address)) continue;
      frame.function = call->function;
      frames.push_back(std::exchange(frame, {"", call->file, call->line}));
    }
    frame.function = function->name;
    frames.push_back(std::move(frame));
    return frames;
  }

  // Returns where frames may change; nothing where no function begins.
  std::set<uint64_t> places(Range within) {
    std::set<uint64_t> places;
    const Function* const function = function_at(within.begin);
    if (function == nullptr) return places;
    const auto add = [&](uint64_t address) {
      if (within.has(address)) places.insert(address);
    };
    add(within.begin);
    for (size_t i = first_line_after(within.begin); i < line_count_; ++i) {
      const uint64_t address = address_of(i);
      if (address >= within.end) break;
      add(address);
    }
    for (const InlinedCall& call : function->calls) {
      for (const Range& range : call.ranges) {
        add(range.begin);
        add(range.end);
      }
    }
    return places;
  }

 private:
  void find_functions(Entry& parent) {
    for_each_child(parent, [&](Entry& entry) {
      switch (dw().tag(&entry)) {
        case libdw::kTagSubprogram:
          add_function(entry);
          break;
        case libdw::kTagNamespace:
        case libdw::kTagModule:
        case libdw::kTagClass:
        case libdw::kTagStructure:
        case libdw::kTagUnion:
          find_functions(entry);
          break;
        default:
          break;
      }
    });
  }

  void add_function(Entry& entry) {
    const std::vector<Range> ranges = ranges_of(entry);
    if (ranges.empty()) return;
    for (const Range& range : ranges) ranges_.emplace_back(range, functions_.size());
    functions_.push_back({entry, false, "", {}});
    find_nested(entry);
  }

  // Functions of local classes, lambdas among them, may stand in the function.
  void find_nested(Entry& parent) {
    for_each_child(parent, [&](Entry& entry) {
      const int tag = dw().tag(&entry);
      if (tag == libdw::kTagSubprogram) add_function(entry);
      if (tag == libdw::kTagLexicalBlock || tag == libdw::kTagStructure || tag == libdw::kTagClass)
        find_nested(entry);
    });
  }

  Function* function_at(uint64_t address) {
    auto after =
        std::upper_bound(ranges_.begin(), ranges_.end(), address,
                         [](uint64_t its, const auto& range) { return its < range.first.begin; });
    if (after == ranges_.begin() || !(--after)->first.has(address)) return nullptr;
    Function& function = functions_[after->second];
    if (!std::exchange(function.is_read, true)) {
      function.name = name_of(function.entry);
      find_calls(function.entry, function.calls);
    }
    return &function;
  }

  void find_calls(Entry& parent, std::vector<InlinedCall>& calls) {
    for_each_child(parent, [&](Entry& entry) {
      const int tag = dw().tag(&entry);
      if (tag == libdw::kTagInlinedSubroutine) {
        const char* const file =
            dw().file_name(files_, number_of(entry, libdw::kCallFile), nullptr, nullptr);
        calls.push_back({ranges_of(entry), name_of(entry), file == nullptr ? "" : file,
                         static_cast<int64_t>(number_of(entry, libdw::kCallLine))});
      }
      if (tag == libdw::kTagInlinedSubroutine || tag == libdw::kTagLexicalBlock)
        find_calls(entry, calls);
    });
  }

  uint64_t address_of(size_t line) const {
    uint64_t address = 0;
    dw().line_address(dw().line_at(lines_, line), &address);
    return address;
  }

  size_t first_line_after(uint64_t address) const {
    size_t low = 0, high = line_count_;
    while (low < high) {
      const size_t middle = low + (high - low) / 2;
      if (address_of(middle) > address) {
        high = middle;
      } else {
        low = middle + 1;
      }
    }
    return low;
  }

  libdw::Line* line_at(uint64_t address) const {
    const size_t after = first_line_after(address);
    if (after == 0) return nullptr;
    libdw::Line* const line = dw().line_at(lines_, after - 1);
    bool is_end = false;
    return dw().line_ends(line, &is_end) != 0 || is_end ? nullptr : line;
  }

  static StackFrame place_of(libdw::Line* line) {
    StackFrame frame;
    const char* const file = dw().line_file(line, nullptr, nullptr);
    int number = 0;
    if (file == nullptr || dw().line_number(line, &number) != 0) return frame;
    frame.file = file;
    frame.line = number;
    return frame;
  }

  Entry entry_;
  std::vector<Function> functions_;
  std::vector<std::pair<Range, size_t>> ranges_;  // with the function's index
  libdw::Files* files_ = nullptr;
  size_t file_count_ = 0;
  libdw::Lines* lines_ = nullptr;
  size_t line_count_ = 0;
};

// A program or library.
class ElfModule {
 public:
  explicit ElfModule(const std::string& path) : file_(open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
    constexpr int kRead = 0;
    if (file_ >= 0) dwarf_ = dw().begin(file_, kRead);
    if (dwarf_ != nullptr) find_units();
  }
  ~ElfModule() {
    if (dwarf_ != nullptr) dw().end(dwarf_);
    if (file_ >= 0) close(file_);
  }
  ElfModule(const ElfModule&) = delete;
  ElfModule& operator=(const ElfModule&) = delete;

  // Returns null where there is no debug information for it.
  Unit* unit_at(uint64_t address) {
    auto after =
        std::upper_bound(ranges_.begin(), ranges_.end(), address,
                         [](uint64_t its, const auto& range) { return its < range.first.begin; });
    if (after == ranges_.begin() || !(--after)->first.has(address)) return nullptr;
    std::unique_ptr<Unit>& unit = units_[after->second];
    if (unit == nullptr) unit = std::make_unique<Unit>(entries_[after->second]);
    return unit.get();
  }

  size_t bytes() const {
    size_t sum = ranges_.size() * sizeof(Range);
    for (const auto& [index, unit] : units_) sum += unit->bytes();
    return sum;
  }

 private:
  void find_units() {
    libdw::Unit* unit = nullptr;
    Entry entry;
    while (dw().get_units(dwarf_, unit, &unit, nullptr, nullptr, &entry, nullptr) == 0) {
      for (const Range& range : ranges_of(entry)) ranges_.emplace_back(range, entries_.size());
      entries_.push_back(entry);
    }
    std::sort(ranges_.begin(), ranges_.end(),
              [](const auto& a, const auto& b) { return a.first.begin < b.first.begin; });
  }

  int file_ = -1;
  libdw::Dwarf* dwarf_ = nullptr;
  std::vector<Entry> entries_;                    // of the units
  std::vector<std::pair<Range, size_t>> ranges_;  // with the unit's index
  std::map<size_t, std::unique_ptr<Unit>> units_;
};

struct LoadedModule {
  std::string path;
  uintptr_t base = 0;
  std::vector<Range> code;  // in memory
};

int note_module(dl_phdr_info* info, size_t /*size*/, void* result) {
  auto& modules = *static_cast<std::vector<LoadedModule>*>(result);
  LoadedModule module;
  module.path = info->dlpi_name == nullptr ? "" : info->dlpi_name;
  if (module.path.empty()) {
    if (!modules.empty()) return 0;  // only the first is the program
    module.path = "/proc/self/exe";
  }
  module.base = info->dlpi_addr;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const auto& segment = info->dlpi_phdr[i];
    if (segment.p_type != PT_LOAD || (segment.p_flags & PF_X) == 0) continue;
    const uint64_t begin = module.base + segment.p_vaddr;
    module.code.push_back({begin, begin + segment.p_memsz});
  }
  modules.push_back(std::move(module));
  return 0;
}

std::vector<LoadedModule> own_modules() {
  std::vector<LoadedModule> modules;
  core::for_each_loaded_library(&note_module, &modules);
  const auto is_foreign = [](const LoadedModule& module) {
    return core::is_foreign_library(module.path);
  };
  modules.erase(std::remove_if(modules.begin(), modules.end(), is_foreign), modules.end());
  return modules;
}

// What was read, until it is too much.
class ElfModules {
 public:
  Unit* unit_at(const LoadedModule& loaded, uint64_t address) {
    forget_if_large();
    std::unique_ptr<ElfModule>& module = read_[loaded.path];
    if (module == nullptr) module = std::make_unique<ElfModule>(loaded.path);
    return module->unit_at(address - loaded.base);
  }

 private:
  void forget_if_large() {
    size_t sum = 0;
    for (const auto& [path, module] : read_) sum += module == nullptr ? 0 : module->bytes();
    if (sum > InlinedCalls::kMaxBytes) read_.clear();
  }

  std::map<std::string, std::unique_ptr<ElfModule>> read_;
};

core::Lock& reading() {
  static auto* const lock = new core::Lock;
  return *lock;
}

ElfModules& modules() {
  static auto* const modules = new ElfModules;
  return *modules;
}

const LoadedModule* module_at(const std::vector<LoadedModule>& loaded, uint64_t address) {
  const auto found =
      std::find_if(loaded.begin(), loaded.end(),
                   [address](const LoadedModule& module) { return any_has(module.code, address); });
  return found == loaded.end() ? nullptr : &*found;
}

}  // namespace

bool InlinedCalls::are_known() noexcept { return libdw::Functions::get() != nullptr; }

std::vector<std::vector<StackFrame>> InlinedCalls::frames_at(const std::vector<void*>& addresses) {
  std::vector<std::vector<StackFrame>> frames(addresses.size());
  if (addresses.empty() || !are_known()) return frames;
  const std::vector<LoadedModule> loaded = own_modules();
  const core::LockHolder hold(reading());
  for (size_t i = 0; i < addresses.size(); ++i) {
    const uint64_t address = reinterpret_cast<uintptr_t>(addresses[i]) - 1;
    const LoadedModule* const module = module_at(loaded, address);
    Unit* const unit = module == nullptr ? nullptr : modules().unit_at(*module, address);
    if (unit != nullptr) frames[i] = unit->frames_at(address - module->base);
  }
  return frames;
}

std::vector<void*> InlinedCalls::places(uintptr_t begin, uintptr_t end) {
  std::vector<void*> addresses;
  if (!are_known()) return addresses;
  const std::vector<LoadedModule> loaded = own_modules();
  const core::LockHolder hold(reading());
  const LoadedModule* const module = module_at(loaded, begin);
  Unit* const unit = module == nullptr ? nullptr : modules().unit_at(*module, begin);
  if (unit == nullptr) return addresses;
  for (const uint64_t place : unit->places({begin - module->base, end - module->base}))
    addresses.push_back(reinterpret_cast<void*>(place + module->base + 1));
  return addresses;
}

void InlinedCalls::lock_for_fork() { reading().lock(); }
void InlinedCalls::unlock_after_fork() { reading().unlock(); }

}  // namespace memledger
