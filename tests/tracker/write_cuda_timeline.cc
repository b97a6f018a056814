// Writes a timeline of two GPUs and the CPU in both formats, and on standard output what each
// device has. The argument: a folder.
#include <ATen/ops/empty.h>
#include <torch/types.h>

#include <cstdio>
#include <string>

#include "registry/registry.h"
#include "tracker/timeline.h"

int main(int /*argc*/, char** argv) {
  const std::string folder = argv[1];
  memledger::Timeline timeline;
  // The second GPU first: the numbers are the devices', not in order of use.
  const at::Tensor second = at::empty({3000}, at::device(at::Device(at::kCUDA, 1)));
  const at::Tensor first = at::empty({1000}, at::device(at::Device(at::kCUDA, 0)));
  const at::Tensor host = at::empty({500});
  at::Tensor freed = at::empty({7000}, at::device(at::Device(at::kCUDA, 1)));
  freed.reset();
  timeline.add_tensor("first", first).add_tensor("second", second).add_tensor("host", host);
  for (const char* name : {"/timeline.json", "/timeline.pickle"}) {
    const absl::Status status = timeline.write(folder + name);
    if (status.ok()) continue;
    std::fprintf(stderr, "%s\n", std::string(status.message()).c_str());
    return 1;
  }
  for (const char* name : {"cuda:0", "cuda:1", "cpu"}) {
    const auto bytes = memledger::Registry::global().counters(at::Device(name)).current_bytes;
    std::printf("%s %lld\n", name, static_cast<long long>(bytes));
  }
}
