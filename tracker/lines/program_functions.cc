#include "tracker/lines/program_functions.h"

#include <cxxabi.h>
#include <elf.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "registry/core/foreign_libraries.h"
#include "registry/core/loaded_libraries.h"
#include "text/names.h"

namespace memledger {
namespace {

struct Module {
  std::string path;
  uintptr_t base = 0;
};

bool starts_with(std::string_view text, std::string_view start) {
  return text.substr(0, start.size()) == start;
}

int note_module(dl_phdr_info* info, size_t, void* result) {
  auto& modules = *static_cast<std::vector<Module>*>(result);
  std::string path = info->dlpi_name == nullptr ? "" : info->dlpi_name;
  if (path.empty()) {
    if (!modules.empty()) return 0;  // only the first is the program
    path = "/proc/self/exe";
  }
  if (!core::is_foreign_library(path)) modules.push_back({std::move(path), info->dlpi_addr});
  return 0;
}

// A file mapped into memory.
class Mapped {
 public:
  explicit Mapped(const std::string& path) {
    const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (file < 0) return;
    struct stat facts;
    if (fstat(file, &facts) == 0 && facts.st_size > 0) {
      void* const data =
          mmap(nullptr, static_cast<size_t>(facts.st_size), PROT_READ, MAP_PRIVATE, file, 0);
      if (data != MAP_FAILED) {
        data_ = static_cast<const char*>(data);
        size_ = static_cast<size_t>(facts.st_size);
      }
    }
    close(file);
  }
  ~Mapped() {
    if (data_ != nullptr) munmap(const_cast<char*>(data_), size_);
  }
  Mapped(const Mapped&) = delete;
  Mapped& operator=(const Mapped&) = delete;

  // Returns null if the file ends before.
  template <typename T>
  const T* at(uint64_t offset, uint64_t count = 1) const {
    if (offset > size_ || count > (size_ - offset) / sizeof(T)) return nullptr;
    return reinterpret_cast<const T*>(data_ + offset);
  }

 private:
  const char* data_ = nullptr;
  size_t size_ = 0;
};

// Returns nothing for what is no mangled name.
std::optional<std::string> demangled_whole(const std::string& name) {
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> text(
      abi::__cxa_demangle(name.c_str(), nullptr, nullptr, &status), &std::free);
  if (status != 0 || !text) return std::nullopt;
  return text.get();
}

// Without what GCC's clones end with: `_Z3foov.cold`, `.part.0`, `.isra.0`. The parts of a
// coroutine have a dot within their names, too.
std::string demangled(const char* name) {
  if (std::optional<std::string> text = demangled_whole(name)) {
    text->resize(std::min(text->find(" [clone"), text->size()));
    return *text;
  }
  const std::string whole(name, std::strcspn(name, "."));
  return demangled_whole(whole).value_or(whole);
}

void read_symbols(const Module& module, std::vector<ProgramFunction>& functions) {
  const Mapped file(module.path);
  const auto* const header = file.at<Elf64_Ehdr>(0);
  if (header == nullptr || std::memcmp(header->e_ident, ELFMAG, SELFMAG) != 0 ||
      header->e_ident[EI_CLASS] != ELFCLASS64)
    return;
  const auto* const sections = file.at<Elf64_Shdr>(header->e_shoff, header->e_shnum);
  if (sections == nullptr) return;
  // A stripped file still has the table of what it exports.
  const Elf64_Shdr* table = nullptr;
  for (int i = 0; i < header->e_shnum; ++i) {
    if (sections[i].sh_type == SHT_SYMTAB ||
        (sections[i].sh_type == SHT_DYNSYM && table == nullptr))
      table = &sections[i];
  }
  if (table == nullptr || table->sh_link >= header->e_shnum) return;
  const size_t count = table->sh_size / sizeof(Elf64_Sym);
  const auto* const symbols = file.at<Elf64_Sym>(table->sh_offset, count);
  const Elf64_Shdr& names = sections[table->sh_link];
  const char* const text = file.at<char>(names.sh_offset, names.sh_size);
  if (symbols == nullptr || text == nullptr || names.sh_size == 0 ||
      text[names.sh_size - 1] != '\0')
    return;
  for (size_t i = 0; i < count; ++i) {
    const Elf64_Sym& symbol = symbols[i];
    if (ELF64_ST_TYPE(symbol.st_info) != STT_FUNC || symbol.st_shndx == SHN_UNDEF ||
        symbol.st_size == 0)
      continue;
    if (symbol.st_name >= names.sh_size) continue;
    ProgramFunction function;
    function.begin = module.base + symbol.st_value;
    function.end = function.begin + symbol.st_size;
    function.name = text + symbol.st_name;
    function.file = module.path;
    functions.push_back(std::move(function));
  }
}

size_t edits(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t corner = std::exchange(row[0], i);
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t change = corner + (a[i - 1] != b[j - 1]);
      corner = row[j];
      row[j] = std::min({change, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row[b.size()];
}

bool is_library_code(std::string_view qualified) {
  for (const std::string_view space : {"std::", "at::", "c10::", "torch::", "__gnu_cxx::", "absl::",
                                       "fmt::", "memledger::", "doctest::", "_", "void std::"}) {
    if (starts_with(qualified, space)) return true;
  }
  return false;
}

}  // namespace

std::string qualified_name(std::string_view name) {
  std::string result;
  int angles = 0, parentheses = 0;
  for (size_t i = 0; i < name.size(); ++i) {
    const std::string_view rest = name.substr(i);
    const bool outside = angles == 0 && parentheses == 0;
    if (outside && starts_with(rest, "{lambda(")) {
      const size_t number = rest.find('#'), close = rest.find('}');
      if (number != std::string_view::npos && close != std::string_view::npos && number < close) {
        result += "{lambda" + std::string(rest.substr(number, close - number)) + "}";
        i += close;
        continue;
      }
    }
    if (outside && starts_with(rest, "(anonymous namespace)")) {
      result += "(anonymous namespace)";
      i += std::strlen("(anonymous namespace)") - 1;
      continue;
    }
    if (starts_with(rest, "[abi:")) {
      i += std::min(rest.find(']'), rest.size() - 1);
      continue;
    }
    if (outside && starts_with(rest, "operator") && (result.empty() || result.back() == ':')) {
      // Its name may have parentheses or angle brackets, or be a type. It ends at the parameters.
      size_t end = starts_with(rest, "operator()") ? std::strlen("operator()") : rest.find('(');
      if (end == std::string_view::npos) end = rest.size();
      result += rest.substr(0, end);
      i += end - 1;
      continue;
    }
    const char c = name[i];
    if (c == '<') ++angles;
    if (c == '(') ++parentheses;
    if (outside && c == ' ') {
      // The result's type stands before the space, unless it is that of ` const` behind parameters.
      if (i > 0 && name[i - 1] == ')') break;
      if (starts_with(rest, " [clone") || starts_with(rest, " const")) break;
      result.clear();
      continue;
    }
    if (angles == 0 && parentheses == 0) result += c;
    if (c == '>' && angles > 0) --angles;
    if (c == ')' && parentheses > 0) --parentheses;
  }
  constexpr std::string_view kCall = "}::operator()";
  if (result.size() > kCall.size() &&
      result.compare(result.size() - kCall.size(), kCall.size(), kCall) == 0) {
    result.resize(result.size() - kCall.size() + 1);
  }
  return result;
}

bool is_named(std::string_view qualified, std::string_view name) {
  if (qualified.size() < name.size()) return false;
  const std::string_view scope = qualified.substr(0, qualified.size() - name.size());
  const bool is_whole =
      scope.empty() || (scope.size() >= 2 && scope.substr(scope.size() - 2) == "::");
  return is_whole && qualified.substr(scope.size()) == name;
}

ProgramFunctions ProgramFunctions::read() {
  std::vector<Module> modules;
  core::for_each_loaded_library(&note_module, &modules);
  ProgramFunctions result;
  for (const Module& module : modules) read_symbols(module, result.functions_);
  std::sort(result.functions_.begin(), result.functions_.end(),
            [](const auto& a, const auto& b) { return a.begin < b.begin; });
  // Constructors have two names for one body.
  const auto same = [](const auto& a, const auto& b) { return a.begin == b.begin; };
  result.functions_.erase(std::unique(result.functions_.begin(), result.functions_.end(), same),
                          result.functions_.end());
  for (ProgramFunction& function : result.functions_) {
    function.part = function.name.find('.') != std::string::npos;
    function.name = demangled(function.name.c_str());
    function.qualified = qualified_name(function.name);
  }
  return result;
}

const ProgramFunction* ProgramFunctions::at(uintptr_t address) const {
  const auto next = std::upper_bound(
      functions_.begin(), functions_.end(), address,
      [](uintptr_t a, const ProgramFunction& function) { return a < function.begin; });
  if (next == functions_.begin()) return nullptr;
  const ProgramFunction& function = *std::prev(next);
  return address < function.end ? &function : nullptr;
}

std::vector<const ProgramFunction*> ProgramFunctions::named(std::string_view name) const {
  std::vector<const ProgramFunction*> result;
  for (const ProgramFunction& function : functions_) {
    if (is_named(function.qualified, name)) result.push_back(&function);
  }
  std::stable_partition(result.begin(), result.end(),
                        [](const ProgramFunction* function) { return !function->part; });
  return result;
}

std::vector<std::string> ProgramFunctions::near(std::string_view name, size_t most) const {
  std::set<std::pair<size_t, std::string>> ranked;
  const std::string_view last =
      name.substr(name.rfind(':') == std::string_view::npos ? 0 : name.rfind(':') + 1);
  for (const ProgramFunction& function : functions_) {
    if (function.qualified.empty() || is_library_code(function.qualified)) continue;
    const std::string_view own = function.qualified;
    const std::string_view own_last =
        own.substr(own.rfind(':') == std::string_view::npos ? 0 : own.rfind(':') + 1);
    const size_t distance = std::min(edits(name, own), edits(last, own_last) + 1);
    if (distance <= std::max<size_t>(3, name.size() / 2))
      ranked.emplace(distance, function.qualified);
  }
  std::vector<std::string> result;
  for (const auto& [distance, qualified] : ranked) {
    if (result.size() == most) break;
    result.push_back(qualified);
  }
  return result;
}

}  // namespace memledger
