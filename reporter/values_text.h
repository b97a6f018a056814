#pragma once

// What std::cout << value prints of the reporter's values beside those of reporter/report.h. For
// fmt see memledger_fmt.h.

#include <cstdint>
#include <iosfwd>

namespace memledger {

enum class ExternalMemory : uint8_t;

std::ostream& operator<<(std::ostream& out, ExternalMemory external);

}  // namespace memledger
