#include "virtual_gpu/argument_words.h"

#include <pthread.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

namespace memledger::virtual_gpu {
namespace {

constexpr size_t kMaxArguments = 256;
constexpr size_t kMaxArgumentBytes = 32764;  // of all arguments of a kernel
constexpr size_t kMaxBytesInHeap = 4096;     // of one, such as an array of CuPy's
constexpr size_t kWord = sizeof(uintptr_t);

using Range = std::pair<uintptr_t, uintptr_t>;

Range find_stack() {
  pthread_attr_t attributes;
  if (pthread_getattr_np(pthread_self(), &attributes) != 0) return {0, 0};
  void* begin = nullptr;
  size_t bytes = 0;
  const bool is_known = pthread_attr_getstack(&attributes, &begin, &bytes) == 0;
  pthread_attr_destroy(&attributes);
  const auto first = reinterpret_cast<uintptr_t>(begin);
  return is_known ? Range{first, first + bytes} : Range{0, 0};
}

// What the calling thread's stack holds now; empty where it is not known, as on a fiber's stack.
Range own_stack() {
  thread_local const Range whole = find_stack();
  const auto frame = reinterpret_cast<uintptr_t>(__builtin_frame_address(0));
  return frame >= whole.first && frame < whole.second ? Range{frame, whole.second} : Range{0, 0};
}

bool is_inside(uintptr_t address, const Range& range) {
  return address >= range.first && address + kWord <= range.second;
}

// Returns how much of it can be read; nothing where that is not known.
std::optional<size_t> read_anywhere(uintptr_t address, void* to, size_t bytes) {
  const iovec local = {to, bytes};
  const iovec remote = {reinterpret_cast<void*>(address), bytes};
  const ssize_t read = process_vm_readv(getpid(), &local, 1, &remote, 1, 0);
  if (read >= 0) return static_cast<size_t>(read);
  if (errno != EFAULT) return {};
  return 0;
}

uintptr_t word_at(uintptr_t address) {
  uintptr_t word = 0;
  std::memcpy(&word, reinterpret_cast<const void*>(address), kWord);
  return word;
}

void visit_words(uintptr_t begin, uintptr_t end, const std::function<void(uintptr_t)>& visit) {
  constexpr uintptr_t kLeast = 1 << 16, kMost = uintptr_t{1} << 47;  // of a process's addresses
  for (uintptr_t at = begin; at + kWord <= end; at += kWord) {
    if (const uintptr_t word = word_at(at); word >= kLeast && word < kMost) visit(word);
  }
}

// Parts of the stack, each once.
void visit_parts(std::vector<Range> parts, const std::function<void(uintptr_t)>& visit) {
  std::sort(parts.begin(), parts.end());
  uintptr_t done = 0;
  for (const Range& part : parts) {
    visit_words(std::max(part.first, done), part.second, visit);
    done = std::max(done, part.second);
  }
}

}  // namespace

bool for_each_argument_word(const memledger_virtual_gpu_work& work,
                            const std::function<void(uintptr_t word)>& visit) {
  if (work.argument_bytes != nullptr) {
    const auto begin = reinterpret_cast<uintptr_t>(work.argument_bytes);
    visit_words(begin, begin + work.argument_byte_count, visit);
    return true;
  }
  if (work.arguments == nullptr) return false;
  const Range stack = own_stack();
  std::vector<Range> parts;
  std::array<unsigned char, kMaxBytesInHeap> bytes;
  auto entry = reinterpret_cast<uintptr_t>(work.arguments);
  for (size_t i = 0; i < kMaxArguments; ++i, entry += kWord) {
    uintptr_t argument = 0;
    if (is_inside(entry, stack)) {
      argument = word_at(entry);
    } else {
      const std::optional<size_t> read = read_anywhere(entry, &argument, kWord);
      if (!read) return false;
      if (*read != kWord) break;
    }
    const uintptr_t begin = argument / kWord * kWord;
    if (is_inside(begin, stack)) {
      parts.emplace_back(begin, std::min(begin + kMaxArgumentBytes, stack.second));
      continue;
    }
    // Behind the last argument is something else: compiled code has all of them on its stack.
    if (!parts.empty()) break;
    const std::optional<size_t> read = read_anywhere(begin, bytes.data(), bytes.size());
    if (!read) return false;
    if (*read < kWord) break;
    const auto copy = reinterpret_cast<uintptr_t>(bytes.data());
    visit_words(copy, copy + *read, visit);
  }
  visit_parts(std::move(parts), visit);
  return true;
}

}  // namespace memledger::virtual_gpu
