#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace memledger::core {

// A reader's place in what is being recorded.
struct RecordingMark {
  static constexpr size_t kRings = 32;
  int64_t time_ns = 0;
  std::array<uint64_t, kRings> written{};
  uint64_t label_changes = 0;  // LabelHistory's; the ledger leaves it alone
};

}  // namespace memledger::core
