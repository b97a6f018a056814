#pragma once

namespace memledger {

// Takes the registry's locks around fork, so that a child has whole tables. Called at load, so that
// whatever takes locks before ours registers its handlers later: those run in the reverse order.
// Returns false if there is no memory for the handlers.
bool watch_forks() noexcept;

}  // namespace memledger
