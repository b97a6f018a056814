// Compiled with NDEBUG whatever the build mode: see SEES_LIBTORCH_INLINES_COPTS.
#include "virtual_gpu/values/recordings.h"

#include <algorithm>
#include <atomic>

#include "virtual_gpu/values/values.h"

namespace memledger::virtual_gpu {
namespace {

std::atomic<int64_t> recordings{0};

void forget(const std::vector<OwnedPlace>& places) {
  for (const OwnedPlace& place : places) Shadows::get().forget(place.place());
}

bool fits(const Place& place, const at::Tensor& value) {
  return value.sizes() == at::IntArrayRef(place.sizes) && value.dtype() == place.dtype;
}

std::optional<uint64_t> read_number(uintptr_t address) {
  uint64_t number = 0;
  if (Shadows::get().read(&number, address, sizeof number) != 0) return {};
  return number;
}

}  // namespace

OwnedPlace::OwnedPlace(Place place)
    : place_(std::move(place)),
      owner_((c10::raw::weak_intrusive_ptr::incref(place_.storage),
              c10::weak_intrusive_ptr<c10::StorageImpl>::reclaim(place_.storage))) {}

std::optional<RandomNumbers> RecordedNumbers::now() const {
  const std::optional<uint64_t> known_seed = read_number(seed);
  const std::optional<uint64_t> known_offset = read_number(offset);
  if (!known_seed || !known_offset) return {};
  return RandomNumbers{*known_seed, *known_offset + added_offset};
}

std::shared_ptr<Recording> Recording::make() {
  std::shared_ptr<Recording> made(new Recording);
  const int64_t before = recordings.fetch_add(1, std::memory_order_relaxed);
  return before < kMost ? made : nullptr;
}

Recording::~Recording() { recordings.fetch_sub(1, std::memory_order_relaxed); }

std::vector<Value> Recording::compute() const {
  if (!arguments || info->failures.load(std::memory_order_relaxed) >= OperatorInfo::kMostFailures)
    return {};
  std::optional<RandomNumbers> drawn;
  if (info->distribution != Distribution::kNone) {
    if (numbers) drawn = numbers->now();
    if (!drawn) return {};
  }
  std::optional<Computation> computation = Computation::of(*info, *arguments);
  if (!computation) return {};
  const PlainCpu plain;
  std::vector<Value> values = computation->run(drawn ? &*drawn : nullptr);
  if (values.size() != results.size()) return {};
  for (size_t i = 0; i < values.size(); ++i) {
    if (!fits(results[i].place(), values[i].data)) return {};
  }
  return values;
}

std::vector<Place> Recording::launch() const {
  std::vector<Value> values;
  try {
    values = compute();
  } catch (...) {  // unknown, then
  }
  forget(written);
  if (values.empty()) return {};
  std::vector<Place> known;
  for (size_t i = 0; i < values.size(); ++i) {
    Shadows::get().set(results[i].place(), values[i]);
    known.push_back(results[i].place());
  }
  return known;
}

void NodeRecord::set(Kind kind, std::shared_ptr<const Recording> recording) {
  const std::lock_guard<std::mutex> lock(mutex_);
  kind_ = kind;
  recording_ = std::move(recording);
}

void NodeRecord::set_unseen(std::vector<OwnedPlace> places) {
  const std::lock_guard<std::mutex> lock(mutex_);
  unseen_ = std::move(places);
}

std::vector<Place> NodeRecord::launch() const {
  Kind kind = Kind::kAnything;
  std::shared_ptr<const Recording> recording;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    kind = kind_;
    recording = recording_;
    forget(unseen_);
  }
  if (kind == Kind::kAnything) Shadows::get().forget_all();
  if (kind == Kind::kRecording && recording) return recording->launch();
  return {};
}

UnseenWork& UnseenWork::get() {
  static auto* const work = new UnseenWork;  // others may outlive it
  return *work;
}

void UnseenWork::add(const std::vector<OwnedPlace>& places) {
  const std::lock_guard<std::mutex> lock(mutex_);
  pending_.insert(pending_.end(), places.begin(), places.end());
  all_.insert(all_.end(), places.begin(), places.end());
  if (all_.size() <= kMost) return;
  const auto ended = [](const OwnedPlace& place) { return place.has_ended(); };
  all_.erase(std::remove_if(all_.begin(), all_.end(), ended), all_.end());
  if (all_.size() <= kMost / 2) return;
  is_too_much_ = true;
  all_.clear();
}

std::vector<OwnedPlace> UnseenWork::take() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return std::exchange(pending_, {});
}

void UnseenWork::forget_all_of_it() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (is_too_much_) return Shadows::get().forget_all();
  forget(all_);
}

}  // namespace memledger::virtual_gpu
