#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "virtual_gpu/profiles.h"

// Asks the user's own cuDNN, which plans for a described device from version 9.8 on, in a process
// of its own (cudnn_planner.cc). Requests and answers are text, each behind its length in 4 bytes:
//   device "multiProcessorCount":132,…       what cuDNN's device descriptor holds, without versions
//   mode 0                                   a heuristic (cudnnBackendHeurMode_t)
//   node TYPE                                a descriptor of the graph; the last one is the graph
//   set NAME TYPE COUNT HEXBYTES             an attribute of it
//   refer NAME INDEX…                        an attribute that holds earlier descriptors
// are answered by `version`, `mode`, for each plan `config ENGINE BYTES COUNT NUMERICAL-NOTE… COUNT
// BEHAVIOR-NOTE…`, and `done` or `refused`.
namespace memledger::virtual_gpu {

// `ask` (also without it: ask the cuDNN that the program would have loaded, else one of the same
// release in a Python environment), `model`, or the path of a libcudnn to ask.
inline constexpr char kCudnnVariable[] = "MEMLEDGER_VIRTUAL_GPU_CUDNN";
// The version that cuDNN says it is, as cudnnGetVersion() gives it.
inline constexpr char kCudnnVersionVariable[] = "MEMLEDGER_VIRTUAL_GPU_CUDNN_VERSION";
// Where the planner is, for tests; without it, it lies next to the answers library.
inline constexpr char kCudnnPlannerVariable[] = "MEMLEDGER_VIRTUAL_GPU_CUDNN_PLANNER";
// For tests: how long an answer may take.
inline constexpr char kCudnnSecondsVariable[] = "MEMLEDGER_VIRTUAL_GPU_CUDNN_SECONDS";

// LibTorch refuses another major version than that it was built with, and an older minor one.
size_t cudnn_version();
// What pip installs to bring that release: "nvidia-cudnn-cu13==9.19.*".
std::string cudnn_requirement();

struct CudnnPlan {
  int64_t engine = 0;
  int64_t workspace_bytes = 0;  // less than 0: cuDNN lists the engine, but makes no plan of it
  std::vector<int> numerical_notes;
  std::vector<int> behavior_notes;
};

// Nothing for what is not a whole answer, or a refusal.
std::optional<std::vector<CudnnPlan>> parse_cudnn_answer(std::string_view text);

// The `device` line.
std::string describe_device(const Profile& profile);

// The plans of a graph, given as its node, set and refer lines, best first. Nothing where no cuDNN
// can be asked: what remains is the model. Answers are kept, in memory and on disk.
std::optional<std::vector<CudnnPlan>> ask_cudnn(const Profile& profile, const std::string& graph,
                                                int mode);

// Whether ask_cudnn() looked for a cuDNN and found none. False where the model was asked for.
bool lacks_cudnn();

}  // namespace memledger::virtual_gpu
