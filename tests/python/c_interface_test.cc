// The C functions when no memory is left for their texts. The linker brings their malloc here
// (--wrap).
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>

#include <cstddef>
#include <string>

#include "python/c_interface.h"

namespace {
int allocations_left = -1;  // below 0: no limit
}  // namespace

extern "C" {
void* __real_malloc(size_t size);
void* __wrap_malloc(size_t size) {
  if (allocations_left == 0) return nullptr;
  if (allocations_left > 0) --allocations_left;
  return __real_malloc(size);
}
}

namespace {

std::string text_of(const char* text) { return text == nullptr ? "" : text; }

TEST_CASE("an error without memory for its sentence is one, and can be freed") {
  memledger_reporter* reporter = nullptr;
  REQUIRE(memledger_reporter_new(&reporter) == nullptr);
  for (int i = 0; i < 3; ++i) {
    allocations_left = 0;
    char* const error = memledger_reporter_remove(reporter, "nobody");
    allocations_left = -1;
    REQUIRE(error != nullptr);
    CHECK(text_of(error) == "memledger: out of memory");
    memledger_free(error);
  }
  char* const error = memledger_reporter_remove(reporter, "nobody");
  CHECK(text_of(error).find("nobody") != std::string::npos);
  memledger_free(error);
  memledger_free(nullptr);
  memledger_reporter_free(reporter);
}

TEST_CASE("of two texts both are given, or neither") {
  memledger_module* module = nullptr;
  REQUIRE(memledger_module_new("Net", &module) == nullptr);
  for (int left = 0; left < 2; ++left) {
    memledger_size_run* run = nullptr;
    REQUIRE(memledger_size_begin(module, 0, nullptr, 0, &run) == nullptr);
    char *text = nullptr, *json = nullptr;
    allocations_left = left;
    char* const error = memledger_size_end(run, nullptr, 0, &text, &json);
    allocations_left = -1;
    CHECK(text_of(error) == "memledger: out of memory");
    CHECK(text == nullptr);
    CHECK(json == nullptr);
    memledger_free(error);
  }
  memledger_module_free(module);
}

}  // namespace
