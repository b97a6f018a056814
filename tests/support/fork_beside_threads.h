#pragma once

namespace memledger::testing {

// For doctest::skip. GCC 12's address sanitizer leaves a child of fork the locks of its allocator
// as another thread held them: a child was seen to wait in operator new for ever, about once in 300
// forks next to a thread that allocates all the time.
#ifdef __SANITIZE_ADDRESS__
inline constexpr bool kChildrenMayHang = true;
#else
inline constexpr bool kChildrenMayHang = false;
#endif

}  // namespace memledger::testing
