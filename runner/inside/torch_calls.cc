// Stands before the functions of LibTorch that a program's modules and optimizers pass through. The
// program and LibTorch itself find them here first, as this library is preloaded.
//
// Without types: what is not trivially copyable is passed and returned by its address, so these are
// functions of integers, and what they do not take is not looked at. That is x86-64's calling
// convention, hence the condition. Nothing here has to be undone when LibTorch throws, as there is
// no C++ library that would.
#include "runner/inside/torch_calls.h"

#include <dlfcn.h>
#include <link.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

namespace memledger::inside {
namespace {

CallTorch call_now = nullptr;

#if defined(__x86_64__)

// The LibTorch that memledger knows. It may have been loaded by dlopen, and then comes after us in
// no order of search.
int note_libtorch(dl_phdr_info* info, size_t /*size*/, void* result) {
  const char* const slash = info->dlpi_name == nullptr ? nullptr : strrchr(info->dlpi_name, '/');
  if (slash == nullptr || strcmp(slash + 1, "libtorch_cpu.so") != 0) return 0;
  *static_cast<const char**>(result) = info->dlpi_name;
  return 1;
}

void* find_in_library(const char* path, const char* name, const void* ours) {
  void* const library = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
  if (library == nullptr) return nullptr;
  void* const found = dlsym(library, name);
  dlclose(library);
  return found == ours ? nullptr : found;
}

void* find_in_libtorch(const char* name, const void* ours) {
  const char* path = nullptr;
  dl_iterate_phdr(&note_libtorch, &path);
  return path == nullptr ? nullptr : find_in_library(path, name, ours);
}

struct Loaded {
  char paths[256][512];
  int count;
};
int note_loaded(dl_phdr_info* info, size_t /*size*/, void* result) {
  Loaded& loaded = *static_cast<Loaded*>(result);
  const size_t size = info->dlpi_name == nullptr ? 0 : strlen(info->dlpi_name);
  if (size == 0 || size >= sizeof loaded.paths[0]) return 0;
  memcpy(loaded.paths[loaded.count], info->dlpi_name, size + 1);
  return ++loaded.count == static_cast<int>(sizeof loaded.paths / sizeof loaded.paths[0]);
}

// Where the caller was loaded with RTLD_LOCAL, the function lies in the caller's own library, in
// one that it is linked with, or in one that was loaded along with it. The last cannot be told
// apart from others, but a second one with such a function would have to be there.
void* find_for(const void* caller, const char* name, const void* ours) {
  Dl_info info;
  if (dladdr(caller, &info) != 0 && info.dli_fname != nullptr) {
    if (void* const found = find_in_library(info.dli_fname, name, ours)) return found;
  }
  auto* const loaded = static_cast<Loaded*>(calloc(1, sizeof(Loaded)));
  if (loaded == nullptr) return nullptr;
  dl_iterate_phdr(&note_loaded, loaded);
  void* found = nullptr;
  for (int i = 0; i < loaded->count && found == nullptr; ++i)
    found = find_in_library(loaded->paths[i], name, ours);
  free(loaded);
  return found;
}

// What would have run without us.
struct Next {
  TorchFunction function;
  bool is_libtorchs;  // of the LibTorch that memledger knows, so that it may look at the objects
};

// Where LibTorch was loaded with RTLD_LOCAL, what stands behind us depends on the caller.
class NextByCaller {
 public:
  bool find(const void* caller, Next& next) const {
    for (const Entry& entry : entries_) {
      if (__atomic_load_n(&entry.caller, __ATOMIC_ACQUIRE) != caller) continue;
      next = entry.next;
      return true;
    }
    return false;
  }
  void add(const void* caller, const Next& next) {
    const size_t index = __atomic_fetch_add(&used_, 1, __ATOMIC_RELAXED);
    if (index >= sizeof entries_ / sizeof entries_[0]) return;
    entries_[index].next = next;
    __atomic_store_n(&entries_[index].caller, caller, __ATOMIC_RELEASE);
  }

 private:
  struct Entry {
    const void* caller;
    Next next;
  };
  Entry entries_[16];
  size_t used_;
};

// A function of ours, and what stands behind it.
struct Function {
  const char* name;
  const void* ours;
  TorchFunction next_of_all;  // null: not found yet, or it depends on the caller
  bool is_libtorchs;
  NextByCaller by_caller;
};

[[noreturn]] void end_without(const char* name) {
  // The dynamic linker ends a program that lacks a symbol in the same way.
  static const char kText[] = "memledger: symbol lookup error: undefined symbol: ";
  const bool told = write(STDERR_FILENO, kText, sizeof kText - 1) > 0 &&
                    write(STDERR_FILENO, name, strlen(name)) > 0 &&
                    write(STDERR_FILENO, "\n", 1) > 0;
  _exit(told ? 127 : 126);
}

Next find(Function& function, const void* caller) {
  Next next{__atomic_load_n(&function.next_of_all, __ATOMIC_ACQUIRE), false};
  if (next.function != nullptr) {
    next.is_libtorchs = function.is_libtorchs;
    return next;
  }
  if (function.by_caller.find(caller, next)) return next;
  void* const libtorchs = find_in_libtorch(function.name, function.ours);
  void* const of_all = dlsym(RTLD_NEXT, function.name);
  void* found = of_all;
  if (found == nullptr) found = find_for(caller, function.name, function.ours);
  if (found == nullptr) end_without(function.name);
  next = {reinterpret_cast<TorchFunction>(found), found == libtorchs};
  if (of_all == nullptr) {
    function.by_caller.add(caller, next);
  } else {
    __atomic_store_n(&function.is_libtorchs, next.is_libtorchs, __ATOMIC_RELAXED);
    __atomic_store_n(&function.next_of_all, next.function, __ATOMIC_RELEASE);
  }
  return next;
}

#endif

}  // namespace

void hand_torch_calls_to(CallTorch call) { __atomic_store_n(&call_now, call, __ATOMIC_RELEASE); }

#if defined(__x86_64__)

#define MEMLEDGER_STANDS_BEFORE(ours, what, mangled)                                             \
  extern "C" __attribute__((visibility("default"))) void* ours(                                  \
      uintptr_t a, uintptr_t b, uintptr_t c, uintptr_t d, uintptr_t e) __asm__(mangled);         \
  void* ours(uintptr_t a, uintptr_t b, uintptr_t c, uintptr_t d, uintptr_t e) {                  \
    static Function known = {mangled, reinterpret_cast<const void*>(&ours), nullptr, false, {}}; \
    const Next next = find(known, __builtin_return_address(0));                                  \
    const CallTorch hand_to = __atomic_load_n(&call_now, __ATOMIC_ACQUIRE);                      \
    return hand_to == nullptr || !next.is_libtorchs                                              \
               ? next.function(a, b, c, d, e)                                                    \
               : hand_to(TorchCall::what, next.function, {{a, b, c, d, e}});                     \
  }

MEMLEDGER_STANDS_BEFORE(module_parameters, kModuleGetter, "_ZNK5torch2nn6Module10parametersEb")
MEMLEDGER_STANDS_BEFORE(module_named_parameters, kModuleGetter,
                        "_ZNK5torch2nn6Module16named_parametersB5cxx11Eb")
MEMLEDGER_STANDS_BEFORE(module_buffers, kModuleGetter, "_ZNK5torch2nn6Module7buffersEb")
MEMLEDGER_STANDS_BEFORE(module_named_buffers, kModuleGetter,
                        "_ZNK5torch2nn6Module13named_buffersB5cxx11Eb")
MEMLEDGER_STANDS_BEFORE(module_to, kModuleChange,
                        "_ZN5torch2nn6Module2toEN3c106DeviceENS2_10ScalarTypeEb")
MEMLEDGER_STANDS_BEFORE(module_to_device, kModuleChange, "_ZN5torch2nn6Module2toEN3c106DeviceEb")
MEMLEDGER_STANDS_BEFORE(module_to_type, kModuleChange, "_ZN5torch2nn6Module2toEN3c1010ScalarTypeEb")
MEMLEDGER_STANDS_BEFORE(module_load, kModuleChange,
                        "_ZN5torch2nn6Module4loadERNS_9serialize12InputArchiveE")
MEMLEDGER_STANDS_BEFORE(module_save, kModuleUse,
                        "_ZNK5torch2nn6Module4saveERNS_9serialize13OutputArchiveE")
MEMLEDGER_STANDS_BEFORE(module_train, kModuleUse, "_ZN5torch2nn6Module5trainEb")
MEMLEDGER_STANDS_BEFORE(module_eval, kModuleUse, "_ZN5torch2nn6Module4evalEv")
MEMLEDGER_STANDS_BEFORE(module_zero_grad, kModuleUse, "_ZN5torch2nn6Module9zero_gradEb")
MEMLEDGER_STANDS_BEFORE(module_register_parameter, kParameterRegistration,
                        "_ZN5torch2nn6Module18register_parameterENSt7__cxx1112basic_stringIcSt11"
                        "char_traitsIcESaIcEEEN2at6TensorEb")
MEMLEDGER_STANDS_BEFORE(module_register_buffer, kBufferRegistration,
                        "_ZN5torch2nn6Module15register_bufferENSt7__cxx1112basic_stringIcSt11char_"
                        "traitsIcESaIcEEEN2at6TensorE")
MEMLEDGER_STANDS_BEFORE(sgd_step, kOptimizerStep,
                        "_ZN5torch5optim3SGD4stepESt8functionIFN2at6TensorEvEE")
MEMLEDGER_STANDS_BEFORE(adam_step, kOptimizerStep,
                        "_ZN5torch5optim4Adam4stepESt8functionIFN2at6TensorEvEE")
MEMLEDGER_STANDS_BEFORE(adamw_step, kOptimizerStep,
                        "_ZN5torch5optim5AdamW4stepESt8functionIFN2at6TensorEvEE")
MEMLEDGER_STANDS_BEFORE(lbfgs_step, kOptimizerStep,
                        "_ZN5torch5optim5LBFGS4stepESt8functionIFN2at6TensorEvEE")
MEMLEDGER_STANDS_BEFORE(adagrad_step, kOptimizerStep,
                        "_ZN5torch5optim7Adagrad4stepESt8functionIFN2at6TensorEvEE")
MEMLEDGER_STANDS_BEFORE(rmsprop_step, kOptimizerStep,
                        "_ZN5torch5optim7RMSprop4stepESt8functionIFN2at6TensorEvEE")
MEMLEDGER_STANDS_BEFORE(optimizer_add_param_group, kOptimizerChange,
                        "_ZN5torch5optim9Optimizer15add_param_groupERKNS0_19OptimizerParamGroupE")
// Python's storages come from there (torch.UntypedStorage, storage.cpu()), and not from the
// allocator that is set.
MEMLEDGER_STANDS_BEFORE(default_cpu_allocator, kDefaultCpuAllocator,
                        "_ZN3c1022GetDefaultCPUAllocatorEv")
MEMLEDGER_STANDS_BEFORE(script_load_file_alone, kScriptLoad,
                        "_ZN5torch3jit4loadERKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"
                        "St8optionalIN3c106DeviceEEb")
MEMLEDGER_STANDS_BEFORE(script_load_stream_alone, kScriptLoad,
                        "_ZN5torch3jit4loadERSiSt8optionalIN3c106DeviceEEb")
// With extra files.
MEMLEDGER_STANDS_BEFORE(
    script_load_file, kScriptLoad,
    "_ZN5torch3jit4loadERKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEESt8optionalIN3c106De"
    "viceEERSt13unordered_mapIS6_S6_St4hashIS6_ESt8equal_toIS6_ESaISt4pairIS7_S6_EEEb")
MEMLEDGER_STANDS_BEFORE(
    script_load_stream, kScriptLoad,
    "_ZN5torch3jit4loadERSiSt8optionalIN3c106DeviceEERSt13unordered_mapINSt7__cxx1112basic_stringI"
    "cSt11char_traitsIcESaIcEEESC_St4hashISC_ESt8equal_toISC_ESaISt4pairIKSC_SC_EEEb")
// AOTInductor's packages, of any device: their loader calls these, too.
MEMLEDGER_STANDS_BEFORE(compiled_run, kCompiledRun,
                        "_ZN5torch8inductor24AOTIModelContainerRunner3runERKSt6vectorIN2at6TensorE"
                        "SaIS4_EEPv")
MEMLEDGER_STANDS_BEFORE(compiled_boxed_run, kCompiledRun,
                        "_ZN5torch8inductor24AOTIModelContainerRunner9boxed_runEOSt6vectorIN2at6Te"
                        "nsorESaIS4_EEPv")
// The one data set that LibTorch has.
MEMLEDGER_STANDS_BEFORE(mnist, kMnist,
                        "_ZN5torch4data8datasets5MNISTC1ERKNSt7__cxx1112basic_stringIcSt11char_trai"
                        "tsIcESaIcEEENS2_4ModeE")

#endif

}  // namespace memledger::inside
