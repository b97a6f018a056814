#pragma once

namespace memledger {

// From now on nothing is booked, and watched memory is not freed: for a process that ends while one
// of its threads may be inside the books for good, with their locks held. Async-signal-safe.
void close_books() noexcept;
// For a copy of the process, to read what was booked.
void reopen_books() noexcept;

}  // namespace memledger
