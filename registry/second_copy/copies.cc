#include "registry/second_copy/copies.h"

#include <absl/base/config.h>
#include <c10/core/Allocator.h>

#include <atomic>
#include <cstdio>
#include <cstring>
#include <string>

#include "registry/libtorch/cuda_symbols.h"
#include "registry/libtorch/libtorch_version.h"
#include "registry/snapshot_data.h"
#include "registry/version.h"
#include "text/output.h"

// A hash of the headers whose classes cross from one copy to another; without it (a build by hand)
// only sizes are compared.
#if __has_include("registry/interface_hash.h")
#include "registry/interface_hash.h"
#else
#define MEMLEDGER_INTERFACE_HASH "unknown"
#endif

#if defined(ABSL_LTS_RELEASE_VERSION)
#define MEMLEDGER_ABSEIL MEMLEDGER_TEXT(ABSL_LTS_RELEASE_VERSION)
#else
#define MEMLEDGER_ABSEIL "head"
#endif
#define MEMLEDGER_TEXT_OF(value) #value
#define MEMLEDGER_TEXT(value) MEMLEDGER_TEXT_OF(value)

namespace memledger {
namespace {

// Sizes differ where the compiler's flags do (debug modes of the C++ library).
const char* version_text() {
  static const auto* const text = new std::string(
      "memledger " MEMLEDGER_VERSION
      " (LibTorch " MEMLEDGER_TEXT(TORCH_VERSION_MAJOR) "." MEMLEDGER_TEXT(
          TORCH_VERSION_MINOR) "." MEMLEDGER_TEXT(TORCH_VERSION_PATCH) ", Abseil " MEMLEDGER_ABSEIL
                                                                       ", "
                                                                       "interface"
                                                                       " " MEMLEDGER_INTERFACE_HASH
                                                                       " " +
      std::to_string(sizeof(StorageInfo)) + "/" + std::to_string(sizeof(Snapshot::Data)) + ")");
  return text->c_str();
}

// dynamic_cast crashes on classes compiled without type information.
bool has_type_information(const c10::Allocator& allocator) {
  const void* const* const functions = *reinterpret_cast<const void* const* const*>(&allocator);
  return functions[-1] != nullptr;
}

const CopyOffer* offer_in_front() {
  const c10::Allocator* const front = c10::GetAllocator(c10::DeviceType::CPU);
  if (front == nullptr || !has_type_information(*front)) return nullptr;
  const auto* const copy = dynamic_cast<const CopyInFront*>(front);
  return copy == nullptr ? nullptr : copy->memledger_copy();
}

const CopyOffer* offer_of(void* symbol) {
  return reinterpret_cast<decltype(&::memledger_copy)>(symbol)();
}

// Our own symbol returns null while we decide.
bool is_offer(void* symbol) { return offer_of(symbol) != nullptr; }

const CopyOffer* other_offer() {
  if (const CopyOffer* const front = offer_in_front()) return front;
  void* const symbol = find_symbol_of_loaded_library("memledger_copy", &is_offer);
  return symbol == nullptr ? nullptr : offer_of(symbol);
}

CopyOffer own_offer{};
std::atomic<const CopyDecision*> decided{nullptr};

const CopyDecision* decide() {
  auto* const decision = new CopyDecision;
  decision->watching = &own_offer;
  const CopyOffer* const other = other_offer();
  if (other == nullptr) return decision;
  decision->watching = other;
  if (std::strcmp(other->version, own_offer.version) == 0) {
    decision->role = CopyDecision::Role::kHandsOver;
    return decision;
  }
  decision->role = CopyDecision::Role::kRefused;
  decision->refusal = std::string("memledger: two versions in one process: ") + other->version +
                      " was here first and watches; " + own_offer.version + " stays off";
  tell({decision->refusal});
  return decision;
}

}  // namespace

const CopyDecision& decide_who_watches(Registry& registry, CopyServices& services) {
  static const CopyDecision* const decision = [&] {
    own_offer = {version_text(), &registry, &services};
    const CopyDecision* const decision = decide();
    decided.store(decision, std::memory_order_release);
    return decision;
  }();
  return *decision;
}

const CopyDecision* copy_decision() noexcept { return decided.load(std::memory_order_acquire); }

bool this_copy_is_refused() noexcept {
  const CopyDecision* const decision = copy_decision();
  return decision != nullptr && decision->role == CopyDecision::Role::kRefused;
}

const CopyOffer* first_copy() noexcept {
  const CopyDecision* const decision = copy_decision();
  return decision != nullptr && decision->role == CopyDecision::Role::kHandsOver
             ? decision->watching
             : nullptr;
}

}  // namespace memledger

const memledger::CopyOffer* memledger_copy() {
  const memledger::CopyDecision* const decision = memledger::copy_decision();
  return decision == nullptr ? nullptr : decision->watching;
}
