// Diffs of changes written by hand.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "tracker/snapshot_diff.h"

#include <algorithm>
#include <sstream>

#include "tests/support/doctest_beside_torch.h"
#include "tracker/log/diff_builder.h"

namespace memledger {
namespace {

const c10::Device kCpu(c10::DeviceType::CPU);

StorageInfo storage(uint64_t id, std::vector<int64_t> shape, int64_t nbytes,
                    std::string_view op = "aten::randn") {
  StorageInfo info;
  info.id = id;
  info.nbytes = nbytes;
  info.op = op;
  info.dtype = at::kFloat;
  info.shape.assign(shape.begin(), shape.end());
  return info;
}

StorageName named(std::string name, Role role = Role::kParameter) {
  StorageName result;
  result.name = std::move(name);
  result.role = role;
  return result;
}

TEST_SUITE_BEGIN("snapshot diff");

TEST_CASE("three, then five of the same shape: the second block says + 2") {
  Changes changes;  // three were alive before
  changes.born = {storage(4, {10}, 40), storage(5, {10}, 40)};
  const SnapshotDiff diff = make_snapshot_diff(changes, kCpu, {});
  REQUIRE(diff.rows.size() == 1);
  CHECK(diff.rows[0].sign == '+');
  CHECK(diff.rows[0].count == 2);
  CHECK(diff.rows[0].bytes == 80);
  CHECK(diff.rows[0].names.empty());
  CHECK(diff.rows[0].op == "aten::randn");
}

TEST_CASE("freed and replaced by an equal one is one + and one -") {
  Changes changes;
  changes.born = {storage(2, {10}, 40)};
  changes.died = {storage(1, {10}, 40)};
  const SnapshotDiff diff = make_snapshot_diff(changes, kCpu, {});
  REQUIRE(diff.rows.size() == 2);
  CHECK(diff.rows[0].sign == '+');
  CHECK(diff.rows[1].sign == '-');
  CHECK(diff.rows[0].count == 1);
  CHECK(diff.rows[1].count == 1);
  CHECK(diff.born_bytes() == 40);
  CHECK(diff.died_bytes() == 40);
}

TEST_CASE("one shape, different reasons: one row for each") {
  Changes changes;
  for (uint64_t id = 1; id <= 8; ++id) changes.born.push_back(storage(id, {10}, 40));
  changes.born[1].op = "aten::mul";
  changes.born[2].label = "epoch 3";
  changes.born[3].dtype = at::kInt;
  changes.born[4].temporary = true;
  changes.born[5].adopted = true;
  const StorageNames names = {{7, named("weight")}, {8, named("weight.grad", Role::kGradient)}};
  const SnapshotDiff diff = make_snapshot_diff(changes, kCpu, names);
  CHECK(diff.rows.size() == 8);
  CHECK(diff.born_bytes() == 320);
}

TEST_CASE("without a name, the role is what operators have shown") {
  Changes changes;
  for (uint64_t id = 1; id <= 3; ++id) changes.born.push_back(storage(id, {10}, 40 * id));
  changes.born[0].used_as_parameter = true;
  changes.born[1].is_gradient = true;
  const SnapshotDiff diff = make_snapshot_diff(changes, kCpu, {{3, named("x", Role::kInput)}});
  REQUIRE(diff.rows.size() == 3);
  CHECK(diff.rows[0].role == Role::kInput);
  CHECK(diff.rows[1].role == Role::kGradient);
  CHECK(diff.rows[2].role == Role::kParameter);
  CHECK(diff.rows[2].names.empty());
}

TEST_CASE("named storages are together whoever made them") {
  Changes changes;
  changes.born = {storage(3, {10}, 40, "aten::sum"), storage(1, {10}, 40, "aten::mm"),
                  storage(2, {10}, 40, "aten::mm")};
  changes.born[1].label = "a";
  const StorageNames names = {{1, named("x")}, {2, named("y")}, {3, named("z+zz")}};
  const SnapshotDiff diff = make_snapshot_diff(changes, kCpu, names);
  REQUIRE(diff.rows.size() == 1);
  CHECK(diff.rows[0].count == 3);
  CHECK(diff.rows[0].names == std::vector<std::string>{"x", "y", "z+zz"});
  CHECK(diff.rows[0].op.empty());  // they differ
  CHECK(diff.rows[0].label.empty());
  CHECK(to_string(diff.rows[0]).find("| x …") != std::string::npos);
}

TEST_CASE("what no operator made is known by its backward node") {
  Changes changes;
  changes.born = {storage(1, {10}, 40, ""), storage(2, {10}, 40, "")};
  changes.born[0].autograd_node = "AccumulateGrad";
  const SnapshotDiff diff = make_snapshot_diff(changes, kCpu, {});
  REQUIRE(diff.rows.size() == 2);
  CHECK(diff.rows[1].autograd_node == "AccumulateGrad");
  CHECK(to_string(diff.rows[0]).find("torch.float32 | ?") != std::string::npos);
  CHECK(to_string(diff.rows[1]).find("torch.float32 | AccumulateGrad") != std::string::npos);
}

TEST_CASE("a scalar and an unknown shape are not the same") {
  Changes changes;
  changes.born = {storage(1, {}, 4), storage(2, {}, 4)};
  changes.born[1].dtype.reset();
  const SnapshotDiff diff = make_snapshot_diff(changes, kCpu, {});
  REQUIRE(diff.rows.size() == 2);
  CHECK(diff.rows[0].shape != diff.rows[1].shape);
}

TEST_CASE(
    "the named tensor tells shape and dtype where the registry has none, and where it covers the "
    "storage") {
  Changes changes;
  changes.born = {storage(1, {100}, 400), storage(2, {100}, 400), storage(3, {}, 400)};
  changes.born[2].dtype.reset();
  changes.born[2].adopted = true;
  StorageName part = named("part");
  part.dtype = at::kInt;
  part.shape = c10::DimVector{7};
  StorageName whole = named("whole");
  whole.dtype = at::kInt;
  whole.shape = c10::DimVector{10, 10};
  whole.whole = true;
  const SnapshotDiff diff = make_snapshot_diff(changes, kCpu, {{1, part}, {2, whole}, {3, part}});
  REQUIRE(diff.rows.size() == 3);
  CHECK(*diff.rows[0].shape == c10::DimVector{7});
  CHECK(diff.rows[0].adopted);
  CHECK(diff.rows[0].dtype == at::kInt);
  CHECK(*diff.rows[1].shape == c10::DimVector{10, 10});
  CHECK(diff.rows[1].dtype == at::kInt);
  CHECK(*diff.rows[2].shape == c10::DimVector{100});
  CHECK(diff.rows[2].dtype == at::kFloat);
}

TEST_CASE("what has gone keeps its name, and no longer says where it came from") {
  Changes changes;
  changes.died = {storage(1, {10}, 40), storage(2, {10}, 40)};
  changes.died[0].adopted = true;
  const SnapshotDiff diff = make_snapshot_diff(changes, kCpu, {{1, named("a")}, {2, named("b")}});
  REQUIRE(diff.rows.size() == 1);
  CHECK(diff.rows[0].sign == '-');
  CHECK(diff.rows[0].names == std::vector<std::string>{"a", "b"});
  CHECK_FALSE(diff.rows[0].adopted);
}

TEST_CASE("rows come + before -, by bytes, then by shape, in whatever order the changes came") {
  Changes changes;
  changes.born = {storage(1, {3}, 12), storage(2, {2, 5}, 40), storage(3, {100}, 400),
                  storage(4, {10}, 40)};
  changes.died = {storage(5, {1000}, 4000)};
  std::ostringstream forwards;
  forwards << make_snapshot_diff(changes, kCpu, {});
  std::reverse(changes.born.begin(), changes.born.end());
  std::ostringstream backwards;
  backwards << make_snapshot_diff(changes, kCpu, {});
  CHECK(forwards.str() == backwards.str());
  const SnapshotDiff diff = make_snapshot_diff(changes, kCpu, {});
  std::string order;
  for (const DiffRow& row : diff.rows) order += row.sign + std::to_string(row.shape->front()) + " ";
  CHECK(order == "+100 +2 +10 +3 -1000 ");
}

TEST_CASE("other devices stay out; the totals are the device's own") {
  const c10::Device cuda(c10::DeviceType::CUDA, 0);
  Changes changes;
  changes.born = {storage(1, {10}, 40), storage(2, {20}, 80)};
  changes.born[1].device = cuda;
  DeviceInfo on_cpu;
  on_cpu.table_bytes = 1000;
  on_cpu.counters.current_bytes = 1200;
  DeviceInfo on_cuda = on_cpu;
  on_cuda.device = cuda;
  on_cuda.table_bytes = 7;
  changes.devices = {on_cpu, on_cuda};
  const SnapshotDiff cpu_diff =
      make_snapshot_diff(changes, c10::Device(c10::DeviceType::CPU, 0), {});
  CHECK(cpu_diff.born_bytes() == 40);
  CHECK(cpu_diff.tensor_bytes == 1000);
  CHECK(cpu_diff.allocated_bytes == 1200);
  const SnapshotDiff cuda_diff = make_snapshot_diff(changes, cuda, {});
  CHECK(cuda_diff.born_bytes() == 80);
  CHECK(cuda_diff.tensor_bytes == 7);
  CHECK(make_snapshot_diff(changes, c10::Device(c10::DeviceType::CUDA, 1), {}).rows.empty());
}

TEST_CASE("workspaces and raw blocks have rows of their own, and are in no sum of tensors") {
  Changes changes;
  changes.born = {storage(1, {10}, 40), storage(2, {10}, 40), storage(3, {10}, 40),
                  storage(4, {10}, 40)};
  for (size_t i = 1; i < 4; ++i) changes.born[i].dtype.reset();
  changes.born[1].kind = StorageKind::kLibraryWorkspace;
  changes.born[2].kind = StorageKind::kRawBlock;
  changes.born[3].kind =
      StorageKind::kScratch;  // alive, so it may be a tensor that cannot be looked into
  changes.died = {storage(5, {10}, 7)};
  changes.died[0].kind = StorageKind::kLibraryWorkspace;
  DeviceInfo info;
  info.table_bytes = 160;
  info.library_workspace_bytes = info.raw_block_bytes = 40;
  changes.devices = {info};
  const SnapshotDiff diff = make_snapshot_diff(changes, kCpu, {});
  CHECK(diff.tensor_bytes == 80);
  CHECK(diff.born_bytes() == 80);
  CHECK(diff.died_bytes() == 0);
  std::ostringstream out;
  out << diff;
  CHECK(
      out.str().find(
          "| 1 * Size:(?)                  | Memory: 3.815e-05 M | LibraryWorkspace     | ? | ") !=
      std::string::npos);
  CHECK(
      out.str().find(
          "| 1 * Size:(?)                  | Memory: 3.815e-05 M | RawBlock             | ? | ") !=
      std::string::npos);
  CHECK(
      out.str().find(
          "| 1 * Size:(?)                  | Memory: 3.815e-05 M | Tensor               | ? | ") !=
      std::string::npos);
  CHECK(diff.to_json().find("\"storage_kind\":\"library_workspace\"") != std::string::npos);
}

TEST_CASE("an empty block prints its At line only") {
  SnapshotDiff diff;
  std::ostringstream out;
  out << diff;
  CHECK(out.str() == diff.at_line() + "\n");
  DiffRow row;
  diff.rows = {row};
  out.str({});
  out << diff;
  CHECK(out.str() == to_string(row) + "\n\n" + diff.at_line() + "\n");
}

TEST_CASE("JSON has fixed keys, exact bytes, and escapes what a user can choose") {
  Changes changes;
  changes.time = std::chrono::system_clock::time_point(std::chrono::milliseconds(1619814329123));
  changes.tracking_was_off = true;
  changes.born = {storage(1, {2, 3}, 24), storage(2, {}, 5)};
  changes.born[1].dtype.reset();
  SnapshotDiff diff =
      make_snapshot_diff(changes, kCpu, {{1, named("say \"hi\"\n", Role::kOptimizerState)}});
  diff.where = SourceLocation::current("a/b.cc", "f", 7);
  diff.label = "back\\slash";
  diff.health = {1, 2, 3};
  diff.unread = {"u"};
  CHECK(
      diff.to_json() ==
      "{\"schema\":\"memledger.snapshot_diff/2\",\"time_ms\":1619814329123,"
      "\"device\":\"cpu\",\"file\":\"a/b.cc\",\"line\":7,\"function\":\"f\","
      "\"label\":\"back\\\\slash\",\"tensor_bytes\":0,\"allocated_bytes\":0,"
      "\"born_bytes\":29,\"died_bytes\":0,\"from_snapshot\":false,"
      "\"unseen_before_tracking\":false,\"tracking_was_off\":true,"
      "\"hooks\":{\"unknown_frees\":1,\"dropped_records\":2,\"swallowed_exceptions\":3},"
      "\"unread\":[\"u\"],\"rows\":["
      "{\"sign\":\"+\",\"count\":1,\"bytes\":24,\"shape\":[2,3],\"dtype\":\"torch.float32\","
      "\"role\":\"optimizer_state\",\"storage_kind\":\"tensor\",\"names\":[\"say \\\"hi\\\"\\n\"],"
      "\"op\":\"aten::randn\",\"autograd_node\":\"\",\"label\":\"\",\"adopted\":false},"
      "{\"sign\":\"+\",\"count\":1,\"bytes\":5,\"shape\":null,\"dtype\":null,"
      "\"role\":\"tensor\",\"storage_kind\":\"tensor\",\"names\":[],"
      "\"op\":\"aten::randn\",\"autograd_node\":\"\",\"label\":\"\",\"adopted\":false}]}");
}

TEST_CASE("JSON has null for what is unknown, and [] for a scalar") {
  SnapshotDiff diff;
  diff.tensor_bytes.reset();
  diff.allocated_bytes.reset();
  diff.rows.resize(2);
  diff.rows[0].shape.emplace();
  diff.rows[1].dtype = at::ScalarType::Undefined;
  const std::string json = diff.to_json();
  for (const char* const member :
       {"\"file\":null,\"line\":null,\"function\":null", "\"tensor_bytes\":null",
        "\"allocated_bytes\":null", "\"shape\":[],\"dtype\":null", "\"shape\":null,\"dtype\":null"})
    CHECK_MESSAGE(json.find(member) != std::string::npos, member);
  CHECK(diff.at_line().find("Memory:?      Mb Total Allocated Memory:?      Mb") !=
        std::string::npos);
}

SourceLocation here(SourceLocation where = SourceLocation::current()) { return where; }

TEST_CASE("a location is the caller's") {
  const SourceLocation where = here();
  CHECK(where.line() == __LINE__ - 1);
  CHECK(std::string(where.file()) == __FILE__);
  CHECK(std::string(where.function()) == static_cast<const char*>(__FUNCTION__));
  constexpr SourceLocation kNowhere;
  static_assert(kNowhere.line() == 0);
}

TEST_SUITE_END();

}  // namespace
}  // namespace memledger
