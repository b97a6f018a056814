#include "virtual_gpu/device_code.h"

#include <elf.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <set>
#include <string_view>
#include <vector>

namespace memledger::virtual_gpu {
namespace {

constexpr uint32_t kFrame = 0x466243b1;
constexpr uint32_t kFatBinary = 0xba55ed50;
constexpr uint32_t kElf = 0x464c457f;

template <typename T>
T read_at(const unsigned char* from, size_t offset) {
  T value;
  std::memcpy(&value, from + offset, sizeof value);
  return value;
}

struct Bytes {
  const unsigned char* begin = nullptr;
  size_t size = 0;

  bool holds(uint64_t offset, uint64_t bytes) const {
    return offset <= size && bytes <= size - offset;
  }
};

bool starts_with(std::string_view text, std::string_view prefix) {
  return text.substr(0, prefix.size()) == prefix;
}

// An ELF file of machine code. Everything in it is checked, as a wrong file must not end the
// program.
class MachineCode {
 public:
  explicit MachineCode(Bytes file) : file_(file) {
    if (!file_.holds(0, sizeof(Elf64_Ehdr)) || std::memcmp(file_.begin, ELFMAG, SELFMAG) != 0 ||
        file_.begin[EI_CLASS] != ELFCLASS64) {
      return;
    }
    const auto header = read_at<Elf64_Ehdr>(file_.begin, 0);
    if (header.e_shentsize != sizeof(Elf64_Shdr) ||
        !file_.holds(header.e_shoff, uint64_t{header.e_shnum} * sizeof(Elf64_Shdr)) ||
        header.e_shstrndx >= header.e_shnum) {
      return;
    }
    for (size_t i = 0; i < header.e_shnum; ++i) {
      sections_.push_back(
          read_at<Elf64_Shdr>(file_.begin, header.e_shoff + i * sizeof(Elf64_Shdr)));
    }
    names_ = content(header.e_shstrndx);
  }

  bool read_into(DeviceCode* code) const {
    for (const Elf64_Shdr& section : sections_) {
      if (section.sh_type != SHT_SYMTAB || section.sh_link >= sections_.size()) continue;
      const Bytes symbols = bytes_of(section);
      const Bytes names = content(section.sh_link);
      std::vector<std::string> kernel_of(symbols.size / sizeof(Elf64_Sym));
      std::set<uint32_t> allocators;  // malloc(), and who calls it
      for (size_t i = 0; i < kernel_of.size(); ++i) {
        const auto symbol = read_at<Elf64_Sym>(symbols.begin, i * sizeof(Elf64_Sym));
        const std::string name = text_at(names, symbol.st_name);
        add(symbol, name, code, &kernel_of[i]);
        if (symbol.st_shndx == SHN_UNDEF && name == "malloc")
          allocators.insert(static_cast<uint32_t>(i));
      }
      if (!allocators.empty()) {
        add_callers(&allocators);
        for (const uint32_t symbol : allocators) {
          if (symbol < kernel_of.size() && !kernel_of[symbol].empty())
            code->kernels[kernel_of[symbol]].uses_heap = true;
        }
      }
      add_details(kernel_of, code);
      return true;
    }
    return false;
  }

 private:
  Bytes bytes_of(const Elf64_Shdr& section) const {
    if (section.sh_type == SHT_NOBITS || !file_.holds(section.sh_offset, section.sh_size))
      return {};
    return {file_.begin + section.sh_offset, section.sh_size};
  }
  Bytes content(size_t section) const { return bytes_of(sections_[section]); }

  static std::string text_at(Bytes names, size_t offset) {
    if (offset >= names.size) return "";
    const char* const begin = reinterpret_cast<const char*>(names.begin) + offset;
    return std::string(begin, strnlen(begin, names.size - offset));
  }

  std::string name_of(const Elf64_Shdr& section) const { return text_at(names_, section.sh_name); }

  void add(const Elf64_Sym& symbol, const std::string& name, DeviceCode* code,
           std::string* kernel) const {
    constexpr unsigned char kManaged = 0x04, kEntry = 0x10;
    if (symbol.st_shndx == SHN_UNDEF || symbol.st_shndx >= sections_.size() || name.empty()) return;
    const int type = ELF64_ST_TYPE(symbol.st_info);
    if (type == STT_FUNC && symbol.st_other & kEntry) {
      code->kernels[name];
      *kernel = name;
    } else if (type == STT_OBJECT) {
      const std::string section = name_of(sections_[symbol.st_shndx]);
      if (starts_with(section, ".nv.global") || section == ".nv.constant3")
        code->variables[name] = {symbol.st_size, (symbol.st_other & kManaged) != 0};
    }
  }

  // Adds who calls one of the symbols, through any number of functions.
  void add_callers(std::set<uint32_t>* callees) const {
    for (const Elf64_Shdr& section : sections_) {
      if (name_of(section) != ".nv.callgraph") continue;
      const Bytes edges = bytes_of(section);
      constexpr size_t kEdge = 2 * sizeof(uint32_t);
      for (size_t before = 0; before != callees->size();) {
        before = callees->size();
        for (size_t at = 0; edges.holds(at, kEdge); at += kEdge) {
          if (callees->count(read_at<uint32_t>(edges.begin, at + sizeof(uint32_t))) != 0)
            callees->insert(read_at<uint32_t>(edges.begin, at));
        }
      }
    }
  }

  void add_details(const std::vector<std::string>& kernel_of, DeviceCode* code) const {
    const bool reserves_shared =
        std::any_of(sections_.begin(), sections_.end(),
                    [this](const Elf64_Shdr& s) { return name_of(s) == ".nv.shared.reserved.0"; });
    for (const Elf64_Shdr& section : sections_) {
      const std::string name = name_of(section);
      if (name == ".nv.info") {
        read_notes(bytes_of(section), [&](uint8_t what, Bytes value) {
          add_note_of_file(what, value, kernel_of, code);
        });
      } else if (starts_with(name, ".nv.info.")) {
        const auto kernel = code->kernels.find(name.substr(std::strlen(".nv.info.")));
        if (kernel == code->kernels.end()) continue;
        read_notes(bytes_of(section), [&](uint8_t what, Bytes value) {
          add_note_of_kernel(what, value, kernel->second);
        });
      } else if (starts_with(name, ".nv.shared.")) {
        // From 9.0 on it begins with what the driver reserves for itself in each block.
        constexpr size_t kReserved = 1024;
        const auto kernel = code->kernels.find(name.substr(std::strlen(".nv.shared.")));
        if (kernel == code->kernels.end()) continue;
        const size_t reserved = reserves_shared ? kReserved : 0;
        kernel->second.shared_bytes = section.sh_size - std::min<size_t>(section.sh_size, reserved);
      }
    }
  }

  static void add_note_of_file(uint8_t what, Bytes value, const std::vector<std::string>& kernel_of,
                               DeviceCode* code) {
    constexpr uint8_t kFrameBytes = 0x11, kLeastStackBytes = 0x12, kRegisters = 0x2f;
    if (value.size < 8) return;
    const uint32_t symbol = read_at<uint32_t>(value.begin, 0);
    if (symbol >= kernel_of.size() || kernel_of[symbol].empty()) return;
    KernelCode& kernel = code->kernels[kernel_of[symbol]];
    const uint32_t number = read_at<uint32_t>(value.begin, 4);
    if (what == kFrameBytes) kernel.local_bytes = number;
    if (what == kLeastStackBytes) kernel.stack_bytes = number;
    if (what == kRegisters) kernel.registers = static_cast<int>(std::min<uint32_t>(number, 255));
  }

  static void add_note_of_kernel(uint8_t what, Bytes value, KernelCode& kernel) {
    constexpr uint8_t kMaxThreads = 0x05, kParameter = 0x17;
    if (value.size < 12) return;
    if (what == kMaxThreads) {
      const uint64_t threads = uint64_t{read_at<uint32_t>(value.begin, 0)} *
                               read_at<uint32_t>(value.begin, 4) *
                               read_at<uint32_t>(value.begin, 8);
      kernel.max_threads = static_cast<int>(std::min<uint64_t>(threads, 1024));
    } else if (what == kParameter) {
      // Its number, where it lies, and in the upper 14 of 32 bits its size.
      constexpr size_t kMaxParameters = 4096;
      constexpr int kSizeShift = 18;
      const size_t number = read_at<uint16_t>(value.begin, 4);
      if (number >= kMaxParameters) return;
      if (kernel.parameters.size() <= number) kernel.parameters.resize(number + 1);
      kernel.parameters[number].offset = read_at<uint16_t>(value.begin, 6);
      kernel.parameters[number].bytes =
          static_cast<uint16_t>(read_at<uint32_t>(value.begin, 8) >> kSizeShift);
    }
  }

  // A note is a format, what it says, and a number of 16 bits: of format 4, the size of what
  // follows.
  template <typename F>
  static void read_notes(Bytes notes, F take) {
    constexpr uint8_t kSized = 4;
    for (size_t at = 0; notes.holds(at, 4);) {
      const uint8_t format = notes.begin[at], what = notes.begin[at + 1];
      const size_t bytes = format == kSized ? read_at<uint16_t>(notes.begin, at + 2) : 0;
      at += 4;
      if (!notes.holds(at, bytes)) return;
      if (bytes) take(what, Bytes{notes.begin + at, bytes});
      at += bytes;
    }
  }

  Bytes file_;
  Bytes names_;
  std::vector<Elf64_Shdr> sections_;
};

// The size of a bare ELF file, which is written nowhere: its last header or section ends it.
size_t elf_size(const unsigned char* file) {
  const auto header = read_at<Elf64_Ehdr>(file, 0);
  uint64_t end = std::max<uint64_t>(header.e_shoff + uint64_t{header.e_shnum} * sizeof(Elf64_Shdr),
                                    header.e_phoff + uint64_t{header.e_phnum} * sizeof(Elf64_Phdr));
  for (size_t i = 0; i < header.e_shnum && header.e_shentsize == sizeof(Elf64_Shdr); ++i) {
    const auto section = read_at<Elf64_Shdr>(file, header.e_shoff + i * sizeof(Elf64_Shdr));
    if (section.sh_type != SHT_NOBITS) end = std::max(end, section.sh_offset + section.sh_size);
  }
  return end;
}

struct Entry {
  uint16_t kind = 0;
  int architecture = 0;
  bool compressed = false;
  Bytes code;
};

constexpr uint16_t kPtx = 1, kMachineCode = 2;

// A fat binary: a header, then entries of a header and code each.
std::vector<Entry> entries_of(const unsigned char* code) {
  constexpr uint64_t kCompressed = 0xa000;  // either of two ways
  constexpr size_t kLeastHeader = 48;
  std::vector<Entry> entries;
  const unsigned char* entry = code + read_at<uint16_t>(code, 6);
  uint64_t left = read_at<uint64_t>(code, 8);
  while (left >= kLeastHeader) {
    const uint32_t header = read_at<uint32_t>(entry, 4);
    const uint64_t payload = read_at<uint64_t>(entry, 8);
    if (header < kLeastHeader || payload > left || header > left - payload) break;
    entries.push_back({read_at<uint16_t>(entry, 0),
                       static_cast<int>(read_at<uint32_t>(entry, 28)),
                       (read_at<uint64_t>(entry, 40) & kCompressed) != 0,
                       {entry + header, payload}});
    entry += header + payload;
    left -= header + payload;
  }
  return entries;
}

bool is_of_board(int capability) {
  return capability == 72 || capability == 87 || capability == 101 || capability == 110;
}

DeviceCode read_fat_binary(const unsigned char* code, int capability) {
  DeviceCode result;
  Entry chosen;   // what the driver takes
  Entry nearest;  // machine code that can be read, of any architecture
  int ptx = 0;
  for (const Entry& entry : entries_of(code)) {
    const bool old_enough = entry.architecture <= capability && !is_of_board(capability);
    if (entry.kind == kPtx && old_enough) ptx = std::max(ptx, entry.architecture);
    if (entry.kind != kMachineCode) continue;
    // Machine code runs on devices of its major version.
    if (old_enough && entry.architecture / 10 == capability / 10 &&
        entry.architecture > chosen.architecture)
      chosen = entry;
    if (!entry.compressed && (old_enough || !nearest.architecture) &&
        (entry.architecture > nearest.architecture || nearest.architecture > capability))
      nearest = entry;
  }
  // Code for boards such as Jetsons is in builds for their hosts alone, which this one stands for.
  if (is_of_board(capability)) ptx = capability;
  result.runs = chosen.architecture || ptx;
  if (result.runs) {
    result.binary_version = chosen.architecture ? chosen.architecture : capability;
    result.ptx_version = chosen.architecture ? chosen.architecture : ptx;
  }
  // What the compiler wrote for another architecture stands in for what the driver will compile:
  // the same kernels and variables, of nearly the same size.
  const Entry& read = chosen.architecture && !chosen.compressed ? chosen : nearest;
  if (read.code.begin) result.is_readable = MachineCode(read.code).read_into(&result);
  return result;
}

DeviceCode of_no_known_format(int capability) {
  DeviceCode code;
  code.runs = true;
  code.binary_version = code.ptx_version = capability;
  return code;
}

// What nvcc puts around code that is in a program. Where the linker put it together (-rdc=true),
// the parts, up to a null, stand next to the whole: the driver compiles and links their PTX for a
// device that the whole does not run on.
DeviceCode read_frame(const unsigned char* frame, int capability) {
  constexpr uint32_t kLinked = 2;
  const auto* const whole = read_at<const unsigned char*>(frame, 8);
  if (!whole) return of_no_known_format(capability);
  DeviceCode result = read_device_code(whole, capability);
  if (result.runs || read_at<uint32_t>(frame, 4) != kLinked) return result;
  const auto* const* part = read_at<const unsigned char* const*>(frame, 16);
  for (; part && *part; ++part) {
    const DeviceCode code = read_device_code(*part, capability);
    if (!code.runs) return result;
    result.binary_version = capability;
    result.ptx_version = std::max(result.ptx_version, code.ptx_version);
  }
  result.runs = result.binary_version > 0;
  return result;
}

}  // namespace

DeviceCode read_device_code(const void* code, int capability) {
  if (!code) return of_no_known_format(capability);
  const auto* const bytes = static_cast<const unsigned char*>(code);
  // What is no more than text may be shorter than a number of four bytes.
  const auto begins_with = [bytes](uint32_t magic) {
    unsigned char expected[sizeof magic];
    std::memcpy(expected, &magic, sizeof magic);
    for (size_t i = 0; i < sizeof magic; ++i) {
      if (bytes[i] != expected[i]) return false;
    }
    return true;
  };
  if (begins_with(kFrame)) return read_frame(bytes, capability);
  if (begins_with(kFatBinary)) return read_fat_binary(bytes, capability);
  if (begins_with(kElf)) {
    DeviceCode result = of_no_known_format(capability);
    result.is_readable = MachineCode({bytes, elf_size(bytes)}).read_into(&result);
    return result;
  }
  return of_no_known_format(capability);
}

}  // namespace memledger::virtual_gpu
