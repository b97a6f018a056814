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
#include <string.h>

namespace memledger::inside {
namespace {

CallTorch call_now = nullptr;

#if defined(__x86_64__)

int note_libtorch(dl_phdr_info* info, size_t /*size*/, void* result) {
  const char* const slash = info->dlpi_name == nullptr ? nullptr : strrchr(info->dlpi_name, '/');
  if (slash == nullptr || strcmp(slash + 1, "libtorch_cpu.so") != 0) return 0;
  *static_cast<const char**>(result) = info->dlpi_name;
  return 1;
}

// A LibTorch that was loaded by dlopen may come after us in no order of search.
void* find_in_libtorch(const char* name) {
  const char* path = nullptr;
  dl_iterate_phdr(&note_libtorch, &path);
  if (path == nullptr) return nullptr;
  void* const library = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
  return library == nullptr ? nullptr : dlsym(library, name);
}

TorchFunction find(const char* name, TorchFunction& known) {
  TorchFunction function = __atomic_load_n(&known, __ATOMIC_RELAXED);
  if (function != nullptr) return function;
  void* found = dlsym(RTLD_NEXT, name);
  if (found == nullptr) found = find_in_libtorch(name);
  function = reinterpret_cast<TorchFunction>(found);
  __atomic_store_n(&known, function, __ATOMIC_RELAXED);
  return function;
}

#endif

}  // namespace

void hand_torch_calls_to(CallTorch call) { __atomic_store_n(&call_now, call, __ATOMIC_RELEASE); }

#if defined(__x86_64__)

#define MEMLEDGER_STANDS_BEFORE(function, call, mangled)                                    \
  extern "C" __attribute__((visibility("default"))) void* function(                         \
      uintptr_t a, uintptr_t b, uintptr_t c, uintptr_t d, uintptr_t e) __asm__(mangled);    \
  void* function(uintptr_t a, uintptr_t b, uintptr_t c, uintptr_t d, uintptr_t e) {         \
    static TorchFunction known = nullptr;                                                   \
    const TorchFunction libtorchs = find(mangled, known);                                   \
    const CallTorch handed_to = __atomic_load_n(&call_now, __ATOMIC_ACQUIRE);               \
    return handed_to == nullptr ? libtorchs(a, b, c, d, e)                                  \
                                : handed_to(TorchCall::call, libtorchs, {{a, b, c, d, e}}); \
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
