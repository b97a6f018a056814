// The minimum cost of writing down who made a storage: memledger is not linked. Each way of doing
// it does one thing more than the one before. Each thread has a table of its own, which nobody else
// reads: there are no locks, no order of births, no peaks, phases or layers, and what memledger
// takes beyond the last is for those. Then the same without inputs and results, as with
// RegistryOptions::Detail::kNames.
//
//   ./bazelw run //tests/bench:least_cost
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/ones.h>
#include <ATen/record_function.h>
#include <c10/core/CPUAllocator.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "tests/bench/paired_ratio.h"

ABSL_FLAG(bool, smoke, false, "A few rounds only: shows that it runs, not what things cost.");

namespace memledger::bench {
namespace {

// In this order, each with all before it.
enum class Job : uint8_t {
  kNothing,
  kCallbacks,  // LibTorch reports operators
  kDeleter,    // each block gets a deleter of ours
  kTable,      // its birth and death, with its bytes and the operator
  kShape,      // the result's shape and dtype
  kOwner,      // a weak reference to the storage
  kInputs,     // each input's deleter, and whether it requires grad
};
constexpr std::array kNames = {"nothing",
                               "callbacks",
                               "and a deleter",
                               "and a table: birth, death, bytes, operator",
                               "and shape and dtype of the result",
                               "and a weak reference to the storage",
                               "and a look at each input"};

struct Entry {
  uintptr_t address = 0;  // 0: free
  int64_t nbytes = 0;
  const char* op = nullptr;
  uint64_t sequence = 0;
  c10::StorageImpl* owner = nullptr;
  std::array<uint32_t, 4> sizes{};
  uint16_t dims = 0;
  int8_t dtype = 0;
};

Job last_job = Job::kNothing;
c10::Allocator* base = nullptr;

bool does(Job wanted) { return last_job >= wanted; }

struct State {
  std::array<Entry, 4096> table;
  const char* op = nullptr;
  Entry* last_born = nullptr;
  uint64_t sequence = 0, depth = 0, births = 0, births_at_op = 0, foreign = 0, graded = 0;
  int64_t bytes = 0, peak = 0;

  Entry& entry(uintptr_t address, uintptr_t wanted) {
    size_t place = (address >> 6) * 0x9E3779B97F4A7C15ull >> 52;
    while (table[place].address != 0 && table[place].address != wanted)
      place = (place + 1) % table.size();
    return table[place];
  }
};
thread_local State state;

void free_block(void* data) {
  if (does(Job::kTable)) {
    Entry& entry =
        state.entry(reinterpret_cast<uintptr_t>(data), reinterpret_cast<uintptr_t>(data));
    if (entry.address != 0) {
      state.bytes -= entry.nbytes;
      if (entry.owner != nullptr) c10::raw::weak_intrusive_ptr::decref(entry.owner);
      entry.address = 0;
    }
  }
  base->raw_deleter()(data);
}

class Watching : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t nbytes) override {
    c10::DataPtr data = base->allocate(nbytes);
    if (!does(Job::kDeleter) || data.get() == nullptr) return data;
    if (does(Job::kTable)) {
      const auto address = reinterpret_cast<uintptr_t>(data.get());
      Entry& entry = state.entry(address, 0);
      entry = {address, static_cast<int64_t>(nbytes), state.op, state.sequence};
      state.last_born = &entry;
      ++state.births;
      state.bytes += entry.nbytes;
      state.peak = std::max(state.peak, state.bytes);
    }
    TORCH_CHECK(data.compare_exchange_deleter(base->raw_deleter(), &free_block));
    return data;
  }
  c10::DeleterFnPtr raw_deleter() const override { return base->raw_deleter(); }
  void copy_data(void* to, const void* from, size_t nbytes) const override {
    default_copy_data(to, from, nbytes);
  }
};

std::unique_ptr<at::ObserverContext> start(const at::RecordFunction& fn) {
  if (!does(Job::kTable) || state.depth++ > 0) return nullptr;
  state.op = fn.name();
  ++state.sequence;
  state.births_at_op = state.births;
  if (!does(Job::kInputs)) return nullptr;
  for (const c10::IValue& input : fn.inputs()) {
    if (!input.isTensor()) continue;
    const at::Tensor& tensor = input.toTensor();
    state.foreign += tensor.storage().data_ptr().get_deleter() != &free_block;
    state.graded += tensor.unsafeGetTensorImpl()->requires_grad();
  }
  return nullptr;
}

void end(const at::RecordFunction& fn, at::ObserverContext* /*context*/) {
  if (!does(Job::kTable) || --state.depth > 0) return;
  state.op = nullptr;
  if (!does(Job::kShape) || state.births == state.births_at_op) return;
  for (const c10::IValue& output : fn.outputs()) {
    if (!output.isTensor()) continue;
    const at::Tensor& tensor = output.toTensor();
    c10::StorageImpl* const storage = tensor.storage().unsafeGetStorageImpl();
    Entry& entry = *state.last_born;
    if (entry.address != reinterpret_cast<uintptr_t>(storage->data())) continue;
    const at::IntArrayRef sizes = tensor.sizes();
    entry.dims = static_cast<uint16_t>(sizes.size());
    for (size_t i = 0; i < std::min(sizes.size(), entry.sizes.size()); ++i)
      entry.sizes[i] = static_cast<uint32_t>(sizes[i]);
    entry.dtype = static_cast<int8_t>(tensor.scalar_type());
    if (!does(Job::kOwner)) continue;
    c10::raw::weak_intrusive_ptr::incref(storage);
    entry.owner = storage;
  }
}

void run(bool smoke, int threads, bool with_values, Job last) {
  const int adds = (smoke ? 1000 : 20000) / threads;
  static Watching watching;
  const at::CallbackHandle handle = at::addGlobalCallback(at::RecordFunctionCallback(&start, &end)
                                                              .needsInputs(with_values)
                                                              .needsOutputs(with_values)
                                                              .scopes({at::RecordScope::FUNCTION}));
  at::disableCallback(handle);
  const auto add = [adds] {
    {
      const at::NoGradGuard no_grad;
      const at::Tensor a = at::ones({16, 16});
      for (int i = 0; i < adds; ++i) a.add(a);
    }
    TORCH_CHECK(state.bytes == 0, "a block was born and did not die: ", state.bytes, " bytes");
  };
  const auto work = [add, threads] {
    std::vector<std::thread> others;
    for (int i = 1; i < threads; ++i) others.emplace_back(add);
    add();
    for (std::thread& other : others) other.join();
  };
  fmt::print("{} adds of 16x16 in {}, {} inputs and results; ratio to bare [95 % interval]\n", adds,
             threads == 1 ? "one thread" : fmt::format("each of {} threads", threads),
             with_values ? "with" : "without");
  for (size_t job = 1; job <= static_cast<size_t>(last); ++job) {
    const PairedRatio ratio = compare(smoke ? 3 : 60, work, [&] {
      last_job = static_cast<Job>(job);
      at::reenableCallback(handle);
      if (does(Job::kDeleter)) c10::SetAllocator(c10::kCPU, &watching, /*priority=*/1);
      work();
      c10::SetAllocator(c10::kCPU, base, /*priority=*/1);
      at::disableCallback(handle);
      last_job = Job::kNothing;
    });
    fmt::print("{:<48}{:.3f} [{:.3f}, {:.3f}], {:.0f} ns bare\n", kNames[job], ratio.ratio,
               ratio.low, ratio.high, ratio.first_ms * 1e6 / adds);
  }
  at::removeCallback(handle);
}

}  // namespace
}  // namespace memledger::bench

int main(int argc, char** argv) {
  absl::SetProgramUsageMessage("Times the least that can be done about each storage.");
  absl::ParseCommandLine(argc, argv);
  using namespace memledger::bench;
  base = c10::GetAllocator(c10::kCPU);
  const bool smoke = absl::GetFlag(FLAGS_smoke);
  for (const int threads : {1, 2}) {
    run(smoke, threads, /*with_values=*/true, Job::kInputs);
    run(smoke, threads, /*with_values=*/false, Job::kTable);
  }
}
