#pragma once

// Where in the program a call stands, without a macro: a C++17 stand-in for std::source_location.
// Needs GCC 9 or Clang 9.
//
//   const auto line_of_call = [](memledger::SourceLocation where =
//                                    memledger::SourceLocation::current()) { return where.line();
//                                    };
//   std::cout << "line " << line_of_call() << '\n';

namespace memledger {

// The strings are the compiler's own. They live as long as the program, or as the shared library
// that made the location.
class SourceLocation {
 public:
  // Returns the location of the call; as a default argument, of the call of that function. Takes no
  // arguments.
  static constexpr SourceLocation current(const char* file = __builtin_FILE(),
                                          const char* function = __builtin_FUNCTION(),
                                          int line = __builtin_LINE()) noexcept {
    return SourceLocation(file, function, line);
  }

  // Makes an unknown location: empty strings, line 0.
  constexpr SourceLocation() noexcept = default;

  // Returns the path as it was given to the compiler.
  constexpr const char* file() const noexcept { return file_; }
  // Returns the bare name; operator() for a lambda.
  constexpr const char* function() const noexcept { return function_; }
  constexpr int line() const noexcept { return line_; }

 private:
  constexpr SourceLocation(const char* file, const char* function, int line) noexcept
      : file_(file), function_(function), line_(line) {}

  const char* file_ = "";
  const char* function_ = "";
  int line_ = 0;
};

}  // namespace memledger
