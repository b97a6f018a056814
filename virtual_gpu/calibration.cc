#include "virtual_gpu/calibration.h"

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>

namespace memledger::virtual_gpu {
namespace {

using Json = nlohmann::ordered_json;

constexpr char kSchema[] = "memledger.calibration/1";
constexpr uint64_t kMostMemory = uint64_t{1} << 40;
constexpr size_t kMostDimensions = 8;

struct PassName {
  ConvolutionPass pass;
  const char* name;
};
constexpr PassName kPasses[] = {
    {ConvolutionPass::kForward, "forward"},
    {ConvolutionPass::kBackwardData, "backward_data"},
    {ConvolutionPass::kBackwardFilter, "backward_filter"},
};

struct TypeName {
  ElementType type;
  const char* name;
};
constexpr TypeName kTypes[] = {
    {ElementType::kFloat, "torch.float32"}, {ElementType::kDouble, "torch.float64"},
    {ElementType::kHalf, "torch.float16"},  {ElementType::kBfloat16, "torch.bfloat16"},
    {ElementType::kOther, "other"},
};

struct SizesField {
  const char* name;
  std::vector<int64_t> Convolution::*sizes;
};
constexpr SizesField kSizes[] = {
    {"x", &Convolution::x},
    {"w", &Convolution::w},
    {"y", &Convolution::y},
    {"strides", &Convolution::strides},
    {"dilations", &Convolution::dilations},
};

std::string named(std::string_view name) { return "\"" + std::string(name) + "\""; }

std::string json_of(const CalibratedConvolution& seen) {
  Json object = Json::object();
  for (const PassName& known : kPasses) {
    if (known.pass == seen.convolution.pass) object["pass"] = known.name;
  }
  for (const TypeName& known : kTypes) {
    if (known.type == seen.convolution.type) object["dtype"] = known.name;
  }
  for (const SizesField& field : kSizes) object[field.name] = seen.convolution.*field.sizes;
  object["channels_last"] = seen.convolution.channels_last;
  object["workspace_bytes"] = seen.workspace_bytes;
  return object.dump();
}

// Reads the members of one object. Keeps the first thing that is wrong.
class Reader {
 public:
  explicit Reader(const Json& object) : object_(object) {}

  const std::string& error() const { return error_; }

  std::string text(const char* name) {
    const Json* const value = member(name);
    if (value == nullptr) return "";
    if (!value->is_string()) return wrong(name, "a string"), "";
    return value->get<std::string>();
  }
  uint64_t bytes(const char* name) {
    const Json* const value = member(name);
    if (value == nullptr) return 0;
    if (!value->is_number_unsigned() || value->get<uint64_t>() > kMostMemory)
      return wrong(name, "a whole number of bytes of at most 1024 GiB"), 0;
    return value->get<uint64_t>();
  }
  bool boolean(const char* name) {
    const Json* const value = member(name);
    if (value == nullptr) return false;
    if (!value->is_boolean()) return wrong(name, "true or false"), false;
    return value->get<bool>();
  }
  std::vector<int64_t> sizes(const char* name) {
    const Json* const value = member(name);
    if (value == nullptr) return {};
    const auto is_size = [](const Json& size) {
      return size.is_number_unsigned() && size.get<uint64_t>() < kMostMemory;
    };
    if (!value->is_array() || value->size() > kMostDimensions ||
        !std::all_of(value->begin(), value->end(), is_size))
      return wrong(name, "an array of whole numbers"), std::vector<int64_t>();
    return value->get<std::vector<int64_t>>();
  }
  template <typename Names>
  auto one_of(const char* name, const Names& names) {
    const std::string given = text(name);
    const auto* const found =
        std::find_if(std::begin(names), std::end(names),
                     [&](const auto& candidate) { return given == candidate.name; });
    if (found != std::end(names)) return *found;
    wrong(name, "a name that is known");
    return names[0];
  }

 private:
  const Json* member(const char* name) {
    const auto found = object_.find(name);
    if (found != object_.end()) return &*found;
    if (error_.empty()) error_ = "the field " + named(name) + " is missing.";
    return nullptr;
  }
  void wrong(const char* name, const char* wanted) {
    if (error_.empty()) error_ = "the field " + named(name) + " is not " + wanted + ".";
  }

  const Json& object_;
  std::string error_;
};

ParsedCalibration failed(std::string why) { return {std::nullopt, std::move(why)}; }

}  // namespace

std::optional<uint64_t> Calibration::workspace_of(const Convolution& convolution) const {
  for (const CalibratedConvolution& seen : convolutions) {
    if (seen.convolution == convolution) return seen.workspace_bytes;
  }
  return std::nullopt;
}

void Calibration::add(const CalibratedConvolution& seen) {
  for (CalibratedConvolution& known : convolutions) {
    if (!(known.convolution == seen.convolution)) continue;
    known.workspace_bytes = std::max(known.workspace_bytes, seen.workspace_bytes);
    return;
  }
  convolutions.push_back(seen);
}

std::string calibration_json(const Calibration& calibration) {
  std::string rows;
  for (const CalibratedConvolution& seen : calibration.convolutions)
    rows += (rows.empty() ? "\n" : ",\n") + json_of(seen);
  const Json device(calibration.device);
  return std::string("{\"schema\":\"") + kSchema +
         "\",\"device\":" + device.dump(-1, ' ', false, Json::error_handler_t::replace) +
         ",\"context_bytes\":" + std::to_string(calibration.context_bytes) +
         ",\"libraries_bytes\":" + std::to_string(calibration.libraries_bytes) +
         ",\"of_process\":" + (calibration.is_of_process ? "true" : "false") +
         ",\"convolutions\":[" + rows + "]}\n";
}

ParsedCalibration parse_calibration_json(std::string_view text) {
  // Never throws: what it throws for otherwise is asked before.
  const Json object = Json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  if (!object.is_object()) return failed("it is not a JSON object.");
  Reader reader(object);
  if (const std::string schema = reader.text("schema"); schema != kSchema && reader.error().empty())
    return failed("its schema is not " + std::string(kSchema) + ".");
  Calibration calibration;
  calibration.device = reader.text("device");
  calibration.context_bytes = reader.bytes("context_bytes");
  calibration.libraries_bytes = reader.bytes("libraries_bytes");
  calibration.is_of_process = reader.boolean("of_process");
  if (!reader.error().empty()) return failed(reader.error());
  const auto convolutions = object.find("convolutions");
  if (convolutions == object.end() || !convolutions->is_array())
    return failed("the field \"convolutions\" is not an array.");
  for (const Json& row : *convolutions) {
    const std::string number = std::to_string(calibration.convolutions.size() + 1);
    if (!row.is_object()) return failed("convolution " + number + " is not an object.");
    Reader of_row(row);
    CalibratedConvolution seen;
    seen.convolution.pass = of_row.one_of("pass", kPasses).pass;
    seen.convolution.type = of_row.one_of("dtype", kTypes).type;
    for (const SizesField& field : kSizes) seen.convolution.*field.sizes = of_row.sizes(field.name);
    seen.convolution.channels_last = of_row.boolean("channels_last");
    seen.workspace_bytes = of_row.bytes("workspace_bytes");
    if (!of_row.error().empty()) return failed("convolution " + number + ": " + of_row.error());
    calibration.convolutions.push_back(std::move(seen));
  }
  return {std::move(calibration), ""};
}

}  // namespace memledger::virtual_gpu
