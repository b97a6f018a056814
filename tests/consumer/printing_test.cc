// Every value that a public header defines prints, by a stream and by fmt.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "tests/support/doctest_beside_torch.h"

#include <fmt/format.h>

#include <sstream>
#include <string>
#include <type_traits>
#include <utility>

#include "memledger.h"
#include "memledger_fmt.h"
#include "tests/consumer/public_values.h"

namespace memledger {
namespace {

template <typename Value, typename = void>
struct Streams : std::false_type {};
template <typename Value>
struct Streams<Value,
               std::void_t<decltype(std::declval<std::ostream&>() << std::declval<const Value&>())>>
    : std::true_type {};

#define PRINTS(Value)                                                                        \
  static_assert(Streams<Value>::value,                                                       \
                #Value " has no operator<<; if it is no value, say so in public_values.py"); \
  static_assert(fmt::is_formattable<Value>::value, #Value " has no formatter in memledger_fmt.h");
PUBLIC_VALUES(PRINTS)
#undef PRINTS

template <typename Value>
std::string shown(const Value& value) {
  std::ostringstream out;
  out << value;
  CHECK(fmt::format("{}", value) == out.str());
  return out.str();
}

template <typename Value>
void check_fresh(const char* name) {
  if constexpr (std::is_default_constructible_v<Value>) {
    const std::string text = shown(Value());
    INFO(name << " prints " << text);
    for (const char c : text)
      CHECK((static_cast<unsigned char>(c) >= 0x20 || c == '\n' || c == '\t'));
  }
}

TEST_CASE("a value of which nothing is known prints without harm") {
#define CHECK_FRESH(Value) check_fresh<Value>(#Value);
  PUBLIC_VALUES(CHECK_FRESH)
#undef CHECK_FRESH
}

TEST_CASE("values of the registry print in a line, with ? for what is not known") {
  StackFrame frame;
  CHECK(shown(frame) == "?");
  frame = {"net::f(\x1b[1m)", "a.cc", 0};
  CHECK(shown(frame) == "net::f(\\x1b[1m) at a.cc");
  frame.line = 7;
  CHECK(shown(frame) == "net::f(\\x1b[1m) at a.cc:7");

  DeviceBlocks blocks;
  blocks.requested_bytes = 1000;
  blocks.rounding_bytes = 24;
  blocks.free_bytes = 76;
  blocks.largest_free_block = 50;
  blocks.segments.resize(2);
  CHECK(shown(blocks) ==
        "requested 1000; allocated 1024; active 1024; reserved 1100 bytes in 2 segments; largest "
        "free block 50");
  DeviceBlock block;
  block.address = 0x1000;
  block.nbytes = 512;
  CHECK(shown(block) == "block at 0x1000: 512 bytes, free");
  block.state = BlockState::kInUse;
  block.requested_bytes = 500;
  CHECK(shown(block) == "block at 0x1000: 512 bytes, in use, 500 requested");

  AllocationFailure failure;
  failure.requested_bytes = 99;
  failure.device = c10::Device(c10::kCUDA, 1);
  failure.op = "aten::mm";
  failure.label = "a\nb";
  failure.phase = Phase::kForward;
  CHECK(shown(failure) == "99 bytes failed on cuda:1, aten::mm, a\\nb, forward");

  StorageInfo storage;
  storage.id = 7;
  storage.nbytes = 20;
  storage.dtype = c10::kFloat;
  storage.shape = {5};
  storage.op = "aten::mm";
  storage.autograd_node = "MmBackward0";
  storage.label = "encoder";
  storage.phase = Phase::kBackward;
  CHECK(shown(storage) ==
        "storage 7 on cpu: 20 bytes, (5,) torch.float32, aten::mm in MmBackward0, encoder, "
        "backward");
  storage.adopted = true;
  CHECK(shown(storage) == "storage 7 on cpu: 20 bytes, (5,) torch.float32, before tracking");
  CHECK(shown(static_cast<const Birthplace&>(storage)) == "before tracking");

  Lifetime life;
  life.storage.nbytes = 40;
  CHECK(shown(life).substr(shown(life).find(", born")) == ", born before, alive");
  life.born_ns = 1;
  life.died_ns = 2;
  CHECK(shown(life).substr(shown(life).find(", born")) == ", born at 1 ns, died at 2 ns");
  Recording recording;
  recording.begin_ns = 10;
  recording.end_ns = 30;
  recording.dropped_events = 3;
  recording.lifetimes.resize(2);
  CHECK(shown(recording) ==
        "2 storages in 20 ns, 0 label changes; dropped: 3 events, 0 label changes");
}

TEST_CASE("values of the tracker print in a line, with ? for what is not known") {
  Unmoved unmoved;
  unmoved.nbytes = 5;
  unmoved.reason = "lent\tout";
  CHECK(shown(unmoved) == "storage ? on cpu: 5 bytes, lent\\tout");
  unmoved.id = 3;
  CHECK(shown(unmoved) == "storage 3 on cpu: 5 bytes, lent\\tout");
  CourtesyProgress progress;
  progress.done_bytes = 5;
  progress.total_bytes = 10;
  progress.bytes_per_second = 2.5e9;
  CHECK(shown(progress) == "yielded 5 of 10 bytes, 2500000000 bytes per second");
  progress.restoring = true;
  CHECK(shown(progress).substr(0, 8) == "restored");

  LayerSize layer;
  layer.name = "features.0";
  layer.type = "Conv2d";
  layer.calls = 2;
  layer.parameters = 9;
  layer.activation_bytes = 40;
  layer.saved_bytes = 30;
  CHECK(shown(layer) ==
        "features.0 (Conv2d), 2 calls, output (?), 9 parameters, activations 40 bytes, saved 30 "
        "bytes");

  GrowthRow row;
  row.level = GrowthLevel::kDevice;
  row.bytes = 2048;
  row.count = 2;
  CHECK(shown(row) == "steady: all of cpu, 2048 bytes in 2 storages");
  row.growth = {true, 1024, 7, 2048};
  CHECK(shown(row) ==
        "growing 1.0 KiB per step since step 7: all of cpu, 2048 bytes in 2 storages");

  const absl::StatusOr<MemoryLog> log = parse_log(
      "GPU Memory Track | d | Total Tensor Used Memory:1.0    Mb Total Allocated Memory:2.0    Mb\n"
      "+ | 2 * Size:(1024,) | Memory: 0.0078 M | Tensor | torch.float32 | x\n"
      "At a.cc line 1: f   Total Tensor Used Memory:3.5    Mb Total Allocated Memory:?      Mb\n",
      "a.txt");
  REQUIRE(log.ok());
  CHECK(shown(*log) == "a.txt: 1 runs, 1 blocks, 0 unread lines");
  CHECK(shown(log->runs[0]) == "d: 1 blocks, from 1 MiB to 3.5 MiB in tensors");
  CHECK(shown(log->runs[0].blocks[0]) ==
        "a.cc line 1: f: 3.5 MiB in tensors, ? MiB allocated; born 8192 bytes, died 0 bytes");
  CHECK(shown(log->runs[0].blocks[0].rows[0]) ==
        "+ 2 * Tensor (1024,) torch.float32, 8192 bytes: x");

  TimelineData data;
  data.marks.resize(2);
  data.dropped_marks = 4;
  CHECK(shown(data) == "0 storages in 0 ns, 2 marks, 0 names; dropped: 0 events, 4 marks");

  LineTable table;
  table.function = "f";
  table.rows.push_back({3, "int x;", std::nullopt});
  CHECK(shown(table).find("int x;") != std::string::npos);
  CHECK(shown(table.rows[0]) == "3: int x;");
  LineProfile profile;
  profile.tables.push_back(table);
  CHECK(shown(profile).find("int x;") != std::string::npos);

  IterationStats stats;
  stats.iteration = 5;
  CHECK(shown(stats) == to_string(stats));
  CHECK(shown(SourceLocation()) == "?");
}

}  // namespace
}  // namespace memledger
