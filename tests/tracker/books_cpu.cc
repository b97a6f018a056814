#include "tests/tracker/books_test.h"

namespace memledger::testing {

const RawBlocks* books_raw_blocks = nullptr;

}  // namespace memledger::testing
