#pragma once

// Saved files made by hand, as short as their readers allow.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace memledger::compare {

struct MadeRow {
  std::string name;  // empty: anonymous
  int64_t bytes = 0;
  std::string role = "tensor";
  std::string layer = {}, op = {}, shape = "null", dtype = "torch.float32", line = {};
};

inline std::string quoted_or_null(const std::string& text) {
  return text.empty() ? "null" : absl::StrCat("\"", text, "\"");
}

inline std::string row_text(const MadeRow& row) {
  return absl::StrCat(R"({"name":")", row.name.empty() ? "Tensor7" : row.name, R"(","anonymous":)",
                      row.name.empty() ? "true" : "false", R"(,"role":")", row.role,
                      R"(","storage_kind":"tensor","bytes":)", row.bytes, R"(,"module":")",
                      row.layer, R"(","op":")", row.op, R"(","shape":)", row.shape, R"(,"dtype":)",
                      quoted_or_null(row.dtype), R"(,"where":)", quoted_or_null(row.line), "}");
}

inline std::string rows_text(const std::vector<MadeRow>& rows) {
  return absl::StrJoin(
      rows, ",", [](std::string* out, const MadeRow& row) { absl::StrAppend(out, row_text(row)); });
}

// MemReporter's report of one device. `total` is the allocator's figure.
inline std::string report(const std::string& device, int64_t total,
                          const std::vector<MadeRow>& rows, bool of_peak = true) {
  return absl::StrCat(R"({"schema":"memledger.report/2","of_peak":)", of_peak ? "true" : "false",
                      R"(,"complete":true,"devices":[{"device":")", device,
                      R"(","allocator_bytes":)", total, R"(,"used_bytes":null,"items":[],"rows":[)",
                      rows_text(rows), "]}]}");
}

struct MadeRun {
  int64_t peak = 0;
  std::vector<MadeRow> rows;
  int64_t unused_graph = 0;
  int rank = 0;
  int steps = 3;
  std::string gpu = "h100";
};

// The report of a run on one GPU; nothing is alive at its end.
inline std::string run_report(const MadeRun& run) {
  return absl::StrCat(
      R"({"schema":"memledger.run_report/1","rank":)", run.rank,
      R"(,"ended":{"how":"exit","status":0,"signal":null},"steps":{"count":)", run.steps,
      R"(},"out_of_memory":"","real_libraries":null,"devices":[{"device":"cuda:0","gpu":")",
      run.gpu, R"(","requested_peak":)", run.peak, R"(,"allocated_peak":)", run.peak + 512,
      R"(,"reserved_peak":null,"capacity_bytes":null,"unused_graph_bytes":)", run.unused_graph,
      R"(,"peak_step":2,"peak_parts":[{"part":"activations","bytes":)", run.peak,
      R"(}]}],"last_step":null,"peaks":)", report("cuda:0", run.peak, run.rows), R"(,"end":)",
      report("cuda:0", 0, {}, false), "}");
}

}  // namespace memledger::compare
