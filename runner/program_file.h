#pragma once

#include <string>

namespace memledger::runner {

// Both texts are empty where all is well, or the program does not exist.
struct Fitness {
  std::string refusal;  // why it cannot be run, or never be watched: it is no program, is for
                        // another machine, or has LibTorch linked into it
  std::string note;     // for the caller: the program itself will not be watched
};

// The file that is meant by a program's name, as the shell finds it.
std::string find_program(const std::string& program);

// Whether it is a program that glibc's dynamic linker starts, not another one (musl's); not a
// script.
bool starts_with_dynamic_linker(const std::string& path);

// Whether it is started with rights that its caller does not have: set-user-ID, set-group-ID, file
// capabilities. The dynamic linker heeds few variables then.
bool gains_privileges(const std::string& path);

// Examines a program, which is looked up in PATH as the shell does.
Fitness check_program(const std::string& program);

}  // namespace memledger::runner
