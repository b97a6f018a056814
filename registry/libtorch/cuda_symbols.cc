#include "registry/libtorch/cuda_symbols.h"

#include <dlfcn.h>

#include <exception>
#include <string>
#include <vector>

#include "registry/core/loaded_libraries.h"

namespace memledger {
namespace {

constexpr int kLoadedOnly = RTLD_NOW | RTLD_NOLOAD;

void keep_loaded(const void* symbol) {
  Dl_info info;
  if (dladdr(symbol, &info) != 0 && info.dli_fname != nullptr)
    dlopen(info.dli_fname, kLoadedOnly | RTLD_NODELETE);
}

int add_name(dl_phdr_info* library, size_t, void* names) {
  if (library->dlpi_name != nullptr && library->dlpi_name[0] != '\0') {
    static_cast<std::vector<std::string>*>(names)->emplace_back(library->dlpi_name);
  }
  return 0;
}

}  // namespace

void* find_symbol_of_loaded_library(const char* mangled_name, AcceptSymbol accept) noexcept {
  try {
    const auto accepted = [accept](void* symbol) {
      return symbol != nullptr && (accept == nullptr || accept(symbol));
    };
    void* symbol = dlsym(RTLD_DEFAULT, mangled_name);
    if (!accepted(symbol)) {
      std::vector<std::string> names;
      core::for_each_loaded_library(&add_name, &names);
      for (const std::string& name : names) {
        void* const library = dlopen(name.c_str(), kLoadedOnly);
        if (library == nullptr) continue;
        symbol = dlsym(library, mangled_name);
        const bool is_here = accepted(symbol);
        if (is_here) keep_loaded(symbol);
        dlclose(library);
        if (is_here) return symbol;
      }
      return nullptr;
    }
    keep_loaded(symbol);
    return symbol;
  } catch (const std::exception&) {
    return nullptr;
  }
}

}  // namespace memledger
