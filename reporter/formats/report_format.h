#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "reporter/report.h"
#include "text/bytes.h"  // sizes as reports show them
#include "text/dtype.h"

namespace memledger {

// Returns bytes as reports print them: 10.02M; ? where they are unknown.
std::string size_or_unknown(const std::optional<int64_t>& bytes);

// Returns a shape as the printed report shows it: (1024, 1024), (1024,), but (1,) for a scalar, as
// the Python tool does; (?) where it is unknown.
std::string table_shape(const std::optional<c10::DimVector>& shape);

// Returns where a tensor lies in its storage, in bytes: offset 4096, extent 1024.
std::string range_text(const std::optional<int64_t>& offset_bytes,
                       const std::optional<int64_t>& extent_bytes);

// Returns the stream, unless it is the default one, and the private pool, if it lies in one: stream
// 0x7f12…, private pool (0, 1).
std::string place_text(const ReportRow& row);

// Returns whether more than one thread of the program made what is alive. Backward's thread does
// not count: on CUDA it is autograd's own in every training.
bool has_several_threads(const DeviceReport& device);

// Returns what made a storage: aten::mul [encoder.layer3, forward]; before tracking, if it was
// adopted. A row adds the module whose output it is, and the program's line: aten::conv2d [output
// of conv1, forward] at train.cc:42 main.
std::string producer(const Birthplace& birthplace);
std::string producer(const ReportRow& row);

// Returns the program's line, and, after a library's, the user's own: `utils.py:36 forward, from
// train.py:88 main`.
std::string line_text(const ReportRow& row);
// The same as a line of the screen has room for it, printable: files without their folders,
// functions without what templates add.
std::string short_line_text(const ReportRow& row);

// Returns `graph 0/0` for what torch.compile's code made, nothing for other rows.
std::string compiled_graph(const ReportRow& row);

// Returns what JSON and CSV say of a row, or nothing where it is unknown: its storage's id unless
// the registry lacks it, and the phase that it was born in, if the birth was seen.
std::optional<uint64_t> known_storage_id(const ReportRow& row);
std::optional<std::string_view> known_phase(const ReportRow& row);

// Returns whose memory it is, as JSON and CSV spell it: mapped_file, shared_memory.
std::string_view machine_name(ExternalMemory external);

}  // namespace memledger
