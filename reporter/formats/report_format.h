#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <optional>
#include <string>

#include "reporter/report.h"
#include "text/bytes.h"  // sizes as reports show them
#include "text/dtype.h"

namespace memledger {

// Returns a shape as the Python tool prints it: (1024, 1024), (1024,), but (1,) for a scalar; (?)
// where it is unknown.
std::string table_shape(const std::optional<c10::DimVector>& shape);

// offset 4096, extent 1024: where a tensor lies in its storage, in bytes.
std::string range_text(int64_t offset_bytes, int64_t extent_bytes);

// stream 0x7f12…, private pool (0, 1): where it is not the default stream's, and where it lies in
// such a pool.
std::string place_text(const ReportRow& row);

// Whether more than one thread of the program's made what is alive. Backward's does not count: on
// CUDA it is autograd's, in every training.
bool has_several_threads(const DeviceReport& device);

// Returns who made it: aten::mul [encoder.layer3, forward], or "before tracking" for an adopted
// storage. A row adds the module whose output it is, and the program's line: aten::conv2d [output
// of conv1, forward] at train.cc:42 main.
std::string producer(const Birthplace& birthplace);
std::string producer(const ReportRow& row);

}  // namespace memledger
