#pragma once

// doctest for files that see LibTorch, whose logging has a CHECK of its own that ends the program.

#include <c10/util/Logging.h>

#undef CHECK

#include <doctest/doctest.h>
