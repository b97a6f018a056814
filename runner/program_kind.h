#pragma once

// Which programs memledger's libraries can go into, as far as the file shows. Allocates nothing and
// calls only what a signal handler, or a child of vfork, may call. Links with the C library alone.

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

namespace memledger {

enum class ProgramKind : uint8_t {
  kUnknown,       // cannot be read, or neither ELF nor a script: the system or a shell decides
  kGlibc,         // glibc's dynamic linker starts it
  kNoLinker,      // linked statically, or a loader: LD_PRELOAD has no effect on it
  kOtherLinker,   // the dynamic linker of another C library, such as musl
  kOtherMachine,  // 32-bit, or not for x86-64
};

inline bool takes_preloaded_libraries(ProgramKind kind) {
  return kind != ProgramKind::kOtherLinker && kind != ProgramKind::kOtherMachine;
}

// Whether it only reads, as `ldconfig -p`, by which others find libraries, or heeds LD_PRELOAD for
// the program that it is given, as glibc's dynamic linker does.
inline bool is_harmless_if_static(const char* path, const char* const* arguments) {
  const char* const slash = strrchr(path, '/');
  const char* const name = slash == nullptr ? path : slash + 1;
  if (strncmp(name, "ld-linux", 8) == 0) return true;
  if (strcmp(name, "ldconfig") != 0 || arguments == nullptr) return false;
  for (; *arguments != nullptr; ++arguments) {
    if (strcmp(*arguments, "-p") == 0) return true;
  }
  return false;
}

// Which calls of a program on files are not redirected, as memledger's libraries cannot go into it;
// null where they can, or where that is not known. The kernel refuses what it writes. `arguments`
// may be null.
inline const char* writes_not_redirected(ProgramKind kind, const char* path,
                                         const char* const* arguments) {
  if (kind == ProgramKind::kNoLinker && is_harmless_if_static(path, arguments)) return nullptr;
  switch (kind) {
    case ProgramKind::kNoLinker:
      return "any write of a static program: EACCES";
    case ProgramKind::kOtherLinker:
      return "any write of a program of another C library: EACCES";
    case ProgramKind::kOtherMachine:
      return "any write of a 32-bit program: EACCES";
    default:
      return nullptr;
  }
}

namespace program_kind_detail {

inline bool read_at(int file, uint64_t offset, void* to, size_t bytes) {
  return pread(file, to, bytes, static_cast<off_t>(offset)) == static_cast<ssize_t>(bytes);
}

// The linkers of musl, uClibc and Android. Any other is taken for glibc's, which may be renamed.
inline bool is_other_linker(const char* path) {
  const char* const slash = strrchr(path, '/');
  const char* const name = slash == nullptr ? path : slash + 1;
  return strncmp(name, "ld-musl", 7) == 0 || strncmp(name, "ld-uClibc", 9) == 0 ||
         strncmp(name, "ld64-uClibc", 11) == 0 || strncmp(name, "linker", 6) == 0;
}

// Copies the interpreter that a script names. False where the file is no script.
inline bool read_interpreter(int file, char* path, size_t size) {
  char line[256];
  const ssize_t got = pread(file, line, sizeof line - 1, 0);
  if (got < 3 || line[0] != '#' || line[1] != '!') return false;
  line[got] = '\0';
  const char* const begin = line + 2 + strspn(line + 2, " \t");
  const size_t length = strcspn(begin, " \t\n");
  if (length == 0 || length >= size) return false;
  memcpy(path, begin, length);
  path[length] = '\0';
  return true;
}

}  // namespace program_kind_detail

inline ProgramKind kind_of_program(int file) {
  using namespace program_kind_detail;
  Elf64_Ehdr header;  // the first bytes of a 32-bit one are the same
  if (!read_at(file, 0, header.e_ident, sizeof header.e_ident) ||
      memcmp(header.e_ident, ELFMAG, SELFMAG) != 0)
    return ProgramKind::kUnknown;
  if (header.e_ident[EI_CLASS] != ELFCLASS64) return ProgramKind::kOtherMachine;
  if (!read_at(file, 0, &header, sizeof header)) return ProgramKind::kUnknown;
  if (header.e_machine != EM_X86_64) return ProgramKind::kOtherMachine;
  for (unsigned i = 0; i < header.e_phnum; ++i) {
    Elf64_Phdr part;
    if (!read_at(file, header.e_phoff + i * sizeof part, &part, sizeof part))
      return ProgramKind::kUnknown;
    if (part.p_type != PT_INTERP) continue;
    char linker[256];
    if (part.p_filesz == 0 || part.p_filesz > sizeof linker) return ProgramKind::kUnknown;
    if (!read_at(file, part.p_offset, linker, part.p_filesz)) return ProgramKind::kUnknown;
    linker[part.p_filesz - 1] = '\0';
    return is_other_linker(linker) ? ProgramKind::kOtherLinker : ProgramKind::kGlibc;
  }
  return ProgramKind::kNoLinker;
}

// A script has the kind of its interpreter. Keeps errno.
inline ProgramKind kind_of_program(const char* path) {
  constexpr int kMaxScripts = 4;  // as Linux has it
  const int error = errno;
  ProgramKind kind = ProgramKind::kUnknown;
  char interpreter[256];
  bool is_script = true;
  for (int i = 0; is_script && i <= kMaxScripts; ++i) {
    const int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (file < 0) break;
    is_script = program_kind_detail::read_interpreter(file, interpreter, sizeof interpreter);
    if (!is_script) kind = kind_of_program(file);
    close(file);
    path = interpreter;
  }
  errno = error;
  return kind;
}

}  // namespace memledger
