// Python's functions are looked up in the process, as this goes into any program.
#include "runner/inside/other_release.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "prediction/measure_variables.h"
#include "runner/environment.h"

namespace memledger::inside {
namespace {

constexpr char kSource[] =
#include "runner/inside/other_release.py"
    ;
constexpr char kModule[] = "_memledger";

bool is_on(const char* variable) {
  const char* const value = secure_getenv(variable);
  return value != nullptr && *value != '\0' && strcmp(value, "0") != 0;
}

// Not by open() and write(), in front of which another library notes what the program writes.
void write_new_file(const char* path, const char* text) {
  const auto file = static_cast<int>(
      syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  if (file < 0) return;
  for (size_t left = strlen(text); left > 0;) {
    const ssize_t written = syscall(SYS_write, file, text, left);
    if (written <= 0) break;
    text += written;
    left -= static_cast<size_t>(written);
  }
  close(file);
}

// What Python calls at the program's end: the figures as JSON, and in words.
void tell(const char* json, const char* words) {
  const char* const folder = secure_getenv(prediction::kMeasureVariable);
  if (folder == nullptr || *folder == '\0') {
    if (!is_on(environment::kQuiet)) fputs(words, stderr);
    return;
  }
  char path[PATH_MAX];
  const int length =
      snprintf(path, sizeof path, "%s/%d%s", folder, getpid(), prediction::kTorchExtension);
  if (length > 0 && static_cast<size_t>(length) < sizeof path) write_new_file(path, json);
}

template <typename Function>
Function find(const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_DEFAULT, name));
}

// Python objects, without their type.
using Object = void;

// Called by Python's main thread, which has Python's lock.
int run_source(void* /*unused*/) {
  const auto add_module = find<Object* (*)(const char*)>("PyImport_AddModule");
  const auto dictionary_of = find<Object* (*)(Object*)>("PyModule_GetDict");
  const auto compile = find<Object* (*)(const char*, const char*, int)>("Py_CompileString");
  const auto evaluate = find<Object* (*)(Object*, Object*, Object*)>("PyEval_EvalCode");
  const auto number = find<Object* (*)(void*)>("PyLong_FromVoidPtr");
  const auto set_item = find<int (*)(Object*, const char*, Object*)>("PyDict_SetItemString");
  const auto let_go = find<void (*)(Object*)>("Py_DecRef");
  const auto clear_error = find<void (*)()>("PyErr_Clear");
  if (add_module == nullptr || dictionary_of == nullptr || compile == nullptr ||
      evaluate == nullptr || number == nullptr || set_item == nullptr || let_go == nullptr ||
      clear_error == nullptr)
    return 0;
  constexpr int kFileInput = 257;                    // Py_file_input
  if (Object* const module = add_module(kModule)) {  // borrowed, as its dictionary is
    Object* const globals = dictionary_of(module);
    Object* const address = number(reinterpret_cast<void*>(&tell));
    if (address != nullptr) {
      set_item(globals, "TELL", address);
      // A history costs time, and programs on real devices have not asked for it.
      if (find<void*>("memledger_virtual_gpu_uses") != nullptr)
        set_item(globals, "HAS_VIRTUAL_GPU", address);
      let_go(address);
    }
    if (Object* const code = compile(kSource, "<memledger>", kFileInput)) {
      if (Object* const result = evaluate(code, globals, globals)) let_go(result);
      let_go(code);
    }
  }
  clear_error();
  return 0;
}

}  // namespace

void ask_other_release() {
  const auto is_initialized = find<int (*)()>("Py_IsInitialized");
  const auto call_soon = find<int (*)(int (*)(void*), void*)>("Py_AddPendingCall");
  if (is_initialized == nullptr || call_soon == nullptr || is_initialized() == 0) return;
  // Where it is refused, the figures are missing.
  (void)call_soon(&run_source, nullptr);
}

}  // namespace memledger::inside
