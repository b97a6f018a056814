#pragma once

#include <atomic>

// What the files in answers/ are written with. Every function here takes the place of the generated
// one of the same name.

// Exported without a symbol version: preloaded, it satisfies references of any version.
#define MEMLEDGER_ANSWER extern "C" __attribute__((visibility("default")))

// A function that rightly does nothing and succeeds, whatever its parameters.
#define MEMLEDGER_DOES_NOTHING(name) \
  MEMLEDGER_ANSWER int name();       \
  int name() { return 0; }

// A function of a library that would write to a device, and does nothing and succeeds here.
#define MEMLEDGER_COMPUTES(name)                 \
  MEMLEDGER_ANSWER int name();                   \
  int name() {                                   \
    memledger::virtual_gpu::note_library_work(); \
    return 0;                                    \
  }

// Says once per function why the program gets an error.
#define MEMLEDGER_SAY_REFUSED(why)                            \
  do {                                                        \
    static std::atomic<bool> said{false};                     \
    memledger::virtual_gpu::say_refused(said, __func__, why); \
  } while (false)

// A function that deliberately fails with `error`, whatever its parameters.
#define MEMLEDGER_REFUSES(name, error, why) \
  MEMLEDGER_ANSWER int name();              \
  int name() {                              \
    MEMLEDGER_SAY_REFUSED(why);             \
    return error;                           \
  }

namespace memledger::virtual_gpu {

void note_library_work();

void say_refused(std::atomic<bool>& said, const char* function, const char* why);

}  // namespace memledger::virtual_gpu
