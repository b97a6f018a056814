#include "registry/recording.h"

#include <c10/util/Exception.h>

#include <new>

#include "registry/core/ledger.h"
#include "registry/second_copy/copies.h"

namespace memledger {

struct Recorder::Mark : core::RecordingMark {};

Recorder::Recorder(size_t max_events) : mark_(std::make_unique<Mark>()) {
  try {
    copy_services().start_recording(max_events, *mark_);
  } catch (const std::bad_alloc&) {
    TORCH_CHECK(false, "memledger: no memory to record ", max_events,
                " births and deaths of storages");
  }
}

Recorder::~Recorder() { copy_services().stop_recording(); }

Recording Recorder::read() const {
  return copy_services().read_recording(*mark_, /*with_alive=*/true);
}

Recording Recorder::take() { return copy_services().read_recording(*mark_, /*with_alive=*/false); }

int64_t recording_clock_ns() noexcept { return core::steady_ns(); }

uint32_t this_thread_number() noexcept { return copy_services().this_thread_number(); }

}  // namespace memledger
