#include "reporter/values_text.h"

#include <ostream>

#include "reporter/report.h"

namespace memledger {

std::ostream& operator<<(std::ostream& out, ExternalMemory external) {
  switch (external) {
    case ExternalMemory::kMappedFile:
      return out << "mapped file";
    case ExternalMemory::kSharedMemory:
      return out << "shared memory";
    case ExternalMemory::kPinned:
      return out << "pinned";
    case ExternalMemory::kProgram:
      break;
  }
  return out << "program";
}

}  // namespace memledger
