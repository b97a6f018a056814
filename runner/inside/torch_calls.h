#pragma once

// How libmemledger_preload.so hands the program's calls of LibTorch to libmemledger.so.
// Objects are LibTorch's own, without their types, as the preloaded library knows no LibTorch.

#include <cstdint>

namespace memledger::inside {

enum class TorchCall : uint8_t {
  kModuleGetter,           // (result, module, …): returns parameters or buffers
  kModuleChange,           // (module, …): may give parameters other tensors
  kModuleUse,              // (module, …)
  kParameterRegistration,  // (module, name, …): adds it, and returns its address
  kBufferRegistration,     // likewise
  kOptimizerStep,          // (result, optimizer, closure)
  kOptimizerChange,        // (optimizer, …): adds a group of parameters
  kDefaultCpuAllocator,    // (): returns a c10::Allocator*
  kScriptLoad,             // (result, …): returns a torch::jit::Module
  kCompiledRun,            // (result, runner, inputs, stream): of AOTInductor
  kMnist,                  // (dataset, folder, mode): reads MNIST's images
};

struct TorchArguments {
  uintptr_t of[5];
};

using TorchFunction = void* (*)(uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t);

// Calls LibTorch's function for the program, and notes what it shows. Lets its exceptions through.
using CallTorch = void* (*)(TorchCall call, TorchFunction function, TorchArguments arguments);

// From now on `call` is asked, from any thread and until the process ends.
void hand_torch_calls_to(CallTorch call);

}  // namespace memledger::inside

// The name under which libmemledger.so has it.
extern "C" void* memledger_call_torch(memledger::inside::TorchCall call,
                                      memledger::inside::TorchFunction function,
                                      memledger::inside::TorchArguments arguments);
