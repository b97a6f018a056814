#include "registry/core/thread_context.h"

#include <cstring>
#include <type_traits>

namespace memledger::core {
namespace {

std::atomic<uint32_t> next_thread{1};
static_assert(std::is_trivially_destructible_v<ThreadContext> &&
              std::is_trivially_default_constructible_v<ThreadContext>);

}  // namespace

__thread ThreadContext thread_context;

void number_thread(ThreadContext& mine) noexcept {
  mine.thread = next_thread.fetch_add(1, std::memory_order_relaxed);
}

NameId intern_cached(ThreadContext& context, NameTable& names, const char* text) noexcept {
  ThreadContext::CachedName& cached =
      context.names[(reinterpret_cast<uintptr_t>(text) >> 3) % ThreadContext::kNameCache];
  if (cached.text == text && std::strcmp(cached.interned, text) == 0) return cached.id;
  const NameId id = names.intern(text);
  const std::string_view interned = names.name(id);
  // Overflow: the id is not of this text, so it is not cached.
  if (interned == text) {
    // NOLINTNEXTLINE(bugprone-suspicious-stringview-data-usage): equal to `text`, and so ended.
    cached = {text, interned.data(), id};
  }
  return id;
}

}  // namespace memledger::core
