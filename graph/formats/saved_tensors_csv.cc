// SavedTensors as comma-separated values.

#include <string>
#include <string_view>

#include "graph/saved_tensors.h"
#include "graph/saved_tensors_data.h"
#include "text/csv.h"
#include "text/dtype.h"
#include "text/names.h"

namespace memledger {
namespace {

std::string shape_of(const SavedTensorRow& row) {
  std::string out;
  if (!row.shape) return out;
  for (const int64_t size : *row.shape) {
    if (!out.empty()) out += 'x';
    out += size < 0 ? "?" : std::to_string(size);
  }
  return out.empty() ? "scalar" : out;
}

template <typename Number>
std::string or_empty(const std::optional<Number>& number) {
  return number ? std::to_string(*number) : "";
}

}  // namespace

std::string SavedTensors::to_csv() const {
  std::string out =
      "node,sequence_number,forward_thread,slot,shape,dtype,device,storage_address,storage_id,"
      "storage_bytes,extent_bytes,view,"
      "counted,shares_with,in_place_modified,inferred,role\n";
  for (size_t i = 0; i < data_->rows.size(); ++i) {
    const SavedTensorRow row = data_->row(i);
    out += csv_field(row.node) + ',' + std::to_string(row.sequence_number) + ',' +
           std::to_string(row.forward_thread) + ',' + csv_field(row.slot) + ',' + shape_of(row) +
           ',' + dtype_name(row.dtype) + ',' + row.device.str() + ',' +
           std::to_string(row.storage_address) + ',' + std::to_string(row.storage_id) + ',' +
           or_empty(row.storage_bytes) + ',' + or_empty(row.extent_bytes) + ',' +
           (row.view ? "1," : "0,") + (row.counted ? "1," : "0,") + or_empty(row.shares_with) +
           ',' + (row.in_place_modified ? "1," : "0,") + (row.inferred ? "1," : "0,") +
           to_string(row.role) + '\n';
  }
  return out;
}

}  // namespace memledger
