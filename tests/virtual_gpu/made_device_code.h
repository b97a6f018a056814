#pragma once

#include <elf.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

// Device code as nvcc writes it, made without nvcc.
namespace memledger::virtual_gpu {

struct MadeKernel {
  std::string name;
  uint32_t registers = 0;
  uint32_t local_bytes = 0;
  uint64_t shared_bytes = 0;
  uint32_t max_threads = 0;
  bool calls_malloc = false;                   // through a function of the file
  std::vector<uint32_t> parameter_bytes = {};  // each lies behind the one before, aligned to 8
};

struct MadeVariable {
  std::string name;
  uint64_t bytes = 0;
  bool managed = false;
};

class MadeElf {
 public:
  // `reserves_shared`: as from 9.0 on, where a kernel's shared memory has 1 KiB of the driver's.
  MadeElf(const std::vector<MadeKernel>& kernels, const std::vector<MadeVariable>& variables,
          bool reserves_shared) {
    add_section("", SHT_NULL, {});
    const size_t strings = add_section(".strtab", SHT_STRTAB, {});
    std::string names(1, '\0');
    std::vector<unsigned char> symbols(sizeof(Elf64_Sym)), notes;
    const size_t global = add_section(".nv.global", SHT_NOBITS, {});
    if (reserves_shared) add_section(".nv.shared.reserved.0", SHT_NOBITS, {});
    for (const MadeVariable& variable : variables) {
      add_symbol(&symbols, &names, variable.name, STT_OBJECT, variable.managed ? 4 : 0, global,
                 variable.bytes);
    }
    std::vector<uint32_t> callers;
    for (const MadeKernel& kernel : kernels) {
      const size_t text = add_section(".text." + kernel.name, SHT_PROGBITS, {0, 0, 0, 0});
      const auto number = static_cast<uint32_t>(symbols.size() / sizeof(Elf64_Sym));
      add_symbol(&symbols, &names, kernel.name, STT_FUNC, 0x10, text, 4);
      if (kernel.calls_malloc) callers.push_back(number);
      add_note(&notes, 0x2f, {number, kernel.registers});
      add_note(&notes, 0x11, {number, kernel.local_bytes});
      if (kernel.shared_bytes) {
        sections_.push_back({});
        sections_.back().sh_name = add_name(".nv.shared." + kernel.name);
        sections_.back().sh_type = SHT_NOBITS;
        sections_.back().sh_size = kernel.shared_bytes + (reserves_shared ? 1024 : 0);
      }
      std::vector<unsigned char> own;
      if (kernel.max_threads) add_note(&own, 0x05, {kernel.max_threads, 1, 1});
      // The last comes first, as ptxas writes them.
      for (size_t i = kernel.parameter_bytes.size(); i-- > 0;) {
        uint32_t offset = 0;
        for (size_t j = 0; j < i; ++j) offset += (kernel.parameter_bytes[j] + 7) / 8 * 8;
        const auto number = static_cast<uint32_t>(i);
        add_note(&own, 0x17, {0, number | offset << 16, kernel.parameter_bytes[i] << 18 | 0x1f000});
      }
      add_section(".nv.info." + kernel.name, 0x70000000, own);
    }
    std::vector<unsigned char> edges;
    for (const uint32_t caller : callers) {
      add_symbol(&symbols, &names, "helper", STT_FUNC, 0, global, 4);
      add_symbol(&symbols, &names, "malloc", STT_FUNC, 0, SHN_UNDEF, 0);
      const auto last = static_cast<uint32_t>(symbols.size() / sizeof(Elf64_Sym) - 1);
      for (const uint32_t edge : {caller, last - 1, last - 1, last, uint32_t{0}, ~uint32_t{0}})
        append(&edges, &edge, sizeof edge);
    }
    add_section(".nv.callgraph", 0x70000001, edges);
    add_section(".nv.info", 0x70000000, notes);
    set_content(strings, {names.begin(), names.end()});
    const size_t table = add_section(".symtab", SHT_SYMTAB, symbols);
    sections_[table].sh_link = static_cast<uint32_t>(strings);
    names_section_ = add_section(".shstrtab", SHT_STRTAB, {});
    set_content(names_section_, {section_names_.begin(), section_names_.end()});
  }

  std::vector<unsigned char> bytes() const {
    Elf64_Ehdr header{};
    std::memcpy(header.e_ident, ELFMAG, SELFMAG);
    header.e_ident[EI_CLASS] = ELFCLASS64;
    header.e_machine = 190;  // EM_CUDA
    header.e_shoff = sizeof header + content_.size();
    header.e_shentsize = sizeof(Elf64_Shdr);
    header.e_shnum = static_cast<uint16_t>(sections_.size());
    header.e_shstrndx = static_cast<uint16_t>(names_section_);
    std::vector<unsigned char> file;
    append(&file, &header, sizeof header);
    file.insert(file.end(), content_.begin(), content_.end());
    append(&file, sections_.data(), sections_.size() * sizeof(Elf64_Shdr));
    return file;
  }

  static void append(std::vector<unsigned char>* to, const void* from, size_t bytes) {
    const auto* const begin = static_cast<const unsigned char*>(from);
    to->insert(to->end(), begin, begin + bytes);
  }

 private:
  uint32_t add_name(const std::string& name) {
    const auto at = static_cast<uint32_t>(section_names_.size());
    section_names_ += name + '\0';
    return at;
  }

  size_t add_section(const std::string& name, uint32_t type,
                     const std::vector<unsigned char>& content) {
    sections_.push_back({});
    sections_.back().sh_name = add_name(name);
    sections_.back().sh_type = type;
    set_content(sections_.size() - 1, content);
    return sections_.size() - 1;
  }

  void set_content(size_t section, const std::vector<unsigned char>& content) {
    sections_[section].sh_offset = sizeof(Elf64_Ehdr) + content_.size();
    sections_[section].sh_size = content.size();
    content_.insert(content_.end(), content.begin(), content.end());
  }

  static void add_symbol(std::vector<unsigned char>* symbols, std::string* names,
                         const std::string& name, unsigned char type, unsigned char other,
                         size_t section, uint64_t bytes) {
    Elf64_Sym symbol{};
    symbol.st_name = static_cast<uint32_t>(names->size());
    symbol.st_info = ELF64_ST_INFO(STB_GLOBAL, type);
    symbol.st_other = other;
    symbol.st_shndx = static_cast<uint16_t>(section);
    symbol.st_size = bytes;
    *names += name + '\0';
    append(symbols, &symbol, sizeof symbol);
  }

  static void add_note(std::vector<unsigned char>* notes, unsigned char what,
                       const std::vector<uint32_t>& numbers) {
    const auto bytes = static_cast<uint16_t>(numbers.size() * sizeof(uint32_t));
    notes->push_back(4);
    notes->push_back(what);
    append(notes, &bytes, sizeof bytes);
    append(notes, numbers.data(), bytes);
  }

  std::vector<Elf64_Shdr> sections_;
  std::string section_names_;
  std::vector<unsigned char> content_;
  size_t names_section_ = 0;
};

struct MadeEntry {
  bool ptx = false;
  uint32_t architecture = 0;
  std::vector<unsigned char> code;
  bool compressed = false;
};

inline std::vector<unsigned char> made_fat_binary(const std::vector<MadeEntry>& entries) {
  constexpr uint64_t kZstandard = 0x8000;
  std::vector<unsigned char> body;
  for (const MadeEntry& entry : entries) {
    std::vector<unsigned char> header(64);
    const auto put = [&header](size_t at, auto value) {
      std::memcpy(header.data() + at, &value, sizeof value);
    };
    put(0, uint16_t(entry.ptx ? 1 : 2));
    put(2, uint16_t{0x101});
    put(4, uint32_t(header.size()));
    put(8, uint64_t{entry.code.size()});
    put(28, entry.architecture);
    put(40, uint64_t{0x11} | (entry.compressed ? kZstandard : 0));
    body.insert(body.end(), header.begin(), header.end());
    body.insert(body.end(), entry.code.begin(), entry.code.end());
  }
  std::vector<unsigned char> result;
  const uint32_t magic = 0xba55ed50;
  const uint16_t version = 1, header_bytes = 16;
  const uint64_t bytes = body.size();
  MadeElf::append(&result, &magic, sizeof magic);
  MadeElf::append(&result, &version, sizeof version);
  MadeElf::append(&result, &header_bytes, sizeof header_bytes);
  MadeElf::append(&result, &bytes, sizeof bytes);
  result.insert(result.end(), body.begin(), body.end());
  return result;
}

// The frame that nvcc puts around a fat binary, which must outlive it.
struct MadeFrame {
  uint32_t magic = 0x466243b1;
  uint32_t version = 1;
  const void* code = nullptr;
  const void* prelinked = nullptr;
};

}  // namespace memledger::virtual_gpu
