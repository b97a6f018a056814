// doctest for files that see LibTorch, whose logging has macros of the same
// names: CHECK would otherwise be LibTorch's, which ends the program.

#ifndef MEMLEDGER_TESTS_GRAPH_DOCTEST_BESIDE_TORCH_H_
#define MEMLEDGER_TESTS_GRAPH_DOCTEST_BESIDE_TORCH_H_

#include <c10/util/Logging.h>

#undef CHECK

#include <doctest/doctest.h>

#endif  // MEMLEDGER_TESTS_GRAPH_DOCTEST_BESIDE_TORCH_H_
