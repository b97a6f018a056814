#pragma once

#include <string>
#include <string_view>

// Places in a program as a line of the screen has room for.
namespace memledger {

// Returns the name of a function of C++ without what templates add to it, its parameters and its
// result: `Net::forward` of `at::Tensor Net::forward<float>(at::Tensor const&) const`. Names of
// Python's functions stay as they are.
std::string plain_function(std::string_view name);

// Returns train.cc:88 run of /home/me/train.cc:88 void run<float>(int), printable.
std::string short_place(const std::string& place);

}  // namespace memledger
