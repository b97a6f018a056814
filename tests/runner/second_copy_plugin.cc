// A plugin with its own copy of memledger, which it uses as a user would.

#include <ATen/ops/ones.h>

#include <iostream>
#include <memory>
#include <optional>

#include "registry/registry.h"
#include "reporter/mem_reporter.h"
#include "reporter/out_of_memory.h"
#include "tracker/mem_tracker.h"

extern "C" __attribute__((visibility("default"))) void use_memledger() {
  const absl::Status status = memledger::Registry::global().activate();
  std::cout << "plugin: " << (status.ok() ? "watched" : std::string(status.message())) << '\n';
  static at::Tensor* const kept = [] {
    const memledger::ScopedLabel label("plugin");
    const memledger::ScopedPhase phase(memledger::Phase::kForward);
    return new at::Tensor(at::ones({2048}));
  }();
  memledger::MemReporter reporter;
  reporter.add_tensor("of_plugin", *kept);
  std::cout << reporter.collect();
  memledger::MemTracker tracker;
  tracker.track();
  if (memledger::write_out_of_memory_reports({}).ok()) memledger::stop_out_of_memory_reports();
  std::cout << "plugin: follows " << memledger::Registry::global().follows(at::kCPU) << '\n';
}
