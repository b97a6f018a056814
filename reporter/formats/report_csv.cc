#include <fmt/format.h>

#include <iterator>
#include <string>
#include <string_view>

#include "reporter/formats/report_format.h"
#include "reporter/report.h"
#include "text/csv.h"
#include "text/names.h"

namespace memledger {
namespace {

constexpr std::string_view kHeader =
    "schema_version,device,kind,storage_id,name,owner,role,bytes,external_bytes,shape,dtype,offset_"
    "bytes,extent_bytes,"
    "more_references,module,is_output,op,autograd_node,forward_op,label,phase,adopted,"
    "thread,stream,pool\n";
constexpr int kSchemaVersion = 2;

std::string number(const std::optional<int64_t>& value) {
  return value.has_value() ? std::to_string(*value) : "?";
}

// thread,stream,pool
std::string where_made(const ReportRow& row) {
  const std::string thread = row.thread == 0 ? "?" : std::to_string(row.thread);
  if (!row.stream.has_value()) return thread + ",?,?";
  return fmt::format("{},{},{}:{}", thread, *row.stream, row.pool.first, row.pool.second);
}

}  // namespace

std::string Report::to_csv() const {
  std::string csv(kHeader);
  for (const DeviceReport& device : devices) {
    const std::string device_name = device.device.str();
    for (const ReportRow& row : device.rows) {
      fmt::format_to(std::back_inserter(csv),
                     "{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{}\n",
                     kSchemaVersion, device_name, to_string(row.kind), row.storage_id,
                     csv_field(row.name), csv_field(row.owner), to_string(row.role),
                     number(row.nbytes), row.external_bytes, csv_field(table_shape(row.shape)),
                     dtype_text(row.dtype), row.storage_offset_bytes, row.extent_bytes,
                     number(row.more_references), csv_field(row.module), row.is_output ? 1 : 0,
                     csv_field(row.op), csv_field(row.autograd_node), csv_field(row.forward_op),
                     csv_field(row.label), to_string(row.phase), row.adopted ? 1 : 0,
                     where_made(row));
    }
  }
  return csv;
}

}  // namespace memledger
