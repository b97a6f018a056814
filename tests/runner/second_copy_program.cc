// A program with memledger linked in: prints a report, then opens plugins and prints another.
//
//   second_copy_program [PLUGIN | allocator]…     allocator: set a CPU allocator of the program

#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <c10/core/Allocator.h>
#include <dlfcn.h>

#include <iostream>
#include <string>

#include "registry/registry.h"
#include "reporter/mem_reporter.h"
#include "tests/support/delegating_allocator.h"

namespace {

// Made before main.
at::Tensor early = at::ones({1024});

// Returns the file name of the library that holds the code.
std::string library_of(const void* code) {
  Dl_info info;
  if (dladdr(code, &info) == 0) return "?";
  const std::string path = info.dli_fname;
  return path.substr(path.rfind('/') + 1);
}

void tell(const at::Tensor& kept) {
  const c10::Allocator* const front = c10::GetAllocator(c10::DeviceType::CPU);
  std::cout << "allocator of " << library_of(*reinterpret_cast<const void* const*>(front)) << '\n';
  std::cout << "freed by "
            << library_of(reinterpret_cast<const void*>(kept.storage().data_ptr().get_deleter()))
            << '\n';
  const memledger::Registry& registry = memledger::Registry::global();
  const memledger::Snapshot snapshot = registry.snapshot();
  const memledger::StorageInfo* const row = snapshot.find_address(at::kCPU, kept.data_ptr());
  std::cout << "row of " << (row == nullptr ? 0 : row->nbytes) << " bytes, label "
            << (row == nullptr ? "" : row->label) << '\n';
  std::cout << "same by id: " << (row != nullptr && snapshot.find(registry.storage_id(kept)) == row)
            << '\n';
  memledger::MemReporter reporter;
  reporter.add_tensor("kept", kept);
  std::cout << reporter.collect();
}

}  // namespace

int main(int argc, char** argv) {
  const bool activated = memledger::Registry::global().activate().ok();
  // Never freed, so that the runner's report has it.
  const auto* const kept = [] {
    const memledger::ScopedLabel label("mine");
    return new at::Tensor(at::ones({262144}));
  }();
  std::cout << "activated: " << activated << '\n';
  tell(*kept);
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
    dlclose(plugin);
    tell(*kept);
  }
  const memledger::HookHealth health = memledger::Registry::global().health();
  std::cout << "trouble: "
            << health.unknown_frees + health.dropped_records + health.swallowed_exceptions << '\n';
  return 0;
}
