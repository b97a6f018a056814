// cuFFT: a plan is a number, and asks for a work area.
#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <vector>

#include "virtual_gpu/answer_macros.h"
#include "virtual_gpu/machine.h"
#include "virtual_gpu/workspace_model.h"
#include "virtual_gpu/workspaces.h"

using namespace memledger::virtual_gpu;

namespace {

constexpr int kInvalidPlan = 1;
constexpr int kAllocFailed = 2;
constexpr int kInvalidValue = 4;

// What the first plan loads in addition to the context: 136 MiB on an H200.
constexpr size_t kCodeBytes = size_t{136} << 20;
std::array<char, 8> code_holders;

std::atomic<int> last_plan{0};

size_t complex_bytes(int cuda_data_type) {
  switch (cuda_data_type) {
    case 1:  // double, real and complex
    case 5:
      return 16;
    case 2:  // half
    case 6:
      return 4;
    default:
      return 8;
  }
}

// CUDA's numbers of half, float and double.
bool is_real(int cuda_data_type) {
  return cuda_data_type == 2 || cuda_data_type == 0 || cuda_data_type == 1;
}

}  // namespace

MEMLEDGER_ANSWER int cufftCreate(int* plan) {
  if (plan == nullptr) return kInvalidValue;
  *plan = last_plan.fetch_add(1, std::memory_order_relaxed) + 1;
  return 0;
}

MEMLEDGER_ANSWER int cufftXtMakePlanMany(int plan, int rank, const long long* lengths,
                                         const long long*, long long, long long, int input_type,
                                         const long long*, long long, long long, int output_type,
                                         long long batch, size_t* bytes, int execution_type) {
  if (plan <= 0) return kInvalidPlan;
  if (rank < 1 || rank > 3 || lengths == nullptr || batch < 1 ||
      std::any_of(lengths, lengths + rank, [](long long n) { return n < 1; })) {
    return kInvalidValue;
  }
  const int device = current_device();
  if (!hold_library_code(device, &code_holders[static_cast<size_t>(device)], kCodeBytes))
    return kAllocFailed;
  const FftWork work =
      fft_work(std::vector<int64_t>(lengths, lengths + rank), batch,
               is_real(input_type) || is_real(output_type), complex_bytes(execution_type));
  const size_t needed = Machine::get().specification().workspaces == WorkspaceEnd::kUpper
                            ? work.most_bytes
                            : work.least_bytes;
  note_workspace_asked(WorkspaceKind::kCufft, needed);
  if (bytes != nullptr) *bytes = needed;
  return 0;
}

MEMLEDGER_ANSWER int cufftXtExec(int plan) {
  if (plan <= 0) return kInvalidPlan;
  note_workspace_used(WorkspaceKind::kCufft);
  note_library_work();
  return 0;
}

MEMLEDGER_ANSWER int cufftGetVersion(int* version) {
  *version = 12000;
  return 0;
}

MEMLEDGER_DOES_NOTHING(cufftDestroy)
MEMLEDGER_DOES_NOTHING(cufftSetAutoAllocation)
MEMLEDGER_DOES_NOTHING(cufftSetStream)
MEMLEDGER_DOES_NOTHING(cufftSetWorkArea)
