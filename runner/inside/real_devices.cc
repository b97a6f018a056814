#include "runner/inside/real_devices.h"

#include <c10/core/Device.h>
#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <mutex>
#include <optional>
#include <string_view>

#include "registry/device_statistics.h"
#include "registry/libtorch/driver_memory.h"
#include "runner/environment.h"
#include "virtual_gpu/real_libraries.h"

namespace memledger::inside {
namespace {

constexpr int kMaxDevices = 64;

c10::Device cuda(int index) {
  return c10::Device(c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(index));
}

// A row's name lives as long as the process.
const char* kept(const std::string& name) {
  static auto* const lock = new std::mutex;
  static auto* const names = new std::map<std::string, std::string>;
  const std::lock_guard<std::mutex> hold(*lock);
  return names->emplace(name, name).first->second.c_str();
}

memledger_virtual_gpu_use row_of(int device) {
  memledger_virtual_gpu_use row{};
  const auto statistics = device_statistics(cuda(device));
  if (!statistics || statistics->reserved_bytes.peak == 0) return row;
  const RealUse use = real_use(device);
  const int64_t context =
      std::max<int64_t>(0, use.process_bytes - statistics->reserved_bytes.current);
  row.name = kept(use.name);
  row.total_bytes = static_cast<uint64_t>(use.total_bytes);
  row.context_bytes = static_cast<uint64_t>(context);
  row.used_bytes = static_cast<uint64_t>(use.process_bytes);
  row.peak_bytes = static_cast<uint64_t>(statistics->reserved_bytes.peak + context);
  return row;
}

}  // namespace

bool has_real_devices() {
  static const bool answer = [] {
    const char* const asked = secure_getenv(environment::kMeasureReal);
    const std::string_view text = asked == nullptr ? "" : asked;
    const bool is_virtual = dlsym(RTLD_DEFAULT, "memledger_virtual_gpu_uses") != nullptr;
    return !is_virtual || (!text.empty() && text != "0");
  }();
  return answer;
}

RealUse real_use(int device) {
  RealUse use;
  const std::optional<DriverMemory> memory = driver_memory(device);
  if (!memory) return use;
  use.name = memory->name;
  use.total_bytes = memory->total_bytes;
  use.process_bytes = memory->process_bytes.value_or(memory->used_bytes);
  use.is_of_process = memory->process_bytes.has_value();
  return use;
}

std::vector<memledger_virtual_gpu_use> real_device_uses() {
  std::vector<memledger_virtual_gpu_use> rows;
  // CUDA is not asked for their number: that would initialize it, and a child that is forked
  // afterwards could not use it.
  for (int i = 0; i < kMaxDevices && device_statistics(cuda(i)).has_value(); ++i)
    rows.push_back(row_of(i));
  return rows;
}

std::string real_libraries() {
  const auto ask = reinterpret_cast<decltype(&memledger_virtual_gpu_real_libraries)>(
      dlsym(RTLD_DEFAULT, "memledger_virtual_gpu_real_libraries"));
  char text[512] = "";
  if (ask != nullptr && !has_real_devices()) ask(text, sizeof text);
  return text;
}

}  // namespace memledger::inside
