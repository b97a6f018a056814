#include "registry/core/name_table.h"

#include <new>

namespace memledger::core {
namespace {

constexpr NameId kOverflowId = 1;

}  // namespace

NameTable::NameTable() {
  for (std::string_view first : {std::string_view(""), kOverflow}) {
    names_.push_back(std::make_unique<const std::string>(first));
    ids_.emplace(*names_.back(), static_cast<NameId>(names_.size() - 1));
  }
}

NameId NameTable::intern(std::string_view name) noexcept {
  LockHolder hold(lock_);
  const auto known = ids_.find(name);
  if (known != ids_.end()) return known->second;
  if (names_.size() >= kMaxNames) return kOverflowId;
  try {
    names_.push_back(std::make_unique<const std::string>(name));
    const auto id = static_cast<NameId>(names_.size() - 1);
    try {
      ids_.emplace(*names_.back(), id);
    } catch (...) {
      names_.pop_back();
      throw;
    }
    return id;
  } catch (const std::bad_alloc&) {
    return kOverflowId;
  }
}

std::string_view NameTable::name(NameId id) const {
  if (id == 0) return {};
  LockHolder hold(lock_);
  return id < names_.size() ? std::string_view(*names_[id]) : std::string_view();
}

}  // namespace memledger::core
