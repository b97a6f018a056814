// Any bytes as the names in a report: every format stays what it is, and no name makes a line, a
// field or a tag.

#include <algorithm>
#include <deque>
#include <sstream>

#include "reporter/report.h"
#include "tests/fuzz/fuzz.h"

namespace memledger::fuzz {

const std::vector<std::string_view> kTokens = {"\n",
                                               "\r\n",
                                               "\x1b]0;x\x07",
                                               "\x1b[2J",
                                               "\xc2\x9b",
                                               "\xe2\x80\xa8",
                                               "\xe2\x80\xae",
                                               "\xff",
                                               "\xed\xa0\x80",
                                               "=1+1",
                                               "@SUM(A1)",
                                               "-2",
                                               "+",
                                               "\"",
                                               "\",\"",
                                               ",",
                                               ";",
                                               "</script>",
                                               "</ScRiPt",
                                               "<!--",
                                               "-->",
                                               "<script",
                                               "<b a=\"",
                                               "&lt;",
                                               "']]>",
                                               "\\u0000",
                                               "\\",
                                               "'",
                                               "`",
                                               "${x}",
                                               std::string_view("\0", 1),
                                               "{{",
                                               "%s%n",
                                               "\t",
                                               "\xef\xbb\xbf",
                                               "\xef\xbf\xbf"};

namespace {

constexpr size_t kMostRows = 8;

// Each name ends in its number, so that no two rows are alike, and none is empty.
std::string numbered(std::string_view name, size_t number) {
  return std::string(name) + "#" + std::to_string(number);
}

class Names {
 public:
  Names(std::string_view text, bool harmless) : text_(text), harmless_(harmless) {}

  bool more() const { return at_ <= text_.size(); }
  // Up to the next byte 1.
  const std::string& next() {
    const size_t end = std::min(text_.find('\1', std::min(at_, text_.size())), text_.size());
    const std::string_view part = at_ <= text_.size() ? text_.substr(at_, end - at_) : "";
    at_ = end + 1;
    return kept_.emplace_back(numbered(harmless_ ? "n" : part, kept_.size()));
  }

 private:
  const std::string_view text_;
  const bool harmless_;
  size_t at_ = 0;
  std::deque<std::string> kept_;  // rows hold views of them
};

Report report_with(Names& names) {
  Report report;
  report.options.verbose = true;
  report.options.group = GroupBy::kNothing;
  report.options.colour = Colour::kNever;
  report.modelled_workspaces.push_back({names.next(), 1, 1});
  DeviceReport device;
  device.followed = true;
  device.bytes_by_role.resize(static_cast<size_t>(Role::kTensor) + 1);
  device.items.push_back({ReportItemKind::kLibraryWorkspace, names.next(), 512, 1});
  while (names.more() && device.rows.size() < kMostRows) {
    ReportRow row;
    const size_t number = device.rows.size();
    row.kind = number % 4 == 3 ? RowKind::kExternal : RowKind::kStorage;
    row.storage_id = number + 1;
    row.nbytes = static_cast<int64_t>(1024 * (number + 1));
    row.extent_bytes = *row.nbytes;
    row.shape.emplace(1, *row.nbytes / 4);
    row.dtype = c10::ScalarType::Float;
    row.anonymous = number % 2 == 1;
    row.name = names.next();
    row.owner = names.next();
    row.module = names.next();
    row.mapped_from = names.next();
    row.where = names.next();
    row.op = names.next();
    row.label = names.next();
    row.autograd_node = names.next();
    device.total_bytes += *row.nbytes;
    device.rows.push_back(std::move(row));
  }
  device.allocator_bytes = device.total_bytes;
  device.unexplained_bytes = 0;
  report.devices.push_back(std::move(device));
  return report;
}

std::string text_of(const Report& report) {
  std::ostringstream out;
  out << report;
  return out.str();
}

void check(std::string_view text) {
  Names names(text, false), harmless_names(text, true);
  const Report report = report_with(names), harmless = report_with(harmless_names);

  std::string table = text_of(report);
  const std::string other_table = text_of(harmless);
  for (const char own : {'\n', '\t'}) {
    FUZZ_CHECK(std::count(table.begin(), table.end(), own) ==
                   std::count(other_table.begin(), other_table.end(), own),
               table + "\nhas other lines than\n" + other_table);
  }
  std::replace(table.begin(), table.end(), '\t', ' ');
  FUZZ_CHECK(is_plain_text(table), table);

  const std::string csv = report.to_csv();
  FUZZ_CHECK(is_plain_text(csv), csv);
  const auto records = csv_records(csv);
  FUZZ_CHECK(records.size() == 1 + report.devices[0].rows.size(), csv);
  for (const std::vector<std::string>& fields : records) {
    FUZZ_CHECK(fields.size() == records[0].size(), csv);
    for (size_t i = 0; i < fields.size(); ++i) {
      if (fields[i].empty() ||
          std::string_view("=+-@").find(fields[i][0]) == std::string_view::npos)
        continue;
      FUZZ_CHECK(
          fields[i] == "-" || fields[i].find_first_not_of("-0123456789") == std::string::npos,
          fields[i]);
    }
  }

  FUZZ_CHECK(is_json(report.to_json()), report.to_json());

  const std::string page = report.to_html();
  FUZZ_CHECK(html_tags(page) == html_tags(harmless.to_html()), page);
  for (const char c : page)
    FUZZ_CHECK(static_cast<unsigned char>(c) >= 0x20 || c == '\n' || c == '\t', page);
}

}  // namespace
}  // namespace memledger::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  memledger::fuzz::check(std::string_view(reinterpret_cast<const char*>(data), size));
  return 0;
}
