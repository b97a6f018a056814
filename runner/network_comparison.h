#pragma once

#include <string>
#include <vector>

namespace memledger::runner {

struct NetworkOptions {
  std::string program;             // measure_models
  std::vector<std::string> names;  // only these networks; empty: all
  std::string gpu;                 // the virtual device; empty: the one of the real one's name
  std::string real_side;           // a virtual device in the real one's place; empty: none
  std::string address_log;         // where to write the addresses of cudaMalloc; empty: nowhere
  bool expect_equal = false;       // return 1 if a peak differs
};

// Returns the name of the virtual device that is the real one, or like it; throws
// std::runtime_error, with a sentence, where there is none.
std::string profile_name_of(const std::string& device_name, int64_t capacity_bytes = 0);

// Runs training steps of the built-in networks on this machine's GPU and on the virtual device of
// its name and prints the peaks of each phase side by side, the largest differences first. Returns
// 0 if both ran, whatever they say. Throws std::runtime_error, with a sentence, where one did not.
int compare_networks(const NetworkOptions& options);

}  // namespace memledger::runner
