#pragma once

#include <string>

namespace memledger::runner {

// How far a program can be watched. Both texts are empty where it can, or does not exist.
struct Fitness {
  std::string refusal;          // why it never can, nor what it starts
  std::string note;             // why the program itself cannot
  bool takes_libraries = true;  // by LD_PRELOAD
};

// The file that is meant by a program's name, as the shell finds it.
std::string find_program(const std::string& program);

// Whether it is started with rights that its caller does not have: set-user-ID, set-group-ID, file
// capabilities. The dynamic linker heeds few variables then.
bool gains_privileges(const std::string& path);

// Examines a program, which is looked up in PATH as the shell does.
Fitness check_program(const std::string& program);

}  // namespace memledger::runner
