#pragma once

namespace memledger {

// Returns the address of an exported symbol of any library in the process, also of those that other
// symbols' lookups do not see (Python loads LibTorch that way); null if there is none. If several
// libraries have such a symbol, the first accepted one counts. Loads nothing, but the library found
// is never unloaded again. Takes the loader's lock, so the caller holds no lock. Costs about a
// microsecond if found at once, some hundred if nowhere.
using AcceptSymbol = bool (*)(void* symbol);
void* find_symbol_of_loaded_library(const char* mangled_name,
                                    AcceptSymbol accept = nullptr) noexcept;

}  // namespace memledger
