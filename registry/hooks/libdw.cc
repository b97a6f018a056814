#include "registry/hooks/libdw.h"

#include <dlfcn.h>

namespace memledger::libdw {
namespace {

template <typename F>
bool find(void* library, const char* name, F*& function) {
  function = reinterpret_cast<F*>(dlsym(library, name));
  return function != nullptr;
}

bool load(Functions& f) {
  void* const library = dlopen("libdw.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return false;
  constexpr unsigned kElfVersion = 1;
  return find(library, "elf_version", f.elf_version) && find(library, "dwarf_begin", f.begin) &&
         find(library, "dwarf_end", f.end) && find(library, "dwarf_get_units", f.get_units) &&
         find(library, "dwarf_child", f.child) && find(library, "dwarf_siblingof", f.sibling) &&
         find(library, "dwarf_tag", f.tag) && find(library, "dwarf_ranges", f.ranges) &&
         find(library, "dwarf_attr", f.attribute) &&
         find(library, "dwarf_attr_integrate", f.inherited) &&
         find(library, "dwarf_formstring", f.text) && find(library, "dwarf_formudata", f.number) &&
         find(library, "dwarf_getsrcfiles", f.source_files) &&
         find(library, "dwarf_filesrc", f.file_name) &&
         find(library, "dwarf_getsrclines", f.source_lines) &&
         find(library, "dwarf_onesrcline", f.line_at) &&
         find(library, "dwarf_lineaddr", f.line_address) &&
         find(library, "dwarf_lineno", f.line_number) &&
         find(library, "dwarf_lineendsequence", f.line_ends) &&
         find(library, "dwarf_linesrc", f.line_file) && f.elf_version(kElfVersion) != 0;
}

}  // namespace

const Functions* Functions::get() noexcept {
  static const Functions* const functions = []() -> const Functions* {
    static Functions found{};
    return load(found) ? &found : nullptr;
  }();
  return functions;
}

}  // namespace memledger::libdw
