// The way into a Python program. Linked with no Python: its functions are looked up in the process.
#include "runner/inside/python_program.h"

#include <ATen/core/Tensor.h>
#include <dlfcn.h>
#include <fmt/format.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "registry/scoped.h"
#include "reporter/names/told_names.h"
#include "reporter/role.h"
#include "runner/inside/checkpointed.h"
#include "runner/inside/failure_holders.h"
#include "runner/inside/holders.h"
#include "runner/inside/python_lines.h"
#include "runner/inside/watch.h"
#include "tracker/lines/python_functions.h"

namespace memledger::inside {
namespace {

constexpr char kHolders[] =
#include "runner/inside/python_holders.py"
    ;
constexpr char kNames[] =
#include "runner/inside/python_names.py"
    ;
constexpr char kModule[] = "_memledger";

// A tensor that Python keeps alive for a call. Takes no reference: Python's lock goes with those.
class Borrowed {
 public:
  explicit Borrowed(void* address)
      : tensor_(c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>::reclaim(
            static_cast<c10::TensorImpl*>(address))) {}
  ~Borrowed() { tensor_.unsafeReleaseTensorImpl(); }
  Borrowed(const Borrowed&) = delete;
  Borrowed& operator=(const Borrowed&) = delete;
  const at::Tensor& operator*() const { return tensor_; }

 private:
  at::Tensor tensor_;
};

// What the hooks call. Texts are Python's, and end with the call.

void add_module(uint64_t module, const char* type) { ToldNames::global().add_module(module, type); }
void add_part(uint64_t whole, const char* name, uint64_t part) {
  ToldNames::global().add_part(whole, name, part);
}
void add_tensor(uint64_t module, const char* name, int role, int is_part, void* tensor) {
  const Borrowed borrowed(tensor);
  ToldNames::global().add_tensor(module, name, role == 0 ? Role::kParameter : Role::kBuffer,
                                 *borrowed, is_part != 0);
}
void end_module(uint64_t module) { ToldNames::global().end_module(module); }
void add_trained(const char* place, int is_part, void* parameter) {
  const Borrowed borrowed(parameter);
  ToldNames::global().add_trained(place, *borrowed, is_part != 0);
}
void add_gradient(void* parameter, void* gradient) {
  const Borrowed owner(parameter);
  const Borrowed borrowed(gradient);
  ToldNames::global().add_gradient(*owner, *borrowed);
}
void add_state(const char* optimizer, void* parameter, const char* slot, void* state) {
  const Borrowed owner(parameter);
  const Borrowed borrowed(state);
  ToldNames::global().add_state(optimizer, *owner, slot, *borrowed);
}
void add_checkpointed(void* tensor) {
  const Borrowed borrowed(tensor);
  note_checkpointed(*borrowed);
}
uint64_t look_at_tensor(void* tensor, int key) {
  const Borrowed borrowed(tensor);
  return look_at(*borrowed, key);
}
int is_storage_missing(uint64_t storage) { return is_missing(storage) ? 1 : 0; }
void add_found_holder(uint64_t storage, int how, const char* text, const char* about) {
  add_found(storage, static_cast<HeldBy>(how), text, about);
}
uint64_t saved_storage(int number) { return saved_in_graph(number).storage; }
int saved_by(int number) { return saved_in_graph(number).root; }
const char* saved_slot(int number) { return saved_in_graph(number).slot.c_str(); }
// Labels of the calling thread, which nest.
std::vector<std::unique_ptr<ScopedLabel>>& labels() {
  static thread_local std::vector<std::unique_ptr<ScopedLabel>> labels;
  return labels;
}
void begin_label(const char* text) {
  try {
    labels().push_back(nullptr);
    labels().back() = std::make_unique<ScopedLabel>(text);
  } catch (...) {
    // Without memory, there is no label.
  }
}
void end_label() {
  if (!labels().empty()) labels().pop_back();
}
void set_python_searcher(void* function) { set_searcher(function); }
void begin_lines(void* describe) { begin_python_lines(describe); }
int add_function(const char* name, const char* module, const char* file, int first, int last) {
  return add_python_function(name, module, file, first, last);
}
int has_function(const char* name) { return PythonFunctions::has(name) ? 1 : 0; }
void add_near(const char* name) { PythonFunctions::add_near(name); }
void program_ends() {
  end_python_lines();
  interpreter_ends();
  set_searcher(nullptr);
}

template <typename Function>
std::string entry(const char* name, Function function) {
  return fmt::format("'{}':{},", name, reinterpret_cast<uintptr_t>(function));
}

template <typename Function>
Function find(const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_DEFAULT, name));
}

// Python objects, without their type.
using Object = void;

// Called by Python, or by whoever has its lock.
int run_source(void* /*unused*/) {
  static std::atomic<bool> ran{false};
  if (ran.exchange(true)) return 0;
  const auto add_python_module = find<Object* (*)(const char*)>("PyImport_AddModule");
  const auto dictionary_of = find<Object* (*)(Object*)>("PyModule_GetDict");
  const auto compile = find<Object* (*)(const char*, const char*, int)>("Py_CompileString");
  const auto evaluate = find<Object* (*)(Object*, Object*, Object*)>("PyEval_EvalCode");
  const auto let_go = find<void (*)(Object*)>("Py_DecRef");
  const auto clear_error = find<void (*)()>("PyErr_Clear");
  if (add_python_module == nullptr || dictionary_of == nullptr || compile == nullptr ||
      evaluate == nullptr || let_go == nullptr || clear_error == nullptr)
    return 0;
  constexpr int kFileInput = 257;  // Py_file_input
  try {
    const std::string source =
        "ADDRESSES={" + entry("add_module", &add_module) + entry("add_part", &add_part) +
        entry("add_tensor", &add_tensor) + entry("end_module", &end_module) +
        entry("add_trained", &add_trained) + entry("add_gradient", &add_gradient) +
        entry("add_state", &add_state) + entry("add_checkpointed", &add_checkpointed) +
        entry("begin_search", &begin_search) + entry("look_at", &look_at_tensor) +
        entry("is_missing", &is_storage_missing) + entry("count_missing", &count_missing) +
        entry("add_found", &add_found_holder) + entry("find_in_graphs", &find_in_graphs) +
        entry("saved_storage", &saved_storage) + entry("saved_by", &saved_by) +
        entry("saved_slot", &saved_slot) + entry("end_search", &end_search) +
        entry("begin_label", &begin_label) + entry("end_label", &end_label) +
        entry("set_searcher", &set_python_searcher) + entry("begin_lines", &begin_lines) +
        entry("add_function", &add_function) + entry("has_function", &has_function) +
        entry("add_near", &add_near) + entry("program_ends", &program_ends) +
        "}\nPROFILED=" + profiled_python_names() + "\n" + kHolders + kNames;
    Object* const module = add_python_module(kModule);  // borrowed
    if (module != nullptr) {
      if (Object* const code = compile(source.c_str(), "<memledger>", kFileInput)) {
        Object* const globals = dictionary_of(module);  // borrowed
        if (Object* const result = evaluate(code, globals, globals)) let_go(result);
        let_go(code);
      }
    }
  } catch (...) {
    // Without memory, names are missing.
  }
  clear_error();
  return 0;
}

bool is_python_there() {
  const auto is_initialized = find<int (*)()>("Py_IsInitialized");
  return is_initialized != nullptr && is_initialized() != 0;
}

}  // namespace

void tell_python_names_soon() noexcept {
  static std::atomic<bool> asked{false};
  if (asked.load(std::memory_order_relaxed) || !is_python_there()) return;
  const auto call_soon = find<int (*)(int (*)(void*), void*)>("Py_AddPendingCall");
  if (call_soon == nullptr || asked.exchange(true)) return;
  if (call_soon(&run_source, nullptr) != 0) asked.store(false);
}

void tell_python_names_now() noexcept {
  static std::atomic<bool> done{false};
  if (done.load(std::memory_order_relaxed) || !is_python_there()) return;
  const auto state_of_this_thread = find<void* (*)()>("PyGILState_GetThisThreadState");
  const auto take_lock = find<int (*)()>("PyGILState_Ensure");
  const auto give_back_lock = find<void (*)(int)>("PyGILState_Release");
  // Another thread than Python's must not wait for the lock: its owner may be waiting for it.
  if (state_of_this_thread == nullptr || take_lock == nullptr || give_back_lock == nullptr ||
      state_of_this_thread() == nullptr)
    return tell_python_names_soon();
  if (done.exchange(true)) return;
  // Python has it already while it loads a library, but not while ctypes does.
  const int before = take_lock();
  run_source(nullptr);
  give_back_lock(before);
}

}  // namespace memledger::inside
