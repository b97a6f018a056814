// SavedTensors as comma-separated values.

#include <cstdint>
#include <optional>
#include <string>

#include "graph/saved_tensors.h"
#include "graph/saved_tensors_data.h"
#include "text/csv.h"
#include "text/dtype.h"
#include "text/shape.h"

namespace memledger {
namespace {

std::optional<uint64_t> unless_zero(uint64_t value) {
  return value == 0 ? std::nullopt : std::optional<uint64_t>(value);
}

std::string csv_line(const SavedTensorRow& row) {
  return CsvLine()
      .text(row.node)
      .number(row.sequence_number)
      .number(row.forward_thread)
      .text(row.slot)
      .text(known_shape(row.shape))
      .text(known_dtype(row.dtype))
      .text(row.device.has_value() ? row.device->str() : "")
      .number(unless_zero(row.storage_address))
      .number(unless_zero(row.storage_id))
      .number(row.storage_bytes)
      .number(row.extent_bytes)
      .number(row.storage_offset_bytes)
      .flag(row.view)
      .flag(row.lent)
      .flag(row.counted)
      .number(row.shares_with)
      .flag(row.in_place_modified)
      .flag(row.inferred)
      .text(to_string(row.role))
      .end();
}

}  // namespace

std::string SavedTensors::to_csv() const {
  std::string text =
      "node,sequence_number,forward_thread,slot,shape,dtype,device,storage_address,storage_id,"
      "storage_bytes,extent_bytes,offset_bytes,view,lent,counted,shares_with,in_place_modified,"
      "inferred,role\n";
  for (size_t i = 0; i < data_->rows.size(); ++i) text += csv_line(data_->row(i));
  return text;
}

}  // namespace memledger
