#pragma once

// What `memledger fit` says: the largest value, what each value took, and what would free memory.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "prediction/fit.h"
#include "prediction/prediction.h"

namespace memledger::prediction {

// What another setting gives, measured by runs with it at the device's own capacity.
struct MeasuredRemedy {
  std::string setting;  // PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True
  Verdict verdict = Verdict::kNotKnown;
  std::optional<FitPeaks> peaks;
};

// What a change of the program would give, worked out from what was alive at the peak.
struct EstimatedRemedy {
  std::string change;
  std::string assumption;
  int64_t bytes = 0;
  bool is_upper_bound = false;  // at most this many
};

struct FitReport {
  std::string gpu;                     // as the user gave it
  std::vector<std::string> arguments;  // of the program, those with {}
  FitBounds bounds;
  std::vector<FitPoint> tried;  // in the order of the search
  FitOutcome outcome;
  // What remedies are compared with: the smallest value that does not fit.
  std::optional<FitPoint> remedied;
  std::vector<MeasuredRemedy> measured;
  std::vector<EstimatedRemedy> estimated;
  std::string note;     // what the reader should know of the largest value's figures; may be empty
  size_t runs = 0;      // of the program, all together
  int64_t seconds = 0;  // after which the search was ended; 0: it came to its end

  // The first argument with the value instead of {}: `--batch=32`; of a long one the value alone.
  std::string argument(int64_t value) const;
  // Returns whether the tensors of the next value would fit, but not with the fragments of
  // LibTorch's cache: then a few larger values may fit, too.
  bool do_fragments_decide() const;
  // The one line that says it: `the largest that fits is --batch=171: …`.
  std::string sentence() const;
  // Returns all of it on one line (docs/formats.md): {"schema":"memledger.fit/1", …}.
  std::string to_json() const;
  // Returns it as the command prints it, with a picture of bars in lines of at most `width`
  // characters, 60 or more.
  std::string to_text(size_t width) const;
  // Returns the picture of peak against value.
  std::string to_svg() const;
};

// Returns whether the remedy helps: the program fits with it, or takes less.
bool helps(const FitReport& report, const MeasuredRemedy& remedy);

// Returns what changes of the program would free of a peak, those that free something; nothing
// where the roles of what was alive then are not known.
std::vector<EstimatedRemedy> estimated_remedies(const MeasuredPeak& peak);

// What a process takes with one value on the device: at most its capacity if it fits. Where it does
// not, what it would take; `is_more`: that and more, as it was not measured.
struct ShownPeak {
  Interval process;
  bool is_more = false;
};
std::optional<ShownPeak> shown_peak(const FitPoint& point);

// Returns `text` with the value instead of each {}.
std::string with_value(const std::string& text, int64_t value);

// Returns the exit status of `memledger fit`: 0 found, 10 none fits, 12 the program failed, 2 it
// does not use the value.
int exit_status(const FitReport& report);

}  // namespace memledger::prediction
