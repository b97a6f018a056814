// A training step on cuda:0, as a user's program makes one: nothing here knows that the device is
// not there. Prints what went wrong and ends with 1, or prints the peak and ends with 0.
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <dlfcn.h>
#include <torch/torch.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>

namespace {

int failures = 0;

void check(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "FAILED: %s\n", what);
  ++failures;
}

c10::CachingDeviceAllocator::DeviceStats stats(int device) {
  return c10::cuda::CUDACachingAllocator::getDeviceStats(device);
}

int64_t current(const c10::CachingDeviceAllocator::Stat& stat) { return stat.current; }

int64_t allocated(int device) { return current(stats(device).allocated_bytes[0]); }
int64_t requested(int device) { return current(stats(device).requested_bytes[0]); }
int64_t reserved(int device) { return current(stats(device).reserved_bytes[0]); }

torch::nn::Sequential make_net() {
  using namespace torch::nn;
  return Sequential(Conv2d(Conv2dOptions(3, 16, 3).padding(1)), BatchNorm2d(16), ReLU(),
                    MaxPool2d(2), Flatten(), Linear(16 * 16 * 16, 10));
}

void train(const torch::Device& device) {
  auto net = make_net();
  net->to(device);
  torch::optim::Adam optimizer(net->parameters());
  const auto input = torch::randn({8, 3, 32, 32}, device);
  const auto target = torch::zeros({8}, torch::dtype(torch::kLong).device(device));
  int64_t after_first_step = 0, after_last_step = 0;
  for (int step = 0; step < 4; ++step) {
    optimizer.zero_grad();
    auto loss = torch::cross_entropy_loss(net->forward(input), target);
    loss.backward();
    optimizer.step();
    check(loss.item<float>() == 0, "values read back are zeros");
    // The workspaces and Adam's state are made in the first step.
    after_last_step = allocated(device.index());
    if (step == 0) after_first_step = after_last_step;
  }
  check(after_last_step == after_first_step, "steps after the first leave no memory behind");
  check(requested(device.index()) <= allocated(device.index()), "requested fits in allocated");
  check(allocated(device.index()) <= reserved(device.index()), "allocated fits in reserved");
}

void exhaust(const torch::Device& device) {
  constexpr int64_t kTotalBytes = int64_t{24} << 30;  // as the test gives it
  const int64_t before = reserved(device.index());
  try {
    torch::empty({kTotalBytes}, torch::dtype(torch::kByte).device(device));
    check(false, "more than the device has must not fit");
  } catch (const c10::OutOfMemoryError& error) {
    const std::string text = error.what();
    check(text.find("CUDA out of memory. Tried to allocate 24.00 GiB. GPU 0 has a total capacity "
                    "of 24.00 GiB") != std::string::npos,
          "LibTorch's own message");
    check(text.find("this process has") != std::string::npos,
          "with this process's part, which NVML tells");
  }
  // And it goes on.
  const auto after = torch::empty({1 << 20}, torch::dtype(torch::kByte).device(device));
  check(after.defined(), "an allocation after running out");
  c10::cuda::CUDACachingAllocator::emptyCache();
  check(reserved(device.index()) <= before + (2 << 20), "an empty cache");
}

void check_libraries() {
  std::ifstream maps("/proc/self/maps");
  bool ours = false;
  for (std::string line; std::getline(maps, line);) {
    const size_t name = line.rfind('/');
    if (name == std::string::npos) continue;
    const std::string file = line.substr(name + 1);
    if (file.rfind("libmemledger_virtual_gpu", 0) == 0) ours = true;
    if (file.rfind("libcu", 0) != 0 && file.rfind("libnv", 0) != 0 && file.rfind("libnccl", 0) != 0)
      continue;
    if (line.find("/virtual_gpu_libraries/") != std::string::npos) continue;
    check(false, ("a library of NVIDIA is mapped: " + line).c_str());
  }
  check(ours, "the virtual GPU's library is mapped");
}

// torch for Python refuses to start cuDNN where this does not hold.
void check_cudnn_version() {
  void* const function = dlsym(RTLD_DEFAULT, "cudnnGetVersion");
  check(function != nullptr, "cudnnGetVersion is here");
  if (function == nullptr) return;
  const size_t version = reinterpret_cast<size_t (*)()>(function)();
  const long compiled = at::detail::getCUDAHooks().versionCuDNN();
  check(static_cast<long>(version / 100) == compiled / 100,
        ("cuDNN says that it is " + std::to_string(version) + ", LibTorch was compiled with " +
         std::to_string(compiled))
            .c_str());
}

}  // namespace

int main() {
  if (!torch::cuda::is_available()) {
    std::fprintf(stderr, "FAILED: there is no CUDA device\n");
    return 1;
  }
  const c10::DeviceIndex devices = torch::cuda::device_count();
  for (c10::DeviceIndex device = 0; device < devices; ++device)
    train(torch::Device(torch::kCUDA, device));
  exhaust(torch::Device(torch::kCUDA, 0));
  check_libraries();
  check_cudnn_version();
  std::printf("devices %d, peak %lld bytes\n", devices,
              static_cast<long long>(stats(0).allocated_bytes[0].peak));
  return failures > 0;
}
