// Kernels that are none of LibTorch's: what they can reach is not known afterwards, and the rest
// is.
#define DOCTEST_CONFIG_IMPLEMENT
#include "tests/support/doctest_beside_torch.h"

#include <ATen/ATen.h>
#include <dlfcn.h>
#include <torch/library.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

namespace memledger {
namespace {

const c10::Device kCuda0(c10::kCUDA, 0);

bool is_known(const at::Tensor& tensor) {
  using KnownValues = std::optional<at::Tensor> (*)(const at::Tensor&);
  static const auto ask = [] {
    void* const library = dlopen("libmemledger.so", RTLD_NOW | RTLD_NOLOAD);
    REQUIRE((library != nullptr));
    return reinterpret_cast<KnownValues>(
        dlsym(library, "_ZN9memledger11virtual_gpu12known_valuesERKN2at6TensorE"));
  }();
  REQUIRE((ask != nullptr));
  return ask(tensor).has_value();
}

at::Tensor known(int64_t value) {
  return at::full({4}, value, at::TensorOptions(kCuda0).dtype(at::kLong));
}

struct Size {
  unsigned x = 1, y = 1, z = 1;
};
void stub() {}  // a kernel's, on the host

void launch(void** arguments) {
  using Launch = int (*)(const void*, Size, Size, void**, size_t, void*);
  static const auto launch = reinterpret_cast<Launch>(dlsym(RTLD_DEFAULT, "cudaLaunchKernel"));
  REQUIRE((launch != nullptr));
  CHECK(launch(reinterpret_cast<const void*>(&stub), {}, {}, arguments, 0, nullptr) == 0);
}

// Does what nvcc makes of wr<<<1, 1>>>(to, 5).
[[gnu::noinline]] void launch_with(void* to) {
  int64_t value = 5;
  void* arguments[] = {&to, &value};
  launch(arguments);
}

at::Tensor* hidden = nullptr;

void bump(const at::Tensor&) { launch_with(hidden->data_ptr()); }

TORCH_LIBRARY(foreign, library) { library.def("bump(Tensor x) -> ()"); }
TORCH_LIBRARY_IMPL(foreign, CUDA, library) { library.impl("bump", &bump); }

// In a stack of its own, where no other tensor's address is left.
void apart(const std::function<void()>& work) { std::thread(work).join(); }

TEST_CASE("a kernel that is launched outside operators") {
  const at::Tensor reached = known(1), other = known(2);
  void* const address = reached.data_ptr();
  SUBCASE("a pointer") {
    apart([address] { launch_with(address); });
  }
  SUBCASE("into the middle") {
    apart([address] { launch_with(static_cast<char*>(address) + 24); });
  }
  SUBCASE("in a struct by value") {
    apart([address] {
      struct Many {
        std::array<int64_t, 100> sizes{};
        void* data = nullptr;
      } many;
      many.data = address;
      void* arguments[] = {&many};
      launch(arguments);
    });
  }
  SUBCASE("arguments that lie in the heap") {
    apart([address] {
      const auto value = std::make_unique<void*>(address);
      const auto arguments = std::make_unique<std::array<void*, 2>>();
      (*arguments)[0] = value.get();
      launch(arguments->data());
    });
  }
  SUBCASE("a table of pointers on the device") {
    const at::Tensor table =
        at::tensor({reinterpret_cast<int64_t>(address), int64_t{0}}, at::kLong).to(kCuda0);
    void* const of_table = table.data_ptr();
    apart([of_table] { launch_with(of_table); });
  }
  CHECK_FALSE(is_known(reached));
  CHECK(is_known(other));
}

TEST_CASE("a kernel that tells nothing of its arguments writes anywhere") {
  const at::Tensor other = known(2);
  launch(nullptr);
  CHECK_FALSE(is_known(other));
}

TEST_CASE("an operator of the program's own writes to what is no argument of it") {
  at::Tensor state = known(0);
  const at::Tensor x = known(1), other = known(2);
  hidden = &state;
  at::Tensor of_thread = x;
  apart([&of_thread] {
    const auto op = c10::Dispatcher::singleton()
                        .findSchemaOrThrow("foreign::bump", "")
                        .typed<void(const at::Tensor&)>();
    op.call(of_thread);
  });
  CHECK_FALSE(is_known(state));
  CHECK(is_known(other));
}

TEST_CASE("memory of the host that a kernel writes has what is assumed, when it is read") {
  at::Tensor count = at::full({1}, 7, at::kLong).pin_memory();
  const at::Tensor other = at::full({1}, 8, at::kLong).pin_memory();
  void* const address = count.data_ptr();
  CHECK(count.item<int64_t>() == 7);
  apart([address] { launch_with(address); });
  CHECK(count.item<int64_t>() == 0);
  CHECK(other.item<int64_t>() == 8);
  // What the host writes it knows.
  apart([address] { launch_with(address); });
  count.fill_(9);
  CHECK(count.item<int64_t>() == 9);
}

TEST_CASE("a mask that is not known any more has as many true elements as before") {
  const at::Tensor mask = at::arange(2000, at::TensorOptions(kCuda0)) < 700;
  CHECK(at::nonzero(mask).size(0) == 700);
  void* const address = mask.data_ptr();
  apart([address] { launch_with(address); });
  REQUIRE_FALSE(is_known(mask));
  CHECK(at::nonzero(mask).size(0) == 700);
  CHECK(at::masked_select(at::ones({2000}, at::TensorOptions(kCuda0)), mask).size(0) == 700);
}

}  // namespace
}  // namespace memledger

int main(int argc, char** argv) { return doctest::Context(argc, argv).run(); }
