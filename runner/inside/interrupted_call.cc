#include "runner/inside/interrupted_call.h"

#include <dlfcn.h>
#include <link.h>
#include <signal.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>
#include <unwind.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <tuple>

#include "runner/inside/end_calls.h"
#include "runner/inside/in_front.h"
#include "runner/inside/kernel_signals.h"

namespace memledger::inside {
namespace {

struct Range {
  uintptr_t begin = 0, end = 0;
  bool has(uintptr_t address) const { return begin <= address && address < end; }
};

// How a frame counts.
enum class Frame : uint8_t {
  kCall,    // of what has to be left
  kHelper,  // between such calls: the C library, C++'s, the vdso
  kLibrary,
  kProgram,
};

std::array<uintptr_t, 24> allocation_functions;
Range ours;
Range program;
Range allocator;  // its library, unless that is the C library or the program
std::array<Range, 5> helpers;
std::atomic<uint64_t> expected_blocked{0};
decltype(&memledger_has_nodefer_handler) has_nodefer_handler = nullptr;

constexpr std::array kAllocationFunctions = {"malloc",
                                             "free",
                                             "calloc",
                                             "realloc",
                                             "memalign",
                                             "posix_memalign",
                                             "aligned_alloc",
                                             "valloc",
                                             "pvalloc",
                                             "malloc_usable_size",
                                             "_Znwm",
                                             "_Znam",
                                             "_ZdlPv",
                                             "_ZdaPv",
                                             "_ZdlPvm",
                                             "_ZdaPvm",
                                             "_ZnwmRKSt9nothrow_t",
                                             "_ZnamRKSt9nothrow_t",
                                             "_ZnwmSt11align_val_t",
                                             "_ZnamSt11align_val_t",
                                             "_ZdlPvSt11align_val_t",
                                             "_ZdaPvSt11align_val_t",
                                             "_ZdlPvmSt11align_val_t",
                                             "_ZdaPvmSt11align_val_t"};
static_assert(kAllocationFunctions.size() == std::tuple_size_v<decltype(allocation_functions)>);

// The library that has an address; nothing for the program itself, whose frames may be anybody's.
struct Library {
  uintptr_t address = 0;  // 0: the program
  Range range;
};
int find_library(dl_phdr_info* info, size_t /*size*/, void* result) {
  Library& library = *static_cast<Library*>(result);
  Range range{UINTPTR_MAX, 0};
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const ElfW(Phdr)& part = info->dlpi_phdr[i];
    if (part.p_type != PT_LOAD) continue;
    range.begin = std::min<uintptr_t>(range.begin, info->dlpi_addr + part.p_vaddr);
    range.end = std::max<uintptr_t>(range.end, info->dlpi_addr + part.p_vaddr + part.p_memsz);
  }
  const bool is_program = info->dlpi_name == nullptr || *info->dlpi_name == '\0';
  if (library.address == 0 ? !is_program : !range.has(library.address)) return 0;
  if (!is_program || library.address == 0) library.range = range;
  return 1;
}
Range library_of(uintptr_t address) {
  Library library{address, {}};
  if (address != 0) dl_iterate_phdr(&find_library, &library);
  return library.range;
}

Frame frame_at(uintptr_t instruction, uintptr_t function) {
  // In an allocator's library malloc() may be no frame: it jumps to where it does the work.
  if (ours.has(instruction) || allocator.has(instruction)) return Frame::kCall;
  for (const uintptr_t one : allocation_functions) {
    if (one != 0 && one == function) return Frame::kCall;
  }
  for (const Range& helper : helpers) {
    if (helper.has(instruction)) return Frame::kHelper;
  }
  return program.has(instruction) ? Frame::kProgram : Frame::kLibrary;
}

struct Walk {
  const Reach reach;
  InterruptedCall call;
  int frames = 0;
  uintptr_t last_stack_pointer = 0;
  void* state = nullptr;  // of the signal frame last seen; null: before the first
  bool looks = false;     // within the calls that it has interrupted
  bool was_call = false;  // the frame before, within
};

_Unwind_Reason_Code step(_Unwind_Context* context, void* its_walk) {
  constexpr int kMaxFrames = 512;
  Walk& walk = *static_cast<Walk*>(its_walk);
  if (++walk.frames > kMaxFrames) return _URC_NORMAL_STOP;
  int is_interrupted = 0;
  const uintptr_t instruction = _Unwind_GetIPInfo(context, &is_interrupted);
  const uintptr_t stack_pointer = _Unwind_GetCFA(context);
  if (is_interrupted != 0) {
    // The frame before is that of the signal's return, whose stack pointer is at the state.
    walk.call.in_handler = true;
    walk.state = reinterpret_cast<void*>(walk.last_stack_pointer);
    walk.looks = true;
    walk.was_call = false;
  }
  walk.last_stack_pointer = stack_pointer;
  if (!walk.looks) return _URC_NO_REASON;
  if (walk.was_call) {
    walk.call.state = walk.state;
    walk.call.returns_to = instruction;
    walk.call.stack_pointer = stack_pointer;
  }
  const Frame frame = frame_at(instruction, _Unwind_GetRegionStart(context));
  walk.was_call = frame == Frame::kCall;
  walk.looks = frame < (walk.reach == Reach::kInnermost ? Frame::kLibrary : Frame::kProgram);
  return _URC_NO_REASON;
}

#if defined(__x86_64__)

std::atomic<bool> is_taken{false};

#endif

}  // namespace

#if defined(__x86_64__)

// What the call returns to, in the place of its caller.
extern "C" {
__attribute__((visibility("hidden"))) void memledger_call_has_returned();
__attribute__((visibility("hidden"), used)) void* memledger_stack_after_call = nullptr;
__attribute__((visibility("hidden"), used)) void (*memledger_after_call)() = nullptr;
}
asm(R"(
.pushsection .text
.hidden memledger_call_has_returned
.globl memledger_call_has_returned
.type memledger_call_has_returned, @function
memledger_call_has_returned:
  movq memledger_stack_after_call(%rip), %rsp
  xorl %ebp, %ebp
  call *memledger_after_call(%rip)
  ud2
.size memledger_call_has_returned, .-memledger_call_has_returned
.popsection
)");

#endif

void prepare_interrupted_calls() noexcept {
  has_nodefer_handler =
      find_in_front<decltype(has_nodefer_handler)>("memledger_has_nodefer_handler");
  for (size_t i = 0; i < allocation_functions.size(); ++i)
    allocation_functions[i] =
        reinterpret_cast<uintptr_t>(dlsym(RTLD_DEFAULT, kAllocationFunctions[i]));
  ours = library_of(reinterpret_cast<uintptr_t>(&prepare_interrupted_calls));
  Library whole_program;
  dl_iterate_phdr(&find_library, &whole_program);
  program = whole_program.range;
  const auto vdso = static_cast<uintptr_t>(getauxval(AT_SYSINFO_EHDR));
  constexpr uintptr_t kVdsoBytes = 8192;
  const Range c_library = library_of(reinterpret_cast<uintptr_t>(dlsym(RTLD_DEFAULT, "abort")));
  const uintptr_t malloc_function = allocation_functions[0];
  allocator = c_library.has(malloc_function) ? Range{} : library_of(malloc_function);
  helpers = {c_library,
             library_of(reinterpret_cast<uintptr_t>(dlsym(RTLD_DEFAULT, "pthread_mutex_lock"))),
             library_of(reinterpret_cast<uintptr_t>(dlsym(RTLD_DEFAULT, "_ZSt9terminatev"))),
             library_of(reinterpret_cast<uintptr_t>(dlsym(RTLD_DEFAULT, "__tls_get_addr"))),
             vdso == 0 ? Range{} : Range{vdso, vdso + kVdsoBytes}};
}

InterruptedCall find_interrupted_call(Reach reach) noexcept {
  Walk walk{reach, {}};
  _Unwind_Backtrace(&step, &walk);
  return walk.call;
}

bool runs_in_signal_handler() noexcept {
  const uint64_t blocked = blocked_signals() & ~expected_blocked.load();
  const bool may_run = blocked != 0 || (has_nodefer_handler != nullptr && has_nodefer_handler());
  return may_run && find_interrupted_call(Reach::kInnermost).in_handler;
}

void expect_blocked(int signal) noexcept {
  expected_blocked.store(signal == 0 ? 0 : bit_of(signal));
}

#if defined(__x86_64__)

void finish_interrupted_call(const InterruptedCall& call, void* stack, size_t stack_bytes,
                             void (*then)()) noexcept {
  if (call.state == nullptr) return;
  auto& return_address = *reinterpret_cast<uintptr_t*>(call.stack_pointer - sizeof(uintptr_t));
  if (return_address != call.returns_to || is_taken.exchange(true)) return;
  return_address = reinterpret_cast<uintptr_t>(&memledger_call_has_returned);
  memledger_stack_after_call = static_cast<char*>(stack) + stack_bytes;
  memledger_after_call = then;
  auto& state = *static_cast<ucontext_t*>(call.state);
  block_afterwards(state, ~uint64_t{0});
  asm volatile("movq %0, %%rsp\n\tmovl %1, %%eax\n\tsyscall"
               :
               : "r"(call.state), "i"(SYS_rt_sigreturn)
               : "memory");
}

#else

void finish_interrupted_call(const InterruptedCall& /*call*/, void* /*stack*/,
                             size_t /*stack_bytes*/, void (* /*then*/)()) noexcept {}

#endif

}  // namespace memledger::inside
