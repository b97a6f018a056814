#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <thread>
#include <tuple>
#include <unordered_map>
#include <vector>

namespace memledger::virtual_gpu {

class GraphMemory;

// What a call on streams, events and graphs returns. The numbers are those of CUDA's runtime.
enum class StreamError {
  kNone = 0,
  kInvalidValue = 1,
  kInvalidHandle = 400,
  kIllegalState = 401,
  kNotReady = 600,
  kNotPermitted = 800,
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
  kConditional = 13,
};

struct GraphNode {
  NodeKind kind;
  std::vector<GraphNode*> dependencies;
  std::function<void()> run;  // what a launch does; may be empty
  // What else the answers know of it; freed without a lock held.
  std::shared_ptr<void> parameters = nullptr;
  const void* event = nullptr;  // of nodes that record one or wait for one
  bool enabled = true;
  // What those who follow values know of it: see known_values.h.
  std::shared_ptr<void> known_work = nullptr;
  size_t index = 0;  // in its graph, in the order in which they were added
};

// What a node of a graph does at a launch.
struct GraphStep {
  GraphNode* node;
  NodeKind kind;
  std::function<void()> run;
  std::shared_ptr<void> parameters;
  const void* event;
  bool enabled;
  std::shared_ptr<void> known_work;
};

// A graph of work. The program destroys it; a stream that captures into it must have ended.
struct Graph {
  std::vector<std::unique_ptr<GraphNode>> nodes;  // in the order in which they were added
  size_t next_index = 0;
  bool embedded = false;  // a part of another one, which the program cannot destroy
  // Nodes were changed or taken away: what was known of the others' work is not true any more.
  bool is_changed = false;
  std::shared_ptr<GraphMemory> memory;
  std::shared_ptr<void> retained = nullptr;  // what lives as long as the graph
  // By node of the graph that this one is a copy of.
  std::unordered_map<const GraphNode*, GraphNode*> copies;
};

// Nodes that come before some others.
struct Predecessors {
  std::vector<bool> indices;
  bool has(size_t index) const { return index < indices.size() && indices[index]; }
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
// Functions of the host run in a thread of their own, in the order of their streams. What is behind
// one that has not run is not done, in either model.
//
// Capture follows CUDA's programming guide, "Creating a Graph Using Stream Capture". A stream that
// captures adds nodes to a graph instead of doing work. A stream that waits for a captured event
// joins the capture. Every broken rule invalidates it.
//
// Thread-safe. Calls nothing of the program's with its lock held.
class Streams {
 public:
  // The streams that are always there, as cudaStreamLegacy and cudaStreamPerThread.
  static constexpr uintptr_t kLegacy = 1;
  static constexpr uintptr_t kPerThread = 2;
  // A thread that submits work, and then polls kPollsOfAWait times without submitting any in
  // between, waits for what it polls for. A thread that never submits (a watchdog) must not end the
  // wait of others by its speed. So for any thread kPollsOfALongWait polls count once they have
  // gone on for kLongWait.
  static constexpr int kPollsOfAWait = 1000;
  static constexpr int kPollsOfALongWait = 10;
  static constexpr int64_t kLongWait = 2'000'000'000;  // nanoseconds
  // Late: a host function that nobody waits for runs after so long without new work, at the latest
  // after kLongWait.
  static constexpr int64_t kIdle = 100'000'000;

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
    std::shared_ptr<GraphMemory> memory = nullptr;
  };

  struct Submission {
    StreamError error = StreamError::kNone;
    bool captured = false;  // a node was added: do nothing now
    bool queued = false;    // it runs when what is before it has run
    size_t node_index = 0;  // in its graph
    const GraphNode* node = nullptr;
  };

  // Whether work may wait for host functions before it in its stream. What reads memory that the
  // program may free at once must not.
  enum class Order { kInStream, kAtOnce };

  using Clock = int64_t (*)();  // nanoseconds
  static int64_t steady_nanoseconds();

  explicit Streams(bool late, Clock clock = steady_nanoseconds);
  // For tests: those of a process live as long as it.
  ~Streams();
  Streams(const Streams&) = delete;
  Streams& operator=(const Streams&) = delete;

  // `handle` is the address of something that lives as long as the stream.
  void add_stream(const void* handle, const StreamInfo& info);
  bool remove_stream(const void* handle);
  // nullptr stands for the legacy stream. The default streams are those of `current_device`.
  std::optional<StreamInfo> find_stream(const void* handle, int current_device);

  // Submits work to a stream. Where the stream captures, adds a node that does `run` at each launch
  // of the graph. What is of kind kHost, or behind such, is queued; else the caller does it.
  Submission submit(const void* stream, int current_device, NodeKind kind,
                    std::function<void()> run, Order order = Order::kInStream,
                    std::shared_ptr<void> parameters = nullptr);
  // The quick form for kernels.
  Submission submit_kernel(const void* stream, int current_device);
  // Queues a part of the stream's last piece of work (the launch of a graph), where it is of kind
  // kHost or behind such. False: the caller does it.
  bool queue_part(const void* stream, int current_device, NodeKind kind,
                  const std::function<void()>& run);
  // Runs without order, in the thread of the host functions.
  void run_detached(std::function<void()> run);
  bool has_queued() const { return queued_.load(std::memory_order_acquire) != 0; }
  bool has_captures() const { return captures_open_.load(std::memory_order_relaxed) != 0; }

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
  // For the time of an event: kInvalidHandle where it was never recorded. Does not count as a poll.
  StreamError check_recorded(const void* event);

  // Calls that CUDA counts as unsafe while streams capture (cudaMalloc, cudaEventQuery …):
  // kCaptureUnsupported, and the captures are invalidated, unless the thread's mode allows it.
  StreamError check_unsafe();
  // Sets the calling thread's mode and returns the one before.
  static CaptureMode exchange_mode(CaptureMode mode);

  // `graph` and its `dependencies`: capture into a graph of the program's; else one is made.
  StreamError begin_capture(const void* stream, int current_device, CaptureMode mode,
                            Graph* graph = nullptr,
                            const std::vector<GraphNode*>& dependencies = {});
  StreamError end_capture(const void* stream, int current_device, Graph** graph);
  StreamError capture_info(const void* stream, int current_device, CaptureInfo* info);
  // Adds to what the stream's next node depends on, or replaces it.
  StreamError set_dependencies(const void* stream, int current_device,
                               const std::vector<GraphNode*>& dependencies, bool replace);

  // Graphs that the program owns. An embedded one only its owner removes.
  Graph* make_graph(bool embedded = false);
  bool remove_graph(Graph* graph, bool embedded = false);
  bool is_graph(const Graph* graph);
  std::shared_ptr<GraphMemory> memory_of(const Graph* graph);
  // Calls with everything locked; false for what is no graph, or no node.
  template <typename F>
  bool with_graph(const Graph* graph, F function) {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto found = graphs_.find(graph);
    if (found == graphs_.end()) return false;
    function(*found->second);
    return true;
  }
  template <typename F>
  bool with_node(const GraphNode* node, F function) {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto found = nodes_.find(node);
    if (found == nodes_.end()) return false;
    function(*const_cast<GraphNode*>(node), *found->second);
    return true;
  }
  // Adds a node; nullptr for a graph or a dependency that is not one, or is named twice.
  GraphNode* add_node(Graph* graph, std::vector<GraphNode*> dependencies, NodeKind kind,
                      std::function<void()> run, std::shared_ptr<void> parameters = nullptr,
                      const void* event = nullptr);
  bool remove_node(GraphNode* node);
  // Adds or removes an edge; false where there is none to be removed, or one already.
  bool add_edge(Graph* graph, GraphNode* from, GraphNode* to);
  bool remove_edge(Graph* graph, GraphNode* from, GraphNode* to);
  // Returns copies, as the graph may change meanwhile; nothing for what is no graph.
  std::optional<std::vector<GraphNode*>> nodes_of(const Graph* graph);
  // Each node after those that it depends on; nothing for what is no graph, or has a cycle.
  std::optional<std::vector<GraphStep>> steps_of(const Graph* graph);
  // The nodes that a node depends on; nothing for what is no node.
  std::optional<std::vector<GraphNode*>> dependencies_of(const GraphNode* node);
  std::optional<std::vector<GraphNode*>> dependents_of(const GraphNode* node);
  // `nodes` and all that they depend on.
  Predecessors predecessors_of(const std::vector<GraphNode*>& nodes);

  // For fork: the child goes on with what its parent had, but for host functions, which are its
  // parent's.
  void lock() { mutex_.lock(); }
  void unlock() { mutex_.unlock(); }
  void unlock_in_child();

 private:
  struct Capture {
    unsigned long long id = 0;
    CaptureMode mode = CaptureMode::kGlobal;
    std::thread::id thread;
    bool invalidated = false;
    bool owns_graph = true;
    Graph* graph = nullptr;
    const void* origin = nullptr;  // the stream it began on
    std::set<GraphNode*> leaves;   // nodes that nothing depends on yet
  };

  // How often a thread polled for something since its last work.
  struct Polls {
    int count = 0;
    int64_t since = 0;
    uint64_t submissions = 0;  // of the thread, at the last poll
  };
  using PollsOfThreads = std::map<uint64_t, Polls>;

  // What the host's thread runs.
  struct Task {
    size_t stream;
    uint64_t number;
    Progress covers;  // what comes before it
    int64_t since;
    std::function<void()> run;
    bool detached;
  };

  struct Stream {
    StreamInfo info;
    size_t index = 0;
    uint64_t submitted = 0;
    Progress covers;  // what its next work comes after
    Capture* capture = nullptr;
    std::vector<GraphNode*> dependencies;  // in its capture
    PollsOfThreads polls;
  };

  struct Event {
    int device = 0;
    bool recorded = false;
    size_t stream = 0;
    uint64_t number = 0;
    Progress covers;
    unsigned long long capture = 0;  // id; 0: not captured
    std::vector<GraphNode*> dependencies;
    PollsOfThreads polls;
  };

  // Takes away the stream of a thread that ends.
  friend class ThreadStreams;
  void remove_thread(uint64_t thread);
  template <typename F>
  void for_each_stream(F function) {
    for (auto& [handle, stream] : streams_) function(*stream);
    for (auto& [key, stream] : default_streams_) function(*stream);
  }

  static void add_once(std::vector<GraphNode*>& nodes, const std::vector<GraphNode*>& more);
  Stream* resolve(const void* handle, int current_device);
  std::unique_ptr<Graph> drop_stream(Stream& stream);
  Capture* find_capture(unsigned long long id);
  GraphNode* add_node_locked(Graph& graph, GraphNode node);
  Graph* make_graph_locked(bool embedded);
  std::unique_ptr<Graph> take_graph(const Graph* graph);
  bool is_captured_into(const Graph* graph) const;
  GraphNode* add_captured_node(Stream& stream, NodeKind kind, std::function<void()> run,
                               std::shared_ptr<void> parameters);
  void advance(Stream& stream);
  Progress up_to_now(const Stream& stream);
  void wait_for(std::unique_lock<std::mutex>& lock, const Progress& progress);
  bool is_done(size_t stream, uint64_t number) const { return done_.of(stream) >= number; }
  bool is_behind_task(const Progress& progress) const;
  bool counts_as_wait(PollsOfThreads& polls);
  bool has_worker();
  bool queue(const Stream& stream, std::function<void()> run);
  bool may_run(const Task& task);
  void run_tasks();
  Progress device_progress(int device);
  StreamError unsafe_locked();
  bool would_wait_for_capture(const Stream& stream);
  StreamError implicit_locked(const Stream& stream);
  void leave_capture(Capture* capture);

  const bool late_;
  const Clock clock_;
  bool tracks_;  // whether it is followed what covers what: late, or once there was a host function
  std::atomic<int> captures_open_{0};
  std::atomic<int> queued_{0};
  std::mutex mutex_;
  std::unordered_map<const void*, std::unique_ptr<Stream>> streams_;
  // By device, which of the two, and the thread of kPerThread.
  std::map<std::tuple<int, uintptr_t, uint64_t>, std::unique_ptr<Stream>> default_streams_;
  std::map<int, Progress> retired_;  // of streams that are gone, by device
  std::unordered_map<const void*, Event> events_;
  std::map<unsigned long long, std::unique_ptr<Capture>> captures_;
  std::unordered_map<const Graph*, std::unique_ptr<Graph>> graphs_;
  std::unordered_map<const GraphNode*, Graph*> nodes_;  // of all graphs
  Progress done_;
  size_t next_index_ = 0;
  unsigned long long next_capture_ = 1;
  int64_t last_submission_ = 0;  // when, as long as something is queued

  std::list<Task> tasks_;  // in the order in which they were submitted
  bool stops_ = false;
  uint64_t forks_ = 0;  // that this process is a child of
  // Made at first use, and again in the child of a fork, which has no thread.
  std::unique_ptr<std::thread> worker_;
  std::unique_ptr<std::condition_variable> wake_;
  std::unique_ptr<std::condition_variable> finished_;
  const std::shared_ptr<char> alive_;
};

}  // namespace memledger::virtual_gpu
