#pragma once

// Prints the reporter's values that reporter/report.h does not; memledger_fmt.h does it for fmt.
//
//   std::cout << memledger::ExternalMemory::kMappedFile;  // mapped file

#include <cstdint>
#include <iosfwd>

namespace memledger {

enum class ExternalMemory : uint8_t;

// Prints whose memory it is: program, mapped file, shared memory, pinned.
std::ostream& operator<<(std::ostream& out, ExternalMemory external);

}  // namespace memledger
