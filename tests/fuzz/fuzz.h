#pragma once

// A fuzz target is a function of bytes: LLVMFuzzerTestOneInput, libFuzzer's name for it. Without
// libFuzzer tests/fuzz/driver.cc calls it. What must hold of every input is a FUZZ_CHECK.

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

#define FUZZ_CHECK(condition, what)                                           \
  do {                                                                        \
    if (!(condition)) {                                                       \
      std::fprintf(stderr, "%s:%d: %s\n%s\n", __FILE__, __LINE__, #condition, \
                   std::string(what).c_str());                                \
      std::abort();                                                           \
    }                                                                         \
  } while (false)

namespace memledger::fuzz {

// What a target wants its inputs to be made of, besides bytes.
extern const std::vector<std::string_view> kTokens;

// No byte of it makes a terminal do anything, and it is UTF-8.
bool is_plain_text(std::string_view text);
// Well-formed, as far as our writers go: elements, attributes, entities.
bool is_xml(std::string_view text);
// RFC 8259.
bool is_json(std::string_view text);
// Records of fields; nothing where a quote does not end.
std::vector<std::vector<std::string>> csv_records(std::string_view text);
// The names of the tags of an HTML page in order. What is in a script counts as text up to its end.
std::vector<std::string> html_tags(std::string_view text);

}  // namespace memledger::fuzz
