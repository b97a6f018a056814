#include "registry/training_paused.h"

namespace memledger {
namespace {

thread_local int promises = 0;

}  // namespace

ScopedTrainingPaused::ScopedTrainingPaused(bool promised) noexcept : promised_(promised) {
  if (promised_) ++promises;
}
ScopedTrainingPaused::~ScopedTrainingPaused() {
  if (promised_) --promises;
}
bool ScopedTrainingPaused::is_promised() noexcept { return promises > 0; }

}  // namespace memledger
