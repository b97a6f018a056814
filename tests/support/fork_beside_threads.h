#pragma once

namespace memledger::testing {

// For doctest::skip. With GCC 12's address sanitizer a child of fork gets the locks of its
// allocator as another thread held them. With a thread that allocates all the time, about one child
// in 300 waited in operator new for ever.
#ifdef __SANITIZE_ADDRESS__
inline constexpr bool kChildrenMayHang = true;
#else
inline constexpr bool kChildrenMayHang = false;
#endif

}  // namespace memledger::testing
