#include <fmt/format.h>

#include <iterator>
#include <string>
#include <string_view>

#include "reporter/report.h"
#include "reporter/report_format.h"

namespace memledger {
namespace {

constexpr std::string_view kHeader =
    "schema_version,device,kind,storage_id,name,owner,role,bytes,external_bytes,shape,dtype,offset_bytes,extent_bytes,"
    "more_references,module,is_output,op,autograd_node,forward_op,label,phase,adopted\n";
constexpr int kSchemaVersion = 2;

std::string quoted(std::string_view text) {
  if (text.find_first_of(",\"\r\n") == std::string_view::npos) return std::string(text);
  std::string result = "\"";
  for (const char c : text) result += c == '"' ? std::string("\"\"") : std::string(1, c);
  return result + "\"";
}

std::string number(const std::optional<int64_t>& value) { return value.has_value() ? std::to_string(*value) : "?"; }

}  // namespace

std::string Report::to_csv() const {
  std::string csv(kHeader);
  for (const DeviceReport& device : devices) {
    const std::string device_name = device.device.str();
    for (const ReportRow& row : device.rows) {
      fmt::format_to(std::back_inserter(csv), "{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{}\n",
                     kSchemaVersion, device_name, to_string(row.kind), row.storage_id, quoted(row.name), quoted(row.owner),
                     to_string(row.role), number(row.nbytes), row.external_bytes, quoted(shape_text(row.shape)),
                     dtype_text(row.dtype), row.storage_offset_bytes, row.extent_bytes, number(row.more_references),
                     quoted(row.module), row.is_output ? 1 : 0, quoted(row.op), quoted(row.autograd_node), quoted(row.forward_op),
                     quoted(row.label), to_string(row.phase), row.adopted ? 1 : 0);
    }
  }
  return csv;
}

}  // namespace memledger
