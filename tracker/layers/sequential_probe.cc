#include "tracker/layers/sequential_probe.h"

#include <torch/nn/modules/container/any.h>
#include <torch/nn/modules/container/sequential.h>

#include <utility>

namespace memledger::layers {
namespace {

// AnyModule takes modules only; its AnyModuleHolder for this one is below.
class Probe final : public torch::nn::Module {
 public:
  Probe(torch::nn::AnyModule original, const SequentialProbes::Listener& listener)
      : original_(std::move(original)), module_(original_.ptr()), listener_(listener) {}

  // Never called: AnyModule only looks at its type.
  at::Tensor forward(at::Tensor input) { return input; }

  torch::nn::AnyValue run(std::vector<torch::nn::AnyValue>&& arguments) {
    listener_.begins(*module_);
    torch::nn::AnyValue result = call(std::move(arguments));
    listener_.ends(*module_, result.try_get<at::Tensor>());
    return result;
  }

  torch::nn::AnyModule& original() { return original_; }
  const std::shared_ptr<torch::nn::Module>& module() const { return module_; }

 private:
  template <size_t... kIndex>
  torch::nn::AnyValue call_with(std::vector<torch::nn::AnyValue>& arguments,
                                std::index_sequence<kIndex...>) {
    return original_.any_forward(std::move(arguments[kIndex])...);
  }

  torch::nn::AnyValue call(std::vector<torch::nn::AnyValue>&& arguments) {
    switch (arguments.size()) {
      case 0:
        return original_.any_forward();
      case 1:
        return call_with(arguments, std::make_index_sequence<1>());
      case 2:
        return call_with(arguments, std::make_index_sequence<2>());
      case 3:
        return call_with(arguments, std::make_index_sequence<3>());
      case 4:
        return call_with(arguments, std::make_index_sequence<4>());
      case 5:
        return call_with(arguments, std::make_index_sequence<5>());
      case 6:
        return call_with(arguments, std::make_index_sequence<6>());
      case 7:
        return call_with(arguments, std::make_index_sequence<7>());
      case 8:
        return call_with(arguments, std::make_index_sequence<8>());
      default:
        TORCH_CHECK(false, "memledger: a child of a Sequential is called with ", arguments.size(),
                    " arguments; 8 are followed");
    }
  }

  torch::nn::AnyModule original_;
  std::shared_ptr<torch::nn::Module> module_;
  const SequentialProbes::Listener& listener_;
};

}  // namespace
}  // namespace memledger::layers

// Passes arguments of any types on to the child.
template <>
struct torch::nn::AnyModuleHolder<memledger::layers::Probe, at::Tensor> final
    : public torch::nn::AnyModulePlaceholder {
  using Probe = memledger::layers::Probe;

  explicit AnyModuleHolder(std::shared_ptr<Probe>&& module)
      : AnyModulePlaceholder(typeid(Probe)), probe(std::move(module)) {}

  AnyValue forward(std::vector<AnyValue>&& arguments) override {
    return probe->run(std::move(arguments));
  }
  std::shared_ptr<Module> ptr() override { return probe->module(); }
  std::unique_ptr<AnyModulePlaceholder> copy() const override {
    return std::make_unique<AnyModuleHolder>(*this);
  }
  std::unique_ptr<AnyModulePlaceholder> clone_module(std::optional<Device>) const override {
    TORCH_CHECK(
        false,
        "memledger: a Sequential cannot be cloned by its own forward() while it is measured");
  }

  std::shared_ptr<Probe> probe;
};

namespace memledger::layers {

struct SequentialProbes::Places {
  struct Place {
    torch::nn::SequentialImpl* sequential;
    size_t index;
    std::shared_ptr<Probe> probe;
  };
  Listener listener;
  std::vector<Place> all;

  void put_back() noexcept {
    for (Place& place : all) {
      *(place.sequential->begin() + static_cast<std::ptrdiff_t>(place.index)) =
          std::move(place.probe->original());
    }
    all.clear();
  }
};

SequentialProbes::SequentialProbes(const std::vector<torch::nn::Module*>& modules,
                                   Listener listener)
    : places_(std::make_unique<Places>()) {
  places_->listener = std::move(listener);
  try {
    for (torch::nn::Module* module : modules) {
      auto* const sequential = dynamic_cast<torch::nn::SequentialImpl*>(module);
      if (sequential == nullptr) continue;
      for (size_t i = 0; i < sequential->size(); ++i) {
        torch::nn::AnyModule& place = *(sequential->begin() + static_cast<std::ptrdiff_t>(i));
        auto probe = std::make_shared<Probe>(place, places_->listener);
        torch::nn::AnyModule stand_in(probe);
        places_->all.push_back({sequential, i, std::move(probe)});
        place = std::move(stand_in);
      }
    }
  } catch (...) {
    places_->put_back();
    throw;
  }
}

SequentialProbes::~SequentialProbes() { places_->put_back(); }

}  // namespace memledger::layers
