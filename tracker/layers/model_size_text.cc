// ModelSize as people know it, and as JSON.

#include <fmt/format.h>

#include <algorithm>
#include <ostream>

#include "text/json.h"
#include "text/names.h"
#include "text/shape.h"
#include "tracker/model_size.h"

namespace memledger {
namespace {

constexpr int kJsonVersion = 1;

double to_mb(int64_t bytes) { return static_cast<double>(bytes) / 1e6; }

std::string label_of(const LayerSize& layer) {
  if (!layer.is_module) return "  " + table_name(layer.name);
  return (layer.name.empty() ? "(the module itself)" : table_name(layer.name)) + " (" +
         table_name(layer.type) + ")" + (layer.calls > 1 ? fmt::format(" x {}", layer.calls) : "");
}

std::string shape_of(const LayerSize& layer) {
  return layer.output_shape ? shape_text(layer.output_shape) : "-";
}

std::string json_shape(const std::optional<std::vector<int64_t>>& shape) {
  if (!shape.has_value()) return "null";
  std::string json = "[";
  for (size_t i = 0; i < shape->size(); ++i)
    json += (i == 0 ? "" : ",") + std::to_string((*shape)[i]);
  return json + "]";
}

}  // namespace

std::ostream& operator<<(std::ostream& out, const ModelSize& size) {
  const std::string model = table_name(size.model);
  out << fmt::format("Model {} : params: {:.6f}M\n", model, to_mb(size.parameter_bytes))
      << fmt::format("Model {} : intermedite variables: {:.6f} M (without backward)\n", model,
                     to_mb(size.intermediate_bytes))
      << fmt::format("Model {} : intermedite variables: {:.6f} M (with backward)\n", model,
                     to_mb(2 * size.intermediate_bytes))
      << fmt::format("Model {} : kept for backward: {:.6f} M (measured{})\n", model,
                     to_mb(size.saved_bytes),
                     size.saved_is_complete ? "" : "; at least, as some nodes cannot be read");
  if (size.layers.empty()) return out;
  size_t name_width = 5, shape_width = 12;
  for (const LayerSize& layer : size.layers) {
    name_width = std::max(name_width, label_of(layer).size());
    shape_width = std::max(shape_width, shape_of(layer).size());
  }
  const std::string rule(name_width + shape_width + 52, '-');
  const auto line = [&](const std::string& name, const std::string& shape,
                        const std::string& parameters, const std::string& activations,
                        const std::string& saved) {
    out << fmt::format("{:<{}}  {:>{}}  {:>14}  {:>15}  {:>15}\n", name, name_width, shape,
                       shape_width, parameters, activations, saved);
  };
  const auto mb = [](int64_t bytes) { return fmt::format("{:.6f}", to_mb(bytes)); };
  out << rule << '\n';
  line("Layer", "Output shape", "Parameters", "Activations M", "Saved M");
  out << rule << '\n';
  for (const LayerSize& layer : size.layers) {
    line(label_of(layer), shape_of(layer), layer.is_module ? std::to_string(layer.parameters) : "",
         mb(layer.activation_bytes), mb(layer.saved_bytes));
  }
  if (size.other_saved_bytes != 0)
    line("  (where no operator was seen)", "-", "", "", mb(size.other_saved_bytes));
  out << rule << '\n';
  line("Total", "", std::to_string(size.parameters), mb(size.activation_bytes),
       mb(size.saved_bytes));
  return out << rule << '\n';
}

std::string ModelSize::to_json() const {
  std::string json = fmt::format(
      "{{\"schema\":\"memledger.model_size\",\"version\":{},\"model\":{},\"parameters\":{},"
      "\"parameter_bytes\":{},"
      "\"intermediate_bytes\":{},\"activation_bytes\":{},\"saved_bytes\":{},\"other_saved_bytes\":{"
      "},\"saved_is_complete\":{},"
      "\"layers\":[",
      kJsonVersion, json_string(model), parameters, parameter_bytes, intermediate_bytes,
      activation_bytes, saved_bytes, other_saved_bytes, saved_is_complete);
  for (size_t i = 0; i < layers.size(); ++i) {
    const LayerSize& layer = layers[i];
    json += fmt::format(
        "{}{{\"name\":{},\"type\":{},\"is_module\":{},\"calls\":{},\"output_shape\":{},"
        "\"parameters\":{},\"activation_bytes\":{},"
        "\"saved_bytes\":{}}}",
        i == 0 ? "" : ",", json_string(layer.name), json_string(layer.type), layer.is_module,
        layer.calls, json_shape(layer.output_shape), layer.parameters, layer.activation_bytes,
        layer.saved_bytes);
  }
  return json + "]}";
}

}  // namespace memledger
