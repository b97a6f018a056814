#include "virtual_gpu/unconsidered_functions.h"

#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "virtual_gpu/answer_macros.h"

namespace {

memledger_virtual_gpu_function* first_reached = nullptr;

// A child starts with nothing reached: what its parent reached, the parent reports.
void forget_in_child() {
  for (auto* function = first_reached; function;) {
    auto* next = function->next;
    function->next = nullptr;
    function->count = 0;
    function = next;
  }
  first_reached = nullptr;
}

void write_all(int file, const std::string& text) {
  size_t done = 0;
  while (done < text.size()) {
    const ssize_t written = write(file, text.data() + done, text.size() - done);
    if (written <= 0) return;
    done += static_cast<size_t>(written);
  }
}

std::string times(unsigned long count) {
  return count == 1 ? "once" : std::to_string(count) + " times";
}

// Runs after the destructors of everything that depends on this library, so after LibTorch's last
// CUDA call.
__attribute__((destructor)) void report_reached() {
  std::vector<const memledger_virtual_gpu_function*> functions;
  for (const auto* function = __atomic_load_n(&first_reached, __ATOMIC_ACQUIRE); function;
       function = function->next) {
    functions.push_back(function);
  }
  if (functions.empty()) return;
  std::sort(functions.begin(), functions.end(), [](const auto* a, const auto* b) {
    const int libraries = std::strcmp(a->library, b->library);
    return libraries ? libraries < 0 : std::strcmp(a->function, b->function) < 0;
  });
  std::string text =
      "memledger virtual GPU: " + std::to_string(functions.size()) +
      (functions.size() == 1 ? " function without a considered answer was reached: "
                             : " functions without a considered answer were reached: ");
  for (size_t i = 0; i < functions.size(); ++i) {
    if (i) text += ", ";
    text += std::string(functions[i]->function) + " (" + times(functions[i]->count) + ")";
  }
  text += "\n";

  const char* where = std::getenv(memledger::virtual_gpu::kUnconsideredVariable);
  if (where && *where && std::strcmp(where, "warn") != 0 && std::strcmp(where, "abort") != 0) {
    const int file = open(where, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (file >= 0) {
      write_all(file, text);
      close(file);
      return;
    }
  }
  write_all(STDERR_FILENO, text);
}

}  // namespace

extern "C" void memledger_virtual_gpu_reached(memledger_virtual_gpu_function* function) {
  const char* mode = std::getenv(memledger::virtual_gpu::kUnconsideredVariable);
  if (mode && std::strcmp(mode, "abort") == 0) {
    memledger::virtual_gpu::say("%s of %s was reached, which has no considered answer",
                                function->function, function->library);
    std::abort();
  }
  static const int at_fork = pthread_atfork(nullptr, nullptr, forget_in_child);
  (void)at_fork;
  auto* head = __atomic_load_n(&first_reached, __ATOMIC_RELAXED);
  do {
    function->next = head;
  } while (!__atomic_compare_exchange_n(&first_reached, &head, function, true, __ATOMIC_RELEASE,
                                        __ATOMIC_RELAXED));
}

extern "C" void memledger_virtual_gpu_called() { memledger::virtual_gpu::note_library_work(); }

namespace memledger::virtual_gpu {

void say(const char* format, ...) {
  char line[1024];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(line, sizeof line, format, arguments);
  va_end(arguments);
  write_all(STDERR_FILENO, std::string("memledger virtual GPU: ") + line + "\n");
}

}  // namespace memledger::virtual_gpu
