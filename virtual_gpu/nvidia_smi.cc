// `nvidia-smi` for programs on a virtual GPU: what scripts ask it for, read from the NVML of the
// process, which the runner has preloaded. Sub-commands and settings are not there.
#include <dlfcn.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

namespace {

using Device = void*;

// NVML's layouts.
struct MemoryV2 {
  unsigned version;
  unsigned long long total, reserved, free, used;
};

struct Process {
  unsigned pid;
  unsigned long long used_memory;
  unsigned gpu_instance, compute_instance;
};

template <typename... Arguments>
bool ask(const char* name, Arguments... arguments) {
  void* const function = dlsym(RTLD_DEFAULT, name);
  return function != nullptr &&
         reinterpret_cast<int (*)(Arguments...)>(function)(arguments...) == 0;
}

constexpr char kNone[] = "[N/A]";

std::string text_of(const char* name, Device device) {
  std::array<char, 128> text{};
  return ask(name, device, text.data(), static_cast<unsigned>(text.size())) ? text.data() : kNone;
}

std::string number_of(const char* name, Device device) {
  unsigned value = 0;
  return ask(name, device, &value) ? std::to_string(value) : kNone;
}

std::string system_text(const char* name) {
  std::array<char, 128> text{};
  return ask(name, text.data(), static_cast<unsigned>(text.size())) ? text.data() : kNone;
}

std::string cuda_version() {
  int version = 0;
  if (!ask("nvmlSystemGetCudaDriverVersion", &version)) return kNone;
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

MemoryV2 memory_of(Device device) {
  constexpr unsigned kVersion = 2U << 24 | sizeof(MemoryV2);
  MemoryV2 memory{kVersion, 0, 0, 0, 0};
  ask("nvmlDeviceGetMemoryInfo_v2", device, &memory);
  return memory;
}

std::string mib(unsigned long long bytes, bool up = false) {
  return std::to_string((bytes + (up ? (1 << 20) - 1 : 0)) >> 20);
}

std::string watts(const char* name, Device device) {
  unsigned milliwatts = 0;
  if (!ask(name, device, &milliwatts)) return kNone;
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.2f", milliwatts / 1000.0);
  return text.data();
}

template <int kType>
std::string clock_of(Device device) {
  unsigned clock = 0;
  return ask("nvmlDeviceGetClockInfo", device, kType, &clock) ? std::to_string(clock) : kNone;
}
template <int kType>
std::string most_clock_of(Device device) {
  unsigned clock = 0;
  return ask("nvmlDeviceGetMaxClockInfo", device, kType, &clock) ? std::to_string(clock) : kNone;
}

std::string bus_of(Device device) {
  struct {
    char legacy[16];
    unsigned numbers[5];
    char bus_id[32];
  } info{};
  return ask("nvmlDeviceGetPciInfo_v3", device, &info) ? info.bus_id : kNone;
}

std::string on_or_off(bool is_known, bool is_on) {
  return !is_known ? kNone : is_on ? "Enabled" : "Disabled";
}

template <const char* kFunction>
std::string mode_of(Device device) {
  unsigned current = 0, pending = 0;
  const bool is_known = ask(kFunction, device, &current, &pending);
  return on_or_off(is_known, current != 0);
}
constexpr char kMig[] = "nvmlDeviceGetMigMode", kEcc[] = "nvmlDeviceGetEccMode";

std::string capability_of(Device device) {
  int major = 0, minor = 0;
  if (!ask("nvmlDeviceGetCudaComputeCapability", device, &major, &minor)) return kNone;
  return std::to_string(major) + "." + std::to_string(minor);
}

std::string utilization_of(Device device, bool of_memory) {
  std::array<unsigned, 2> percent{};
  if (!ask("nvmlDeviceGetUtilizationRates", device, percent.data())) return kNone;
  return std::to_string(percent[of_memory ? 1 : 0]);
}

std::string temperature_of(Device device) {
  unsigned celsius = 0;
  return ask("nvmlDeviceGetTemperature", device, 0, &celsius) ? std::to_string(celsius) : kNone;
}

std::string now() {
  const std::time_t seconds = std::time(nullptr);
  std::tm parts{};
  localtime_r(&seconds, &parts);
  std::array<char, 64> text{};
  std::strftime(text.data(), text.size(), "%Y/%m/%d %H:%M:%S.000", &parts);
  return text.data();
}

unsigned device_count() {
  unsigned count = 0;
  ask("nvmlDeviceGetCount_v2", &count);
  return count;
}

struct Field {
  const char* name;
  const char* unit;
  std::string (*value)(Device device);
};

// The names of the help of NVIDIA's; some have two.
constexpr Field kFields[] = {
    {"timestamp", "", [](Device) { return now(); }},
    {"index", "", [](Device d) { return number_of("nvmlDeviceGetIndex", d); }},
    {"count", "", [](Device) { return std::to_string(device_count()); }},
    {"name", "", [](Device d) { return text_of("nvmlDeviceGetName", d); }},
    {"gpu_name", "", [](Device d) { return text_of("nvmlDeviceGetName", d); }},
    {"uuid", "", [](Device d) { return text_of("nvmlDeviceGetUUID", d); }},
    {"gpu_uuid", "", [](Device d) { return text_of("nvmlDeviceGetUUID", d); }},
    {"serial", "", [](Device d) { return text_of("nvmlDeviceGetSerial", d); }},
    {"vbios_version", "", [](Device d) { return text_of("nvmlDeviceGetVbiosVersion", d); }},
    {"driver_version", "", [](Device) { return system_text("nvmlSystemGetDriverVersion"); }},
    {"pci.bus_id", "", bus_of},
    {"gpu_bus_id", "", bus_of},
    {"memory.total", "MiB", [](Device d) { return mib(memory_of(d).total); }},
    {"memory.reserved", "MiB", [](Device d) { return mib(memory_of(d).reserved, true); }},
    {"memory.used", "MiB", [](Device d) { return mib(memory_of(d).used); }},
    {"memory.free", "MiB", [](Device d) { return mib(memory_of(d).free, true); }},
    {"utilization.gpu", "%", [](Device d) { return utilization_of(d, false); }},
    {"utilization.memory", "%", [](Device d) { return utilization_of(d, true); }},
    {"temperature.gpu", "", temperature_of},
    {"temperature.memory", "", [](Device) { return std::string(kNone); }},
    {"power.draw", "W", [](Device d) { return watts("nvmlDeviceGetPowerUsage", d); }},
    {"power.limit", "W", [](Device d) { return watts("nvmlDeviceGetPowerManagementLimit", d); }},
    {"enforced.power.limit", "W",
     [](Device d) { return watts("nvmlDeviceGetEnforcedPowerLimit", d); }},
    {"pstate", "", [](Device d) { return "P" + number_of("nvmlDeviceGetPerformanceState", d); }},
    {"clocks.sm", "MHz", clock_of<1>},
    {"clocks.current.sm", "MHz", clock_of<1>},
    {"clocks.gr", "MHz", clock_of<0>},
    {"clocks.current.graphics", "MHz", clock_of<0>},
    {"clocks.mem", "MHz", clock_of<2>},
    {"clocks.current.memory", "MHz", clock_of<2>},
    {"clocks.max.sm", "MHz", most_clock_of<1>},
    {"clocks.max.gr", "MHz", most_clock_of<0>},
    {"clocks.max.graphics", "MHz", most_clock_of<0>},
    {"clocks.max.mem", "MHz", most_clock_of<2>},
    {"clocks.max.memory", "MHz", most_clock_of<2>},
    {"compute_cap", "", capability_of},
    {"compute_mode", "", [](Device) { return std::string("Default"); }},
    {"mig.mode.current", "", mode_of<kMig>},
    {"mig.mode.pending", "", mode_of<kMig>},
    {"ecc.mode.current", "", mode_of<kEcc>},
    {"persistence_mode", "", [](Device) { return std::string("Enabled"); }},
    {"display_active", "", [](Device) { return std::string("Disabled"); }},
    {"fan.speed", "%", [](Device d) { return number_of("nvmlDeviceGetFanSpeed", d); }},
    {"pcie.link.gen.current", "",
     [](Device d) { return number_of("nvmlDeviceGetCurrPcieLinkGeneration", d); }},
    {"pcie.link.gen.max", "",
     [](Device d) { return number_of("nvmlDeviceGetMaxPcieLinkGeneration", d); }},
    {"pcie.link.width.current", "",
     [](Device d) { return number_of("nvmlDeviceGetCurrPcieLinkWidth", d); }},
};

const Field* find_field(std::string_view name) {
  for (const Field& field : kFields) {
    if (field.name == name) return &field;
  }
  return nullptr;
}

struct Options {
  std::optional<std::string> query_gpu, query_apps, id;
  bool has_header = true, has_units = true, lists = false, is_full = false;
};

std::vector<std::string> parts_of(const std::string& text) {
  std::vector<std::string> parts;
  std::stringstream in(text);
  for (std::string part; std::getline(in, part, ',');) {
    part.erase(0, part.find_first_not_of(' '));
    part.erase(part.find_last_not_of(' ') + 1);
    parts.push_back(part);
  }
  return parts;
}

// Those that `-i` names: by number, UUID or bus; all without it.
std::vector<Device> devices_of(const Options& options) {
  std::vector<Device> devices;
  if (!options.id) {
    for (unsigned i = 0; i < device_count(); ++i) {
      Device device = nullptr;
      if (ask("nvmlDeviceGetHandleByIndex_v2", i, &device)) devices.push_back(device);
    }
    return devices;
  }
  for (const std::string& id : parts_of(*options.id)) {
    Device device = nullptr;
    const bool is_number = !id.empty() && id.find_first_not_of("0123456789") == std::string::npos;
    const bool is_found =
        is_number ? ask("nvmlDeviceGetHandleByIndex_v2",
                        static_cast<unsigned>(std::strtoul(id.c_str(), nullptr, 10)), &device)
                  : ask("nvmlDeviceGetHandleByUUID", id.c_str(), &device) ||
                        ask("nvmlDeviceGetHandleByPciBusId_v2", id.c_str(), &device);
    if (is_found) devices.push_back(device);
  }
  return devices;
}

std::string with_unit(const std::string& value, const char* unit, bool has_units) {
  return *unit == '\0' || !has_units || value == kNone ? value : value + " " + unit;
}

void print_row(const std::vector<std::string>& cells) {
  std::string row;
  for (const std::string& cell : cells) row += (row.empty() ? "" : ", ") + cell;
  std::printf("%s\n", row.c_str());
}

int query_gpus(const Options& options, const std::vector<Device>& devices) {
  std::vector<const Field*> fields;
  std::vector<std::string> header;
  for (const std::string& name : parts_of(*options.query_gpu)) {
    const Field* const field = find_field(name);
    if (field == nullptr) {
      std::printf("Field \"%s\" is not a valid field to query.\n\n", name.c_str());
      return 2;
    }
    fields.push_back(field);
    header.push_back(*field->unit == '\0' ? name : name + " [" + field->unit + "]");
  }
  if (options.has_header) print_row(header);
  for (Device device : devices) {
    std::vector<std::string> cells;
    for (const Field* const field : fields)
      cells.push_back(with_unit(field->value(device), field->unit, options.has_units));
    print_row(cells);
  }
  return 0;
}

int query_processes(const Options& options, const std::vector<Device>& devices) {
  const std::vector<std::string> names = parts_of(*options.query_apps);
  std::vector<std::string> header;
  for (const std::string& name : names)
    header.push_back(name.find("memory") == std::string::npos ? name : name + " [MiB]");
  if (options.has_header) print_row(header);
  for (Device device : devices) {
    std::array<Process, 64> processes{};
    unsigned count = processes.size();
    if (!ask("nvmlDeviceGetComputeRunningProcesses_v3", device, &count, processes.data())) continue;
    for (unsigned i = 0; i < count; ++i) {
      // This one only asks.
      if (processes[i].pid == static_cast<unsigned>(getpid())) continue;
      std::vector<std::string> cells;
      for (const std::string& name : names) {
        const bool is_memory = name.find("memory") != std::string::npos;
        cells.push_back(is_memory
                            ? with_unit(mib(processes[i].used_memory), "MiB", options.has_units)
                        : name == "pid" ? std::to_string(processes[i].pid)
                                        : kNone);
      }
      print_row(cells);
    }
  }
  return 0;
}

int list(const std::vector<Device>& devices) {
  for (Device device : devices) {
    std::printf("GPU %s: %s (UUID: %s)\n", number_of("nvmlDeviceGetIndex", device).c_str(),
                text_of("nvmlDeviceGetName", device).c_str(),
                text_of("nvmlDeviceGetUUID", device).c_str());
  }
  return 0;
}

int print_all(const std::vector<Device>& devices) {
  std::printf("\n==============NVSMI LOG==============\n\n");
  const auto line = [](int indent, const char* name, const std::string& value) {
    std::printf("%*s%-*s: %s\n", indent, "", 51 - indent, name, value.c_str());
  };
  line(0, "Driver Version", system_text("nvmlSystemGetDriverVersion"));
  line(0, "CUDA Version", cuda_version());
  std::printf("\n");
  line(0, "Attached GPUs", std::to_string(device_count()));
  for (Device device : devices) {
    std::printf("GPU %s\n", bus_of(device).c_str());
    line(4, "Product Name", text_of("nvmlDeviceGetName", device));
    line(4, "GPU UUID", text_of("nvmlDeviceGetUUID", device));
    std::printf("    FB Memory Usage\n");
    const MemoryV2 memory = memory_of(device);
    line(8, "Total", mib(memory.total) + " MiB");
    line(8, "Reserved", mib(memory.reserved, true) + " MiB");
    line(8, "Used", mib(memory.used) + " MiB");
    line(8, "Free", mib(memory.free, true) + " MiB");
    std::printf("    Utilization\n");
    line(8, "GPU", utilization_of(device, false) + " %");
    line(8, "Memory", utilization_of(device, true) + " %");
    std::printf("    Temperature\n");
    line(8, "GPU Current Temp", temperature_of(device) + " C");
  }
  return 0;
}

// A device has three lines of three columns.
int print_table(const std::vector<Device>& devices) {
  const std::string driver = system_text("nvmlSystemGetDriverVersion");
  std::printf("%s\n", now().c_str());
  std::printf("+%s+\n", std::string(89, '-').c_str());
  std::printf("| NVIDIA-SMI %-22s Driver Version: %-14s CUDA Version: %-8s |\n", driver.c_str(),
              driver.c_str(), cuda_version().c_str());
  const std::string rule =
      "+" + std::string(41, '-') + "+" + std::string(24, '-') + "+" + std::string(22, '-') + "+\n";
  std::printf("%s", rule.c_str());
  std::printf(
      "| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC "
      "|\n");
  std::printf(
      "| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. "
      "|\n");
  std::printf(
      "|                                         |                        |               MIG M. "
      "|\n");
  std::printf(
      "|=========================================+========================+======================|"
      "\n");
  for (Device device : devices) {
    const MemoryV2 memory = memory_of(device);
    const std::string usage = mib(memory.used) + "MiB / " + mib(memory.total) + "MiB";
    const std::string power = watts("nvmlDeviceGetPowerUsage", device).substr(0, 2) + "W / " +
                              watts("nvmlDeviceGetPowerManagementLimit", device).substr(0, 3) + "W";
    const bool has_ecc = mode_of<kEcc>(device) == "Enabled";
    const std::string mig = mode_of<kMig>(device);
    std::printf("| %3s  %-30.30s  On | %19s Off | %20s |\n",
                number_of("nvmlDeviceGetIndex", device).c_str(),
                text_of("nvmlDeviceGetName", device).c_str(), bus_of(device).c_str(),
                has_ecc ? "0" : "N/A");
    std::printf("| N/A %4sC    P0  %22s | %22s | %6s%%      Default |\n",
                temperature_of(device).c_str(), power.c_str(), usage.c_str(),
                utilization_of(device, false).c_str());
    std::printf("| %39s | %22s | %20s |\n", "", "", mig == kNone ? "N/A" : mig.c_str());
    std::printf("%s", rule.c_str());
  }
  return 0;
}

// `--name=value`, or the next word for `--name`.
std::optional<std::string> value_of(std::string_view name, int argc, char** argv, int& at) {
  const std::string_view word = argv[at];
  if (word.substr(0, name.size()) != name) return std::nullopt;
  if (word.size() > name.size() && word[name.size()] == '=')
    return std::string(word.substr(name.size() + 1));
  if (word.size() != name.size() || at + 1 >= argc) return std::nullopt;
  return std::string(argv[++at]);
}

bool parse(int argc, char** argv, Options& options) {
  for (int at = 1; at < argc; ++at) {
    const std::string_view word = argv[at];
    if (word == "-L" || word == "--list-gpus") {
      options.lists = true;
    } else if (word == "-q" || word == "--query") {
      options.is_full = true;
    } else if (auto gpu = value_of("--query-gpu", argc, argv, at)) {
      options.query_gpu = gpu;
    } else if (auto apps = value_of("--query-compute-apps", argc, argv, at)) {
      options.query_apps = apps;
    } else if (auto format = value_of("--format", argc, argv, at)) {
      options.has_header = format->find("noheader") == std::string::npos;
      options.has_units = format->find("nounits") == std::string::npos;
    } else if (auto id = value_of("--id", argc, argv, at)) {
      options.id = id;
    } else if (auto short_id = value_of("-i", argc, argv, at)) {
      options.id = short_id;
    } else {
      std::printf("The virtual GPU's nvidia-smi does not know the option %s.\n", argv[at]);
      return false;
    }
  }
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 2 && std::string_view(argv[1]) == "--version") {
    std::printf("NVIDIA-SMI version  : %s\nNVML version        : %s\n",
                system_text("nvmlSystemGetDriverVersion").c_str(),
                system_text("nvmlSystemGetNVMLVersion").c_str());
    return 0;
  }
  constexpr int kInvalid = 2, kNoDriver = 9, kNoDevice = 6;
  Options options;
  if (!parse(argc, argv, options)) return kInvalid;
  if (!ask("nvmlInit_v2")) {
    std::printf("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n");
    return kNoDriver;
  }
  const std::vector<Device> devices = devices_of(options);
  if (devices.empty()) {
    std::printf("No devices were found\n");
    return kNoDevice;
  }
  if (options.query_gpu) return query_gpus(options, devices);
  if (options.query_apps) return query_processes(options, devices);
  if (options.lists) return list(devices);
  return options.is_full ? print_all(devices) : print_table(devices);
}
