#include "runner/program_file.h"

#include <elf.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "runner/path_search.h"
#include "runner/program_kind.h"

namespace memledger::runner {
namespace {

// c10::SetAllocator, which a program has only if LibTorch is linked into it.
constexpr std::string_view kLibTorchFunction =
    "_ZN3c1012SetAllocatorENS_10DeviceTypeEPNS_9AllocatorEh";

template <typename T>
bool read_at(std::ifstream& file, uint64_t offset, T* values, size_t count = 1) {
  file.clear();
  file.seekg(static_cast<std::streamoff>(offset));
  return static_cast<bool>(
      file.read(reinterpret_cast<char*>(values), static_cast<std::streamsize>(count * sizeof(T))));
}

// Returns whether the program's symbol table has the name. False if the table was stripped.
bool defines(std::ifstream& file, const Elf64_Ehdr& header, std::string_view name) {
  std::vector<Elf64_Shdr> sections(header.e_shnum);
  if (sections.empty() || !read_at(file, header.e_shoff, sections.data(), sections.size()))
    return false;
  for (const Elf64_Shdr& section : sections) {
    if ((section.sh_type != SHT_SYMTAB && section.sh_type != SHT_DYNSYM) ||
        section.sh_link >= sections.size())
      continue;
    const Elf64_Shdr& strings = sections[section.sh_link];
    constexpr uint64_t kMaxBytes = uint64_t{1} << 30;
    if (section.sh_size > kMaxBytes || strings.sh_size > kMaxBytes) continue;
    std::vector<Elf64_Sym> symbols(section.sh_size / sizeof(Elf64_Sym));
    std::vector<char> text(strings.sh_size);
    if (!read_at(file, section.sh_offset, symbols.data(), symbols.size()) ||
        !read_at(file, strings.sh_offset, text.data(), text.size())) {
      continue;
    }
    for (const Elf64_Sym& symbol : symbols) {
      if (symbol.st_shndx == SHN_UNDEF || symbol.st_name + name.size() >= text.size()) continue;
      if (std::memcmp(text.data() + symbol.st_name, name.data(), name.size()) == 0 &&
          text[symbol.st_name + name.size()] == '\0')
        return true;
    }
  }
  return false;
}

// Whether LibTorch is linked into the program.
bool contains_libtorch(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  Elf64_Ehdr header;
  return file && read_at(file, 0, &header) && defines(file, header, kLibTorchFunction);
}

}  // namespace

std::string find_program(const std::string& program) {
  char room[4096];
  const char* const path = find_in_path(program.c_str(), room);
  return path == nullptr ? program : path;
}

bool gains_privileges(const std::string& path) {
  struct stat file {};
  if (stat(path.c_str(), &file) != 0) return false;
  if ((file.st_mode & (S_ISUID | S_ISGID)) != 0) return true;
  return getxattr(path.c_str(), "security.capability", nullptr, 0) > 0;
}

Fitness check_program(const std::string& program) {
  const std::string path = find_program(program);
  const ProgramKind kind = kind_of_program(path.c_str());
  Fitness fitness;
  fitness.takes_libraries = takes_preloaded_libraries(kind);
  switch (kind) {
    case ProgramKind::kUnknown:
      break;
    case ProgramKind::kOtherMachine:
      fitness.refusal = path + " is not a program for x86-64";
      break;
    case ProgramKind::kOtherLinker:
      fitness.refusal = path + " is not a program of glibc, but of another C library";
      break;
    case ProgramKind::kNoLinker:
      // It may be a launcher, as tini and ld-linux.so are.
      fitness.note = path +
                     " is linked statically, or a loader: memledger watches the programs it "
                     "starts, not the program itself";
      break;
    case ProgramKind::kGlibc:
      break;
  }
  const bool may_contain_libtorch = kind == ProgramKind::kGlibc || kind == ProgramKind::kNoLinker;
  if (may_contain_libtorch && contains_libtorch(path))
    fitness.refusal = path +
                      " has LibTorch linked into it statically: link memledger into it, too, or "
                      "link it with libtorch_cpu.so";
  return fitness;
}

}  // namespace memledger::runner
