#pragma once

// The part of elfutils' libdw (libdw.so.1, of elfutils 0.170 and later) that memledger calls.
//
// Loaded at run time, as programs need not have it; declared here, as a build need not have its
// headers. elfutils keeps this interface for as long as the library has this name.

#include <cstddef>
#include <cstdint>

namespace memledger::libdw {

struct Dwarf;
struct Unit;
struct Abbreviation;
struct Line;
struct Files;
struct Lines;

// Dwarf_Die: an entry of the debug information.
struct Entry {
  void* address = nullptr;
  Unit* unit = nullptr;
  Abbreviation* abbreviation = nullptr;
  long padding = 0;
};

// Dwarf_Attribute.
struct Attribute {
  unsigned code = 0;
  unsigned form = 0;
  unsigned char* value = nullptr;
  Unit* unit = nullptr;
};

// Values of DWARF's own (dwarf.h).
constexpr int kTagClass = 0x02, kTagLexicalBlock = 0x0b, kTagStructure = 0x13, kTagUnion = 0x17,
              kTagInlinedSubroutine = 0x1d, kTagModule = 0x1e, kTagSubprogram = 0x2e,
              kTagNamespace = 0x39;
constexpr unsigned kName = 0x03, kCallFile = 0x58, kCallLine = 0x59, kLinkageName = 0x6e,
                   kMipsLinkageName = 0x2007;

struct Functions {
  unsigned (*elf_version)(unsigned);
  Dwarf* (*begin)(int file, int command);
  int (*end)(Dwarf*);
  int (*get_units)(Dwarf*, Unit* before, Unit** next, uint16_t* version, uint8_t* type,
                   Entry* entry, Entry* split);
  int (*child)(Entry*, Entry* result);
  int (*sibling)(Entry*, Entry* result);
  int (*tag)(Entry*);
  ptrdiff_t (*ranges)(Entry*, ptrdiff_t at, uint64_t* base, uint64_t* begin, uint64_t* end);
  Attribute* (*attribute)(Entry*, unsigned name, Attribute* result);
  Attribute* (*inherited)(Entry*, unsigned name, Attribute* result);
  const char* (*text)(Attribute*);
  int (*number)(Attribute*, uint64_t* result);
  int (*source_files)(Entry* unit, Files**, size_t* count);
  const char* (*file_name)(Files*, size_t index, uint64_t* time, uint64_t* size);
  int (*source_lines)(Entry* unit, Lines**, size_t* count);
  Line* (*line_at)(Lines*, size_t index);
  int (*line_address)(Line*, uint64_t* result);
  int (*line_number)(Line*, int* result);
  int (*line_ends)(Line*, bool* result);
  const char* (*line_file)(Line*, uint64_t* time, uint64_t* size);

  // Returns null where the library is not there, or lacks one of them. Loads it at the first call,
  // for the life of the process. Thread-safe.
  static const Functions* get() noexcept;
};

}  // namespace memledger::libdw
