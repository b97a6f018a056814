#pragma once

namespace memledger {

// The address of an exported symbol of any library that is in the process, also of those that other
// symbols' lookups do not see (Python loads LibTorch that way); null if there is none. Loads
// nothing; the library found will not be unloaded any more. Takes the loader's lock, so the caller
// holds none. About a microsecond if found at once, some hundred if nowhere. Where several
// libraries have such a symbol, the first that is accepted.
using AcceptSymbol = bool (*)(void* symbol);
void* find_symbol_of_loaded_library(const char* mangled_name,
                                    AcceptSymbol accept = nullptr) noexcept;

}  // namespace memledger
