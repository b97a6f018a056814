#pragma once

// One reader for each schema. What is wrong goes to the object's Fault.

#include "compare/json_object.h"
#include "compare/saved.h"

namespace memledger::compare {

void read_run_report(const JsonObject& file, Moment moment, SavedFile& saved);
void read_report(const JsonObject& file, SavedFile& saved);
void read_timeline(const JsonObject& file, Moment moment, SavedFile& saved);
void read_prediction(const JsonObject& file, SavedFile& saved);
void read_fit(const JsonObject& file, SavedFile& saved);
void read_line_profile(const JsonObject& file, SavedFile& saved);
void read_saved_tensors(const JsonObject& file, SavedFile& saved);
void read_saved_groups(const JsonObject& file, SavedFile& saved);

// Returns optimizer state of optimizer_state.
std::string in_words(std::string name);

}  // namespace memledger::compare
