// A program without its own copy of memledger that opens plugins.
//
//   second_copy_host (PLUGIN | allocator)…     allocator: set a CPU allocator of the program

#include <ATen/ops/add.h>
#include <ATen/ops/ones.h>
#include <c10/core/Allocator.h>
#include <dlfcn.h>

#include <iostream>
#include <string>
#include <vector>

#include "tests/support/delegating_allocator.h"

int main(int argc, char** argv) {
  std::vector<at::Tensor> tensors{at::ones({1000})};
  for (int i = 1; i < argc; ++i) {
    if (std::string(argv[i]) == "allocator") {
      c10::SetAllocator(c10::DeviceType::CPU, new memledger::testing::DelegatingAllocator(
                                                  c10::GetAllocator(c10::DeviceType::CPU)));
      continue;
    }
    void* const plugin = dlopen(argv[i], RTLD_NOW | RTLD_LOCAL);
    void* const use = plugin == nullptr ? nullptr : dlsym(plugin, "use_memledger");
    if (use == nullptr) {
      std::cerr << dlerror() << '\n';
      return 1;
    }
    reinterpret_cast<void (*)()>(use)();
    tensors.push_back(at::add(tensors.back(), tensors.front()));
    dlclose(plugin);
  }
  const double last = tensors.back().data_ptr<float>()[999];
  tensors.clear();
  std::cout << "result: " << last << '\n';
  return 0;
}
