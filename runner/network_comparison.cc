#include "runner/network_comparison.h"

#include <fmt/format.h>
#include <sys/wait.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <stdexcept>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "text/output.h"
#include "virtual_gpu/profiles.h"

namespace memledger::runner {
namespace {

struct Device {
  std::string name, compute_capability;
  int64_t multiprocessors = 0, memory_bytes = 0;
};

struct Peaks {
  int64_t allocated = 0, reserved = 0;
};

struct Measured {
  Device device;
  std::vector<std::pair<std::string, std::string>> order;  // model and phase, as they ran
  std::map<std::pair<std::string, std::string>, Peaks> peaks;
};

int64_t number(const std::string& word) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  if (error != std::errc() || end != word.data() + word.size())
    throw std::runtime_error("measure_models printed " + word);
  return value;
}

std::string quoted(const std::string& word) {
  return "'" + absl::StrReplaceAll(word, {{"'", "'\\''"}}) + "'";
}

// The lines that the command prints.
std::vector<std::string> lines_of(const std::string& command) {
  // NOLINTNEXTLINE(bugprone-command-processor): our own program, whose path has been quoted.
  std::FILE* const pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) throw std::runtime_error("cannot run " + command);
  char* text = nullptr;
  size_t capacity = 0;
  std::vector<std::string> lines;
  while (getline(&text, &capacity, pipe) >= 0) lines.emplace_back(text);
  std::free(text);
  if (const int status = pclose(pipe); status != 0) {
    throw std::runtime_error(
        fmt::format("{} ended with {}", command,
                    WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status)));
  }
  for (std::string& line : lines) {
    if (!line.empty() && line.back() == '\n') line.pop_back();
  }
  return lines;
}

Measured measure(const std::string& command) {
  Measured result;
  for (const std::string& line : lines_of(command)) {
    const std::vector<std::string> words = absl::StrSplit(line, '\t');
    if (words[0] == "device" && words.size() == 5) {
      result.device = {words[1], words[2], number(words[3]), number(words[4])};
    } else if (words[0] == "figures" && words.size() == 9) {
      const std::pair key(words[1], words[2]);
      result.order.push_back(key);
      result.peaks[key] = {number(words[4]), number(words[6])};
    }
  }
  if (result.order.empty()) throw std::runtime_error(command + " printed no figures");
  return result;
}

// A call of the series in tests/gpu/address_series.h.
struct AddressCall {
  std::string call;
  int64_t bytes, address;
};

std::vector<AddressCall> addresses(const std::string& command) {
  std::vector<AddressCall> result;
  for (const std::string& line : lines_of(command)) {
    const std::vector<std::string> words = absl::StrSplit(line, '\t');
    if (words[0] == "address" && words.size() == 4)
      result.push_back({words[1], number(words[2]), number(words[3])});
  }
  if (result.empty()) throw std::runtime_error(command + " printed no addresses");
  return result;
}

// Writes both sides, and prints how far they agree: where blocks lie from the first one, and
// whether each lies above the one before it, which is what the caching allocator's choices depend
// on.
void log_addresses(const std::string& path, const std::vector<AddressCall>& real,
                   const std::vector<AddressCall>& virtually) {
  if (real.size() != virtually.size())
    throw std::runtime_error("the two sides did not do the same calls");
  std::string text = "call,bytes,real,virtual\n";
  size_t blocks = 0, as_far = 0, same_side = 0;
  const AddressCall *real_before = &real[0], *virtual_before = &virtually[0];
  for (size_t i = 0; i < real.size(); ++i) {
    const AddressCall &r = real[i], &v = virtually[i];
    if (r.call != v.call || r.bytes != v.bytes)
      throw std::runtime_error("the two sides did not do the same calls");
    text += fmt::format("{},{},{:#x},{:#x}\n", r.call, r.bytes, r.address, v.address);
    if (r.call != "allocate") continue;
    ++blocks;
    as_far += r.address - real[0].address == v.address - virtually[0].address ? 1 : 0;
    same_side +=
        (r.address > real_before->address) == (v.address > virtual_before->address) ? 1 : 0;
    real_before = &r;
    virtual_before = &v;
  }
  const absl::Status status = write_file(path, "addresses", text);
  if (!status.ok()) throw std::runtime_error(std::string(status.message()));
  fmt::print(
      "{} of {} blocks lie as far from the first as on the virtual device, {} on the same side of "
      "the block before. All addresses: {}\n",
      as_far, blocks, same_side, path);
}

void describe(const char* side, const Device& device) {
  fmt::print("{:<9}{}, compute capability {}, {} multiprocessors, {} MiB\n", side, device.name,
             device.compute_capability, device.multiprocessors, device.memory_bytes >> 20);
}

struct Row {
  std::string model, phase;
  Peaks real, virtually;

  int64_t allocated_difference() const { return virtually.allocated - real.allocated; }
  int64_t reserved_difference() const { return virtually.reserved - real.reserved; }
  bool differs() const { return allocated_difference() != 0 || reserved_difference() != 0; }
};

std::vector<Row> rows(const Measured& real, const Measured& virtually) {
  std::vector<Row> result;
  for (const auto& key : real.order) {
    const auto other = virtually.peaks.find(key);
    if (other == virtually.peaks.end())
      throw std::runtime_error(key.first + ", " + key.second + ": on the real device only");
    result.push_back({key.first, key.second, real.peaks.at(key), other->second});
  }
  if (virtually.order.size() != real.order.size())
    throw std::runtime_error("the virtual device has figures that the real one has not");
  const auto size = [](const Row& row) {
    return std::max(std::abs(row.allocated_difference()), std::abs(row.reserved_difference()));
  };
  std::stable_sort(result.begin(), result.end(),
                   [&](const Row& a, const Row& b) { return size(a) > size(b); });
  return result;
}

std::string difference(int64_t bytes, int64_t of) {
  if (bytes == 0) return "0";
  return fmt::format("{:+} ({:+.2f} %)", bytes,
                     of == 0 ? 0.0 : 100.0 * static_cast<double>(bytes) / static_cast<double>(of));
}

void print(const std::vector<Row>& rows) {
  fmt::print("\n{:<13}{:<9}{:>14}{:>14} {:>23}   {:>14}{:>14} {:>23}\n", "", "", "allocated peak",
             "", "", "reserved peak", "", "");
  fmt::print("{:<13}{:<9}{:>14}{:>14} {:>23}   {:>14}{:>14} {:>23}\n", "model", "phase", "real",
             "virtual", "difference", "real", "virtual", "difference");
  for (const Row& row : rows) {
    fmt::print("{:<13}{:<9}{:>14}{:>14} {:>23}   {:>14}{:>14} {:>23}\n", row.model, row.phase,
               row.real.allocated, row.virtually.allocated,
               difference(row.allocated_difference(), row.real.allocated), row.real.reserved,
               row.virtually.reserved, difference(row.reserved_difference(), row.real.reserved));
  }
}

class Comparison {
 public:
  explicit Comparison(const NetworkOptions& options)
      : options_(options),
        memledger_(std::filesystem::read_symlink("/proc/self/exe").string()),
        program_(quoted(options.program)) {}

  int run() {
    std::string networks = program_;
    for (const std::string& name : options_.names) networks += " " + quoted(name);
    const Measured real = measure(on_real(networks));
    if (!options_.real_side.empty()) {
      fmt::print("No real device: its side of this comparison is the virtual {}.\n",
                 options_.real_side);
    }
    describe("real", real.device);
    std::fflush(stdout);
    const std::string gpu = options_.gpu.empty() ? profile_name_of(real.device.name) : options_.gpu;
    const Measured virtually = measure(on_virtual(gpu, networks));
    describe("virtual", virtually.device);
    if (real.device.name != virtually.device.name ||
        real.device.multiprocessors != virtually.device.multiprocessors) {
      fmt::print("These are not the same device: differences may come from that.\n");
    }
    const std::vector<Row> all = rows(real, virtually);
    print(all);
    const auto different =
        std::count_if(all.begin(), all.end(), [](const Row& row) { return row.differs(); });
    fmt::print("\n{} of {} phases differ in a peak. Bytes; difference: virtual - real.\n",
               different, all.size());
    if (!options_.address_log.empty()) {
      const std::string series = program_ + " --addresses";
      log_addresses(options_.address_log, addresses(on_real(series)),
                    addresses(on_virtual(gpu, series)));
    }
    return different > 0 && options_.expect_equal ? 1 : 0;
  }

 private:
  std::string on_virtual(const std::string& gpu, const std::string& what) const {
    return quoted(memledger_) + " run --quiet " + quoted("--virtual-gpu=" + gpu) + " -- " + what;
  }
  std::string on_real(const std::string& what) const {
    return options_.real_side.empty() ? what : on_virtual(options_.real_side, what);
  }

  const NetworkOptions& options_;
  const std::string memledger_, program_;
};

}  // namespace

std::string profile_name_of(const std::string& device_name, int64_t capacity_bytes) {
  const virtual_gpu::Profile* const profile =
      virtual_gpu::find_profile_of_device(device_name, static_cast<uint64_t>(capacity_bytes));
  if (profile == nullptr) {
    throw std::runtime_error("there is no virtual \"" + device_name +
                             "\"; name one that is like it with --gpu=NAME");
  }
  return profile->name;
}

int compare_networks(const NetworkOptions& options) { return Comparison(options).run(); }

}  // namespace memledger::runner
