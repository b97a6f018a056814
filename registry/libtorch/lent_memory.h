#pragma once

// How a storage says that its memory was lent back for a while (Courtesy): in the error that
// LibTorch throws at whoever asks for its data. So every layer can distinguish it from other
// storages without data.

#include <string_view>

namespace memledger {

inline constexpr char kLentMemory[] =
    "memledger: this tensor's memory was lent back (Courtesy::yield_memory()); its data is not "
    "there before restore()";

inline bool says_lent(std::string_view error) {
  return error.find(kLentMemory) != std::string_view::npos;
}

}  // namespace memledger
