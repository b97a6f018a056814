// Which rows of two files are the same tensor.

#include "compare/match_rows.h"

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "compare/names.h"

namespace memledger::compare {
namespace {

Row named(const std::string& name, int64_t bytes, const std::string& shape = "(4,)") {
  Row row;
  row.name = name;
  row.role = "parameter";
  row.layer = name.substr(0, name.rfind('.'));
  row.shape = shape;
  row.bytes = bytes;
  return row;
}

Row made_by(const std::string& op, const std::string& layer, const std::string& shape,
            int64_t bytes) {
  Row row;
  row.role = "tensor";
  row.op = op;
  row.layer = layer;
  row.shape = shape;
  row.dtype = "torch.float32";
  row.bytes = bytes;
  return row;
}

// Returns `a=b by name` for each pair, `a=` and `=b` for what went and came.
std::string matched(const std::vector<Row>& before, const std::vector<Row>& after) {
  std::string text;
  const auto title = [](const Row* row) {
    if (row == nullptr) return std::string();
    return row->name.empty() ? row->op + "@" + row->layer : row->name;
  };
  for (const RowPair& pair : match_rows(before, after).pairs)
    text += title(pair.before) + "=" + title(pair.after) + " by " +
            std::string(to_string(pair.match)) + "; ";
  return text;
}

TEST_CASE("a name wins over a maker, whatever the bytes") {
  CHECK(matched({named("fc.weight", 16), named("fc.bias", 4)},
                {named("fc.bias", 400), named("fc.weight", 16)}) ==
        "fc.weight=fc.weight by name; fc.bias=fc.bias by name; ");
}

TEST_CASE("wrappers and a prefix that one program has are left out") {
  CHECK(matched({named("module.fc._orig_mod.weight", 16)}, {named("fc.weight", 32)}) ==
        "module.fc._orig_mod.weight=fc.weight by name without prefix; ");
  CHECK(matched({named("fc.weight", 16), named("fc.bias", 4)},
                {named("net.body.fc.weight", 32), named("net.body.fc.bias", 8)}) ==
        "fc.weight=net.body.fc.weight by name without prefix; "
        "fc.bias=net.body.fc.bias by name without prefix; ");
  CHECK(without_prefix("SGD.net.fc.weight.momentum_buffer", "net.") ==
        "SGD.fc.weight.momentum_buffer");
  CHECK(without_wrappers("a.module.w+module.w") == "a.w+w");
  CHECK(without_wrappers("module") == "module");
}

TEST_CASE("a layer that only got another number is the same; one that both have is another") {
  CHECK(matched({named("layer.3.w", 16)}, {named("layer.4.w", 32)}) ==
        "layer.3.w=layer.4.w by name without numbers; ");
  CHECK(matched({named("layer.3.w", 16), named("layer.4.b", 4)},
                {named("layer.3.b", 4), named("layer.4.w", 16)}) ==
        "layer.3.w= by none; layer.4.b= by none; =layer.3.b by none; =layer.4.w by none; ");
  // Another number of sizes is another tensor.
  CHECK(matched({named("layer.3.w", 16, "(2, 2)")}, {named("layer.4.w", 16, "(4,)")}) ==
        "layer.3.w= by none; =layer.4.w by none; ");
}

TEST_CASE(
    "tensors without names are the same by layer, operator and shape, then without the shape") {
  const Row relu = made_by("aten::relu", "body", "(8, 4)", 128);
  CHECK(matched({relu}, {relu}) ==
        "aten::relu@body=aten::relu@body by layer, operator and shape; ");
  CHECK(matched({relu}, {made_by("aten::relu", "body", "(16, 4)", 256)}) ==
        "aten::relu@body=aten::relu@body by layer and operator; ");
  CHECK(matched({relu}, {made_by("aten::gelu", "body", "(8, 4)", 128)}) ==
        "aten::relu@body=aten::gelu@body by layer and shape; ");
  // Without a layer a shape is not enough to know the tensor that changed.
  CHECK(matched({made_by("aten::relu", "", "(8, 4)", 128)},
                {made_by("aten::relu", "", "(16, 4)", 256)}) ==
        "aten::relu@= by none; =aten::relu@ by none; ");
  // A layer that one file does not know.
  CHECK(matched({relu}, {made_by("aten::relu", "", "(8, 4)", 128)}) ==
        "aten::relu@body=aten::relu@ by layer, operator and shape; ");
  CHECK(matched({relu}, {made_by("aten::relu", "head", "(8, 4)", 128)}) ==
        "aten::relu@body= by none; =aten::relu@head by none; ");
  // The one with the same bytes wins.
  CHECK(matched({relu, made_by("aten::relu", "body", "(16, 4)", 256)},
                {made_by("aten::relu", "body", "(16, 4)", 256)}) ==
        "aten::relu@body=aten::relu@body by layer, operator and shape; aten::relu@body= by none; ");
}

TEST_CASE("names that differ in numbers only become one") {
  CHECK(ranged_name({"layer9.w", "layer10.w", "layer2.w"}) ==
        "layer2\xe2\x80\xa6"
        "10.w");
  CHECK(ranged_name({"fc"}) == "fc");
  CHECK(without_numbers("a12.b3") == "a#.b#");
}

}  // namespace
}  // namespace memledger::compare
