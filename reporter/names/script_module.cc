#include "reporter/names/script_module.h"

#include <ATen/core/ivalue.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/ir/ir.h>

#include <utility>

namespace memledger {
namespace {

using Object = c10::ivalue::Object;

std::string join(const std::string& path, const std::string& name) {
  return path.empty() ? name : path + "." + name;
}

class Walk {
 public:
  explicit Walk(const ScriptModuleRef::Visit& visit) : visit_(visit) {}

  void module(const c10::intrusive_ptr<Object>& object, const std::string& owner) {
    const c10::ClassTypePtr type = object->type();
    for (size_t i = 0; i < type->numAttributes(); ++i) {
      const std::string name = join(owner, type->getAttributeName(i));
      const c10::IValue& value = object->getSlot(i);
      if (type->getAttribute(i)->is_module()) {
        if (value.isObject()) module(value.toObject(), name);
        continue;
      }
      const Role role = type->is_parameter(i) ? Role::kParameter
                        : type->is_buffer(i)  ? Role::kBuffer
                                              : Role::kTensor;
      values(value, name, owner, role);
    }
    for (size_t i = 0; i < type->numConstants(); ++i) {
      values(type->getConstant(i), join(owner, type->getConstantName(i)), owner, Role::kBuffer);
    }
    for (torch::jit::Function* const method : type->methods()) {
      if (!method->isGraphFunction()) continue;
      size_t count = 0;
      constants(*toGraphFunction(*method).graph()->block(), join(owner, method->name()), owner,
                count);
    }
  }

 private:
  void values(const c10::IValue& value, const std::string& name, const std::string& owner,
              Role role) {
    if (value.isTensor()) {
      if (value.toTensor().defined()) visit_(name, owner, role, value.toTensor());
    } else if (value.isList()) {
      size_t i = 0;
      for (const c10::IValue& element : value.toListRef())
        values(element, name + "." + std::to_string(i++), owner, role);
    } else if (value.isTuple()) {
      size_t i = 0;
      for (const c10::IValue& element : value.toTupleRef().elements())
        values(element, name + "." + std::to_string(i++), owner, role);
    } else if (value.isGenericDict()) {
      for (const auto& entry : value.toGenericDict()) {
        const c10::IValue& key = entry.key();
        const std::string text = key.isString() ? key.toStringRef()
                                 : key.isInt()  ? std::to_string(key.toInt())
                                                : "?";
        values(entry.value(), name + "." + text, owner, role);
      }
    }
  }

  void constants(const torch::jit::Block& block, const std::string& name, const std::string& owner,
                 size_t& count) {
    for (const torch::jit::Node* const node : block.nodes()) {
      for (const torch::jit::Block* const inner : node->blocks())
        constants(*inner, name, owner, count);
      if (node->kind() != c10::prim::Constant || !node->hasAttribute(c10::attr::value)) continue;
      const std::string constant = name + ".constant." + std::to_string(count);
      switch (node->kindOf(c10::attr::value)) {
        case torch::jit::AttributeKind::t:
          if (node->t(c10::attr::value).defined())
            visit_(constant, owner, Role::kBuffer, node->t(c10::attr::value));
          ++count;
          break;
        case torch::jit::AttributeKind::ival:
          values(node->ival(c10::attr::value), constant, owner, Role::kBuffer);
          ++count;
          break;
        default:
          break;
      }
    }
  }

  const ScriptModuleRef::Visit& visit_;
};

}  // namespace

struct ScriptModuleRef::Handle {
  c10::weak_intrusive_ptr<Object> object;
};

ScriptModuleRef::ScriptModuleRef(const torch::jit::Module& module)
    : handle_(std::make_unique<Handle>(Handle{c10::weak_intrusive_ptr<Object>(module._ivalue())})) {
}
ScriptModuleRef::~ScriptModuleRef() = default;
ScriptModuleRef::ScriptModuleRef(ScriptModuleRef&&) noexcept = default;
ScriptModuleRef& ScriptModuleRef::operator=(ScriptModuleRef&&) noexcept = default;

bool ScriptModuleRef::ended() const { return handle_->object.expired(); }

std::string ScriptModuleRef::type_name() const {
  const auto object = handle_->object.lock();
  if (!object) return "";
  const auto name = object->type()->name();
  return name.has_value() ? name->name() : "script module";
}

std::shared_ptr<const void> ScriptModuleRef::for_each_tensor(const Visit& visit) const {
  auto object = handle_->object.lock();
  if (!object) return nullptr;
  const auto held = std::make_shared<const c10::intrusive_ptr<Object>>(std::move(object));
  Walk(visit).module(*held, "");
  return held;
}

}  // namespace memledger
