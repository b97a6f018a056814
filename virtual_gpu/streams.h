#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <vector>

namespace memledger::virtual_gpu {

// What a call on streams, events and graphs returns. The numbers are those of CUDA's runtime.
enum class StreamError {
  kNone = 0,
  kInvalidValue = 1,
  kInvalidHandle = 400,
  kIllegalState = 401,
  kNotReady = 600,
  kCaptureUnsupported = 900,
  kCaptureInvalidated = 901,
  kCaptureMerge = 902,
  kCaptureUnmatched = 903,
  kCaptureUnjoined = 904,
  kCaptureIsolation = 905,
  kCaptureImplicit = 906,
  kCapturedEvent = 907,
  kCaptureWrongThread = 908,
};

// As cudaStreamCaptureMode.
enum class CaptureMode { kGlobal, kThreadLocal, kRelaxed };

// As cudaStreamCaptureStatus.
enum class CaptureStatus { kNone, kActive, kInvalidated };

// As cudaGraphNodeType.
enum class NodeKind {
  kKernel = 0,
  kCopy = 1,
  kFill = 2,
  kHost = 3,
  kGraph = 4,
  kEmpty = 5,
  kEventWait = 6,
  kEventRecord = 7,
  kAllocate = 10,
  kFree = 11,
};

struct GraphNode {
  NodeKind kind;
  std::vector<GraphNode*> dependencies;
  std::function<void()> run;  // what a launch does; may be empty
};

// A graph of work. The program destroys it; a stream that captures into it must have ended.
struct Graph {
  std::vector<std::unique_ptr<GraphNode>> nodes;  // in the order in which they were added
};

// How far work has come: for each stream, by its index, the number of the last piece of work.
class Progress {
 public:
  uint64_t of(size_t stream) const { return stream < numbers_.size() ? numbers_[stream] : 0; }
  void raise(size_t stream, uint64_t number);
  void raise(const Progress& other);

 private:
  std::vector<uint64_t> numbers_;
};

// The streams, events and graphs of a process, and when their work is done.
//
// Two models of time. *At once*: all work is done when it is submitted. *Late*: the device never
// gets to anything by itself; work is done once the host has waited for something that covers it.
// Real devices lie between the two. A program that polls in a loop comes to its end: polling
// without submitting anything counts as waiting.
//
// Capture follows CUDA's programming guide, "Creating a Graph Using Stream Capture": a stream that
// captures adds nodes to a graph in place of doing work, waiting for a captured event brings
// another stream in, and every rule that is broken invalidates the capture.
//
// Thread-safe. Calls nothing of the program's with its lock held.
class Streams {
 public:
  // The streams that are always there, as cudaStreamLegacy and cudaStreamPerThread.
  static constexpr uintptr_t kLegacy = 1;
  static constexpr uintptr_t kPerThread = 2;
  // After so many polls without other work in between, what is polled for has been waited for.
  static constexpr int kPollsOfAWait = 1000;

  struct StreamInfo {
    int device = 0;
    int priority = 0;
    bool blocking = true;  // waits for the legacy stream, and lets it wait
    unsigned long long id = 0;
  };

  struct CaptureInfo {
    CaptureStatus status = CaptureStatus::kNone;
    unsigned long long id = 0;
    Graph* graph = nullptr;
    // The nodes that the stream's next one depends on. Valid until the stream's next call.
    GraphNode* const* dependencies = nullptr;
    size_t dependency_count = 0;
  };

  struct Submission {
    StreamError error = StreamError::kNone;
    bool captured = false;  // a node was added: do nothing now
  };

  explicit Streams(bool late) : late_(late) {}

  // `handle` is the address of something that lives as long as the stream.
  void add_stream(const void* handle, const StreamInfo& info);
  bool remove_stream(const void* handle);
  // nullptr stands for the legacy stream. The default streams are those of `current_device`.
  std::optional<StreamInfo> find_stream(const void* handle, int current_device);

  // Submits work to a stream. Where the stream captures, adds a node that does `run` at each launch
  // of the graph.
  Submission submit(const void* stream, int current_device, NodeKind kind,
                    std::function<void()> run);
  // The quick form for kernels.
  Submission submit_kernel(const void* stream, int current_device);

  // The host waits. kCaptureUnsupported on a stream that captures, which ends its capture.
  StreamError synchronize_stream(const void* stream, int current_device);
  StreamError synchronize_device(int device);
  StreamError query_stream(const void* stream, int current_device);
  // For calls that wait as a side effect (cudaFree, copies to pageable memory), and are never
  // refused.
  void wait_for_device(int device);
  void wait_for_stream(const void* stream, int current_device);

  void add_event(const void* event, int device);
  bool remove_event(const void* event);
  bool is_event(const void* event);
  // `external`: a node of its own in a capture (cudaEventRecordExternal).
  StreamError record(const void* event, const void* stream, int current_device, bool external);
  StreamError wait(const void* stream, int current_device, const void* event, bool external);
  StreamError query_event(const void* event);
  StreamError synchronize_event(const void* event);

  // Calls that CUDA counts as unsafe while streams capture (cudaMalloc, cudaEventQuery …):
  // kCaptureUnsupported, and the captures are invalidated, unless the thread's mode allows it.
  StreamError check_unsafe();
  // Sets the calling thread's mode and returns the one before.
  static CaptureMode exchange_mode(CaptureMode mode);

  // `graph` and its `dependencies`: capture into a graph of the program's; else one is made.
  StreamError begin_capture(const void* stream, int current_device, CaptureMode mode,
                            Graph* graph = nullptr, std::vector<GraphNode*> dependencies = {});
  StreamError end_capture(const void* stream, int current_device, Graph** graph);
  StreamError capture_info(const void* stream, int current_device, CaptureInfo* info);
  // Adds to what the stream's next node depends on, or replaces it.
  StreamError set_dependencies(const void* stream, int current_device,
                               std::vector<GraphNode*> dependencies, bool replace);

  // Graphs that the program owns.
  Graph* make_graph();
  bool remove_graph(Graph* graph);
  bool is_graph(const Graph* graph);
  // Adds a node; nullptr for a graph or a dependency that is not one.
  GraphNode* add_node(Graph* graph, std::vector<GraphNode*> dependencies, NodeKind kind,
                      std::function<void()> run);
  // Returns copies, as the graph may change meanwhile; nothing for what is no graph.
  std::optional<std::vector<GraphNode*>> nodes_of(const Graph* graph);
  std::optional<std::vector<std::function<void()>>> work_of(const Graph* graph);
  // The nodes that a node depends on; nothing for what is no node.
  std::optional<std::vector<GraphNode*>> dependencies_of(const GraphNode* node);

  // For fork: the child goes on with what its parent had.
  void lock() { mutex_.lock(); }
  void unlock() { mutex_.unlock(); }

 private:
  struct Capture {
    unsigned long long id = 0;
    CaptureMode mode = CaptureMode::kGlobal;
    std::thread::id thread;
    bool invalidated = false;
    bool owns_graph = true;
    Graph* graph = nullptr;
    const void* origin = nullptr;
    std::set<GraphNode*> leaves;  // nodes that nothing depends on yet
  };

  // How often something was polled since the last work of any stream.
  struct Polls {
    int count = 0;
    uint64_t submissions = 0;  // at the last poll
  };

  struct Stream {
    StreamInfo info;
    size_t index = 0;
    uint64_t submitted = 0;
    Progress covers;  // what its next work comes after
    Capture* capture = nullptr;
    std::vector<GraphNode*> dependencies;  // in its capture
    Polls polls;
  };

  struct Event {
    int device = 0;
    bool recorded = false;
    size_t stream = 0;
    uint64_t number = 0;
    Progress covers;
    unsigned long long capture = 0;  // id; 0: not captured
    std::vector<GraphNode*> dependencies;
    Polls polls;
  };

  Stream* resolve(const void* handle, int current_device);
  Capture* find_capture(unsigned long long id);
  GraphNode* add_node_locked(Graph& graph, GraphNode node);
  std::unique_ptr<Graph> take_graph(const Graph* graph);
  GraphNode* add_captured_node(Stream& stream, NodeKind kind, std::function<void()> run);
  void advance(Stream& stream);
  Progress up_to_now(const Stream& stream);
  void wait_for(const Progress& progress);
  bool is_done(size_t stream, uint64_t number) const { return done_.of(stream) >= number; }
  bool counts_as_wait(Polls& polls);
  StreamError unsafe_locked();
  bool would_wait_for_capture(const Stream& stream);
  StreamError implicit_locked(const Stream& stream);
  void leave_capture(Capture* capture);

  const bool late_;
  std::atomic<int> captures_open_{0};
  std::mutex mutex_;
  std::unordered_map<const void*, std::unique_ptr<Stream>> streams_;
  std::map<std::pair<int, uintptr_t>, std::unique_ptr<Stream>> default_streams_;
  std::unordered_map<const void*, Event> events_;
  std::map<unsigned long long, std::unique_ptr<Capture>> captures_;
  std::unordered_map<const Graph*, std::unique_ptr<Graph>> graphs_;
  std::unordered_set<const GraphNode*> nodes_;  // of all graphs
  Progress done_;
  size_t next_index_ = 0;
  unsigned long long next_capture_ = 1;
  uint64_t submissions_ = 0;  // of all streams
};

}  // namespace memledger::virtual_gpu
