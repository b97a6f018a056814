#include "virtual_gpu/values/zero_reads.h"

#include <dlfcn.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>

#include "runner/environment.h"
#include "runner/inside/unreal_files_names.h"
#include "text/output.h"
#include "virtual_gpu/values/program_line.h"

namespace memledger::virtual_gpu {
namespace {

struct ZeroReads {
  std::atomic<uint64_t> count{0};
  pid_t process = 0;
  std::string first_op;
  ProgramLine first_line;
  std::atomic<bool> has_first{false};
};

// Never destroyed: the program may read until the end.
ZeroReads& reads() {
  static auto* const reads = new ZeroReads;
  return *reads;
}

bool is_on(const char* variable) {
  const char* const value = secure_getenv(variable);
  return value != nullptr && *value != '\0' && std::strcmp(value, "0") != 0;
}

// Whether messages are off, or the report of the run has the line.
bool is_quiet() { return is_on(environment::kQuiet) || is_on(environment::kReport); }

void tell_at_exit() {
  ZeroReads& all = reads();
  if (!all.has_first.load(std::memory_order_acquire) || getpid() != all.process) return;
  try {
    const uint64_t count = all.count.load();
    const std::string line = to_string(all.first_line);
    tell({"memledger virtual GPU: values that are not known were read, as what is likely, ",
          count == 1 ? "once" : std::to_string(count) + " times",
          count == 1 ? ", by " : ", first by ", all.first_op, line.empty() ? "" : " at ", line});
  } catch (...) {  // no memory for the line
  }
}

}  // namespace

void note_unreal_value() noexcept {
  static std::atomic<bool> is_noted{false};
  if (is_noted.load(std::memory_order_relaxed) || is_noted.exchange(true)) return;
  const auto note = reinterpret_cast<decltype(&memledger_note_unreal_value)>(
      dlsym(RTLD_DEFAULT, "memledger_note_unreal_value"));
  if (note != nullptr) note();
}

void note_zero_read(const char* op) noexcept {
  note_unreal_value();
  ZeroReads& all = reads();
  if (all.count.fetch_add(1, std::memory_order_relaxed) != 0) return;
  try {
    all.first_op = op == nullptr ? "the program" : op;
    all.first_line = take_program_line();
    all.process = getpid();
    all.has_first.store(true, std::memory_order_release);
    // Now, so that it runs before the end of LibTorch's libraries.
    if (!is_quiet()) std::atexit(&tell_at_exit);
  } catch (...) {  // a line less
  }
}

ZeroReadsSoFar zero_reads_so_far() {
  const ZeroReads& all = reads();
  if (!all.has_first.load(std::memory_order_acquire)) return {};
  return {all.count.load(), all.first_op, to_string(all.first_line)};
}

}  // namespace memledger::virtual_gpu
