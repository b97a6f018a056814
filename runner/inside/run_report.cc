#include "runner/inside/run_report.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <sstream>
#include <utility>
#include <vector>

#include "registry/device_statistics.h"
#include "reporter/formats/peak_summary.h"
#include "reporter/mem_reporter.h"
#include "text/json.h"
#include "virtual_gpu/device_use.h"

namespace memledger::inside {
namespace {

constexpr size_t kPeakRows = 20;

// What LibTorch's allocator and the virtual GPU say of a device's peak.
PeakFigures peak_figures(c10::Device device) {
  PeakFigures figures;
  if (!device.is_cuda()) return figures;
  if (const auto statistics = device_statistics(device); statistics && statistics->caching) {
    figures.allocated_peak = statistics->allocated_bytes.peak;
    figures.reserved_peak = statistics->reserved_bytes.peak;
  }
  const auto ask = reinterpret_cast<decltype(&memledger_virtual_gpu_uses)>(
      dlsym(RTLD_DEFAULT, "memledger_virtual_gpu_uses"));
  if (ask == nullptr) return figures;
  std::vector<memledger_virtual_gpu_use> uses(ask(nullptr, 0));
  uses.resize(std::min(uses.size(), ask(uses.data(), uses.size())));
  const auto index = static_cast<size_t>(static_cast<unsigned char>(device.index()));
  if (index >= uses.size()) return figures;
  figures.gpu = uses[index].name;
  figures.capacity = static_cast<int64_t>(uses[index].total_bytes);
  return figures;
}

bool ends_in(std::string_view text, std::string_view ending) {
  return text.size() >= ending.size() && text.substr(text.size() - ending.size()) == ending;
}

bool was_used(const DeviceReport& device) { return device.counters.peak_bytes > 0; }

// Returns the peaks of all devices as one report.
Report peaks_of(const MemReporter& reporter, const Report& end) {
  Report peaks;
  peaks.of_peak = true;
  for (const DeviceReport& device : end.devices) {
    if (!was_used(device)) continue;
    Report peak = reporter.collect_peak(device.device);
    std::swap(peak.devices, peaks.devices);
    std::move(peak.devices.begin(), peak.devices.end(), std::back_inserter(peaks.devices));
    peak.devices = std::move(peaks.devices);
    peak.complete = peak.complete && peaks.complete;
    peaks = std::move(peak);
  }
  return peaks;
}

std::string summaries(const Report& peaks) {
  std::string text;
  for (const DeviceReport& device : peaks.devices)
    text += peak_summary(device, peak_figures(device.device));
  return text;
}

std::string json_of(const ProcessOfRun& process, const Report& peaks, const Report& end) {
  Json devices = Json::array();
  for (const DeviceReport& device : peaks.devices) {
    const PeakFigures figures = peak_figures(device.device);
    devices.push_back({{"device", device.device.str()},
                       {"gpu", figures.gpu},
                       {"requested_peak", device.total_bytes},
                       {"allocated_peak", or_null(figures.allocated_peak)},
                       {"reserved_peak", or_null(figures.reserved_peak)},
                       {"capacity_bytes", or_null(figures.capacity)}});
  }
  std::string text = to_text(Json{{"schema", "memledger.run_report/1"},
                                  {"process", process.process},
                                  {"rank", process.rank},
                                  {"devices", std::move(devices)}});
  text.pop_back();
  return text.append(",\"peaks\":")
      .append(peaks.to_json())
      .append(",\"end\":")
      .append(end.to_json())
      .append("}\n");
}

}  // namespace

std::string run_report_text(const ProcessOfRun& process, std::string_view when) {
  std::ostringstream out;
  out << fmt::format("memledger: process {}, rank {}, {}\n", process.process, process.rank, when);
  const MemReporter reporter;
  const Report report = reporter.collect();
  out << summaries(peaks_of(reporter, report));
  for (const DeviceReport& device : report.devices) {
    out << fmt::format("Peak on {}: {} bytes requested\n", device.device.str(),
                       device.counters.peak_bytes);
  }
  out << report;
  ReportOptions few;
  few.max_rows = kPeakRows;
  for (const DeviceReport& device : report.devices) {
    if (device.counters.peak_bytes > device.counters.current_bytes)
      out << reporter.collect_peak(device.device, few);
  }
  return std::move(out).str();
}

void write_run_report(const ProcessOfRun& process, std::string_view path, std::ostream& out) {
  const MemReporter reporter;
  ReportOptions options;
  options.verbose = true;
  const Report end = reporter.collect(options);
  Report peaks = peaks_of(reporter, end);
  if (ends_in(path, ".html")) {
    out << peaks.to_html();
  } else if (ends_in(path, ".csv")) {
    out << peaks.to_csv();
  } else if (ends_in(path, ".json")) {
    out << json_of(process, peaks, end);
  } else {
    peaks.options.verbose = true;
    out << summaries(peaks) << peaks << end;
  }
}

}  // namespace memledger::inside
