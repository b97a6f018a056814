#define DOCTEST_CONFIG_IMPLEMENT
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <doctest/doctest.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "virtual_gpu/shared_devices.h"

// Processes that share devices. Each is this program, started again, which does what the test asks
// over a pipe and answers with a line.
namespace {

constexpr long kMiB = 1 << 20;

std::string own_path() {
  char path[4096];
  const ssize_t length = readlink("/proc/self/exe", path, sizeof path);
  return std::string(path, length > 0 ? static_cast<size_t>(length) : 0);
}

std::string hex(const void* data, size_t bytes) {
  std::string text;
  for (size_t i = 0; i < bytes; ++i) {
    char digits[3];
    std::snprintf(digits, sizeof digits, "%02x", static_cast<const unsigned char*>(data)[i]);
    text += digits;
  }
  return text;
}

template <typename T>
T from_hex(const std::string& text) {
  T value;
  std::memset(&value, 0, sizeof value);
  for (size_t i = 0; i < sizeof value && 2 * i + 1 < text.size(); ++i)
    reinterpret_cast<unsigned char*>(&value)[i] =
        static_cast<unsigned char>(std::stoi(text.substr(2 * i, 2), nullptr, 16));
  return value;
}

// What NVML reports, as NVIDIA's header has it.
struct NvmlProcess {
  unsigned id;
  unsigned long long used_memory;
  unsigned gpu_instance, compute_instance;
};

std::string nvml_processes() {
  void* const program = dlopen(nullptr, RTLD_NOW);
  const auto handle_of =
      reinterpret_cast<int (*)(unsigned, void**)>(dlsym(program, "nvmlDeviceGetHandleByIndex_v2"));
  const auto processes_of = reinterpret_cast<int (*)(void*, unsigned*, NvmlProcess*)>(
      dlsym(program, "nvmlDeviceGetComputeRunningProcesses_v3"));
  void* device = nullptr;
  if (!handle_of || !processes_of || handle_of(0, &device) != 0) return "no NVML";
  NvmlProcess processes[8];
  unsigned count = 8;
  if (processes_of(device, &count, processes) != 0) return "error";
  std::string text;
  for (unsigned i = 0; i < count; ++i)
    text += std::to_string(processes[i].id) + ":" + std::to_string(processes[i].used_memory) + " ";
  return text;
}

// Does one command; an error's number where nothing else is to be said.
std::string obey(std::istringstream& command, const std::string& verb) {
  static std::vector<void*> blocks;
  static cudaEvent_t event = nullptr;
  size_t bytes = 0, total = 0;
  std::string text;
  if (verb == "allocate") {
    command >> bytes;
    void* block = nullptr;
    const cudaError_t error = cudaMalloc(&block, bytes);
    if (!error) blocks.push_back(block);
    return std::to_string(error);
  }
  if (verb == "free") {
    const cudaError_t error = cudaFree(blocks.back());
    if (!error) blocks.pop_back();
    return std::to_string(error);
  }
  if (verb == "free_bytes") {
    const cudaError_t error = cudaMemGetInfo(&bytes, &total);
    return error ? "error " + std::to_string(error) : std::to_string(bytes);
  }
  if (verb == "devices") {
    int count = -1;
    cudaGetDeviceCount(&count);
    return std::to_string(count);
  }
  if (verb == "reset") return std::to_string(cudaDeviceReset());
  if (verb == "nvml") return nvml_processes();
  if (verb == "export") {
    cudaIpcMemHandle_t handle;
    const cudaError_t error = cudaIpcGetMemHandle(&handle, blocks.back());
    return error ? "error " + std::to_string(error) : hex(&handle, sizeof handle);
  }
  if (verb == "open") {
    command >> text;
    void* block = nullptr;
    const cudaError_t error = cudaIpcOpenMemHandle(&block, from_hex<cudaIpcMemHandle_t>(text),
                                                   cudaIpcMemLazyEnablePeerAccess);
    if (!error) blocks.push_back(block);
    return error ? "error " + std::to_string(error) : hex(&block, sizeof block);
  }
  if (verb == "close") {
    const cudaError_t error = cudaIpcCloseMemHandle(blocks.back());
    if (!error) blocks.pop_back();
    return std::to_string(error);
  }
  if (verb == "use") {
    command >> bytes;
    cudaPointerAttributes attributes;
    if (cudaPointerGetAttributes(&attributes, blocks.back()) ||
        attributes.type != cudaMemoryTypeDevice)
      return "no device memory";
    std::vector<char> host(bytes, 1);
    if (const cudaError_t error =
            cudaMemcpy(host.data(), blocks.back(), bytes, cudaMemcpyDeviceToHost))
      return "error " + std::to_string(error);
    return host == std::vector<char>(bytes) ? "zeros" : "something";
  }
  if (verb == "export_event") {
    cudaIpcEventHandle_t handle;
    cudaError_t error =
        cudaEventCreateWithFlags(&event, cudaEventDisableTiming | cudaEventInterprocess);
    if (!error) error = cudaEventRecord(event, nullptr);
    if (!error) error = cudaIpcGetEventHandle(&handle, event);
    return error ? "error " + std::to_string(error) : hex(&handle, sizeof handle);
  }
  if (verb == "open_event") {
    command >> text;
    cudaEvent_t opened = nullptr;
    cudaError_t error = cudaIpcOpenEventHandle(&opened, from_hex<cudaIpcEventHandle_t>(text));
    if (!error) error = cudaStreamWaitEvent(nullptr, opened, 0);
    if (!error) error = cudaEventSynchronize(opened);
    if (!error) error = cudaEventDestroy(opened);
    return std::to_string(error);
  }
  static std::vector<CUmemGenericAllocationHandle> memories;
  CUmemGenericAllocationHandle memory = 0;
  if (verb == "create") {
    command >> bytes;
    CUmemAllocationProp properties;
    std::memset(&properties, 0, sizeof properties);
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    const CUresult error = cuMemCreate(&memory, bytes, &properties, 0);
    if (!error) memories.push_back(memory);
    return std::to_string(error);
  }
  if (verb == "release") {
    const CUresult error = cuMemRelease(memories.back());
    memories.pop_back();
    return std::to_string(error);
  }
  if (verb == "export_file") {
    int file = -1;
    const CUresult error = cuMemExportToShareableHandle(
        &file, memories.back(), CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    return error ? "error " + std::to_string(error)
                 : "/proc/" + std::to_string(getpid()) + "/fd/" + std::to_string(file);
  }
  if (verb == "import_file") {
    command >> text;
    const int file = open(text.c_str(), O_RDONLY);
    const CUresult error = cuMemImportFromShareableHandle(
        &memory, reinterpret_cast<void*>(static_cast<intptr_t>(file)),
        CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    close(file);
    if (!error) memories.push_back(memory);
    return std::to_string(error);
  }
  if (verb == "map") {
    command >> bytes;
    CUdeviceptr address = 0;
    CUresult error = cuMemAddressReserve(&address, bytes, 0, 0, 0);
    if (!error) error = cuMemMap(address, bytes, 0, memories.back(), 0);
    if (!error) blocks.push_back(reinterpret_cast<void*>(address));
    return std::to_string(error);
  }
  if (verb == "fork") {
    // The child allocates, and says what is free while it has it.
    command >> bytes;
    int ends[2];
    if (pipe(ends)) return "no pipe";
    const pid_t child = fork();
    if (child == 0) {
      void* block = nullptr;
      size_t free_now = 0;
      if (cudaMalloc(&block, bytes) == cudaSuccess) cudaMemGetInfo(&free_now, &total);
      // What the parent has is not the child's to give back.
      if (!blocks.empty()) cudaFree(blocks.back());
      const ssize_t written = write(ends[1], &free_now, sizeof free_now);
      _exit(written == sizeof free_now ? 0 : 1);
    }
    size_t free_then = 0;
    const ssize_t got = read(ends[0], &free_then, sizeof free_then);
    close(ends[0]);
    close(ends[1]);
    waitpid(child, nullptr, 0);
    return got == sizeof free_then ? std::to_string(free_then) : "nothing";
  }
  if (verb == "exec") {
    const std::string path = own_path();
    execl(path.c_str(), path.c_str(), "obey", nullptr);
  }
  return "what?";
}

int obey_all() {
  for (;;) {
    std::string line;
    char c = 0;
    // Not buffered: what follows an exec is the next program's.
    while (read(STDIN_FILENO, &c, 1) == 1 && c != '\n') line += c;
    std::istringstream command(line);
    std::string verb;
    if (!(command >> verb)) return 0;
    const std::string answer = obey(command, verb) + "\n";
    if (write(STDOUT_FILENO, answer.data(), answer.size()) < 0) return 1;
  }
}

class Process {
 public:
  explicit Process(const std::string& specification, const char* visible = nullptr) {
    int to[2], from[2];
    REQUIRE(pipe2(to, O_CLOEXEC) == 0);
    REQUIRE(pipe2(from, O_CLOEXEC) == 0);
    const std::string path = own_path();
    id_ = fork();
    if (id_ == 0) {
      dup2(to[0], STDIN_FILENO);
      dup2(from[1], STDOUT_FILENO);
      setenv("MEMLEDGER_VIRTUAL_GPU", specification.c_str(), 1);
      if (visible) setenv("CUDA_VISIBLE_DEVICES", visible, 1);
      execl(path.c_str(), path.c_str(), "obey", nullptr);
      _exit(127);
    }
    close(to[0]);
    close(from[1]);
    to_ = to[1];
    from_ = from[0];
  }

  ~Process() { end(); }

  std::string ask(std::string command) {
    command += "\n";
    if (write(to_, command.data(), command.size()) < 0) return "gone";
    std::string line;
    char c = 0;
    while (read(from_, &c, 1) == 1 && c != '\n') line += c;
    return line;
  }

  long ask_number(const std::string& command) {
    const std::string answer = ask(command);
    INFO(command << ": " << answer);
    REQUIRE_FALSE(answer.empty());
    REQUIRE(answer.find_first_not_of("0123456789") == std::string::npos);
    return std::stol(answer);
  }

  void end() {
    if (id_ <= 0) return;
    close(to_);
    close(from_);
    int status = 0;
    waitpid(id_, &status, 0);
    id_ = 0;
  }

  // Leaves a zombie until end().
  void kill_now() {
    kill(id_, SIGKILL);
    siginfo_t info;
    waitid(P_PID, static_cast<id_t>(id_), &info, WEXITED | WNOWAIT);
  }

  pid_t id() const { return id_; }

 private:
  pid_t id_ = 0;
  int to_ = -1, from_ = -1;
};

std::string name_of(const char* test) {
  return std::string("memledger-test-") + test + "-" + std::to_string(getpid());
}

std::string file_of(const std::string& name) {
  return "memledger-devices-" + std::to_string(geteuid()) + "-" + name;
}

bool has_file(const std::string& name) {
  return access(("/dev/shm/" + file_of(name)).c_str(), F_OK) == 0 ||
         access(("/tmp/" + file_of(name)).c_str(), F_OK) == 0;
}

TEST_CASE("two processes share a device to the byte") {
  const std::string name = name_of("two");
  const std::string specification = "a100:256MiB,share=" + name;
  {
    Process one(specification), two(specification);
    CHECK(one.ask_number("free_bytes") == 256 * kMiB);
    CHECK(one.ask_number("allocate 104857600") == cudaSuccess);
    CHECK(two.ask_number("free_bytes") == 156 * kMiB);
    CHECK(two.ask_number("allocate 1000") == cudaSuccess);  // a page
    CHECK(one.ask_number("free_bytes") == 154 * kMiB);
    // What only one of them could have.
    CHECK(two.ask_number("allocate " + std::to_string(155 * kMiB)) == cudaErrorMemoryAllocation);
    CHECK(two.ask_number("allocate " + std::to_string(154 * kMiB)) == cudaSuccess);
    CHECK(one.ask_number("free_bytes") == 0);
    CHECK(one.ask_number("allocate 2000000") == cudaErrorMemoryAllocation);
    CHECK(two.ask_number("free") == cudaSuccess);
    CHECK(one.ask_number("free_bytes") == 154 * kMiB);
    CHECK(one.ask("nvml") ==
          std::to_string(one.id()) + ":104857600 " + std::to_string(two.id()) + ":2097152 ");
    CHECK(one.ask_number("reset") == cudaSuccess);
    CHECK(two.ask_number("free_bytes") == 254 * kMiB);
    // Others are not concerned.
    Process other("a100:256MiB,share=" + name + ".other");
    Process alone("a100:256MiB");
    CHECK(other.ask_number("free_bytes") == 256 * kMiB);
    CHECK(alone.ask_number("free_bytes") == 256 * kMiB);
    CHECK(has_file(name));
    two.end();
    CHECK(one.ask_number("free_bytes") == 256 * kMiB);
  }
  CHECK_FALSE(has_file(name));
  CHECK_FALSE(has_file(name + ".other"));
}

TEST_CASE("each process has its context, while there is room for one") {
  const std::string specification = "a100:1GiB,context=400MiB,share=" + name_of("context");
  Process one(specification), two(specification), three(specification);
  CHECK(one.ask_number("free_bytes") == 624 * kMiB);
  CHECK(two.ask_number("free_bytes") == 224 * kMiB);
  CHECK(three.ask("free_bytes") == "error " + std::to_string(cudaErrorMemoryAllocation));
  two.end();
  CHECK(three.ask_number("free_bytes") == 224 * kMiB);
}

TEST_CASE("a process that was killed gives back what it held") {
  const std::string name = name_of("killed");
  const std::string specification = "a100:256MiB,share=" + name;
  Process one(specification);
  {
    Process two(specification);
    CHECK(two.ask_number("allocate 104857600") == cudaSuccess);
    CHECK(one.ask_number("free_bytes") == 156 * kMiB);
    two.kill_now();
    // Nobody has waited for it yet: an allocation looks for such, too.
    CHECK(one.ask_number("allocate " + std::to_string(200 * kMiB)) == cudaSuccess);
    CHECK(one.ask_number("free_bytes") == 56 * kMiB);
  }
  one.kill_now();
  one.end();
  CHECK(has_file(name));
  // The next process tidies up, under whatever name.
  {
    Process next("a100:256MiB,share=" + name + ".next");
    CHECK(next.ask_number("free_bytes") == 256 * kMiB);
    CHECK_FALSE(has_file(name));
  }
  CHECK_FALSE(has_file(name + ".next"));
}

TEST_CASE("other devices under the same name, and a file of another's") {
  const std::string name = name_of("differs");
  Process one("a100:256MiB,count=2,share=" + name);
  CHECK(one.ask_number("devices") == 2);
  std::string error;
  const auto join = [&](std::vector<memledger::virtual_gpu::SharedDevices::Device> devices) {
    error.clear();
    return memledger::virtual_gpu::SharedDevices::join(name, std::move(devices), &error);
  };
  CHECK_FALSE(join({{"NVIDIA L4", 256 * kMiB}}));
  CHECK(error == "process " + std::to_string(one.id()) +
                     " has other devices under this name (2 x NVIDIA A100-SXM4-80GB of 268435456 "
                     "bytes; here 1 x NVIDIA L4 of 268435456 bytes)");
  const memledger::virtual_gpu::SharedDevices::Device a100{"NVIDIA A100-SXM4-80GB", 256 * kMiB};
  CHECK(join({a100, a100}));
  CHECK_FALSE(join({a100}));
  // A program has no device then.
  Process other("a100:256MiB,share=" + name);
  CHECK(other.ask_number("devices") == 0);
  Process same("a100:256MiB,count=2,context=1MiB,share=" + name);
  CHECK(same.ask_number("devices") == 2);
  other.end();
  same.end();
  one.end();
  // Once nobody is left, other devices are welcome.
  CHECK(join({a100}));
  CHECK_FALSE(has_file(name));

  const std::string path = (access("/dev/shm", W_OK) == 0 ? "/dev/shm/" : "/tmp/") + file_of(name);
  const int file = open(path.c_str(), O_RDWR | O_CREAT, 0600);
  REQUIRE(file >= 0);
  CHECK(fchmod(file, 0666) == 0);
  CHECK_FALSE(join({a100}));
  const std::string refusal = path + " is not a file of this user's alone: choose another name";
  CHECK(error == refusal);
  // A file of the user's own that another user gave this name as well.
  CHECK(fchmod(file, 0600) == 0);
  const std::string own = path + "-own";
  REQUIRE(pwrite(file, "precious", 8, 8) == 8);
  REQUIRE(rename(path.c_str(), own.c_str()) == 0);
  REQUIRE(link(own.c_str(), path.c_str()) == 0);
  CHECK_FALSE(join({a100}));
  CHECK(error == refusal);
  char text[9] = {};
  CHECK(pread(file, text, 8, 8) == 8);
  CHECK(std::string(text) == "precious");
  struct stat as_it_was;
  CHECK(fstat(file, &as_it_was) == 0);
  CHECK(as_it_was.st_size == 16);
  unlink(own.c_str());
  if (geteuid() == 0) {
    REQUIRE(fchown(file, 65534, 65534) == 0);
    CHECK_FALSE(join({a100}));
    CHECK(error == refusal);
  } else {
    MESSAGE("SKIPPED: only root can play another user");
  }
  close(file);
  unlink(path.c_str());
  // What another version of memledger made is left as it is.
  const uint64_t head[] = {0x6d656d6c65646701, 16};
  std::ofstream(path, std::ios::binary).write(reinterpret_cast<const char*>(head), sizeof head);
  REQUIRE(chmod(path.c_str(), 0600) == 0);
  CHECK_FALSE(join({a100}));
  CHECK(error == path + " is of another version of memledger; remove it once nothing uses it");
  struct stat found;
  REQUIRE(stat(path.c_str(), &found) == 0);
  CHECK(found.st_size == sizeof head);
  unlink(path.c_str());
  REQUIRE(symlink("/dev/null", path.c_str()) == 0);
  CHECK_FALSE(join({a100}));
  CHECK(error.find(path) == 0);
  unlink(path.c_str());
}

TEST_CASE("numbers are the machine's where CUDA_VISIBLE_DEVICES hides devices") {
  const std::string specification = "a100:256MiB+l4:128MiB,share=" + name_of("visible");
  Process both(specification), second(specification, "1");
  CHECK(second.ask_number("allocate 67108864") == cudaSuccess);
  CHECK(both.ask_number("free_bytes") == 256 * kMiB);
  CHECK(second.ask_number("free_bytes") == 64 * kMiB);
  // What is hidden cannot be opened.
  CHECK(both.ask_number("allocate 104857600") == cudaSuccess);
  CHECK(second.ask("open " + both.ask("export")) ==
        "error " + std::to_string(cudaErrorInvalidDevice));
}

TEST_CASE("a child of fork has what it takes itself, and exec leaves everything") {
  const std::string specification = "a100:256MiB,share=" + name_of("fork");
  Process one(specification), two(specification);
  CHECK(one.ask_number("allocate 104857600") == cudaSuccess);
  CHECK(one.ask_number("fork 20971520") == 136 * kMiB);
  CHECK(two.ask_number("free_bytes") == 156 * kMiB);
  CHECK(one.ask_number("free_bytes") == 156 * kMiB);
  // The next program under the process's number begins with nothing.
  one.ask("exec\nfree_bytes");
  CHECK(two.ask_number("free_bytes") == 256 * kMiB);
}

TEST_CASE("memory and events of another process") {
  const std::string specification = "a100:256MiB,context=10MiB,share=" + name_of("ipc");
  Process one(specification), two(specification);
  CHECK(one.ask_number("allocate 10485760") == cudaSuccess);
  const std::string handle = one.ask("export");
  REQUIRE(handle.size() == 2 * sizeof(cudaIpcMemHandle_t));
  CHECK(one.ask("export") == handle);
  CHECK(two.ask_number("free_bytes") == 226 * kMiB);

  // It has an address of its own, is device memory to its end, and takes nothing.
  const std::string address = two.ask("open " + handle);
  REQUIRE(address.size() == 2 * sizeof(void*));
  CHECK(two.ask_number("free_bytes") == 226 * kMiB);
  CHECK(two.ask("use 10485760") == "zeros");
  CHECK(two.ask("use 10485761") == "error " + std::to_string(cudaErrorInvalidValue));
  // cudaFree is not the way to let it go, and nobody exports what is another's.
  CHECK(two.ask_number("free") == cudaErrorInvalidValue);
  CHECK(two.ask("export") == "error " + std::to_string(cudaErrorInvalidValue));
  // It is opened once, however often.
  CHECK(two.ask("open " + handle) == address);
  CHECK(two.ask_number("close") == cudaSuccess);
  CHECK(two.ask("use 1") == "zeros");
  CHECK(two.ask_number("close") == cudaSuccess);
  CHECK(two.ask_number("free_bytes") == 226 * kMiB);

  CHECK(one.ask("open " + handle) == "error " + std::to_string(cudaErrorDeviceUninitialized));
  CHECK(two.ask("open 1234") == "error " + std::to_string(cudaErrorInvalidResourceHandle));
  // What was freed is gone, and what is not open cannot be closed.
  CHECK(two.ask_number("allocate 100") == cudaSuccess);
  CHECK(two.ask_number("close") == cudaErrorInvalidValue);
  CHECK(one.ask_number("free") == cudaSuccess);
  CHECK(two.ask("open " + handle) == "error " + std::to_string(cudaErrorInvalidResourceHandle));

  const std::string event = one.ask("export_event");
  REQUIRE(event.size() == 2 * sizeof(cudaIpcEventHandle_t));
  CHECK(two.ask_number("open_event " + event) == cudaSuccess);
  CHECK(one.ask_number("open_event " + event) == cudaErrorDeviceUninitialized);
  CHECK(two.ask_number("open_event 1234") == cudaErrorInvalidResourceHandle);

  // What a process exported that has ended cannot be opened.
  CHECK(one.ask_number("allocate 10485760") == cudaSuccess);
  const std::string last = one.ask("export");
  one.kill_now();
  CHECK(two.ask("open " + last) == "error " + std::to_string(cudaErrorInvalidResourceHandle));
  CHECK(two.ask_number("free_bytes") == 244 * kMiB);
}

TEST_CASE("physical memory goes to others as a file, and stays as long as anybody has it") {
  const std::string specification = "a100:256MiB,share=" + name_of("files");
  Process one(specification), two(specification);
  CHECK(one.ask_number("create 20971520") == CUDA_SUCCESS);
  const std::string file = one.ask("export_file");
  REQUIRE(file.find("/proc/") == 0);
  CHECK(two.ask_number("import_file " + file) == CUDA_SUCCESS);
  CHECK(two.ask_number("map 20971520") == CUDA_SUCCESS);
  CHECK(two.ask("use 20971520") == "zeros");
  CHECK(two.ask_number("free_bytes") == 236 * kMiB);
  // The process that exported it has it anyway.
  CHECK(one.ask_number("import_file " + file) == CUDA_SUCCESS);
  CHECK(one.ask_number("release") == CUDA_SUCCESS);
  CHECK(two.ask_number("import_file " + file) == CUDA_SUCCESS);
  CHECK(two.ask_number("release") == CUDA_SUCCESS);
  CHECK(one.ask_number("release") == CUDA_SUCCESS);
  CHECK(one.ask_number("free_bytes") == 236 * kMiB);  // the other has it mapped
  CHECK(two.ask_number("release") == CUDA_SUCCESS);
  CHECK(one.ask_number("free_bytes") == 236 * kMiB);
  CHECK(two.ask_number("reset") == CUDA_SUCCESS);
  CHECK(one.ask_number("free_bytes") == 256 * kMiB);
  // Imported by nobody it goes at once.
  CHECK(one.ask_number("create 20971520") == CUDA_SUCCESS);
  const std::string again = one.ask("export_file");
  CHECK(one.ask_number("release") == CUDA_SUCCESS);
  CHECK(two.ask_number("free_bytes") == 256 * kMiB);
  CHECK(two.ask_number("import_file " + again) == CUDA_ERROR_INVALID_VALUE);
  CHECK(two.ask_number("import_file /dev/null") == CUDA_ERROR_INVALID_VALUE);

  Process alone("a100:256MiB");
  CHECK(alone.ask_number("create 20971520") == CUDA_SUCCESS);
  CHECK(alone.ask("export_file") == "error " + std::to_string(CUDA_ERROR_NOT_SUPPORTED));
}

TEST_CASE("what a process imported that was killed is not kept for it") {
  const std::string specification = "a100:256MiB,share=" + name_of("importer");
  Process one(specification), two(specification), three(specification);
  CHECK(one.ask_number("create 20971520") == CUDA_SUCCESS);
  const std::string file = one.ask("export_file");
  CHECK(two.ask_number("import_file " + file) == CUDA_SUCCESS);
  CHECK(three.ask_number("import_file " + file) == CUDA_SUCCESS);
  SUBCASE("after its owner has let it go") {
    CHECK(one.ask_number("release") == CUDA_SUCCESS);
    CHECK(three.ask_number("release") == CUDA_SUCCESS);
    CHECK(one.ask_number("free_bytes") == 236 * kMiB);
    two.kill_now();
  }
  SUBCASE("before") {
    two.kill_now();
    CHECK(three.ask_number("release") == CUDA_SUCCESS);
    CHECK(one.ask_number("release") == CUDA_SUCCESS);
  }
  CHECK(one.ask_number("free_bytes") == 256 * kMiB);
  CHECK(three.ask_number("allocate " + std::to_string(256 * kMiB)) == cudaSuccess);
}

TEST_CASE("without a name nothing is shared") {
  Process one("a100:256MiB");
  CHECK(one.ask_number("allocate 100") == cudaSuccess);
  CHECK(one.ask("export") == "error " + std::to_string(cudaErrorNotSupported));
  CHECK(one.ask("export_event") == "error " + std::to_string(cudaErrorNotSupported));
}

TEST_CASE("processes that come and go never count too little or too much") {
  const std::string name = name_of("many");
  const std::string specification = "a100:256MiB,share=" + name;
  Process watcher(specification);
  CHECK(watcher.ask_number("allocate 52428800") == cudaSuccess);
  for (int round = 0; round < 3; ++round) {
    std::vector<std::unique_ptr<Process>> processes;
    for (int i = 0; i < 8; ++i) processes.push_back(std::make_unique<Process>(specification));
    for (auto& process : processes) CHECK(process->ask_number("allocate 10485760") == cudaSuccess);
    CHECK(watcher.ask_number("free_bytes") == 126 * kMiB);
    for (size_t i = 0; i < processes.size(); i += 2) processes[i]->kill_now();
    CHECK(watcher.ask_number("free_bytes") == 166 * kMiB);
  }
  CHECK(watcher.ask_number("free_bytes") == 206 * kMiB);
  watcher.end();
  CHECK_FALSE(has_file(name));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 2 && !std::strcmp(argv[1], "obey")) return obey_all();
  signal(SIGPIPE, SIG_IGN);
  alarm(120);
  return doctest::Context(argc, argv).run();
}
