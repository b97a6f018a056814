#include <string>
#include <string_view>

#include "reporter/formats/report_format.h"
#include "reporter/report.h"
#include "text/csv.h"
#include "text/dtype.h"
#include "text/shape.h"

namespace memledger {
namespace {

constexpr std::string_view kHeader =
    "schema_version,device,kind,storage_id,name,owner,role,bytes,external_bytes,shape,dtype,"
    "offset_bytes,extent_bytes,more_references,module,is_output,op,autograd_node,forward_op,label,"
    "phase,adopted,thread,stream,pool,storage_kind,where,claimed_bytes,visible_bytes,external,"
    "mapped_from,used_as_parameter,anonymous,forward_label,phase_inferred\n";
constexpr int kSchemaVersion = 2;

std::optional<std::string> pool_text(const ReportRow& row) {
  if (!row.stream.has_value()) return std::nullopt;
  return std::to_string(row.pool.first) + ':' + std::to_string(row.pool.second);
}

std::string line_of(const std::string& device, const ReportRow& row) {
  CsvLine line;
  line.number(kSchemaVersion)
      .text(device)
      .text(to_string(row.kind))
      .number(known_storage_id(row))
      .text(row.name)
      .text(row.owner)
      .text(machine_name(row.role))
      .number(row.nbytes)
      .number(row.external_bytes)
      .text(known_shape(row.shape))
      .text(known_dtype(row.dtype))
      .number(row.storage_offset_bytes)
      .number(row.extent_bytes)
      .number(row.more_references)
      .text(row.module)
      .flag(row.is_output)
      .text(row.op)
      .text(row.autograd_node)
      .text(row.forward_op)
      .text(row.label)
      .text(known_phase(row).value_or(""))
      .flag(row.adopted)
      .number(row.thread == 0 ? std::nullopt : std::optional<uint32_t>(row.thread))
      .number(row.stream)
      .text(pool_text(row))
      .text(machine_name(row.storage_kind))
      .text(row.where)
      .number(row.claimed_bytes)
      .number(row.visible_bytes)
      .text(row.kind == RowKind::kExternal ? machine_name(row.external) : "")
      .text(row.mapped_from)
      .flag(row.used_as_parameter)
      .flag(row.anonymous)
      .text(row.forward_label)
      .flag(row.phase_inferred);
  return line.end();
}

}  // namespace

std::string Report::to_csv() const {
  std::string csv(kHeader);
  for (const DeviceReport& device : devices) {
    const std::string device_name = device.device.str();
    for (const ReportRow& row : device.rows) csv += line_of(device_name, row);
  }
  return csv;
}

}  // namespace memledger
