#include <fmt/format.h>

#include <string>
#include <string_view>

#include "reporter/report.h"
#include "reporter/report_format.h"

namespace memledger {
namespace {

constexpr std::string_view kHeader =
    "schema_version,device,storage_id,name,owner,role,bytes,external_bytes,shape,dtype,op,autograd_node,label,phase,adopted\n";
constexpr int kSchemaVersion = 1;

std::string quoted(std::string_view text) {
  if (text.find_first_of(",\"\r\n") == std::string_view::npos) return std::string(text);
  std::string result = "\"";
  for (const char c : text) result += c == '"' ? std::string("\"\"") : std::string(1, c);
  return result + "\"";
}

}  // namespace

std::string Report::to_csv() const {
  std::string csv(kHeader);
  for (const DeviceReport& device : devices) {
    for (const ReportRow& row : device.rows) {
      csv += fmt::format("{},{},{},{},{},{},{},{},{},{},{},{},{},{},{}\n", kSchemaVersion, device.device.str(), row.storage_id,
                         quoted(row.name), quoted(row.owner), to_string(row.role), row.nbytes ? std::to_string(*row.nbytes) : "?",
                         row.external_bytes, quoted(shape_text(row.shape)), dtype_text(row.dtype), quoted(row.op),
                         quoted(row.autograd_node), quoted(row.label), to_string(row.phase), row.adopted ? 1 : 0);
    }
  }
  return csv;
}

}  // namespace memledger
