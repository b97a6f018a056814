// The formats of a report, from values made by hand: no LibTorch runs here.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "tests/support/doctest_beside_torch.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <sstream>
#include <string>

#include "memledger_fmt.h"
#include "reporter/report.h"
#include "reporter/why_alive.h"
#include "tests/support/text_matchers.h"

namespace memledger {
namespace {

using testing::contains;

constexpr int64_t kMiB = int64_t{1} << 20;

ReportRow row(std::string name, Role role, int64_t nbytes, uint64_t id) {
  ReportRow row;
  row.name = std::move(name);
  row.role = role;
  row.nbytes = nbytes;
  row.storage_id = id;
  row.storage_offset_bytes = 0;
  row.extent_bytes = nbytes;
  row.shape.emplace(1, nbytes / 4);
  row.dtype = c10::ScalarType::Float;
  return row;
}

ReportRow anonymous(uint64_t id, int64_t nbytes, std::string_view op) {
  ReportRow made = row("Tensor" + std::to_string(id), Role::kTensor, nbytes, id);
  made.anonymous = true;
  made.op = op;
  made.phase = Phase::kForward;
  return made;
}

// weight 4 MiB with a sharing row, three anonymous ones of 1 MiB (two alike), a gradient, something
// from elsewhere.
Report sample() {
  Report report;
  DeviceReport device;
  device.followed = true;
  device.bytes_by_role.resize(static_cast<size_t>(Role::kTensor) + 1);
  device.rows.push_back(row("encoder.weight", Role::kParameter, 4 * kMiB, 1));
  device.rows.back().module = "encoder";
  ReportRow shared = row("decoder.weight", Role::kParameter, 0, 1);
  shared.kind = RowKind::kShared;
  shared.owner = "encoder.weight";
  shared.storage_offset_bytes = 4096;
  shared.extent_bytes = 1024;
  device.rows.push_back(shared);
  device.rows.push_back(row("encoder.weight.grad", Role::kGradient, 4 * kMiB, 2));
  device.rows.back().module = "encoder";
  for (const uint64_t id : {3, 4}) device.rows.push_back(anonymous(id, kMiB, "aten::mul"));
  device.rows.push_back(anonymous(5, kMiB, "aten::conv2d"));
  device.rows.back().module = "conv1";
  device.rows.back().is_output = true;
  ReportRow elsewhere = row("blob", Role::kTensor, 0, 0);
  elsewhere.kind = RowKind::kExternal;
  elsewhere.external_bytes = 400;
  device.rows.push_back(elsewhere);
  device.total_bytes = device.named_bytes = 8 * kMiB;
  device.anonymous_bytes = 3 * kMiB;
  device.total_bytes += device.anonymous_bytes;
  device.bytes_by_role[static_cast<size_t>(Role::kParameter)] = 4 * kMiB;
  device.bytes_by_role[static_cast<size_t>(Role::kGradient)] = 4 * kMiB;
  device.bytes_by_role[static_cast<size_t>(Role::kTensor)] = 3 * kMiB;
  device.allocator_bytes = device.total_bytes;
  device.unexplained_bytes = 0;
  device.external_bytes = 400;
  report.devices.push_back(device);
  return report;
}

std::string text(const Report& report) {
  std::ostringstream out;
  out << report;
  return out.str();
}

std::string line(const std::string& name, const std::string& size, const std::string& used,
                 const std::string& note = "") {
  return "\n" + name + std::string(40 - name.size(), ' ') + std::string(20 - size.size(), ' ') +
         size + std::string(10 - used.size(), ' ') + used + note + "\n";
}

// Runs python3 with `program` and `input` on its standard input.
int python(const std::string& program, const std::string& input) {
  const char* const folder = std::getenv("TEST_TMPDIR");
  const std::string path = std::string(folder == nullptr ? "/tmp" : folder) + "/check.py";
  std::ofstream(path) << program;
  FILE* const pipe = popen(("python3 " + path).c_str(), "w");
  if (pipe == nullptr) return -1;
  fwrite(input.data(), 1, input.size(), pipe);
  return pclose(pipe);
}

TEST_SUITE("the table") {
  TEST_CASE("rows alike are one line, sharing rows say where they lie, outputs say of what") {
    Report report = sample();
    std::string shown = text(report);
    CAPTURE(shown);
    CHECK(contains(shown, line("encoder.weight", "(1048576,)", "4.00M")));
    CHECK_FALSE(contains(shown, "decoder.weight"));
    CHECK(contains(shown, "\n2 x Tensor3 …" + std::string(40 - 13, ' ') +
                              "           (262144,)     2.00M  aten::mul [forward]\n"));
    CHECK(contains(
        shown, line("Tensor5", "(262144,)", "1.00M", "  aten::conv2d [output of conv1, forward]")));
    CHECK(contains(shown,
                   "  named: 8.00M; anonymous: 3.00M\n  by role: Parameter 4.00M, Gradient 4.00M, "
                   "Tensor 3.00M\n"));
    report.options.verbose = true;
    shown = text(report);
    CHECK(contains(shown, line("decoder.weight(->encoder.weight)", "(0,)", "0.00B",
                               "  offset 4096, extent 1024")));
  }

  TEST_CASE("ungrouped, and grouped by role, module and operator") {
    Report report = sample();
    report.options.group = GroupBy::kNothing;
    CHECK(contains(text(report), line("Tensor4", "(262144,)", "1.00M", "  aten::mul [forward]")));

    report.options.group = GroupBy::kRole;
    std::string shown = text(report);
    CAPTURE(shown);
    CHECK(contains(shown, line("Parameter", "1 storage", "4.00M").substr(1)));
    CHECK(contains(shown, line("Tensor", "4 storages", "3.00M")));
    CHECK_FALSE(contains(shown, "encoder.weight"));

    report.options.group = GroupBy::kModule;
    shown = text(report);
    CHECK(contains(shown, line("encoder", "2 storages", "8.00M")));
    CHECK(contains(shown, line("conv1", "1 storage", "1.00M")));
    CHECK(contains(shown, line("(of no module)", "3 storages", "2.00M")));

    report.options.group = GroupBy::kOperator;
    report.options.max_rows = 2;
    shown = text(report);
    CHECK(contains(shown, line("aten::mul", "2 storages", "2.00M")));
    CHECK(contains(shown, "\n… and 1 more, 1.00M\n"));
  }

  TEST_CASE("streams, private pools and threads are shown where they are not the only ones") {
    Report report = sample();
    DeviceReport& device = report.devices[0];
    const std::string before = text(report);
    CHECK_FALSE(contains(before, "thread"));
    for (ReportRow& row : device.rows) {
      if (row.kind != RowKind::kStorage) continue;
      row.thread = 1;
      row.stream = 0;
    }
    CHECK(text(report) == before);
    CHECK(contains(report.to_json(), "\"thread\":1,\"stream\":0,\"pool\":[0,0]}"));

    // Rows alike on two streams are two lines.
    device.rows[4].stream = 0x5f0;
    device.rows[5].stream = 0x5f0;
    device.rows[5].pool = {0, 3};
    device.rows[5].thread = 7;
    device.rows[2].pool = {2, 1};
    std::string shown = text(report);
    CAPTURE(shown);
    CHECK(contains(shown, line("Tensor3", "(262144,)", "1.00M", "  aten::mul [forward]")));
    CHECK(contains(shown,
                   line("Tensor4", "(262144,)", "1.00M", "  aten::mul [forward]  stream 0x5f0")));
    CHECK(contains(
        shown,
        line("Tensor5", "(262144,)", "1.00M",
             "  aten::conv2d [output of conv1, forward]  stream 0x5f0, private pool (0, 3)")));
    CHECK(contains(shown,
                   line("encoder.weight.grad", "(1048576,)", "4.00M", "  private pool (2, 1)")));
    CHECK(contains(shown, "Tensor 3.00M\n  by thread: 1: 10.00M, 7: 1.00M\n"));
    report.options.verbose = true;
    shown = text(report);
    CHECK(
        contains(shown, line("Tensor3", "(262144,)", "1.00M", "  aten::mul [forward]  thread 1")));
    CHECK(contains(shown, "  stream 0x5f0, private pool (0, 3)  thread 7\n"));
    CHECK(contains(report.to_json(), "\"thread\":7,\"stream\":1520,\"pool\":[0,3]}"));
    CHECK(contains(report.to_json(), "\"thread\":null,\"stream\":null,\"pool\":null}"));
    CHECK(contains(report.to_csv(), ",forward,0,7,1520,0:3,tensor,"));
    CHECK(contains(report.to_csv(), ",0,,,,tensor,"));
    CHECK(contains(report.to_html(), "\"stream 0x5f0, private pool (0, 3), thread 7;\""));
    // On CUDA backward runs on a thread of autograd's, in every training.
    device.rows[5].phase = Phase::kBackward;
    CHECK_FALSE(contains(text(report), "thread"));
  }

  TEST_CASE(
      "a view that pins what it does not show is flagged: always if most of it, any part when "
      "verbose") {
    Report report = sample();
    report.devices[0].rows[0].visible_bytes = 3 * kMiB;
    CHECK_FALSE(contains(text(report), "keeps"));
    report.options.verbose = true;
    CHECK(contains(text(report), "  a view of 3.00M keeps 4.00M alive\n"));
    report.options.verbose = false;
    report.devices[0].rows[0].visible_bytes = 40;
    CHECK(contains(text(report), "  a view of 40.00B keeps 4.00M alive\n"));
  }

  TEST_CASE("the chain of a CUDA device: every step, and ? for what nobody knows") {
    Report report = sample();
    DeviceReport& device = report.devices[0];
    device.device = c10::Device(c10::kCUDA, 0);
    device.items.push_back(
        {ReportItemKind::kLibraryWorkspace, "cuBLAS workspace (stream 0)", 32 * kMiB, 1});
    device.items.push_back({ReportItemKind::kRounding, "", 508, 1});
    device.items.push_back({ReportItemKind::kUnsplitRemainder, "", 1024, 1});
    device.requested_bytes = 43 * kMiB;
    device.unexplained_requested_bytes = 0;
    device.reserved_bytes = 60 * kMiB;
    device.cached_free_bytes = 17 * kMiB;
    device.largest_free_block = 9 * kMiB;
    device.fragmented_bytes = 8 * kMiB;
    std::string shown = text(report);
    CAPTURE(shown);
    CHECK(contains(shown,
                   "  tensors, as requested: 11.00M\n"
                   "  library workspaces: 32.00M (cuBLAS workspace (stream 0) 32.00M)\n"
                   "  rounding: 508.00B\n"
                   "  unsplit remainder of blocks: 1.00K\n"
                   "Requested: 43.00M (0.00B unexplained)\n"
                   "cached, free: 17.00M (largest block 9.00M, fragments of segments in use "
                   "8.00M); reserved: 60.00M\n"
                   "context, libraries, other processes: ?; used on the device: ? of ?\n"));
    device.device_total_bytes = 1024 * kMiB;
    device.device_used_bytes = 100 * kMiB;
    device.outside_allocator_bytes = 40 * kMiB;
    shown = text(report);
    CHECK(contains(
        shown,
        "context, libraries, other processes: 40.00M; used on the device: 100.00M of 1.00G\n"));
  }

  TEST_CASE("a peak tells each reason for which rows are missing") {
    const std::string freed = "freed while peaks were not kept: ?\n";
    const std::string made = "made under paths of labels for which there was no room: ?\n";
    for (const auto& [deaths_known, labels_known] :
         {std::pair(false, false), std::pair(false, true), std::pair(true, false),
          std::pair(true, true)}) {
      Report report = sample();
      report.of_peak = true;
      report.deaths_known = deaths_known;
      report.labels_known = labels_known;
      report.complete = deaths_known && labels_known;
      CHECK(contains(text(report), freed) == !deaths_known);
      CHECK(contains(text(report), made) == !labels_known);
    }
  }

  TEST_CASE("the process's own memory, where it is asked for") {
    Report report = sample();
    report.process = ProcessMemory{300 * kMiB, 200 * kMiB, 90 * kMiB, 10 * kMiB};
    CHECK_FALSE(contains(text(report), "resident"));
    report.options.process_memory = true;
    CHECK(contains(text(report),
                   "resident memory of the process: 300.00M (heap, stacks and tensors 200.00M, "
                   "files 90.00M, shared 10.00M); "
                   "tensors: 11.00M\n"));
  }
}

// What a program that writes to std::cout shows on a terminal, or in a pipe where there is none.
std::string on_terminal(const Report& report) {
  const int terminal = posix_openpt(O_RDWR | O_NOCTTY);
  REQUIRE(terminal >= 0);
  REQUIRE(grantpt(terminal) == 0);
  REQUIRE(unlockpt(terminal) == 0);
  const int inside = open(ptsname(terminal), O_RDWR | O_NOCTTY);
  REQUIRE(inside >= 0);
  std::cout.flush();
  const int before = dup(STDOUT_FILENO);
  dup2(inside, STDOUT_FILENO);
  std::cout << report << std::flush;
  dup2(before, STDOUT_FILENO);
  close(before);
  std::string shown(65536, '\0');
  const ssize_t length = read(terminal, shown.data(), shown.size());
  shown.resize(length > 0 ? static_cast<size_t>(length) : 0);
  close(inside);
  close(terminal);
  return shown;
}

TEST_SUITE("colour") {
  TEST_CASE("on a terminal, unless NO_COLOR or a dumb one forbids it; never in files") {
    const Report report = sample();
    setenv("TERM", "xterm", 1);
    unsetenv("NO_COLOR");
    const std::string coloured = on_terminal(report);
    CHECK(contains(coloured, "\x1b[34mencoder.weight "));
    CHECK(contains(coloured, "\x1b[33m2 x Tensor3 …"));
    CHECK_FALSE(contains(text(report), "\x1b"));
    setenv("NO_COLOR", "", 1);
    CHECK(contains(on_terminal(report), "\x1b"));
    setenv("NO_COLOR", "1", 1);
    CHECK_FALSE(contains(on_terminal(report), "\x1b"));
    CHECK(contains(on_terminal(report), "encoder.weight"));
    unsetenv("NO_COLOR");
    setenv("TERM", "dumb", 1);
    CHECK_FALSE(contains(on_terminal(report), "\x1b"));
  }

  TEST_CASE("as the options say; without the sequences the text is the same") {
    Report report = sample();
    const std::string plain = text(report);
    report.options.colour = Colour::kAlways;
    std::string shown = text(report);
    CHECK(shown != plain);
    for (size_t at; (at = shown.find('\x1b')) != std::string::npos;)
      shown.erase(at, shown.find('m', at) - at + 1);
    CHECK(shown == plain);
  }

  TEST_CASE("a buffer that the program put behind std::cout is no terminal") {
    std::ostringstream kept;
    std::streambuf* const before = std::cout.rdbuf(kept.rdbuf());
    std::cout << sample();
    std::cout.rdbuf(before);
    CHECK(contains(kept.str(), "encoder.weight"));
    CHECK_FALSE(contains(kept.str(), "\x1b"));
  }
}

TEST_SUITE("machine formats") {
  TEST_CASE("CSV: fixed columns, schema version, quoting; Python's reader adds the bytes up") {
    Report report = sample();
    report.devices[0].rows[0].name = "a,\"b\"\nc";
    const std::string program = R"py(
import csv, sys
rows = list(csv.DictReader(sys.stdin, strict=True))
assert list(rows[0]) == ('schema_version device kind storage_id name owner role bytes external_bytes shape dtype offset_bytes '
                         'extent_bytes more_references module is_output op autograd_node forward_op label phase adopted thread stream pool '
                         'storage_kind where claimed_bytes visible_bytes external mapped_from used_as_parameter anonymous forward_label '
                         'phase_inferred').split()
assert {row['schema_version'] for row in rows} == {'2'}
assert rows[0]['name'] == 'a,"b"\\nc', rows[0]
assert sum(int(row['bytes']) for row in rows) == 11 << 20
assert [row['kind'] for row in rows] == ['storage', 'shared', 'storage', 'storage', 'storage', 'storage', 'external']
assert rows[1]['offset_bytes'] == '4096' and rows[1]['extent_bytes'] == '1024' and rows[1]['more_references'] == ''
assert rows[5]['module'] == 'conv1' and rows[5]['is_output'] == '1'
assert [row['role'] for row in rows] == ['parameter', 'parameter', 'gradient', 'tensor', 'tensor', 'tensor', 'tensor']
assert rows[6]['storage_id'] == rows[6]['phase'] == '' and rows[6]['external'] == 'program'
assert all(None not in row and None not in row.values() for row in rows)
)py";
    CHECK(python(program, report.to_csv()) == 0);
  }

  TEST_CASE("JSON: read back, sums and unknowns") {
    Report report = sample();
    report.devices[0].rows.push_back(row("opaque", Role::kTensor, 0, 0));
    report.devices[0].rows.back().nbytes = std::nullopt;
    report.process = ProcessMemory{3, 1, 1, 1};
    const std::string program = R"py(
import json, sys
report = json.load(sys.stdin)
assert next(iter(report.items())) == ('schema', 'memledger.report/2') and 'version' not in report
device = report['devices'][0]
assert sum(row['bytes'] or 0 for row in device['rows']) == device['named_bytes'] + device['anonymous_bytes'] == 11 << 20
assert device['rows'][-1]['bytes'] is None and device['outside_allocator_bytes'] is None
assert device['total_bytes'] == device['used_bytes'] == 11 << 20
assert device['bytes_by_role']['parameter'] == 4 << 20 and len(device['bytes_by_role']) == 8
assert device['largest_free_block_bytes'] is device['awaited_bytes'] is None
assert device['rows'][5]['module'] == 'conv1' and device['rows'][5]['is_output']
assert report['process']['resident_bytes'] == 3
)py";
    CHECK(python(program, report.to_json()) == 0);
  }

  TEST_CASE("one spelling per fact: scalars, kinds, and what nobody knows") {
    Report report = sample();
    std::vector<ReportRow>& rows = report.devices[0].rows;
    rows.clear();
    ReportRow scalar = row("scalar", Role::kOptimizerState, 4, 7);
    scalar.shape.emplace();
    ReportRow unknown = row("?", Role::kTensor, 0, 8);
    unknown.shape = std::nullopt;
    unknown.dtype = c10::ScalarType::Undefined;
    unknown.storage_offset_bytes = unknown.extent_bytes = unknown.nbytes = std::nullopt;
    unknown.kind = RowKind::kNotFollowed;
    unknown.adopted = true;
    ReportRow workspace = anonymous(9, 512, "aten::mm");
    workspace.storage_kind = StorageKind::kLibraryWorkspace;
    workspace.where = "train.cc:42 main";
    rows = {scalar, unknown, workspace};
    const std::string json_program = R"py(
import json, sys
device = json.load(sys.stdin)['devices'][0]
scalar, unknown, workspace = device['rows']
assert device['total_bytes'] == 11 << 20 and device['used_bytes'] is None
assert scalar['shape'] == [] and scalar['dtype'] == 'torch.float32' and scalar['role'] == 'optimizer_state'
assert scalar['storage_kind'] == 'tensor' and scalar['where'] is None and scalar['phase'] == 'other'
for key in 'shape dtype offset_bytes extent_bytes bytes claimed_bytes phase thread stream pool'.split():
    assert unknown[key] is None, key
assert workspace['storage_kind'] == 'library_workspace' and workspace['where'] == 'train.cc:42 main'
)py";
    CHECK(python(json_program, report.to_json()) == 0);
    const std::string csv_program = R"py(
import csv, sys
scalar, unknown, workspace = csv.DictReader(sys.stdin, strict=True)
assert scalar['shape'] == '()' and scalar['dtype'] == 'torch.float32' and scalar['role'] == 'optimizer_state'
for key in 'shape dtype offset_bytes extent_bytes bytes claimed_bytes phase thread stream pool external'.split():
    assert unknown[key] == '', key
assert unknown['storage_id'] == '8' and unknown['adopted'] == '1'
assert workspace['storage_kind'] == 'library_workspace' and workspace['where'] == 'train.cc:42 main'
)py";
    CHECK(python(csv_program, report.to_csv()) == 0);
    CHECK(contains(text(report), line("scalar", "(1,)", "4.00B")));
  }

  TEST_CASE("HTML: one file without network, its data read back, no name can end the script") {
    Report report = sample();
    const std::string evil = "</script><img src=x onerror=alert(1)><!--\"'&\\";
    report.devices[0].rows[0].name = evil;
    report.devices[0].rows[0].module = evil;
    const std::string page = report.to_html();
    CHECK(page.rfind("<!DOCTYPE html>", 0) == 0);
    CHECK_FALSE(contains(page, "<img"));
    CHECK_FALSE(contains(page, "http:"));
    CHECK_FALSE(contains(page, "https:"));
    CHECK_FALSE(contains(page, "innerHTML"));
    // The browser's own parts, such as scroll bars, go with the theme.
    CHECK(contains(page, "color-scheme: light dark;"));
    // A cell of the map is a button, to the keyboard as well.
    CHECK(contains(page, "one.setAttribute('role', 'button');"));
    CHECK(contains(page, "event.key !== 'Enter' && event.key !== ' '"));
    // Sorting leaves the focus in its column.
    CHECK(contains(page, "children[focused].focus("));
    const std::string program = R"py(
import html.parser, json, sys
class Page(html.parser.HTMLParser):
    data, inside, scripts = '', False, 0
    def handle_starttag(self, tag, attributes):
        if tag == 'script':
            self.scripts += 1
            self.inside = ('id', 'data') in attributes
        assert tag not in ('img', 'link', 'iframe', 'object'), tag
        assert not {'src', 'href', 'onload', 'onerror'} & dict(attributes).keys(), attributes
    def handle_endtag(self, tag):
        if tag == 'script': self.inside = False
    def handle_data(self, text):
        if self.inside: self.data += text
page = Page()
page.feed(sys.stdin.read())
assert page.scripts == 2
data = json.loads(page.data)
device = data['devices'][0]
assert device['device'] == 'cpu' and len(device['rows']) == 7
assert sum(row[3] or 0 for row in device['rows']) == 11 << 20
evil = '</script><img src=x onerror=alert(1)><!--"\'&\\'
assert device['rows'][0][1] == evil and data['texts'][device['rows'][0][6]] == evil
assert data['roles'][device['rows'][0][2]] == 'Parameter'
)py";
    CHECK(python(program, page) == 0);
  }
}

TEST_SUITE("values in streams and fmt") {
  TEST_CASE("the same text both ways") {
    const Report report = sample();
    CHECK(fmt::format("{}", report) == text(report));
    CHECK(fmt::format("{}", report.devices[0].rows[1]).find("decoder.weight(->encoder.weight)") ==
          0);
    CHECK(fmt::format("{:>12}|{}", Role::kParameter, Phase::kBackward) == "   Parameter|backward");
    CHECK(fmt::format("{} {}", RowKind::kMeta, ReportItemKind::kRounding) == "meta rounding");
    CHECK(fmt::format("{}", ReportItem{ReportItemKind::kRounding, "", 508, 1}) ==
          "rounding 508.00B");
    Counters counters;
    counters.current_bytes = 12;
    CHECK(fmt::format("{}", counters) ==
          "current 12 bytes in 0, peak 0 bytes in 0, allocated 0 bytes in 0, freed 0 bytes in 0");
    CHECK(fmt::format("{}", HookHealth{1, 2, 3}) ==
          "1 unknown frees, 2 dropped records, 3 swallowed exceptions");
    DeviceReport device;
    device.followed = true;
    device.total_bytes = 1024;
    device.allocator_bytes = 2048;
    CHECK(fmt::format("{}", device) == "cpu: 0 rows, 1.00K; allocated 2.00K (? unexplained)");
    CHECK(fmt::format("{}", NamedReference{"part", Role::kTensor, false, 8, 16}) ==
          "part [Tensor], offset 8, extent 16");
    CHECK(fmt::format("{}", SavedReference{"A.self", "loss", {}}) == "A.self, from loss: ?");
    UnreadNode node;
    node.node = "MyFunction";
    node.reason = UnreadReason::kFailed;
    node.detail = "saved_data";
    CHECK(fmt::format("{}", node) == "MyFunction (failed: saved_data)");
    SavedTensorRow saved;
    saved.node = "MulBackward0";
    saved.slot = "self";
    saved.shape = c10::DimVector{3, 5};
    saved.dtype = at::kFloat;
    saved.device = at::kCPU;
    saved.storage_bytes = 60;
    CHECK(fmt::format("{}", saved).find("MulBackward0.self: (3, 5) torch.float32 on cpu, 60") == 0);
    CHECK(fmt::format("{}", SavedRole::kRoot) == "root");
    CHECK_FALSE(fmt::format("{}", DeviceStatistics()).empty());
  }

  TEST_CASE("why a storage is alive") {
    WhyAlive why;
    why.row = row("weight", Role::kParameter, 4 * kMiB, 1);
    why.row.op = "aten::empty";
    why.names.push_back({"weight", Role::kParameter, true, 0, 4 * kMiB});
    why.names.push_back({"part", Role::kTensor, false, 1024, 512});
    why.saved.push_back({"AddmmBackward0.mat1", "loss", {"SumBackward0", "AddmmBackward0"}});
    why.tensor_references = 3;
    why.storage_references = 4;
    why.known_tensors = 3;
    why.held_by_you = 1;
    std::ostringstream out;
    out << why;
    CHECK(out.str() ==
          "weight: (1048576,) torch.float32 on cpu, 4.00M, Parameter\n"
          "  made by: aten::empty\n"
          "  name: weight [Parameter]\n"
          "  also on its storage: part [Tensor], offset 1024, extent 512\n"
          "  saved for backward: AddmmBackward0.mat1, from loss: SumBackward0 > AddmmBackward0\n"
          "  references to the tensor: 3\n"
          "  tensors on the storage: 4, of which 3 known\n"
          "  held by you: 1 tensor (variables, containers, graphs that were not added)\n");
    CHECK(fmt::format("{}", why) == out.str());
    const std::string program =
        "import json, sys\nwhy = json.load(sys.stdin)\n"
        "assert why['schema'] == 'memledger.why_alive/2' and why['held_by_you'] == 1\n"
        "assert why['saved'][0]['path'] == ['SumBackward0', 'AddmmBackward0']\n"
        "assert why['op'] == 'aten::empty' and why['role'] == why['names'][0]['role'] == "
        "'parameter'\n"
        "assert why['names'][1]['offset_bytes'] == 1024 and why['shape'] == [1 << 20]\n";
    CHECK(python(program, why.to_json()) == 0);
  }
}

}  // namespace
}  // namespace memledger
