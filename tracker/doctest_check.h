#pragma once

// Leaves CHECK to doctest. LibTorch's logging has a macro of that name, which ends the program;
// without this header the last one included would win.
//
//   #include <doctest/doctest.h>
//   #include <torch/torch.h>
//
//   #include "tracker/doctest_check.h"  // as "memledger.h" does

// Once included, it defines no CHECK again.
#include <c10/util/Logging.h>

#if defined(DOCTEST_CHECK) && !defined(DOCTEST_CONFIG_NO_SHORT_MACRO_NAMES)
#undef CHECK
#undef CHECK_EQ
#undef CHECK_NE
#undef CHECK_GT
#undef CHECK_LT
#undef CHECK_GE
#undef CHECK_LE
#define CHECK(...) DOCTEST_CHECK(__VA_ARGS__)
#define CHECK_EQ(...) DOCTEST_CHECK_EQ(__VA_ARGS__)
#define CHECK_NE(...) DOCTEST_CHECK_NE(__VA_ARGS__)
#define CHECK_GT(...) DOCTEST_CHECK_GT(__VA_ARGS__)
#define CHECK_LT(...) DOCTEST_CHECK_LT(__VA_ARGS__)
#define CHECK_GE(...) DOCTEST_CHECK_GE(__VA_ARGS__)
#define CHECK_LE(...) DOCTEST_CHECK_LE(__VA_ARGS__)
#endif
