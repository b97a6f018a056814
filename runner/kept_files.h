#pragma once

#include <set>
#include <string>
#include <vector>

namespace memledger::runner {

// What programs that a dry run starts write over, replace or remove is kept aside
// (runner/inside/kept_files.h), and put back here.
class KeptFiles {
 public:
  // From now on. `scratch`: the folder of the dry run.
  explicit KeptFiles(std::string scratch);
  // Puts back what has not been yet.
  ~KeptFiles();
  KeptFiles(const KeptFiles&) = delete;
  KeptFiles& operator=(const KeptFiles&) = delete;

  // Puts all files back as they were, whenever no program runs. What cannot be put back stays where
  // it is kept: it is told on standard error.
  void restore();
  // Returns which were put back so far, sorted.
  std::vector<std::string> restored() const { return {restored_.begin(), restored_.end()}; }
  // True after restore() where a file could not be put back: the scratch folder may have it.
  bool has_lost() const { return has_lost_; }

 private:
  const std::string scratch_;
  std::set<std::string> restored_;
  bool has_lost_ = false;
};

}  // namespace memledger::runner
